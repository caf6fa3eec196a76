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
	MaxStaticRoutes = 4 << 20
	// maxExact is the largest number of routes to links, over all static nodes
	// and both families, that are kept one per link. Above, each node's are
	// merged.
	maxExact = 1 << 18
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
		loopbacks += len(v.Nodes[i].Loopbacks)
	}
	if total := len(sources) * loopbacks; total > MaxStaticRoutes {
		return nil, fmt.Errorf("static routing of %d nodes needs %d routes, and at most %d fit: choose a routing protocol, or only one address family",
			len(sources), total, MaxStaticRoutes)
	}
	graphs := [2]*graph{newGraph(v, ipv4), newGraph(v, ipv6)}
	merge := len(sources)*(len(graphs[0].subnets)+len(graphs[1].subnets)) > maxExact
	var tables [2]*table
	for i, f := range []family{ipv4, ipv6} {
		tables[i] = newTable(v, f, graphs[i], merge)
	}
	routes := make(map[string][]Route, len(sources))
	for _, s := range sources {
		var list []Route
		for _, t := range tables {
			list = t.routes(s, list)
		}
		routes[v.Nodes[s].Name] = slices.Clip(list)
	}
	return routes, nil
}

// table computes the routes of one address family, node after node.
type table struct {
	paths *paths
	// loopbacks and subnets are the destinations, each sorted by prefix.
	loopbacks, subnets []destination
	merge              bool
	scratch            []Route
}

// destination is a prefix that a vertex of the graph stands for.
type destination struct {
	prefix netip.Prefix
	vertex int32
}

func newTable(v *vnet.VNet, f family, g *graph, merge bool) *table {
	t := &table{paths: newPaths(g)}
	for i := range v.Nodes {
		if a := loopback(&v.Nodes[i], f); a.IsValid() {
			t.loopbacks = append(t.loopbacks, destination{netip.PrefixFrom(a, a.BitLen()), int32(i)})
		}
	}
	for i, p := range g.subnets {
		if !p.Addr().IsLinkLocalUnicast() {
			t.subnets = append(t.subnets, destination{p, int32(g.nodes + i)})
		}
	}
	for _, list := range [][]destination{t.loopbacks, t.subnets} {
		slices.SortFunc(list, func(a, b destination) int {
			return cmp.Or(comparePrefixes(a.prefix, b.prefix), cmp.Compare(a.vertex, b.vertex))
		})
	}
	// Merging is sound only where no subnet lies within another.
	t.merge = merge && disjoint(t.subnets)
	return t
}

// routes appends the routes of the source node to list, sorted by prefix.
func (t *table) routes(source int32, list []Route) []Route {
	t.paths.run(source)
	subnets := t.scratch[:0]
	for i, d := range t.subnets {
		if i > 0 && d.prefix == t.subnets[i-1].prefix {
			continue // on two links; the first one wins
		}
		_, connected := t.paths.direct[d.vertex]
		hops := t.paths.via(d.vertex)
		switch {
		case t.merge:
			subnets = pushMerged(subnets, Route{d.prefix, hops}, connected)
		case !connected && hops != nil:
			subnets = append(subnets, Route{d.prefix, hops})
		}
	}
	t.scratch = subnets
	for _, d := range t.loopbacks {
		hops := t.paths.via(d.vertex)
		if hops == nil || d.vertex == source {
			continue
		}
		for len(subnets) > 0 && comparePrefixes(subnets[0].Prefix, d.prefix) < 0 {
			list = appendUsable(list, subnets[0])
			subnets = subnets[1:]
		}
		list = append(list, Route{d.prefix, hops})
	}
	for _, r := range subnets {
		list = appendUsable(list, r)
	}
	return list
}

// appendUsable appends r unless it leads nowhere.
func appendUsable(list []Route, r Route) []Route {
	if len(r.Hops) == 0 || &r.Hops[0] == &onLink[0] {
		return list
	}
	return append(list, r)
}

// onLink stands for the next hops of a connected subnet while routes are merged.
// The kernel's own route to that subnet is longer than any merged one, so it may
// take part in every merge.
var onLink = []NextHop{{Interface: "connected"}}

// pushMerged appends r to the list of disjoint routes, sorted by prefix, and
// merges the two halves of a prefix into one route while they have the same next
// hops. Since both halves are wholly covered by links, no address that belongs to
// no link is ever routed anywhere.
func pushMerged(list []Route, r Route, connected bool) []Route {
	if connected {
		r.Hops = onLink
	}
	for len(list) > 0 {
		last := list[len(list)-1]
		hops, same := mergedHops(last.Hops, r.Hops)
		if !same || !siblings(last.Prefix, r.Prefix) {
			break
		}
		r = Route{netip.PrefixFrom(last.Prefix.Addr(), last.Prefix.Bits()-1), hops}
		list = list[:len(list)-1]
	}
	return append(list, r)
}

// mergedHops gives the next hops that serve two prefixes alike, if there are
// such. Within one table equal sets of next hops are one slice.
func mergedHops(a, b []NextHop) ([]NextHop, bool) {
	if len(a) == 0 || len(b) == 0 {
		return nil, len(a) == len(b)
	}
	switch {
	case &a[0] == &onLink[0]:
		return b, true
	case &b[0] == &onLink[0], &a[0] == &b[0]:
		return a, true
	}
	return nil, false
}

// siblings reports whether a and b are the lower and the upper half of one
// prefix.
func siblings(a, b netip.Prefix) bool {
	if a.Bits() != b.Bits() || a.Bits() == 0 {
		return false
	}
	parent := netip.PrefixFrom(a.Addr(), a.Bits()-1)
	return a != b && parent.Masked().Addr() == a.Addr() && parent.Contains(b.Addr())
}

// disjoint reports whether no prefix of the sorted list overlaps the next one.
func disjoint(list []destination) bool {
	for i := 1; i < len(list); i++ {
		if list[i-1].prefix.Overlaps(list[i].prefix) {
			return false
		}
	}
	return true
}

// comparePrefixes orders by family, address and length.
func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func compareHops(a, b NextHop) int {
	return cmp.Or(cmp.Compare(a.Interface, b.Interface), a.Gateway.Compare(b.Gateway))
}
