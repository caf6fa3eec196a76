package deploy

import (
	"fmt"
	"strings"
	"testing"

	"trellis/internal/vnet"
)

// degrees gives how many links each node has, and the number of pieces that the
// network is in.
func degrees(v *vnet.VNet) (of map[string]int, pieces int) {
	of = map[string]int{}
	parent := map[string]string{}
	var find func(string) string
	find = func(s string) string {
		if parent[s] != s {
			return find(parent[s])
		}
		return s
	}
	for _, n := range v.Nodes {
		of[n.Name], parent[n.Name] = 0, n.Name
	}
	for _, l := range v.Links {
		a, b := l.Endpoints[0].Node, l.Endpoints[1].Node
		of[a]++
		of[b]++
		parent[find(a)] = find(b)
	}
	for n := range parent {
		if find(n) == n {
			pieces++
		}
	}
	return of, pieces
}

func TestTopologies(t *testing.T) {
	ospf := vnet.Routing{Protocol: vnet.OSPF, Daemon: vnet.FRR, Timers: vnet.TimersFast}
	for _, tc := range []struct {
		name         string
		make         func() (*vnet.VNet, error)
		nodes, links int
		degree       map[string]int
	}{
		{"ring", func() (*vnet.VNet, error) { return Ring(5, ospf) }, 5, 5, map[string]int{"r1": 2, "r5": 2}},
		{"tree", func() (*vnet.VNet, error) { return Tree(7, ospf) }, 7, 6, map[string]int{"r1": 2, "r2": 3, "r7": 1}},
		{"tree of one", func() (*vnet.VNet, error) { return Tree(1, ospf) }, 1, 0, map[string]int{"r1": 0}},
		{"grid", func() (*vnet.VNet, error) { return Grid(3, 4, ospf) }, 12, 17, map[string]int{"r1": 2, "r2": 3, "r6": 4, "r12": 2}},
		{"column", func() (*vnet.VNet, error) { return Grid(4, 1, ospf) }, 4, 3, map[string]int{"r1": 1, "r2": 2}},
		{"hosts on a mesh", func() (*vnet.VNet, error) { return Hosts(20, 6, Mesh, ospf) }, 26, 35, map[string]int{"r1": 9, "r6": 8, "h1": 1, "h20": 1}},
		{"hosts on a ring", func() (*vnet.VNet, error) { return Hosts(6, 3, CoreRing, ospf) }, 9, 9, map[string]int{"r1": 4, "h6": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, err := tc.make()
			if err != nil {
				t.Fatal(err)
			}
			of, pieces := degrees(v)
			if len(v.Nodes) != tc.nodes || len(v.Links) != tc.links || pieces != 1 {
				t.Errorf("%d nodes, %d links in %d pieces; want %d, %d in 1", len(v.Nodes), len(v.Links), pieces, tc.nodes, tc.links)
			}
			for n, d := range tc.degree {
				if of[n] != d {
					t.Errorf("%s has %d links, want %d", n, of[n], d)
				}
			}
			for _, n := range v.Nodes {
				want := ospf
				if strings.HasPrefix(n.Name, "h") {
					want = vnet.Routing{Protocol: vnet.None}
				}
				if n.Routing.Protocol != want.Protocol {
					t.Errorf("%s routes by %s, want %s", n.Name, n.Routing.Protocol, want.Protocol)
				}
			}
		})
	}
}

func TestTopologiesRefuse(t *testing.T) {
	none := vnet.Routing{Protocol: vnet.None}
	for name, make := range map[string]func() (*vnet.VNet, error){
		"ring of 2":           func() (*vnet.VNet, error) { return Ring(2, none) },
		"tree of 0":           func() (*vnet.VNet, error) { return Tree(0, none) },
		"grid of 0 rows":      func() (*vnet.VNet, error) { return Grid(0, 3, none) },
		"no router":           func() (*vnet.VNet, error) { return Hosts(3, 0, Mesh, none) },
		"a ring of 2 routers": func() (*vnet.VNet, error) { return Hosts(3, 2, CoreRing, none) },
		"a mesh too large":    func() (*vnet.VNet, error) { return Hosts(3, 65, Mesh, none) },
		"an unknown core":     func() (*vnet.VNet, error) { return Hosts(3, 5, "star", none) },
		"more than fits":      func() (*vnet.VNet, error) { return Ring(vnet.MaxNodes+1, none) },
	} {
		if v, err := make(); err == nil {
			t.Errorf("%s is accepted: %d nodes", name, len(v.Nodes))
		}
	}
}

func TestParseRouting(t *testing.T) {
	for s, want := range map[string]vnet.Routing{
		"none":              {Protocol: vnet.None},
		"static":            {Protocol: vnet.Static},
		"ospf":              {Protocol: vnet.OSPF, Daemon: vnet.FRR, Timers: vnet.TimersFast},
		"bgp/bird":          {Protocol: vnet.BGP, Daemon: vnet.BIRD, Timers: vnet.TimersFast},
		"isis/frr/default":  {Protocol: vnet.ISIS, Daemon: vnet.FRR, Timers: vnet.TimersDefault},
		"eigrp":             {},
		"ospf/quagga":       {},
		"ospf/frr/slow":     {},
		"ospf/frr/fast/odd": {},
		"static/frr":        {},
		"":                  {},
	} {
		got, err := ParseRouting(s)
		if want == (vnet.Routing{}) {
			if err == nil {
				t.Errorf("%q is accepted as %+v", s, got)
			}
		} else if err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", s, got, err, want)
		}
	}
}

func TestRerouteKeepsNamesAndAddresses(t *testing.T) {
	v, err := Hosts(4, 3, Mesh, vnet.Routing{Protocol: vnet.OSPF, Timers: vnet.TimersFast})
	if err != nil {
		t.Fatal(err)
	}
	links := fmt.Sprint(v.Links)
	static, err := Reroute(v, vnet.Routing{Protocol: vnet.Static})
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range static.Nodes {
		if n.Routing.Protocol != vnet.Static || n.Loopbacks[0] != v.Nodes[i].Loopbacks[0] {
			t.Errorf("%s routes by %s and has the loopback %s", n.Name, n.Routing.Protocol, n.Loopbacks[0])
		}
	}
	if fmt.Sprint(static.Links) != links {
		t.Error("the links differ")
	}
	if v.Routing.Protocol != vnet.OSPF || v.Nodes[3].Routing.Protocol != vnet.None {
		t.Error("the network that was given has changed")
	}
	if got := describeRouting(v); got != "ospf/frr/fast (4 of 7 nodes differ)" {
		t.Errorf("its routing is described as %q", got)
	}
}

func TestWithLinkAddsOneAndLeavesTheOthers(t *testing.T) {
	static := vnet.Routing{Protocol: vnet.Static}
	for _, tc := range []struct {
		name     string
		make     func() (*vnet.VNet, error)
		from, to string
	}{
		{"ring: not the last, a neighbour of the first", func() (*vnet.VNet, error) { return Ring(6, static) }, "r1", "r5"},
		{"tree", func() (*vnet.VNet, error) { return Tree(7, static) }, "r1", "r7"},
		{"mesh: a second one beside the first", func() (*vnet.VNet, error) { return Ring(3, static) }, "r1", "r3"},
	} {
		v, err := tc.make()
		if err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(v)
		more, err := withLink(v)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if fmt.Sprint(v) != before {
			t.Errorf("%s: the network that was given has changed", tc.name)
		}
		last := more.Links[len(more.Links)-1]
		if len(more.Links) != len(v.Links)+1 || last.Endpoints[0].Node != tc.from || last.Endpoints[1].Node != tc.to {
			t.Errorf("%s: %d links, the last %s - %s; want %d, %s - %s", tc.name, len(more.Links),
				last.Endpoints[0].Node, last.Endpoints[1].Node, len(v.Links)+1, tc.from, tc.to)
		}
		if fmt.Sprint(more.Links[:len(v.Links)]) != fmt.Sprint(v.Links) {
			t.Errorf("%s: the other links have changed", tc.name)
		}
	}
	one, err := Tree(1, static)
	if err != nil {
		t.Fatal(err)
	}
	if more, err := withLink(one); more != nil || err != nil {
		t.Errorf("a single node gets a link: %v, %v", more, err)
	}
}
