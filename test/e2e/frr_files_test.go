package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// frrFiles describes a network of routers that bring files of FRR's: for each node its
// files, path and content by turns.
func frrFiles(name, image, links string, nodes map[string][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\naddressing: {ipv4: 10.96.0.0/16}\ndefaults: {node: {image: %s}}\nlinks: %s\nnodes:\n", name, image, links)
	for node, files := range nodes {
		fmt.Fprintf(&b, "  %s:\n    files:\n", node)
		for i := 0; i < len(files); i += 2 {
			fmt.Fprintf(&b, "      %s: {content: %q}\n", files[i], files[i+1])
		}
	}
	return b.String()
}

// TestFRRFilesAsTheyAre runs files as labs for FRR on Debian have them, with what such
// a machine makes of them.
func TestFRRFilesAsTheyAre(t *testing.T) {
	t.Parallel()
	needFRR(t)
	frrFilesAsTheyAre(t, "host")
}

// TestFRRFilesUnderDebian13 does the same with FRR 10, whose mgmtd has a part of the
// configuration.
func TestFRRFilesUnderDebian13(t *testing.T) {
	t.Parallel()
	frrFilesAsTheyAre(t, testenv.Debian13(t))
}

func frrFilesAsTheyAre(t *testing.T, image string) {
	s := testenv.StartService(t, testenv.Options{})
	const (
		integrated, settings = "/etc/frr/frr.conf", "/etc/frr/daemons"
		quick                = " ip ospf network point-to-point\n ip ospf hello-interval 1\n ip ospf dead-interval 4\n"
	)
	babel := func(n string) []string {
		return []string{integrated, "interface lo\n ip address 192.0.2." + n + "/32\ninterface eth1\n babel wired\n babel hello-interval 500\nrouter babel\n network eth1\n redistribute ipv4 connected\n"}
	}
	fabric := func(n string) []string {
		return []string{integrated, "interface lo\n ip address 192.0.2." + n + "/32\n ip router openfabric 1\n openfabric passive\n" +
			"interface eth1\n ip router openfabric 1\nrouter openfabric 1\n net 49.0000.0000.000" + n + ".00\n"}
	}
	bgp := func(own, other, more string) string {
		return "int eth1\n ip addr 10.0.0." + own + "/30\nrou bgp 6500" + own + "\n no bgp ebgp-requires-policy\n neighbor 10.0.0." + other +
			" remote-as 6500" + other + "\n neighbor 10.0.0." + other + " bfd\n" + more
	}
	ospf := func(instance string) string {
		return "int eth1\n ip ospf " + instance + "area 0\n" + quick + "router ospf " + instance + "\n redistribute connected\n"
	}
	type shown struct{ node, command, want string }
	for _, c := range []struct {
		name  string
		links string
		nodes map[string][]string
		shows []shown
	}{
		{"statics", "[[r1, r2]]", map[string][]string{
			"r1": {"/etc/frr/zebra.conf", "hostname r1\ninterface eth1\n ip address 10.1.0.1/24\nip route 192.0.2.0/24 10.1.0.2\n"},
			"r2": {"/etc/frr/zebra.conf", "interface eth1\n ip address 10.1.0.2/24\n"},
		}, []shown{{"r1", "ip route show 192.0.2.0/24", "via 10.1.0.2"}}},
		{"babel", "[[r1, r2]]", map[string][]string{"r1": babel("1"), "r2": babel("2")},
			[]shown{{"r1", "ip route show 192.0.2.2", "proto babel"}}},
		{"fabric", "[[r1, r2]]", map[string][]string{"r1": fabric("1"), "r2": fabric("2")},
			[]shown{{"r1", "vtysh -c 'show openfabric neighbor'", "Up"}, {"r2", "ip route show 192.0.2.1", "proto openfabric"}}},
		// bgpd of FRR 10 ends where the address that it is to listen on is not there yet.
		{"bgp", "[[{node: r1, addresses: 10.0.0.1/30}, r2]]", map[string][]string{
			"r1": {
				settings, "bgpd=yes\nfrr_profile=\"datacenter\"\nbgpd_options=\"-A 127.0.0.1 -l 10.0.0.1\"\n",
				"/etc/frr/vtysh.conf", "service integrated-vtysh-config\n",
				integrated, bgp("1", "2", "ip route 192.0.2.0/24 blackhole\nrouter bgp 65001\n address-family ipv4 unicast\n  network 192.0.2.0/24\n"),
			},
			"r2": {integrated, bgp("2", "1", "")},
		}, []shown{
			{"r2", "ip route show 192.0.2.0/24", "via 10.0.0.1"},
			{"r2", "vtysh -c 'show bfd peers brief'", "up"},
			{"r1", "vtysh -c 'show bgp neighbors'", "Hold time is 9 seconds"},
			{"r1", "cat /proc/net/tcp", "0100000A:00B3"}, // listens on 10.0.0.1:179 alone
			{"r1", "vtysh -c 'show daemons' 2>&1 | grep -c -i pam", "0"},
			{"r2", "ip -4 address show eth1", "10.0.0.2/30"},
			{"r2", "ip -4 address show eth1 | grep -c inet", "1"},
		}},
		{"instances", "[[r1, r2], [r1, r3]]", map[string][]string{
			"r1": {
				settings, "ospfd=yes\nospfd_instances=1,2\n",
				"/etc/frr/ospfd-1.conf", "interface eth1\n ip ospf 1 area 0\n" + quick + "router ospf 1\n ospf router-id 192.0.2.1\n",
				"/etc/frr/ospfd-2.conf", "interface eth2\n ip ospf 2 area 0\n" + quick + "router ospf 2\n ospf router-id 192.0.2.1\n",
			},
			"r2": {integrated, ospf("")},
			"r3": {integrated, ospf("7 ")},
		}, []shown{
			{"r1", "vtysh -c 'show ip ospf 1 neighbor'", "Full"},
			{"r1", "vtysh -c 'show ip ospf 2 neighbor'", "Full"},
			{"r3", "vtysh -c 'show ip ospf 7 neighbor'", "Full"},
		}},
		{"disabled", "[[r1, r2]]", map[string][]string{
			"r1": {settings, "bgpd=no\n", integrated, "router bgp 65001\n"},
			"r2": {integrated, "ip route 198.51.100.0/24 blackhole\n"},
		}, []shown{
			{"r1", "pidof bgpd || echo none", "none"},
			// Where nothing of the like was asked for, vtysh takes a route.
			{"r1", "vtysh -c 'configure terminal' -c 'ip route 192.0.2.0/24 blackhole' && ip route show type blackhole", "192.0.2.0/24"},
			{"r2", "vtysh -c 'write memory' && grep -c 'ip route' /etc/frr/frr.conf", "1"},
		}},
	} {
		s.Must("up", write(t, c.name+".yaml", frrFiles(c.name, image, c.links, c.nodes)), "--wait=false")
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, want := range c.shows {
				var last string
				if !within(60*time.Second, func() bool {
					stdout, stderr, _ := s.Trellis("exec", c.name+"/"+want.node, "--", "sh", "-c", want.command)
					last = stdout + stderr
					return strings.Contains(last, want.want)
				}) {
					logs, _, _ := s.Trellis("logs", c.name+"/"+want.node)
					t.Errorf("%s: %s has no %q:\n%s\n%s", want.node, want.command, want.want, last, logs)
				}
			}
		})
	}
}

// What the installed FRR goes without is refused by line before anything is made, with
// a remedy that helps.
func TestDaemonsThatTheInstalledFRRLacks(t *testing.T) {
	t.Parallel()
	needFRR(t)
	if _, err := os.Stat("/usr/lib/frr/pim6d"); err == nil {
		t.Skip("this FRR has pim6d")
	}
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "pim6.yaml", "name: pim6\nnodes:\n  r1:\n    files:\n      /etc/frr/frr.conf: {content: \"interface eth1\\n ipv6 pim\\n\"}\n  r2: {}\nlinks: [[r1, r2]]\n")
	_, stderr, code := s.Trellis("validate", "--here", file)
	if code != 2 || !strings.Contains(stderr, `:4: node "r1" needs pim6d, which this machine does not have; the installed FRR goes without: give the node an image that has it`) {
		t.Errorf("validate --here: exit status %d: %s", code, stderr)
	}
	if _, stderr, code = s.Trellis("up", file); code == 0 || !strings.Contains(stderr, "pim6d, which this machine lacks: the installed FRR goes without") {
		t.Errorf("up: exit status %d: %s", code, stderr)
	}
	nothingLeft(t, s)
}

// within tries until something holds, and tells whether it has come to.
func within(limit time.Duration, holds func() bool) bool {
	for began := time.Now(); time.Since(began) < limit; time.Sleep(200 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	return false
}

// A line that FRR refuses is named at once, and routes that are complete beside it
// are enough.
func TestRefusedLineBesideCompleteRoutes(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	router := func(id, more string) []string {
		return []string{"/etc/frr/frr.conf", "int eth1\n ip ospf area 0\n ip ospf network point-to-point\n ip ospf hello-interval 1\n ip ospf dead-interval 4\n" + more +
			"int lo\n ip ospf area 0\nrouter ospf\n ospf router-id " + id + "\n"}
	}
	file := func(more string) string {
		return write(t, "warn.yaml", frrFiles("warn", "host", "[[r1, r2]]", map[string][]string{"r1": router("192.0.2.1", more), "r2": router("192.0.2.2", "")}))
	}
	const refused = "r1: vtysh refuses line 6 of /etc/frr/frr.conf: ip ospf aera 0"
	out := s.Must("up", file(" ip ospf aera 0\n ip ospf cots 3\n"), "--timeout", "60s")
	if !strings.Contains(out, "converged after") || !strings.Contains(out, refused) {
		t.Errorf("up says %s, and not that it has converged but for %s", out, refused)
	}
	if v := show(t, s, "warn"); v.State != "degraded" || !strings.Contains(v.Message, refused) {
		t.Errorf("show says %s: %s", v.State, v.Message)
	}
	// The mistake mended, and another made, while the sessions go on.
	before := show(t, s, "warn").pids()
	out = s.Must("up", file(" ip ospf cots 3\n"), "--timeout", "60s")
	if !strings.Contains(out, "refuses line 6 of /etc/frr/frr.conf: ip ospf cots 3") {
		t.Errorf("up says %s", out)
	}
	out = s.Must("up", file(" ip ospf cost 3\n"), "--timeout", "60s")
	if strings.Contains(out, "refuses") || !strings.Contains(out, "converged after") {
		t.Errorf("of a file without a mistake up says %s", out)
	}
	if got := strings.Count(s.Must("exec", "warn/r1", "--", "vtysh", "-c", "show ip ospf interface eth1"), "Cost: 3"); got != 1 {
		t.Error("the cost has not come")
	}
	if after := show(t, s, "warn").pids(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("nodes were replaced: %v, were %v", after, before)
	}
}
