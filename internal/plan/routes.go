package plan

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"trellis/internal/routing"
)

// RouteTable holds a node's computed routes compactly: for each of the plan's
// Prefixes the number of the group of next hops to use. A network of 754 nodes
// has over a million routes; written out they would be 80 MB.
type RouteTable struct {
	Groups [][]routing.NextHop `json:"groups,omitempty"`
	// Via is one unsigned varint per entry of Plan.Prefixes: 0 for no route,
	// g+1 for Groups[g].
	Via []byte `json:"via,omitempty"`
}

// IsZero reports whether there are no routes.
func (t RouteTable) IsZero() bool { return len(t.Groups) == 0 }

// Expand gives the routes in the order of prefixes.
func (t RouteTable) Expand(prefixes []netip.Prefix) ([]routing.Route, error) {
	if t.IsZero() {
		return nil, nil
	}
	routes := make([]routing.Route, 0, len(prefixes))
	via := t.Via
	for _, p := range prefixes {
		g, n := binary.Uvarint(via)
		if n <= 0 {
			return nil, fmt.Errorf("route table ends before prefix %s: the plan is damaged", p)
		}
		via = via[n:]
		if g == 0 {
			continue
		}
		if g > uint64(len(t.Groups)) {
			return nil, fmt.Errorf("route table names next hop group %d of %d for %s: the plan is damaged", g-1, len(t.Groups), p)
		}
		routes = append(routes, routing.Route{Prefix: p, Hops: t.Groups[g-1]})
	}
	return routes, nil
}

// compactRoutes turns the nodes' route lists into one list of prefixes and a
// table per node, in the order of names.
func compactRoutes(names []string, routes map[string]routing.Config) ([]netip.Prefix, map[string]RouteTable) {
	index := map[netip.Prefix]int{}
	var prefixes []netip.Prefix
	for _, n := range names {
		for _, r := range routes[n].Routes {
			if _, ok := index[r.Prefix]; !ok {
				index[r.Prefix] = len(prefixes)
				prefixes = append(prefixes, r.Prefix)
			}
		}
	}
	tables := make(map[string]RouteTable, len(names))
	via := make([]uint64, len(prefixes))
	for _, n := range names {
		if len(routes[n].Routes) == 0 {
			continue
		}
		clear(via)
		var t RouteTable
		groups := map[string]uint64{}
		var key []byte
		for _, r := range routes[n].Routes {
			key = key[:0]
			for _, h := range r.Hops {
				key = append(append(append(key, h.Gateway.AsSlice()...), h.Interface...), 0)
			}
			g, ok := groups[string(key)]
			if !ok {
				t.Groups = append(t.Groups, r.Hops)
				g = uint64(len(t.Groups))
				groups[string(key)] = g
			}
			via[index[r.Prefix]] = g
		}
		t.Via = make([]byte, 0, len(via))
		for _, g := range via {
			t.Via = binary.AppendUvarint(t.Via, g)
		}
		tables[n] = t
	}
	return prefixes, tables
}
