package plan

import (
	"net/netip"
	"slices"

	"trellis/internal/vnet"
)

// routingGroups finds the sets of nodes that learn routes from one another, for
// each address family: the components of the graph that is left when only links
// with carrier count that carry the family, and over which nodes of one routing
// protocol speak. Hosts belong to the group of their gateway. Each group has to
// reach the loopbacks of its routers and the addresses of its hosts, but for those that
// several nodes have; nodes without
// routing, and those alone in their group, wait for nothing.
func routingGroups(v *vnet.VNet) (destinations [][]netip.Addr, components [][]int) {
	components = make([][]int, len(v.Nodes))
	shared := v.SharedAddresses()
	for _, of := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		g := groups{v: v, of: of, index: make(map[string]int, len(v.Nodes)), sets: vnet.NewDisjoint(len(v.Nodes)), hosts: map[int][]netip.Addr{}, shared: shared}
		for i := range v.Nodes {
			g.index[v.Nodes[i].Name] = i
		}
		g.join()
		members := map[int][]int{} // by the component's least node, in order of the nodes
		addrs := map[int][]netip.Addr{}
		for i := range v.Nodes {
			root := g.sets.Find(i)
			members[root] = append(members[root], i)
			if !v.Nodes[i].Kind.Traits().Loopback {
				addrs[root] = append(addrs[root], g.hosts[i]...)
				continue
			}
			for _, a := range v.Nodes[i].Loopbacks {
				if of(a) {
					addrs[root] = append(addrs[root], a)
				}
			}
		}
		for i := range v.Nodes {
			if g.sets.Find(i) != i || len(members[i]) == 1 || len(addrs[i]) == 0 {
				continue
			}
			for _, m := range members[i] {
				components[m] = append(components[m], len(destinations))
			}
			destinations = append(destinations, addrs[i])
		}
	}
	return destinations, components
}

// groups is the search for the groups of one address family.
type groups struct {
	v     *vnet.VNet
	of    func(netip.Addr) bool // the family's
	index map[string]int        // of the nodes, by name
	sets  vnet.Disjoint
	hosts map[int][]netip.Addr // addresses at which hosts are reached through their gateways
	// shared are those that tell nobody which node is reached.
	shared map[netip.Addr]bool
}

// join joins the nodes that route together.
func (g *groups) join() {
	for i := range g.v.Links {
		l := &g.v.Links[i]
		if l.Down || l.Routing.Protocol == vnet.None {
			continue
		}
		first := map[vnet.Protocol]int{}
		gateway := -1
		for j := range l.Endpoints {
			at := g.index[l.Endpoints[j].Node]
			n := &g.v.Nodes[at]
			if l.EndDown(j) || !n.Kind.Traits().Forwards || n.Routing.Protocol == vnet.None || len(g.addrs(&l.Endpoints[j])) == 0 {
				continue
			}
			if gateway < 0 {
				gateway = at
			}
			if f, ok := first[n.Routing.Protocol]; !ok {
				first[n.Routing.Protocol] = at
			} else if !l.Routing.Passive {
				g.sets.Join(f, at)
			}
		}
		if gateway < 0 {
			continue
		}
		for j := range l.Endpoints {
			at := g.index[l.Endpoints[j].Node]
			if addrs := g.addrs(&l.Endpoints[j]); !g.v.Nodes[at].Kind.Traits().Routes && g.hosts[at] == nil && len(addrs) > 0 && !l.EndDown(j) {
				g.hosts[at] = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return g.shared[a] })
				g.sets.Join(gateway, at)
			}
		}
	}
}

// addrs gives the interface's addresses of the family.
func (g *groups) addrs(e *vnet.Interface) []netip.Addr {
	var out []netip.Addr
	for _, p := range e.Addrs {
		if g.of(p.Addr()) && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr())
		}
	}
	return slices.Clip(out)
}
