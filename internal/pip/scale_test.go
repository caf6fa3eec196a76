package pip

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/plan"
	"trellis/internal/vnet"
)

// grid describes side × side nodes, each linked to its neighbours.
func grid(side int, protocol vnet.Protocol) *vnet.VNet {
	v := &vnet.VNet{Name: "grid", Routing: vnet.Routing{Protocol: protocol}}
	name := func(x, y int) string { return fmt.Sprintf("n%d-%d", x, y) }
	link := func(a, b string) {
		v.Links = append(v.Links, vnet.Link{Type: vnet.PointToPoint, Endpoints: []vnet.Interface{{Node: a}, {Node: b}}})
	}
	for y := range side {
		for x := range side {
			v.Nodes = append(v.Nodes, vnet.Node{Name: name(x, y)})
			if x > 0 {
				link(name(x-1, y), name(x, y))
			}
			if y > 0 {
				link(name(x, y-1), name(x, y))
			}
		}
	}
	return v
}

// TestPlanningIsLinear completes, validates and compiles networks of growing size:
// ten times the nodes take about ten times as long, and not a hundred times.
func TestPlanningIsLinear(t *testing.T) {
	took := map[int]time.Duration{} // of the processor
	for _, side := range []int{10, 32, 100} {
		began, used := time.Now(), processorTime(t)
		v, err := complete(grid(side, vnet.None))
		if err != nil {
			t.Fatal(err)
		}
		completed := time.Now()
		a := plan.Allocation{
			IDBase: 1 << 20, Generation: 1, Placement: plan.AllOn(v, "h"), Hosts: map[string]plan.Host{"h": {Instance: "trellis", MTU: 1500}},
		}
		if err := plan.FitLinks(v, a.Placement, a.Hosts); err != nil {
			t.Fatal(err)
		}
		plans, err := plan.Compile(v, a)
		if err != nil || len(plans["h"].Nodes) != side*side {
			t.Fatalf("%d nodes: %v", side*side, err)
		}
		compiled := time.Now()
		if same, err := equal(plans["h"], plans["h"]); err != nil || !same {
			t.Fatal(err)
		}
		took[side] = processorTime(t) - used
		t.Logf("%5d nodes: complete %v, compile %v, compare %v", side*side,
			completed.Sub(began).Round(time.Millisecond), compiled.Sub(completed).Round(time.Millisecond), time.Since(compiled).Round(time.Millisecond))
	}
	if ratio := float64(took[100]) / float64(took[32]); ratio > 50 {
		t.Errorf("ten times the nodes take %.0f times as long", ratio)
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkPlanStatic(b *testing.B) {
	v, err := complete(grid(27, vnet.Static))
	if err != nil {
		b.Fatal(err)
	}
	a := plan.Allocation{Placement: plan.AllOn(v, "h"), Hosts: map[string]plan.Host{"h": {Instance: "trellis", MTU: 1500}}}
	for b.Loop() {
		if _, err := plan.Compile(v, a); err != nil {
			b.Fatal(err)
		}
	}
}

// TestReshapeIsAsCompiled changes links that are joined here, go on elsewhere, or
// are a LAN: the plans become what is compiled of the changed network, and say what
// of them differs. Where routes are computed from links, carriers are left to the
// compiler.
func TestReshapeIsAsCompiled(t *testing.T) {
	rate, delay, down, up := uint64(5e6), 10*time.Millisecond, true, false
	for _, protocol := range []vnet.Protocol{vnet.Static, vnet.OSPF, vnet.None} {
		v, a := threeNodes(t, protocol)
		for _, c := range []struct {
			name, link string
			change     LinkChange
			scoped     string // hosts whose nodes' ports change
			everywhere bool   // the network falls apart, or comes together
		}{
			{"slower", "ab", LinkChange{Rate: &rate, Delay: &delay}, "h1", false},
			{"slower", "bc", LinkChange{Rate: &rate, Delay: &delay}, "h1 h2", false},
			{"slower", "lan", LinkChange{Rate: &rate, Delay: &delay}, "h1 h2", false},
			{"up as it was", "ab", LinkChange{Down: &up}, "h1", false},
			{"one end down", "lan", LinkChange{Node: "b", Down: &down}, "h1 h2", false},
			{"another end slower", "lan", LinkChange{Node: "c", Rate: &rate}, "h1 h2", false},
			{"down", "lan", LinkChange{Down: &down}, "h1 h2", false},
			{"one end up", "lan", LinkChange{Node: "a", Down: &up}, "h1 h2", false},
			{"up", "lan", LinkChange{Down: &up}, "h1 h2", false},
			{"down", "lan", LinkChange{Down: &down}, "h1 h2", false},
			{"down", "ab", LinkChange{Down: &down}, "h1", true},
			{"up and faster", "ab", LinkChange{Rate: new(uint64), Down: &up}, "h1", true},
			{"down", "bc", LinkChange{Down: &down}, "h1 h2", true},
		} {
			what := fmt.Sprintf("%s: %s %s", protocol, c.link, c.name)
			patched, err := plan.Compile(v, a)
			if err != nil {
				t.Fatal(err)
			}
			before := carriers(v.Link(c.link))
			if err := c.change.apply(v.Link(c.link)); err != nil {
				t.Fatal(err)
			}
			compiled, err := plan.Compile(v, a)
			if err != nil {
				t.Fatal(err)
			}
			compilers := protocol == vnet.Static && !slices.Equal(carriers(v.Link(c.link)), before)
			if ok := plan.Reshape(patched, v, c.link, a.Placement); ok == compilers {
				t.Errorf("%s: done is %v", what, ok)
			}
			if compilers {
				continue
			}
			for host, p := range patched {
				switch unconfined := c.everywhere && protocol == vnet.OSPF; {
				case (p.Scope == nil) != unconfined:
					t.Errorf("%s on %s: changes are confined to %q", what, host, p.Scope)
				case !unconfined && (len(p.Scope) > 0) != strings.Contains(c.scoped, host):
					t.Errorf("%s on %s: changes are confined to %q", what, host, p.Scope)
				}
				p.Scope = nil
				if same, err := equal(p, compiled[host]); err != nil || !same {
					t.Errorf("%s on %s differs from what is compiled (%v)", what, host, err)
				}
			}
		}
	}
}

// carriers says which ends of a link are down.
func carriers(l *vnet.Link) []bool {
	down := make([]bool, len(l.Endpoints))
	for i := range down {
		down[i] = l.EndDown(i)
	}
	return down
}

// threeNodes is a network of a, b and c, in a row and on a LAN, with c on another
// host.
func threeNodes(t *testing.T, protocol vnet.Protocol) (*vnet.VNet, plan.Allocation) {
	t.Helper()
	v := &vnet.VNet{Name: "x", Routing: vnet.Routing{Protocol: protocol}}
	for _, n := range []string{"a", "b", "c"} {
		v.Nodes = append(v.Nodes, vnet.Node{Name: n})
	}
	v.Links = []vnet.Link{
		{Name: "ab", Type: vnet.PointToPoint, Endpoints: []vnet.Interface{{Node: "a"}, {Node: "b"}}},
		{Name: "bc", Type: vnet.PointToPoint, Endpoints: []vnet.Interface{{Node: "b"}, {Node: "c"}}},
		{Name: "lan", Type: vnet.LAN, Endpoints: []vnet.Interface{{Node: "a"}, {Node: "b"}, {Node: "c"}}},
	}
	v, err := complete(v)
	if err != nil {
		t.Fatal(err)
	}
	a := plan.Allocation{
		Generation: 1, Placement: map[string]string{"a": "h1", "b": "h1", "c": "h2"}, Keys: map[string]uint32{},
		Hosts: map[string]plan.Host{
			"h1": {Instance: "trellis", MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}},
			"h2": {Instance: "trellis", MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
		},
	}
	for i, span := range plan.Spans(v, a.Placement) {
		a.Keys[span] = uint32(i + 1)
	}
	return v, a
}
