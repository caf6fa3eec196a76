package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// TestGracefulRestart stops bgpd of a node and starts it again. Its neighbour keeps the
// routes meanwhile (RFC 4724), for a plain session it does not.
func TestGracefulRestart(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	var text strings.Builder
	text.WriteString("name: gr\nnodes:\n")
	for _, kind := range []string{"plain", "graceful"} {
		for i, peer := range []string{"2", "1"} {
			own, graceful := fmt.Sprint(i+1), ""
			if kind == "graceful" {
				graceful = " bgp graceful-restart\n bgp graceful-restart preserve-fw-state\n"
			}
			conf := fmt.Sprintf(`interface eth1
 ip address 10.0.0.%[1]s/30
ip route 192.0.2.%[1]s/32 blackhole
router bgp 6500%[1]s
 no bgp ebgp-requires-policy
%[3]s neighbor 10.0.0.%[2]s remote-as 6500%[2]s
 neighbor 10.0.0.%[2]s timers connect 1
 address-family ipv4 unicast
  network 192.0.2.%[1]s/32
`, own, peer, graceful)
			fmt.Fprintf(&text, "  %s%s: {files: {/etc/frr/frr.conf: {content: %q}}}\n", kind, own, conf)
		}
	}
	text.WriteString("links:\n  - {endpoints: [plain1, plain2], overlap: true}\n  - {endpoints: [graceful1, graceful2], overlap: true}\n")
	file := write(t, "gr.yaml", text.String())
	s.Must("up", file, "--wait=false")
	route := func(kind string) bool {
		return strings.Contains(tell(s, "gr/"+kind+"2", "ip route show 192.0.2.1"), "via 10.0.0.1")
	}
	state := func(node, daemon string) string {
		return daemonsOf(t, s, "gr/"+node)[daemon]
	}
	for _, kind := range []string{"plain", "graceful"} {
		eventually(t, 30*time.Second, kind+"2 has the route", func() bool { return route(kind) })
		if out := s.Must("stop", "gr/"+kind+"1", "bgpd"); out != "stopped bgpd in gr/"+kind+"1\n" {
			t.Errorf("stop says %q", out)
		}
		if bgpd, zebra := state(kind+"1", "bgpd"), state(kind+"1", "zebra"); bgpd != "stopped" || zebra != "running" {
			t.Errorf("bgpd is %s, zebra %s", bgpd, zebra)
		}
	}
	eventually(t, 10*time.Second, "the plain session's route goes", func() bool { return !route("plain") })
	if !route("graceful") {
		t.Error("the route of the graceful session has gone, too")
	}
	if v := show(t, s, "gr"); !strings.Contains(v.Message, "bgpd is stopped") {
		t.Errorf("the network is %s: %q", v.State, v.Message)
	}
	// It stays stopped, whatever else happens.
	s.Restart()
	s.Trellis("up", file, "--timeout", "2s")
	if got := state("plain1", "bgpd"); got != "stopped" {
		t.Errorf("bgpd is %s after a restart of the service and an up", got)
	}
	// Nor does a change of the configuration start it, which the others take.
	s.Must("up", write(t, "gr.yaml", strings.Replace(text.String(), `ip route 192.0.2.1/32 blackhole\n`, `ip route 192.0.2.1/32 blackhole\nip route 198.51.100.0/24 blackhole\n`, 1)), "--wait=false")
	eventually(t, 10*time.Second, "the new static route is there", func() bool { return strings.Contains(tell(s, "gr/plain1", "ip route"), "198.51.100.0/24") })
	if bgpd, staticd := state("plain1", "bgpd"), state("plain1", "staticd"); bgpd != "stopped" || staticd != "running" {
		t.Errorf("after a change bgpd is %s, staticd %s", bgpd, staticd)
	}
	for _, kind := range []string{"plain", "graceful"} {
		s.Must("start", "gr/"+kind+"1", "bgpd")
		eventually(t, 30*time.Second, "the session of "+kind+"1 is there again", func() bool {
			return route(kind) && state(kind+"1", "bgpd") == "running" &&
				strings.Contains(tell(s, "gr/"+kind+"1", "ip route show 192.0.2.2"), "via 10.0.0.2")
		})
	}
	// What FRR's daemons have told zebra, they tell the next one.
	s.Must("stop", "gr/plain1", "zebra")
	s.Must("start", "gr/plain1", "zebra")
	eventually(t, 30*time.Second, "the routes are there again", func() bool {
		return strings.Contains(tell(s, "gr/plain1", "vtysh -c 'show ip route'"), "B>* 192.0.2.2/32")
	})
	for _, c := range []struct{ verb, node, daemon, want string }{
		{"stop", "gr/plain1", "ripd", `has no service "ripd"`},
		{"start", "gr/plain1", "ripd", `has no service "ripd"`},
		{"stop", "gr/nobody", "bgpd", "nobody"},
		{"stop", "nowhere/a", "bgpd", "nowhere"},
		{"stop", "gr", "bgpd", "VNET/NODE"},
	} {
		if _, stderr, code := s.Trellis(c.verb, c.node, c.daemon); code == 0 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s %s %s: status %d, %s", c.verb, c.node, c.daemon, code, stderr)
		}
	}
	s.Must("down", "gr")
	nothingLeft(t, s)
}

// tell runs a command in a node, and gives what it prints, if it can be run yet.
func tell(s *testenv.Service, node, command string) string {
	out, _, _ := s.Trellis("exec", node, "--", "sh", "-c", command)
	return out
}

// daemonsOf gives the states of a node's daemons.
func daemonsOf(t *testing.T, s *testenv.Service, node string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, d := range decode[struct {
		Services []struct{ Name, State string }
	}](t, s.Must("show", node, "-o", "json")).Services {
		all[d.Name] = d.State
	}
	return all
}

// TestANodeThatGoesTellsItsPeers replaces and removes a node that has a BGP session over
// another: no carrier tells its peer, and the hold time is three minutes.
func TestANodeThatGoesTellsItsPeers(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	router := func(own, peer, motd string) string {
		return fmt.Sprintf("{files: {/etc/motd: {content: %q}, /etc/frr/frr.conf: {content: %q}}, env: {MOTD: %q}}", motd, fmt.Sprintf(`interface eth1
 ip address 10.0.%[1]s.1/30
ip route 10.0.%[2]s.0/30 10.0.%[1]s.2
router bgp 6500%[1]s
 no bgp ebgp-requires-policy
 neighbor 10.0.%[2]s.1 remote-as 6500%[2]s
 neighbor 10.0.%[2]s.1 ebgp-multihop
 neighbor 10.0.%[2]s.1 timers connect 1
`, own, peer), motd)
	}
	network := func(motd string, far bool) string {
		text := "name: bye\nnodes:\n  near: " + router("1", "2", "") + "\n  mid: {}\n"
		if far {
			text += "  far: " + router("2", "1", motd) + "\n"
		}
		text += "links:\n  - [near, {node: mid, addresses: 10.0.1.2/30}]\n"
		if far {
			text += "  - [far, {node: mid, addresses: 10.0.2.2/30}]\n"
		}
		return write(t, "bye.yaml", text)
	}
	neighbor := func() string { return tell(s, "bye/near", "vtysh -c 'show bgp neighbors 10.0.2.1'") }
	for _, c := range []struct {
		what  string
		after string
	}{
		{"replaced", network("changed", true)},
		{"removed", network("changed", false)},
	} {
		before := network("", true)
		s.Must("up", before, "--wait=false")
		eventually(t, 60*time.Second, "the session is up", func() bool { return strings.Contains(neighbor(), "BGP state = Established") })
		lost := dropped(neighbor())
		s.Must("up", c.after, "--wait=false")
		eventually(t, 30*time.Second, "the peer knows that its neighbour is "+c.what, func() bool { return dropped(neighbor()) == lost+1 })
	}
}

// dropped is how many sessions with a neighbour have ended, as bgpd tells.
func dropped(neighbor string) (n int) {
	_, text, _ := strings.Cut(neighbor, "; dropped ")
	_, _ = fmt.Sscan(text, &n)
	return n
}
