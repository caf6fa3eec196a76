package routing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"trellis/internal/vnet"
)

// Bounds of computed routing.
const (
	// MaxStaticRoutes bounds the routes to loopbacks that one network may need,
	// over all of its static nodes and both families. A route takes about 60
	// bytes here and several hundred in the kernel.
	MaxStaticRoutes = 5 << 20
	// MaxLinkRoutes bounds the routes to the subnets of links in the same way.
	// Networks that need more get only those to subnets with hosts: their routers
	// reach one another by their loopbacks alone.
	MaxLinkRoutes = 1 << 18
	// maxPaths is the largest number of equal-cost next hops of one route.
	maxPaths = 64
)

// staticRoutes computes the routes of every static node over the shortest paths
// of the whole network: to the loopbacks of all other nodes, and to the subnets
// of all links that it is not itself on. Nodes of every protocol but none pass
// packets on.
func staticRoutes(v *vnet.VNet) (map[string][]Route, error) {
	var sources []int32
	for i := range v.Nodes {
		if v.Nodes[i].Routing.Protocol == vnet.Static {
			sources = append(sources, int32(i))
		}
	}
	if len(sources) == 0 {
		return nil, nil
	}
	loopbacks := 0
	for i := range v.Nodes {
		loopbacks += len(v.Nodes[i].Loopbacks) + len(v.Nodes[i].Anycast)
	}
	if total := len(sources) * loopbacks; total > MaxStaticRoutes {
		return nil, fmt.Errorf("static routing of %d nodes needs %d routes, and at most %d fit: choose a routing protocol, or only one address family",
			len(sources), total, MaxStaticRoutes)
	}
	graphs := [2]*graph{newGraph(v, ipv4), newGraph(v, ipv6)}
	links := len(sources)*(len(graphs[0].subnets)+len(graphs[1].subnets)) <= MaxLinkRoutes
	var tables [2]*table
	for i, f := range []family{ipv4, ipv6} {
		tables[i] = newTable(v, f, graphs[i], links)
	}
	routes := make(map[string][]Route, len(sources))
	for _, s := range sources {
		list := make([]Route, 0, len(tables[0].destinations)+len(tables[1].destinations))
		for _, t := range tables {
			list = t.routes(s, list)
		}
		routes[v.Nodes[s].Name] = slices.Clip(list)
	}
	return routes, nil
}

// table computes the routes of one address family, node after node.
type table struct {
	paths        *paths
	destinations []destination // sorted by prefix
}

// destination is a prefix that a vertex of the graph stands for.
type destination struct {
	prefix netip.Prefix
	vertex int32
}

func newTable(v *vnet.VNet, f family, g *graph, links bool) *table {
	t := &table{paths: newPaths(g)}
	for i := range v.Nodes {
		for _, a := range announced(&v.Nodes[i], f) {
			t.destinations = append(t.destinations, destination{netip.PrefixFrom(a, a.BitLen()), int32(i)})
		}
	}
	for i, p := range g.subnets {
		if (links || g.hasHosts[i]) && !p.Addr().IsLinkLocalUnicast() {
			t.destinations = append(t.destinations, destination{p, int32(g.nodes + i)})
		}
	}
	slices.SortFunc(t.destinations, func(a, b destination) int {
		return cmp.Or(comparePrefixes(a.prefix, b.prefix), cmp.Compare(a.vertex, b.vertex))
	})
	return t
}

// routes appends the routes of the source node to list, sorted by prefix.
func (t *table) routes(source int32, list []Route) []Route {
	t.paths.run(source)
	for from := 0; from < len(t.destinations); {
		to := from + 1
		for to < len(t.destinations) && t.destinations[to].prefix == t.destinations[from].prefix {
			to++
		}
		if d := t.nearest(source, t.destinations[from:to]); d != nil {
			if hops := t.paths.via(d.vertex); hops != nil {
				list = append(list, Route{d.prefix, hops})
			}
		}
		from = to
	}
	return list
}

// nearest gives, of several destinations with one prefix, the nearest from the source,
// the first of those; nil where the source has the prefix itself.
func (t *table) nearest(source int32, same []destination) *destination {
	best := &same[0]
	for i := range same {
		d := &same[i]
		if _, connected := t.paths.direct[d.vertex]; connected || d.vertex == source {
			return nil
		}
		if t.paths.dist[d.vertex] < t.paths.dist[best.vertex] {
			best = d
		}
	}
	return best
}

// comparePrefixes orders by family, address and length.
func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func compareHops(a, b NextHop) int {
	return cmp.Or(cmp.Compare(a.Interface, b.Interface), a.Gateway.Compare(b.Gateway))
}
