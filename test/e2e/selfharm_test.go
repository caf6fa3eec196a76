package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"trellis/test/testenv"
)

// wire is a pair of nodes; the first one's root does what it likes.
const wire = `name: wire
routing: static
defaults: {node: {repair: %s}}
nodes: {a: {}, b: {}}
links:
  - {name: ab, endpoints: [{node: a, interface: eth1, addresses: [10.1.0.1/24, "fd01::1/64"]}, {node: b, interface: eth1, addresses: [10.1.0.2/24, "fd01::2/64"]}]}
`

// told gives what show says of the node a and of the link.
func told(t *testing.T, s *testenv.Service) (node struct {
	Name, State, Message string
	Restarts, Repairs    int
}, link shownLink) {
	t.Helper()
	v := decode[struct {
		Nodes []struct {
			Name, State, Message string
			Restarts, Repairs    int
		}
		Links []shownLink
	}](t, s.Must("show", "wire", "-o", "json"))
	return v.Nodes[0], v.Links[0]
}

// harm runs a command in the node a.
func harm(t *testing.T, s *testenv.Service, command string) { t.Helper(); sh(t, s, "wire/a", command) }

// reaches fails the test unless the two nodes come to reach each other.
func reaches(t *testing.T, s *testenv.Service) {
	t.Helper()
	eventually(t, 20*time.Second, "a reaches b", func() bool {
		for _, to := range []string{"10.1.0.2", "fd01::2"} {
			if _, _, code := s.Trellis("exec", "wire/a", "--", "ping", "-c1", "-W1", to); code != 0 {
				return false
			}
		}
		return true
	})
}

// TestSelfHarmIsRepaired has nodes do to their own interfaces what they can, each one
// thing, and nobody run `up`.
func TestSelfHarmIsRepaired(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "lan.yaml", `name: lan
routing: static
nodes: {a: {}, b: {}, c: {}, d: {}, e: {}, f: {}, g: {}}
links:
  - {name: seg, type: lan, endpoints: [a, b, c, d, e, f]}
  - [f, g]
`)
	s.Must("up", file)
	addr := sh(t, s, "lan/c", "ip -4 -br addr show eth1 | awk '{print $3}'")
	harms := []struct{ node, command, want string }{
		{"a", "ip link add mine type veth peer name other; ip link del eth1", "eth1 was removed from inside"},
		{"b", "ip link set eth1 down; ip link set eth1 name fast0", "eth1 was renamed from inside"},
		{"c", "ip addr add 192.0.2.1/32 dev eth1; ip addr del " + addr + " dev eth1", "eth1 has lost " + addr + " from inside"},
		{"d", "ip link set eth1 mtu 1400", "eth1 was given the MTU 1400 from inside, in place of 1500"},
		{"e", "ip link set eth1 address 02:00:00:00:99:99", "eth1 was given the MAC address 02:00:00:00:99:99 from inside"},
		{"g", "ip link del eth1", "eth1 was removed from inside"},
	}
	for _, h := range harms {
		sh(t, s, "lan/"+h.node, h.command)
	}
	eventually(t, 60*time.Second, "all is repaired, and told", func() bool {
		v := decode[struct {
			State string
			Nodes []struct {
				Name, State, Message string
				Repairs              int
			}
			Links []shownLink
		}](t, s.Must("show", "lan", "-o", "json"))
		for _, n := range v.Nodes {
			for _, h := range harms {
				if h.node == n.Name && (n.Repairs == 0 || n.State != "running" || !strings.HasPrefix(n.Message, "repaired ") || !strings.Contains(n.Message, ": "+h.want)) {
					return false
				}
			}
		}
		return v.State == "running" && v.Links[0].State == "up" && v.Links[1].State == "up"
	})
	s.Must("ping", "lan")
	// What is the tenant's own stays.
	sh(t, s, "lan/a", "ip link show mine")
	if out := sh(t, s, "lan/c", "ip -br addr show eth1"); !strings.Contains(out, "192.0.2.1/32") {
		t.Errorf("the tenant's own address is gone: %s", out)
	}
	s.Must("down", "lan")
	nothingLeft(t, s)
}

// TestSelfHarmIsShown leaves what a node does to itself where the description says so.
func TestSelfHarmIsShown(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "wire.yaml", fmt.Sprintf(wire, "never"))
	s.Must("up", file)
	harm(t, s, "ip link del eth1")
	const why = "eth1 was removed from inside"
	degraded := func() bool {
		n, l := told(t, s)
		return n.State == "degraded" && strings.Contains(n.Message, why) && n.Repairs == 0 && l.State == "down" && strings.Contains(l.Message, "a: "+why)
	}
	eventually(t, 20*time.Second, "it is told", degraded)
	eventually(t, 20*time.Second, "ls tells it", func() bool {
		out := s.Must("ls")
		return strings.Contains(out, "degraded") && strings.Contains(out, why)
	})
	if out := s.Must("show", "wire"); !strings.Contains(out, "degraded") || !strings.Contains(out, why) {
		t.Errorf("show says %s", out)
	}
	// Nor does a pass that is about something else undo it.
	if err := syscall.Kill(show(t, s, "wire").pid(t, "b"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "b runs again, and a is as it was", func() bool {
		state, restarts := show(t, s, "wire").node(t, "b")
		return state == "running" && restarts == 1 && degraded()
	})
	s.Must("up", file)
	if n, l := told(t, s); n.State != "running" || l.State != "up" {
		t.Errorf("after up, a is %s (%s), and the link %s", n.State, n.Message, l.State)
	}
	reaches(t, s)
	// It is not the setting that changes.
	s.Must("up", write(t, "wire.yaml", fmt.Sprintf(wire, "always")))
	harm(t, s, "ip link del eth1")
	eventually(t, 60*time.Second, "it is repaired where it is to be", func() bool { n, _ := told(t, s); return n.Repairs > 0 && n.State == "running" })
	s.Must("down", "wire")
	nothingLeft(t, s)
}

// TestAnInterfaceThatIsSetDownStaysDown: that is how people fail a link.
func TestAnInterfaceThatIsSetDownStaysDown(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "wire.yaml", fmt.Sprintf(wire, "always"))
	s.Must("up", file)
	harm(t, s, "ip link set eth1 down")
	down := func() bool {
		n, l := told(t, s)
		return n.State == "running" && strings.Contains(n.Message, "eth1 is down (set from inside)") && l.State == "down" && strings.Contains(l.Message, "a: eth1 is down")
	}
	eventually(t, 20*time.Second, "it is told", down)
	if err := syscall.Kill(show(t, s, "wire").pid(t, "b"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "b runs again, and the link is down", func() bool {
		state, restarts := show(t, s, "wire").node(t, "b")
		return state == "running" && restarts == 1 && down()
	})
	if out := sh(t, s, "wire/a", "ip -br link show eth1"); !strings.Contains(out, "DOWN") {
		t.Errorf("the interface was set up: %s", out)
	}
	// Repaired with another fault, it stays down all the same.
	harm(t, s, "ip addr del 10.1.0.1/24 dev eth1")
	eventually(t, 60*time.Second, "its address is back", func() bool {
		n, _ := told(t, s)
		return n.Repairs > 0 && down()
	})
	harm(t, s, "ip link set eth1 up")
	eventually(t, 20*time.Second, "the link is told to be up", func() bool { n, l := told(t, s); return n.State == "running" && l.State == "up" })
	reaches(t, s)
	harm(t, s, "ip link set eth1 down")
	eventually(t, 20*time.Second, "it is told again", down)
	s.Must("up", file)
	if n, l := told(t, s); n.State != "running" || l.State != "up" {
		t.Errorf("after up, a is %s (%s), and the link %s", n.State, n.Message, l.State)
	}
	s.Must("down", "wire")
	nothingLeft(t, s)
}

// TestRepairsAreLimitedInRate has a node delete its interface whenever it has one.
func TestRepairsAreLimitedInRate(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "wire.yaml", fmt.Sprintf(wire, "always")))
	before := show(t, s, "wire")
	begin := time.Now()
	harm(t, s, "(while :; do ip link del eth1 2>/dev/null; done) >/dev/null 2>&1 </dev/null &")
	eventually(t, 60*time.Second, "it was repaired three times", func() bool { n, _ := told(t, s); return n.Repairs >= 3 })
	// Pauses of 1, 2 and 4 s, and never less.
	if took := time.Since(begin); took < 6*time.Second {
		t.Errorf("three repairs within %v", took)
	}
	eventually(t, 20*time.Second, "the node is degraded amid it, and the link down", func() bool {
		n, l := told(t, s)
		return n.State == "degraded" && l.State == "down"
	})
	if v := show(t, s, "wire"); v.pid(t, "b") != before.pid(t, "b") || v.pid(t, "a") != before.pid(t, "a") {
		t.Error("a node was restarted")
	}
	s.Must("down", "wire")
	nothingLeft(t, s)
}

// TestANodeOutOfMemory has the kernel kill a node's init for want of memory.
func TestANodeOutOfMemory(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			testenv.NeedCommand(t, runtime)
			s := testenv.StartService(t, testenv.Options{Args: []string{"--runtime", runtime}})
			s.Must("up", write(t, "wire.yaml", strings.Replace(fmt.Sprintf(wire, "always"), "{a: {}", "{a: {memory: 32MiB, disk: 128MiB}", 1)))
			before := show(t, s, "wire").pid(t, "a")
			// So that it is the kernel's first choice, which looks at what a process holds
			// itself; files are nobody's.
			if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", before), []byte("1000"), 0); err != nil {
				t.Fatal(err)
			}
			// Ended with the node, its status says nothing.
			_, _, _ = s.Trellis("exec", "--timeout", "30s", "wire/a", "--", "sh", "-c", "head -c 100000000 /dev/zero > /fill")
			eventually(t, 30*time.Second, "the node runs again, and it is told why", func() bool {
				n, l := told(t, s)
				return n.State == "running" && n.Restarts == 1 && n.Message == "its init was killed for memory: the node's limit is 32MiB" && l.State == "up"
			})
			if after := show(t, s, "wire").pid(t, "a"); after == before {
				t.Error("the node's init is the same")
			}
			reaches(t, s)
			s.Must("down", "wire")
			nothingLeft(t, s)
		})
	}
}

// TestADaemonOutOfMemory names the kernel's reason for the end of a daemon.
func TestADaemonOutOfMemory(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "wire.yaml", strings.Replace(fmt.Sprintf(wire, "always"), "{a: {}", `{a: {memory: 48MiB, cmd: "sleep 2; exec tail /dev/zero"}`, 1)))
	eventually(t, 60*time.Second, "it is told", func() bool {
		n, _ := told(t, s)
		return n.State == "degraded" && strings.Contains(n.Message, "command was killed for memory")
	})
	s.Must("down", "wire")
	nothingLeft(t, s)
}

// TestARouterIsRepaired: its daemon takes the new interface for the old one.
func TestARouterIsRepaired(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "routed.yaml", routed))
	before := show(t, s, "routed")
	sh(t, s, "routed/b", "ip link del eth1")
	eventually(t, 60*time.Second, "it is repaired", func() bool {
		v := show(t, s, "routed")
		return v.State == "running" && v.device(t, "b", "eth1") != "" && strings.Contains(v.Nodes[1].Message, "repaired once: eth1 was removed from inside")
	})
	eventually(t, 60*time.Second, "everything is reachable again", func() bool {
		_, _, code := s.Trellis("ping", "routed")
		return code == 0
	})
	after := show(t, s, "routed")
	if after.pid(t, "b") != before.pid(t, "b") {
		t.Error("the node was restarted")
	}
	if out := testenv.Run(t, s.NS.Command("tc", "qdisc", "show", "dev", after.device(t, "b", "eth1"))); !strings.Contains(out, "100Mbit") {
		t.Errorf("the new interface's link has the qdisc %s", out)
	}
	s.Must("down", "routed")
	nothingLeft(t, s)
}
