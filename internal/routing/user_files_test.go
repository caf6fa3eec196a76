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
	if got, want := services(d), "mgmtd zebra staticd ospfd ospf6d bgpd"; got != want {
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

// TestDaemonsOfUsersFiles starts what the user's files call for: blocks, in words of
// any length, Debian's list of daemons, and files of the daemons' own.
func TestDaemonsOfUsersFiles(t *testing.T) {
	const list, integrated = "/etc/frr/daemons", "/etc/frr/frr.conf"
	for name, c := range map[string]struct {
		files []string
		want  string // besides mgmtd, zebra and staticd
	}{
		"blocks":                    {[]string{integrated, "router ospf\n network 10.0.0.0/8 area 0\nrouter bgp 1\n"}, "ospfd bgpd vtysh"},
		"abbreviations":             {[]string{integrated, "rou bgp 65001\n neighbor 10.0.0.1 remote-as 2\nint eth1\n ip os area 0\nrou rip\n network eth1\n"}, "ospfd bgpd ripd vtysh"},
		"BFD of OSPF":               {[]string{integrated, "interface eth1\n ip ospf area 0\n ip ospf bfd\n"}, "ospfd bfdd vtysh"},
		"BFD of a neighbour":        {[]string{integrated, "router bgp 1\n neighbor 10.0.0.1 remote-as 2\n neighbor 10.0.0.1 bfd\n"}, "bgpd bfdd vtysh"},
		"BFD of a family":           {[]string{integrated, "router bgp 1\n address-family ipv4 unicast\n  neighbor 10.0.0.1 bfd profile x\n"}, "bgpd bfdd vtysh"},
		"only a word":               {[]string{integrated, "router bgp 1\n neighbor 10.0.0.1 description no bfd here\n no neighbor 10.0.0.2 bfd\n"}, "bgpd vtysh"},
		"OpenFabric and Babel":      {[]string{integrated, "interface eth1\n ip router openfabric 1\ninterface eth2\n babel wired\n"}, "babeld fabricd vtysh"},
		"the list":                  {[]string{list, "# pimd=yes is not meant\nbgpd=yes\nripd=no\nbfdd=\"yes\" # too\nsh=yes\n", integrated, "router ospf\n x\n"}, "ospfd bgpd bfdd vtysh"},
		"the list says no":          {[]string{list, "ospfd=no\n", integrated, "router ospf\n x\nrouter bgp 1\n"}, "bgpd vtysh"},
		"instances of the list":     {[]string{list, "ospfd=yes\nospfd_instances=1,2\n", "/etc/frr/ospfd-1.conf", "router ospf 1\n"}, "ospfd-1 ospfd-2"},
		"instances of the text":     {[]string{integrated, "router ospf 3\n x\nrouter ospf 7\n y\n"}, "ospfd-3 ospfd-7 vtysh"},
		"files of daemons' own":     {[]string{"/etc/frr/bgpd.conf", "router bgp 1\n"}, "bgpd"},
		"an integrated one as well": {[]string{"/etc/frr/bgpd.conf", "router bgp 1\n", integrated, "hostname a\n"}, "vtysh"},
	} {
		d := withFiles(t, vnet.Routing{Protocol: vnet.None}, c.files...)
		if got, want := services(d), strings.TrimSpace("mgmtd zebra staticd "+c.want); got != want {
			t.Errorf("%s: services %s, want %s", name, got, want)
		}
		for _, s := range d.Services {
			loaded := strings.HasSuffix(c.want, "vtysh") && !s.Loads
			if want := "/run/frr/" + s.Name + ".vty"; loaded && s.Ready != want || !loaded && s.Ready != "" || s.Loads != (s.Name == "vtysh") || s.Optional != (s.Name == "mgmtd") {
				t.Errorf("%s: %+v", name, s)
			}
		}
	}
}

// TestStaticRoutesInZebrasFile leaves staticd to read zebra's own file, which older
// labs have them in, and gives it one of its own elsewhere.
func TestStaticRoutesInZebrasFile(t *testing.T) {
	d, own := withAndOfFiles(t, vnet.Routing{Protocol: vnet.None}, "/etc/frr/zebra.conf", "ip route 10.0.0.0/8 10.0.0.1\nip rout 1.2.3.4/32 Null0\n")
	if fileOf(d, "/etc/frr/staticd.conf") != "" {
		t.Error("staticd does not read zebra's file")
	}
	// What zebra does not know staticd may, and the other way round.
	line := func(text string) string { return "No such command on config line 1: " + text + "\n" }
	logs := map[string]string{"zebra": line("ip route 10.0.0.0/8 10.0.0.1"), "staticd": ""}
	if got := d.Refused(own, logs); got != "" {
		t.Errorf("%q, of a line that staticd takes", got)
	}
	logs = map[string]string{"zebra": line("ip rout 1.2.3.4/32 Null0"), "staticd": line("ip rout 1.2.3.4/32 Null0")}
	if got, want := d.Refused(own, logs), "zebra refuses line 2 of /etc/frr/zebra.conf: ip rout 1.2.3.4/32 Null0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	d = withFiles(t, frrOSPFFast)
	if fileOf(d, "/etc/frr/staticd.conf") == "" {
		t.Error("staticd would read the generated file of zebra")
	}
}

// TestSettingsOfDebiansList has daemons run as /etc/frr/daemons says.
func TestSettingsOfDebiansList(t *testing.T) {
	d := withFiles(t, vnet.Routing{Protocol: vnet.None}, "/etc/frr/daemons", `bgpd=yes
frr_profile="datacenter"
frr_global_options="-S"
bgpd_options="-A 127.0.0.1 -l 192.0.2.1"
ospfd=yes
ospfd_instances=4
MAX_FDS=1024
watchfrr_options="--netns"
`)
	for _, c := range []struct{ service, want string }{
		{"bgpd", "--limit-fds 1024 -f /etc/frr/bgpd.conf -F datacenter -S -A 127.0.0.1 -l 192.0.2.1"},
		{"ospfd-4", "--limit-fds 1024 -n 4 -f /etc/frr/ospfd-4.conf -F datacenter -S"},
		{"zebra", "--limit-fds 1024 -r -K 120 -F datacenter -S"},
	} {
		i := slices.IndexFunc(d.Services, func(s Service) bool { return s.Name == c.service })
		if i < 0 || !strings.HasSuffix(strings.Join(d.Services[i].Argv, " "), " "+c.want) {
			t.Errorf("%s of %s: want its arguments to end with %s: %+v", c.service, services(d), c.want, d.Services)
		}
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
