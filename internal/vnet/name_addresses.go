package vnet

import (
	"net/netip"
	"slices"
)

// NameAddresses gives the addresses that each node's name stands for, by node.
//
// A router's name means its loopback addresses, which are reached whatever links
// are up. Hosts, and nodes that nobody computes or announces routes for, are
// reached at their interfaces: their names mean the addresses of those, in the
// order of the links, and then loopbacks. One list serves all nodes, for a
// resolver puts addresses that it has no route to last (RFC 6724, rule 1), and so
// finds a direct neighbour on the link that both are on.
func (v *VNet) NameAddresses() map[string][]netip.Addr {
	out := make(map[string][]netip.Addr, len(v.Nodes))
	isolated := make(map[string]bool)
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if !n.Kind.Traits().Loopback || n.Routing.Protocol == None && n.Routing.Daemon == "" || len(n.Loopbacks) == 0 {
			isolated[n.Name] = true
			continue
		}
		out[n.Name] = n.Loopbacks
	}
	for li := range v.Links {
		for ei := range v.Links[li].Endpoints {
			e := &v.Links[li].Endpoints[ei]
			if !isolated[e.Node] {
				continue
			}
			for _, p := range e.Addrs {
				if !p.Addr().IsLinkLocalUnicast() {
					out[e.Node] = append(out[e.Node], p.Addr())
				}
			}
		}
	}
	for i := range v.Nodes {
		if n := &v.Nodes[i]; isolated[n.Name] {
			for _, a := range n.Loopbacks {
				if !slices.Contains(out[n.Name], a) { // an unnumbered link has borrowed it
					out[n.Name] = append(out[n.Name], a)
				}
			}
		}
	}
	return out
}

// SharedAddresses are those that more than one node has or may have: none of them tells
// which node a packet reaches.
func (v *VNet) SharedAddresses() map[netip.Addr]bool {
	shared := map[netip.Addr]bool{}
	owner := map[netip.Addr]string{}
	for i := range v.Nodes {
		for _, a := range v.Nodes[i].Anycast {
			shared[a] = true
		}
	}
	for i := range v.Links {
		if !v.Links[i].Overlap {
			continue // its addresses are nobody else's
		}
		for _, e := range v.Links[i].Endpoints {
			for _, p := range e.Addrs {
				if other, ok := owner[p.Addr()]; ok && other != e.Node {
					shared[p.Addr()] = true
				}
				owner[p.Addr()] = e.Node
			}
		}
	}
	return shared
}
