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
	}, configured: map[string]map[string]configured{}, nodes: make(map[string]*Node, len(v.Nodes))}
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
			d.configured[n.Name] = own
		}
	}
	d.reserveConfigured()
	for i := range v.Nodes {
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
	// configured holds, by node and interface, what the user's own configuration of a
	// daemon says of addresses. What is addressed there is given nothing besides.
	configured map[string]map[string]configured
	errs       Errors
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
		if !f.pool.IsValid() || !n.Kind.Traits().Loopback || n.Addressing != AddressesAuto || d.configured[n.Name]["lo"].addressed ||
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
	blank, off := d.count(l)
	switch {
	case l.Addressing == AddressesUnnumbered:
		d.borrowLoopbacks(l)
	case l.Addressing == AddressesNone, blank == 0:
	case blank+off < len(l.Endpoints) || d.configuresSubnet(l):
		d.joinSubnets(i)
	case off > 0 && l.Type != LAN:
		// Whoever addresses the one end decides about the subnet.
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

// count counts the ends of a link that are to be given addresses, and those that name
// none and are given none.
func (d *drawing) count(l *Link) (blank, off int) {
	for ei := range l.Endpoints {
		switch e := &l.Endpoints[ei]; {
		case len(e.Addrs) > 0:
		case d.unaddressed(e):
			off++
		default:
			blank++
		}
	}
	return blank, off
}

// isShareable reports whether others may have addresses of a configured one's subnet:
// not of a host address's, and link-local ones are IPv6's own.
func isShareable(p netip.Prefix) bool {
	return !p.IsSingleIP() && p.Bits() > 0 && !p.Addr().IsLinkLocalUnicast()
}

// configuresSubnet reports whether a node's own configuration gives an end of the link
// an address whose subnet others may share.
func (d *drawing) configuresSubnet(l *Link) bool {
	return slices.ContainsFunc(l.Endpoints, func(e Interface) bool {
		return slices.ContainsFunc(d.configured[e.Node][e.Name].addrs, isShareable)
	})
}

// reserveConfigured keeps the subnets that nodes' own configurations say out of what is
// drawn, where other ends are to join them.
func (d *drawing) reserveConfigured() {
	for li := range d.v.Links {
		l := &d.v.Links[li]
		if blank, _ := d.count(l); blank == 0 || l.Addressing != AddressesAuto {
			continue
		}
		for _, e := range l.Endpoints {
			for _, p := range d.configured[e.Node][e.Name].addrs {
				if isShareable(p) {
					reservePrefix(d.families, p)
				}
			}
		}
	}
}

// unaddressed reports whether an end is given no address.
func (d *drawing) unaddressed(e *Interface) bool {
	n := d.nodes[e.Node]
	return d.v.Addressing.Mode != AddressesAuto || n != nil && n.Addressing != AddressesAuto || d.configured[e.Node][e.Name].addressed
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
	add := func(p netip.Prefix) { reservePrefix(families, p) }
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

func reservePrefix(families []*family, p netip.Prefix) {
	switch {
	case !p.IsValid():
	case p.Addr().Is4():
		families[0].space.add(p)
	default:
		families[1].space.add(p)
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

// joinSubnets addresses the ends that name no address on a link where others do, in the
// description or in their nodes' own configurations: they join the first subnet of each
// family that is named there, the description's before a configuration's.
func (d *drawing) joinSubnets(at int) {
	l := &d.v.Links[at]
	taken := map[netip.Addr]bool{}
	var subnets [2]netip.Prefix
	join := func(p netip.Prefix) {
		f := 0
		if !p.Addr().Is4() {
			f = 1
		}
		if !subnets[f].IsValid() && p.IsValid() {
			subnets[f] = p.Masked()
		}
	}
	var blank []int
	for ei := range l.Endpoints {
		e := &l.Endpoints[ei]
		if len(e.Addrs) == 0 && !d.unaddressed(e) {
			blank = append(blank, ei)
		}
		for _, p := range e.Addrs {
			taken[p.Addr()] = true
			join(p)
		}
	}
	for _, e := range l.Endpoints {
		own := d.configured[e.Node][e.Name]
		for _, p := range own.addrs {
			taken[p.Addr()] = true
			if isShareable(p) {
				join(p)
			}
		}
		for _, a := range own.shared {
			taken[a] = true
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
				d.errs = append(d.errs, Error{
					Path:   fmt.Sprintf("links[%d].endpoints[%d]", at, ei),
					What:   fmt.Sprintf("no free address in %s for node %q on link %q", subnet, e.Node, l.Name),
					Remedy: "name an address for that end, or use a larger subnet",
				})
				continue
			}
			e.Addrs = append(e.Addrs, p)
		}
	}
}
