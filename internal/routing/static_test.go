package routing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"trellis/internal/vnet"
)

var staticRouting = vnet.Routing{Protocol: vnet.Static}

// randomNetwork describes a connected or unconnected network of up to 14 nodes
// with point-to-point links, LANs, parallel links, links that are down, costs,
// and nodes without routing.
func randomNetwork(rng *rand.Rand) *described {
	d := describe(staticRouting)
	n := 2 + rng.IntN(13)
	for i := range n {
		d.Nodes = append(d.Nodes, vnet.Node{Name: fmt.Sprintf("n%d", i)})
		if rng.IntN(8) == 0 {
			d.Nodes[i].Routing.Protocol = vnet.None
		}
	}
	for range rng.IntN(2*n + 1) {
		ends := 2
		kind := vnet.PointToPoint
		if rng.IntN(4) == 0 {
			kind, ends = vnet.LAN, 1+rng.IntN(min(n, 5))
		}
		var nodes []string
		for _, i := range rng.Perm(n)[:ends] {
			nodes = append(nodes, d.Nodes[i].Name)
		}
		if kind == vnet.LAN && rng.IntN(3) == 0 { // by two interfaces
			nodes = append(nodes, nodes[rng.IntN(ends)])
		}
		l := d.link(kind, nodes...)
		l.Down = rng.IntN(10) == 0
		for i := range l.Endpoints {
			if rng.IntN(3) == 0 {
				l.Endpoints[i].Cost = 1 + rng.IntN(3)
			}
			l.Endpoints[i].Down = kind == vnet.LAN && rng.IntN(8) == 0
		}
	}
	return d
}

// hop is a way from one node straight to another.
type hop struct {
	to   string
	cost int
	via  NextHop
}

// hopsOf lists the ways out of a node in one family: the plain definition that
// the graph of newGraph must come to.
func hopsOf(v *vnet.VNet, node string, f family) []hop {
	var hops []hop
	for _, l := range v.Links {
		for _, a := range l.Endpoints {
			for _, b := range l.Endpoints {
				if l.Down || a.Down || b.Down || a.Node != node || b.Node == node {
					continue
				}
				if _, gateway, ok := facing(&a, &b, f); ok {
					hops = append(hops, hop{b.Node, max(a.Cost, 1), NextHop{gateway, a.Name}})
				}
			}
		}
	}
	return hops
}

// distances gives the cost from every node to the node to (Bellman-Ford).
func distances(v *vnet.VNet, to string, f family) map[string]int {
	const far = math.MaxInt / 2
	dist := map[string]int{}
	for _, n := range v.Nodes {
		dist[n.Name] = far
	}
	dist[to] = 0
	for range v.Nodes {
		for _, n := range v.Nodes {
			for _, h := range hopsOf(v, n.Name, f) {
				if h.to != to && v.Node(h.to).Routing.Protocol == vnet.None {
					continue // passes nothing on
				}
				dist[n.Name] = min(dist[n.Name], h.cost+dist[h.to])
			}
		}
	}
	for n, d := range dist {
		if d >= far {
			delete(dist, n)
		}
	}
	return dist
}

// TestStaticAgainstDefinition compares the routes to loopbacks with those of a
// plain all-pairs computation, equal-cost next hops included.
func TestStaticAgainstDefinition(t *testing.T) {
	for seed := range uint64(100) {
		v := randomNetwork(rand.New(rand.NewPCG(seed, 1))).complete(t)
		configs := generate(t, v)
		for _, from := range v.Nodes {
			got := map[netip.Prefix][]NextHop{}
			for _, r := range configs[from.Name].Routes {
				got[r.Prefix] = r.Hops
			}
			if from.Routing.Protocol == vnet.None {
				if len(got) != 0 {
					t.Fatalf("seed %d: %s has routes, and no routing", seed, from.Name)
				}
				continue
			}
			for _, to := range v.Nodes {
				if to.Name == from.Name {
					continue
				}
				for _, f := range []family{ipv4, ipv6} {
					want := wantedHops(v, from.Name, to.Name, f)
					a := loopback(&to, f)
					if !reflect.DeepEqual(got[netip.PrefixFrom(a, a.BitLen())], want) {
						t.Fatalf("seed %d: %s to %s %s: got %v, want %v", seed, from.Name, to.Name, f,
							got[netip.PrefixFrom(a, a.BitLen())], want)
					}
				}
			}
		}
	}
}

// wantedHops gives the sorted first hops of all shortest paths.
func wantedHops(v *vnet.VNet, from, to string, f family) []NextHop {
	dist := distances(v, to, f)
	var hops []NextHop
	for _, h := range hopsOf(v, from, f) {
		if h.to != to && v.Node(h.to).Routing.Protocol == vnet.None {
			continue
		}
		if d, ok := dist[h.to]; ok && h.cost+d == dist[from] {
			hops = append(hops, h.via)
		}
	}
	slices.SortFunc(hops, compareHops)
	return slices.Compact(hops)
}

// TestStaticForwards follows every choice of next hop from every static node to
// every address of the network, loopbacks and interfaces alike: each must arrive,
// and none may come back to where it was.
func TestStaticForwards(t *testing.T) {
	for seed := range uint64(200) {
		v := randomNetwork(rand.New(rand.NewPCG(seed, 2))).complete(t)
		w := newWalker(v, generate(t, v))
		for _, n := range v.Nodes {
			if n.Routing.Protocol != vnet.Static {
				continue
			}
			for _, r := range w.routes[n.Name] {
				for a := range w.owner {
					if r.Prefix.Contains(a) {
						if err := w.walk(n.Name, a, map[string]bool{}); err != nil {
							t.Fatalf("seed %d: from %s: %v", seed, n.Name, err)
						}
					}
				}
			}
		}
	}
}

// walker forwards as the nodes' kernels do.
type walker struct {
	routes map[string][]Route
	owner  map[netip.Addr]string          // of every address
	links  map[string]map[netip.Addr]bool // addresses that a node reaches on its links
}

func newWalker(v *vnet.VNet, configs map[string]Config) *walker {
	w := &walker{routes: map[string][]Route{}, owner: map[netip.Addr]string{}, links: map[string]map[netip.Addr]bool{}}
	for _, n := range v.Nodes {
		w.routes[n.Name] = configs[n.Name].Routes
		w.links[n.Name] = map[netip.Addr]bool{}
		for _, a := range n.Loopbacks {
			w.owner[a] = n.Name
		}
	}
	for _, l := range v.Links {
		if l.Down {
			continue
		}
		for _, a := range l.Endpoints {
			if a.Down {
				continue
			}
			for _, p := range a.Addrs {
				w.owner[p.Addr()] = a.Node
				for _, b := range l.Endpoints {
					if b.Down {
						continue
					}
					w.links[b.Node][p.Addr()] = true
				}
			}
		}
	}
	return w
}

// walk follows a packet for an address along every path that it may take.
func (w *walker) walk(at string, to netip.Addr, seen map[string]bool) error {
	if w.owner[to] == at || w.links[at][to] {
		return nil
	}
	if seen[at] {
		return fmt.Errorf("a packet for %s comes back to %s", to, at)
	}
	seen[at] = true
	defer delete(seen, at)
	for _, r := range w.routes[at] {
		if !r.Prefix.Contains(to) {
			continue
		}
		for _, h := range r.Hops {
			if !w.links[at][h.Gateway] {
				return fmt.Errorf("%s sends packets for %s to %s, which is on none of its links", at, to, h.Gateway)
			}
			if err := w.walk(w.owner[h.Gateway], to, seen); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%s has no route to %s", at, to)
}

// TestStaticSquare pins the two equal paths across a square.
func TestStaticSquare(t *testing.T) {
	v := describe(staticRouting, ring(4)...).complete(t)
	routes := generate(t, v)["r1"].Routes
	if !slices.IsSortedFunc(routes, func(a, b Route) int { return comparePrefixes(a.Prefix, b.Prefix) }) {
		t.Error("the routes are not sorted by prefix")
	}
	far := netip.PrefixFrom(loopback(v.Node("r3"), ipv4), 32)
	i := slices.IndexFunc(routes, func(r Route) bool { return r.Prefix == far })
	if i < 0 || len(routes[i].Hops) != 2 || routes[i].Hops[0].Interface != "eth1" || routes[i].Hops[1].Interface != "eth2" {
		t.Errorf("want two paths from r1 to r3, have %v", routes)
	}
	// Three loopbacks and two far links in each family.
	if len(routes) != 10 {
		t.Errorf("want 10 routes on r1, have %d: %v", len(routes), routes)
	}
}

// TestStaticLarge computes the largest network at hand within its bounds.
func TestStaticLarge(t *testing.T) {
	v := zoo(t, "Kdl", staticRouting).complete(t)
	began := time.Now()
	configs := generate(t, v)
	took := time.Since(began)
	total := 0
	for _, c := range configs {
		total += len(c.Routes)
	}
	if want := 2 * len(v.Nodes) * (len(v.Nodes) - 1); total != want {
		t.Errorf("%d routes, want %d: one to each other loopback", total, want)
	}
	t.Logf("%d nodes, %d links, %d routes: %v", len(v.Nodes), len(v.Links), total, took.Round(time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestStaticRefusesTooMany holds the bound on memory.
func TestStaticRefusesTooMany(t *testing.T) {
	d := describe(staticRouting)
	for i := range 1700 {
		d.Nodes = append(d.Nodes, vnet.Node{Name: fmt.Sprintf("n%d", i)})
	}
	if _, err := Generate(d.complete(t), Load{}); err == nil {
		t.Error("5.8 million routes were not refused")
	}
}

func BenchmarkStaticKdl(b *testing.B) {
	v := zoo(b, "Kdl", staticRouting).complete(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Generate(v, Load{}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestStaticAnycast: an address that several nodes have is routed to the nearest, and
// by none that has it; so is a subnet of several links.
func TestStaticAnycast(t *testing.T) {
	d := describe(vnet.Routing{Protocol: vnet.Static}, "a-b", "b-c", "c-d")
	shared := netip.MustParseAddr("192.0.2.9")
	for _, n := range []string{"a", "d"} {
		d.Node(n).Anycast = []netip.Addr{shared}
	}
	for _, n := range []string{"a", "d"} {
		l := d.link(vnet.PointToPoint, n, "h"+n)
		l.Overlap = true
		d.Node("h" + n).Kind = vnet.Host
		for i := range l.Endpoints {
			l.Endpoints[i].Addrs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 1, byte(i + 1)}), 24)}
		}
	}
	routes, err := staticRoutes(d.complete(t))
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]string{"a": "", "b": "eth1", "c": "eth2", "d": ""} {
		for _, prefix := range []netip.Prefix{netip.PrefixFrom(shared, 32), netip.MustParsePrefix("192.168.1.0/24")} {
			got := ""
			for _, r := range routes[node] {
				if r.Prefix == prefix {
					got += r.Hops[0].Interface
				}
			}
			if got != want {
				t.Errorf("%s has the route to %v by %q, want %q", node, prefix, got, want)
			}
		}
	}
}
