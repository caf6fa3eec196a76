package routing

import (
	"net/netip"
	"slices"

	"trellis/internal/vnet"
)

// graph is the network as one address family sees it. Its vertices are the
// nodes, numbered as in the VNet, followed by the subnets of the links that are
// up: a subnet is the pseudo-node that OSPF would give it (RFC 2328, section
// 2.1). An edge from a node to a subnet costs the interface's cost, the one back
// costs nothing, so a network of n nodes on one LAN has 2n edges and not n².
type graph struct {
	nodes   int
	subnets []netip.Prefix
	// hasHosts says which subnets have hosts, which have no other address to be
	// reached at.
	hasHosts []bool
	// Edges of vertex x are edges[first[x]:first[x+1]].
	first []int32
	edges []edge
	// transit says which vertices pass packets on.
	transit []bool
}

// edge is an attachment of a node to a subnet, seen from either side.
type edge struct {
	to   int32 // vertex at the far side
	cost int32 // 0 from subnet to node
	// The node's end of the attachment.
	addr netip.Addr
	name string
}

// newGraph reads the up links of v. Links are joined where two ends have
// addresses in one subnet of the family.
func newGraph(v *vnet.VNet, f family) *graph {
	g := &graph{nodes: len(v.Nodes)}
	index := make(map[string]int32, len(v.Nodes))
	for i := range v.Nodes {
		index[v.Nodes[i].Name] = int32(i)
		n := &v.Nodes[i]
		g.transit = append(g.transit, n.Kind.Traits().Forwards && n.Routing.Protocol != vnet.None)
	}
	type attachment struct {
		subnet int32
		edge
	}
	var found []attachment
	var local []netip.Prefix // subnets of the link at hand; the last of g.subnets
	for li := range v.Links {
		l := &v.Links[li]
		if l.Down {
			continue
		}
		base := len(g.subnets)
		for ei := range l.Endpoints {
			if l.EndDown(ei) {
				continue
			}
			e := &l.Endpoints[ei]
			for _, a := range attachable(e, f) {
				local = g.subnets[base:]
				s := slices.Index(local, a.Masked())
				if s < 0 {
					s = len(local)
					g.subnets = append(g.subnets, a.Masked())
					g.hasHosts = append(g.hasHosts, false)
				}
				if !v.Nodes[index[e.Node]].Kind.Traits().Loopback {
					g.hasHosts[base+s] = true
				}
				found = append(found, attachment{
					subnet: int32(g.nodes + base + s),
					edge:   edge{to: index[e.Node], cost: int32(max(e.Cost, 1)), addr: a.Addr(), name: e.Name},
				})
			}
		}
	}
	n := g.nodes + len(g.subnets)
	for range g.subnets {
		g.transit = append(g.transit, true)
	}
	g.first = make([]int32, n+1)
	for _, a := range found {
		g.first[a.to+1]++
		g.first[a.subnet+1]++
	}
	for i := range n {
		g.first[i+1] += g.first[i]
	}
	g.edges = make([]edge, 2*len(found))
	next := slices.Clone(g.first[:n])
	for _, a := range found {
		out, back := a.edge, a.edge
		out.to, back.cost = a.subnet, 0
		g.edges[next[a.to]] = out
		g.edges[next[a.subnet]] = back
		next[a.to]++
		next[a.subnet]++
	}
	return g
}

// attachable gives the addresses of the family that put the interface on a
// subnet: link-local ones only where there are no others, one per subnet.
func attachable(e *vnet.Interface, f family) []netip.Prefix {
	var global, local []netip.Prefix
	for _, a := range e.Addrs {
		if !f.of(a.Addr()) || a.IsSingleIP() {
			continue
		}
		list := &global
		if a.Addr().IsLinkLocalUnicast() {
			list = &local
		}
		same := func(b netip.Prefix) bool { return a.Masked() == b.Masked() }
		if !slices.ContainsFunc(*list, same) {
			*list = append(*list, a)
		}
	}
	if len(global) > 0 {
		return global
	}
	return local
}

// at gives the edges of vertex x.
func (g *graph) at(x int32) []edge { return g.edges[g.first[x]:g.first[x+1]] }
