package e2e

import (
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// carriersOn says of each end of a link whether its node sees a carrier: "a:1 b:0".
func carriersOn(t *testing.T, s client, v shown, link string) string {
	t.Helper()
	var out []string
	for _, e := range v.link(t, link).Ends {
		carrier := ":1"
		if strings.Contains(s.Must("exec", v.Name+"/"+e.Node, "--", "ip", "link", "show", "dev", e.Name), "NO-CARRIER") {
			carrier = ":0"
		}
		out = append(out, e.Node+carrier)
	}
	return strings.Join(out, " ")
}

// pings reports whether an address answers a node.
func pings(s client, node, addr string) bool {
	_, _, code := s.Trellis("exec", node, "--", "ping", "-c2", "-i0.2", "-W1", addr)
	return code == 0
}

// TestEndOfALANIsPulled takes the carrier of single ends away, of one whose sending is
// shaped too, which goes by a pair of devices of its own; the others keep theirs.
func TestEndOfALANIsPulled(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	text := `name: ends
nodes: {a: {}, b: {}, c: {}}
links:
  - {name: wire, endpoints: [a, b]}
  - name: seg
    type: lan
    endpoints:
      - {node: a, addresses: [192.0.2.1/24]}
      - {node: b, addresses: [192.0.2.2/24]}
      - {node: c, addresses: [192.0.2.3/24], rate: 10mbit}
`
	s.Must("up", write(t, "ends.yaml", text))
	v := show(t, s, "ends")
	holds := func(when, carriers, state, message string, reachable map[string]bool) {
		t.Helper()
		if got := carriersOn(t, s, v, "seg"); got != carriers {
			t.Errorf("%s: carriers %s, want %s", when, got, carriers)
		}
		if l := show(t, s, "ends").link(t, "seg"); l.State != state || l.Message != message {
			t.Errorf("%s: the link is %s (%q), want %s (%q)", when, l.State, l.Message, state, message)
		}
		for addr, want := range reachable {
			if got := pings(s, "ends/a", addr); got != want {
				t.Errorf("%s: %s answers a: %v, want %v", when, addr, got, want)
			}
		}
	}
	const b, c = "192.0.2.2", "192.0.2.3"
	holds("as made", "a:1 b:1 c:1", "up", "", map[string]bool{b: true, c: true})
	s.Must("link", "set", "ends", "seg", "b", "--down")
	holds("b pulled", "a:1 b:0 c:1", "up", "pulled: b:eth2", map[string]bool{b: false, c: true})
	if out := s.Must("show", "ends"); !strings.Contains(out, "b:eth2(down)") {
		t.Errorf("show says\n%s", out)
	}
	s.Kill9()
	s.Restart()
	eventually(t, 30*time.Second, "the network is running again", func() bool { return show(t, s, "ends").State == "running" })
	holds("after a restart of the service", "a:1 b:0 c:1", "up", "pulled: b:eth2", map[string]bool{b: false, c: true})
	s.Must("restart", "ends/b")
	holds("after a restart of the node", "a:1 b:0 c:1", "up", "pulled: b:eth2", map[string]bool{b: false, c: true})
	s.Must("link", "set", "ends", "seg", "c:eth1", "--down")
	holds("c pulled too", "a:1 b:0 c:0", "down", "pulled: b:eth2, c:eth1", map[string]bool{b: false, c: false})
	s.Must("link", "set", "ends", "seg", "b", "--up")
	holds("b plugged", "a:1 b:1 c:0", "up", "pulled: c:eth1", map[string]bool{b: true, c: false})
	s.Must("link", "set", "ends", "seg", "--up")
	holds("all plugged", "a:1 b:1 c:1", "up", "", map[string]bool{b: true, c: true})

	for _, c := range []struct{ link, end, what string }{
		{"wire", "a", "point-to-point"}, {"seg", "nobody", "not on link seg"}, {"seg", "a:eth9", "a:eth2"},
	} {
		if _, stderr, code := s.Trellis("link", "set", "ends", c.link, c.end, "--down"); code != 1 || !strings.Contains(stderr, c.what) {
			t.Errorf("%s at %s: exit status %d, %s", c.link, c.end, code, stderr)
		}
	}
	// The file may say it as well.
	s.Must("up", write(t, "ends.yaml", strings.Replace(text, "{node: b,", "{node: b, state: down,", 1)))
	holds("pulled by the file", "a:1 b:0 c:1", "up", "pulled: b:eth2", map[string]bool{b: false, c: true})
}

// TestSeveralEndsOfANode has routers on a LAN by two interfaces each, which are ends of
// their own, and rehearses a loop: spanning tree finds it, and blocks one of two ends.
func TestSeveralEndsOfANode(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "twice.yaml", `name: twice
routing: ospf
nodes:
  a: {}
  b: {}
  c: {}
  sw: {routing: none, repair: never, addressing: none}
links:
  - {name: seg, type: lan, endpoints: [a, a, b, "b:wan0", c]}
  - {name: ring, type: lan, addressing: none, endpoints: [sw, sw, c]}
`)
	s.Must("up", file)
	s.Must("ping", "twice")
	v := show(t, s, "twice")
	seen := map[string]bool{}
	for _, e := range v.link(t, "seg").Ends {
		addr, _, _ := strings.Cut(e.Addrs[0], "/")
		if seen[addr] || seen[e.Node+":"+e.Name] {
			t.Errorf("%s:%s has what another end has: %v", e.Node, e.Name, e.Addrs)
		}
		seen[addr], seen[e.Node+":"+e.Name] = true, true
		if !pings(s, "twice/c", addr) {
			t.Errorf("%s:%s does not answer at %s", e.Node, e.Name, addr)
		}
	}
	if out := s.Must("up", "--dry-run", file); !strings.Contains(out, "othing") {
		t.Errorf("a second up would do\n%s", out)
	}
	if out := s.Must("exec", "twice/a", "--", "vtysh", "-c", "show ip ospf neighbor"); strings.Contains(out, v.loopback(t, "a").String()) || !strings.Contains(out, v.loopback(t, "c").String()) {
		t.Errorf("the neighbours of a are\n%s", out)
	}

	// Each of them is an end to pull.
	if _, stderr, code := s.Trellis("link", "set", "twice", "seg", "a", "--down"); code != 1 || !strings.Contains(stderr, "a:eth1 and a:eth2") {
		t.Errorf("which end of a? exit status %d, %s", code, stderr)
	}
	s.Must("link", "set", "twice", "seg", "a:eth2", "--down")
	if got := carriersOn(t, s, v, "seg"); got != "a:1 a:0 b:1 b:1 c:1" {
		t.Errorf("carriers with a:eth2 pulled: %s", got)
	}
	s.Must("ping", "twice") // routing goes by a:eth1
	s.Must("link", "set", "twice", "seg", "a:eth2", "--up")

	s.Must("exec", "twice/sw", "--", "sh", "-c", "ip link add br0 type bridge stp_state 1 && ip link set eth1 master br0 && ip link set eth2 master br0 && ip link set br0 up")
	eventually(t, 20*time.Second, "one end blocks", func() bool {
		out := s.Must("exec", "twice/sw", "--", "ip", "-d", "link", "show", "master", "br0")
		return strings.Count(out, "state blocking") == 1
	})
}
