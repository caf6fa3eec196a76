package routing

import (
	"slices"
	"strings"
	"testing"

	"trellis/internal/vnet"
)

// withFiles gives the daemons of node a of the sample network when the user
// places files there: path, content, path, content, …
func withFiles(t *testing.T, r vnet.Routing, files ...string) Daemons {
	t.Helper()
	d, _ := withAndOfFiles(t, r, files...)
	return d
}

// effective is what [Reload] compares: with those of the files that configure daemons.
func effective(t *testing.T, r vnet.Routing, files ...string) Daemons {
	t.Helper()
	d, own := withAndOfFiles(t, r, files...)
	return d.With(own)
}

func withAndOfFiles(t *testing.T, r vnet.Routing, files ...string) (Daemons, []vnet.File) {
	t.Helper()
	d := sample(r)
	n := d.Node("a")
	for i := 0; i < len(files); i += 2 {
		n.Files = append(n.Files, vnet.File{Path: files[i], Content: []byte(files[i+1])})
	}
	slices.SortFunc(n.Files, func(a, b vnet.File) int { return strings.Compare(a.Path, b.Path) })
	return d.generate(t)["a"].Daemons, n.Files
}

var (
	frrOSPFFast  = vnet.Routing{Protocol: vnet.OSPF, Daemon: vnet.FRR, Timers: vnet.TimersFast}
	birdOSPFFast = vnet.Routing{Protocol: vnet.OSPF, Daemon: vnet.BIRD, Timers: vnet.TimersFast}
)

func services(d Daemons) string {
	var names []string
	for _, s := range d.Services {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

func fileOf(d Daemons, path string) string {
	for _, f := range d.Files {
		if f.Path == path {
			return string(f.Content)
		}
	}
	return ""
}

// TestOwnIntegratedFile replaces the whole configuration, and deals the user's
// out to the daemons that it calls for.
func TestOwnIntegratedFile(t *testing.T) {
	compareGolden(t, "user-frr-conf", withFiles(t, frrOSPFFast, "/etc/frr/frr.conf", `frr defaults traditional
!
interface eth1
 ip ospf area 7
!
ip route 192.0.2.0/24 blackhole
router ospf
 redistribute static
!
router bgp 65000
 address-family ipv4 unicast
  network 192.0.2.0/24
 exit-address-family
exit
interface eth1
 ip ospf cost 3
end
`))
}

// TestExtraFile adds to the generated configuration, in the context it names.
func TestExtraFile(t *testing.T) {
	compareGolden(t, "user-frr-extra", withFiles(t, frrOSPFFast, "/etc/frr/extra.conf", `router ospf
 default-information originate always
interface eth1
 ip ospf priority 3
ip route 192.0.2.0/24 blackhole
`))
	d := withFiles(t, birdOSPFFast, "/etc/bird/extra.conf", "protocol static { ipv4; }\n")
	if !strings.HasSuffix(fileOf(d, birdConf), "include \"/etc/bird/extra.conf\";\n") {
		t.Errorf("bird.conf does not include the user's file:\n%s", fileOf(d, birdConf))
	}
}

// TestOwnDaemonFile leaves out the generated file that the user supplies, and
// starts the daemon that it is for.
func TestOwnDaemonFile(t *testing.T) {
	d := withFiles(t, frrOSPFFast, "/etc/frr/bgpd.conf", "router bgp 65000\n", "/etc/frr/ospfd.conf", "router ospf\n")
	if got, want := services(d), "zebra ospfd ospf6d bgpd"; got != want {
		t.Errorf("services %s, want %s", got, want)
	}
	for _, path := range []string{"/etc/frr/bgpd.conf", "/etc/frr/ospfd.conf"} {
		if fileOf(d, path) != "" {
			t.Errorf("%s is generated over the user's", path)
		}
	}
	if fileOf(d, "/etc/frr/ospf6d.conf") == "" {
		t.Error("ospf6d.conf is missing")
	}
	d = withFiles(t, birdOSPFFast, birdConf, "router id 1.1.1.1;\n")
	if len(d.Files) != 0 || services(d) != "bird" {
		t.Errorf("with an own bird.conf: files %v, services %s", d.Files, services(d))
	}
}

// TestDaemonsFile starts what Debian's list of daemons enables.
func TestDaemonsFile(t *testing.T) {
	d := withFiles(t, frrOSPFFast, "/etc/frr/daemons", "# pimd=yes is not meant\nbgpd=yes\nripd=no\nbfdd=yes\nsh=yes\n",
		"/etc/frr/frr.conf", "router ospf\n network 10.0.0.0/8 area 0\n")
	if got, want := services(d), "zebra ospfd bgpd bfdd"; got != want {
		t.Errorf("services %s, want %s", got, want)
	}
}

// TestImpossibleRouting names what no daemon can do.
func TestImpossibleRouting(t *testing.T) {
	v := sample(vnet.Routing{Protocol: vnet.OSPF}).complete(t)
	v.Nodes[0].Routing = vnet.Routing{Protocol: vnet.ISIS, Daemon: vnet.BIRD}
	if _, err := Generate(v, Load{}); err == nil || !strings.Contains(err.Error(), "BIRD has no IS-IS") {
		t.Errorf("IS-IS under BIRD: %v", err)
	}
}
