package vnet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// completeAddresses draws loopbacks, router IDs and the addresses of links.
func (v *VNet) completeAddresses() Errors {
	if v.Addressing.Mode == AddressesAuto && !v.Addressing.IPv4.IsValid() && !v.Addressing.IPv6.IsValid() {
		v.Addressing = Addressing{IPv4: DefaultIPv4, IPv6: DefaultIPv6}
	}
	d := drawing{v: v, families: []*family{
		newFamily(v.Addressing.IPv4, p2pBitsIPv4),
		newFamily(v.Addressing.IPv6, p2pBitsIPv6),
	}, addressed: map[string]map[string]bool{}, nodes: make(map[string]*Node, len(v.Nodes))}
	for _, f := range d.families {
		for li := range v.Links {
			if f.pool.IsValid() && v.Links[li].Type == LAN {
				f.space.want(f.lanBits(len(v.Links[li].Endpoints)))
			}
		}
	}
	v.reserve(d.families)
	for i := range v.Nodes {
		n := &v.Nodes[i]
		d.nodes[n.Name] = n
		if own := n.configuredInterfaces(); len(own) > 0 {
			d.addressed[n.Name] = own
		}
		d.loopbacks(i)
	}
	v.completeRouterIDs()
	for i := range v.Links {
		d.link(i)
	}
	return d.errs
}

// drawing gives out addresses.
type drawing struct {
	v        *VNet
	families []*family
	nodes    map[string]*Node
	// addressed names the interfaces, by node, that the user's own configuration of
	// a daemon addresses; they are given nothing besides.
	addressed map[string]map[string]bool
	errs      Errors
}

// full notes that a pool has no room.
func (d *drawing) full(f *family, path, what string) {
	d.errs = append(d.errs, Error{
		Path:   path,
		What:   fmt.Sprintf("no room for %s in the pool %s", what, f.pool),
		Remedy: "give addressing a larger pool, or name the address",
	})
	f.pool = netip.Prefix{} // one message is enough
}

// loopbacks draws what node i lacks of loopback addresses.
func (d *drawing) loopbacks(i int) {
	n := &d.v.Nodes[i]
	for _, f := range d.families {
		if !f.pool.IsValid() || !n.Kind.Traits().Loopback || n.Addressing != AddressesAuto || d.addressed[n.Name]["lo"] ||
			slices.ContainsFunc(n.Loopbacks, func(a netip.Addr) bool { return a.Is4() == f.pool.Addr().Is4() }) {
			continue
		}
		a, ok := f.loopback(n.Name)
		if !ok {
			d.full(f, fmt.Sprintf("nodes[%d]", i), fmt.Sprintf("the loopback of node %q", n.Name))
			continue
		}
		n.Loopbacks = append(n.Loopbacks, a)
	}
	slices.SortStableFunc(n.Loopbacks, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
}

// link draws what the ends of link i lack.
func (d *drawing) link(i int) {
	l := &d.v.Links[i]
	blank, off := 0, 0
	for ei := range l.Endpoints {
		switch e := &l.Endpoints[ei]; {
		case len(e.Addrs) > 0:
		case d.unaddressed(e):
			off++
		default:
			blank++
		}
	}
	switch {
	case l.Addressing == AddressesUnnumbered:
		d.borrowLoopbacks(l)
	case l.Addressing == AddressesNone, blank == 0:
	case off > 0 && l.Type != LAN:
		// Whoever addresses the one end decides about the subnet.
	case blank+off < len(l.Endpoints):
		d.errs = append(d.errs, l.joinSubnets(i, d.unaddressed)...)
	default:
		for _, f := range d.families {
			if !f.pool.IsValid() {
				continue
			}
			from, bits := f.p2pPool, f.p2p
			if l.Type == LAN {
				from, bits = f.lanPool, f.lanBits(len(l.Endpoints))
			}
			subnet, ok := f.subnet(from, l.Name, bits)
			if !ok {
				d.full(f, fmt.Sprintf("links[%d]", i), fmt.Sprintf("link %q", l.Name))
				continue
			}
			l.assignSubnet(subnet, d.unaddressed)
		}
	}
}

// unaddressed reports whether an end is given no address.
func (d *drawing) unaddressed(e *Interface) bool {
	n := d.nodes[e.Node]
	return d.v.Addressing.Mode != AddressesAuto || n != nil && n.Addressing != AddressesAuto || d.addressed[e.Node][e.Name]
}

// borrowLoopbacks gives the ends of an unnumbered link their nodes' IPv4 loopbacks. IPv6
// needs none: its neighbours find each other by link-local addresses.
func (d *drawing) borrowLoopbacks(l *Link) {
	for ei := range l.Endpoints {
		e := &l.Endpoints[ei]
		if n := d.nodes[e.Node]; n != nil && len(e.Addrs) == 0 {
			for _, a := range n.Loopbacks {
				if a.Is4() {
					e.Addrs = []netip.Prefix{netip.PrefixFrom(a, 32)}
				}
			}
		}
	}
}

// reserve keeps what the description names out of what is drawn.
func (v *VNet) reserve(families []*family) {
	add := func(p netip.Prefix) {
		if !p.IsValid() {
			return
		}
		if p.Addr().Is4() {
			families[0].space.add(p)
		} else {
			families[1].space.add(p)
		}
	}
	for i := range v.Nodes {
		for _, a := range slices.Concat(v.Nodes[i].Loopbacks, v.Nodes[i].Anycast) {
			if a.IsValid() {
				add(netip.PrefixFrom(a.WithZone(""), a.BitLen()))
			}
		}
	}
	for li := range v.Links {
		for _, e := range v.Links[li].Endpoints {
			for _, p := range e.Addrs {
				add(p)
			}
		}
	}
}

// completeRouterIDs takes the IPv4 loopback where there is one.
func (v *VNet) completeRouterIDs() {
	taken := map[netip.Addr]bool{}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if !n.RouterID.IsValid() && len(n.Loopbacks) > 0 && n.Loopbacks[0].Is4() {
			n.RouterID = n.Loopbacks[0]
		}
		taken[n.RouterID] = true
	}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if n.RouterID.IsValid() {
			continue
		}
		at := func(slot uint64) netip.Addr {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], uint32(slot)+1) // 0.0.0.0 means "none" to daemons
			return netip.AddrFrom4(b)
		}
		// With at most MaxNodes taken, a free one is always found.
		slot, _ := drawSlot(1<<32-2, func(s uint64) bool { return !taken[at(s)] }, "routerid", n.Name)
		n.RouterID = at(slot)
		taken[n.RouterID] = true
	}
}

// assignSubnet gives each end, but those that are given none, an address of a freshly drawn subnet. On a
// point-to-point link the node whose name sorts first has the lower one.
func (l *Link) assignSubnet(subnet netip.Prefix, unaddressed func(*Interface) bool) {
	if l.Type != LAN && len(l.Endpoints) == 2 {
		low, high := 0, 1
		if l.Endpoints[1].Node < l.Endpoints[0].Node {
			low, high = 1, 0
		}
		l.Endpoints[low].Addrs = append(l.Endpoints[low].Addrs, subnet)
		l.Endpoints[high].Addrs = append(l.Endpoints[high].Addrs, netip.PrefixFrom(subnet.Addr().Next(), subnet.Bits()))
		return
	}
	taken := map[netip.Addr]bool{}
	for ei := range l.Endpoints {
		if unaddressed(&l.Endpoints[ei]) {
			continue
		}
		if p, ok := host(subnet, taken, l.Endpoints[ei].Node); ok {
			l.Endpoints[ei].Addrs = append(l.Endpoints[ei].Addrs, p)
		}
	}
}

// joinSubnets addresses the ends that name no address on a link where others
// do: they join the first subnet of each family that is named there.
func (l *Link) joinSubnets(at int, unaddressed func(*Interface) bool) Errors {
	var errs Errors
	taken := map[netip.Addr]bool{}
	var subnets [2]netip.Prefix
	var blank []int
	for ei, e := range l.Endpoints {
		if len(e.Addrs) == 0 && !unaddressed(&l.Endpoints[ei]) {
			blank = append(blank, ei)
		}
		for _, p := range e.Addrs {
			taken[p.Addr()] = true
			f := 0
			if !p.Addr().Is4() {
				f = 1
			}
			if !subnets[f].IsValid() && p.IsValid() {
				subnets[f] = p.Masked()
			}
		}
	}
	for _, subnet := range subnets {
		if !subnet.IsValid() {
			continue
		}
		for _, ei := range blank {
			e := &l.Endpoints[ei]
			p, ok := host(subnet, taken, e.Node)
			if !ok {
				errs = append(errs, Error{
					Path:   fmt.Sprintf("links[%d].endpoints[%d]", at, ei),
					What:   fmt.Sprintf("no free address in %s for node %q on link %q", subnet, e.Node, l.Name),
					Remedy: "name an address for that end, or use a larger subnet",
				})
				continue
			}
			e.Addrs = append(e.Addrs, p)
		}
	}
	return errs
}
