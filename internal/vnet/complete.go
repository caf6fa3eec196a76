package vnet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// Complete fills in whatever the description leaves out: routing, limits, the
// names of links and interfaces, MAC and IP addresses, router IDs, AS numbers.
//
// The result depends on the description alone, so the same description always
// gives the same names and addresses; completing twice changes nothing more.
// Whatever can be is drawn from a hash of the object's own name, so that adding
// or removing one object leaves the others as they were: loopbacks, router IDs
// and AS numbers hang on the node's name, a link's subnet on the link's name, a
// MAC address on VNet, node and interface. Only interface names count: the
// unnamed interfaces of a node are eth1, eth2, … in the order of the links.
//
// The error, an [Errors], tells of a pool without room or of a description
// beyond the size limits. Other faults are left for [VNet.Validate] to name.
func (v *VNet) Complete() error {
	if errs := v.checkSizes(); len(errs) > 0 {
		return errs
	}
	v.completeRouting()
	v.completeNodes()
	v.completeLinkNames()
	v.completeInterfaces()
	return v.completeAddresses().orNil()
}

// completeRouting resolves the network's routing and then each node's.
func (v *VNet) completeRouting() {
	r := &v.Routing
	if r.Protocol == "" {
		r.Protocol = None
	}
	if r.Protocol.NeedsDaemon() {
		r.fillDaemon()
	}
	for i := range v.Nodes {
		n := &v.Nodes[i].Routing
		own := n.Protocol != ""
		if !own {
			n.Protocol = r.Protocol
		}
		if n.Protocol.NeedsDaemon() || !own {
			if n.Daemon == "" && !(n.Protocol == ISIS && r.Daemon == BIRD) {
				n.Daemon = r.Daemon
			}
			if n.Timers == "" {
				n.Timers = r.Timers
			}
		}
		if n.Protocol.NeedsDaemon() {
			n.fillDaemon()
		}
	}
}

// NeedsDaemon reports whether the protocol is spoken by a routing daemon.
func (p Protocol) NeedsDaemon() bool { return p != None && p != Static && p != "" }

func (r *Routing) fillDaemon() {
	if r.Daemon == "" {
		r.Daemon = FRR
	}
	if r.Timers == "" {
		r.Timers = TimersDefault
	}
}

// Limits, images, AS numbers.
func (v *VNet) completeNodes() {
	taken := map[uint32]bool{0: true}
	for i := range v.Nodes {
		taken[v.Nodes[i].ASN] = true
	}
	// RFC 6996: 4200000000 to 4294967294 are for private use.
	const firstAS, countAS = 4_200_000_000, 94_967_295
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if n.Image == "" {
			n.Image = DefaultImage
		}
		if n.Memory == 0 {
			n.Memory = DefaultMemory
		}
		if n.Pids == 0 {
			n.Pids = DefaultPids
		}
		if n.Disk == 0 {
			n.Disk = DefaultDisk
		}
		if n.FastPath == "" {
			n.FastPath = FastPathAuto
		}
		if n.ASN == 0 {
			// With at most MaxNodes numbers taken, a free one is always found.
			slot, _ := drawSlot(countAS, func(s uint64) bool { return !taken[uint32(firstAS+s)] }, "as", n.Name)
			n.ASN = uint32(firstAS + slot)
			taken[n.ASN] = true
		}
		slices.SortStableFunc(n.Files, func(a, b File) int {
			switch {
			case a.Path < b.Path:
				return -1
			case a.Path > b.Path:
				return 1
			}
			return 0
		})
		for j := range n.Files {
			if n.Files[j].Mode == 0 {
				n.Files[j].Mode = 0o644
			}
		}
	}
}

// completeLinkNames names unnamed links after their ends: "seattle-denver", the
// second of parallel ones "seattle-denver-2"; a LAN is named after its first end.
func (v *VNet) completeLinkNames() {
	taken := make(map[string]bool, len(v.Links))
	for i := range v.Links {
		taken[v.Links[i].Name] = true
	}
	next := map[string]int{} // where counting goes on, so that n parallel links cost n steps
	for i := range v.Links {
		l := &v.Links[i]
		if l.Type == "" {
			l.Type = PointToPoint
		}
		if l.Name != "" || len(l.Endpoints) == 0 {
			continue
		}
		base := "lan-" + l.Endpoints[0].Node
		if l.Type != LAN && len(l.Endpoints) > 1 {
			base = l.Endpoints[0].Node + "-" + l.Endpoints[1].Node
		}
		if len(base) > maxLinkName-8 {
			base = base[:maxLinkName-24] + "-" + strconv.FormatUint(draw(0, "linkname", base)&0xffffffff, 16)
		}
		name := base
		for count := max(next[base], 2); taken[name]; count++ {
			name = base + "-" + strconv.Itoa(count)
			next[base] = count + 1
		}
		l.Name = name
		taken[name] = true
	}
}

// completeInterfaces gives names, MTUs and MAC addresses.
func (v *VNet) completeInterfaces() {
	type key struct{ node, name string }
	named := map[key]bool{}
	macs := map[MAC]bool{}
	for li := range v.Links {
		for _, e := range v.Links[li].Endpoints {
			named[key{e.Node, e.Name}] = true
			macs[e.MAC] = true
		}
	}
	next := map[string]int{}
	for li := range v.Links {
		for ei := range v.Links[li].Endpoints {
			e := &v.Links[li].Endpoints[ei]
			for e.Name == "" {
				e.Auto = true
				next[e.Node]++
				if k := (key{e.Node, "eth" + strconv.Itoa(next[e.Node])}); !named[k] {
					e.Name = k.name
				}
			}
			if e.MTU == 0 {
				e.MTU, e.AutoMTU = DefaultMTU, true
			}
			for attempt := 0; e.MAC.IsZero(); attempt++ {
				m := v.drawMAC(attempt, e.Node, e.Name)
				if !macs[m] {
					e.MAC = m
					macs[m] = true
				}
			}
		}
	}
}

// drawMAC draws an interface's MAC address.
func (v *VNet) drawMAC(attempt int, node, name string) MAC {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], draw(attempt, "mac", v.Name, node, name))
	m := MAC(b[:6])
	m[0] = m[0]&^0x03 | 0x02 // IEEE 802: not a group, locally administered
	return m
}

// completeAddresses draws loopbacks, router IDs and the addresses of links.
func (v *VNet) completeAddresses() Errors {
	if !v.Addressing.IPv4.IsValid() && !v.Addressing.IPv6.IsValid() {
		v.Addressing = Addressing{IPv4: DefaultIPv4, IPv6: DefaultIPv6}
	}
	families := []*family{
		newFamily(v.Addressing.IPv4, p2pBitsIPv4),
		newFamily(v.Addressing.IPv6, p2pBitsIPv6),
	}
	for _, f := range families {
		for li := range v.Links {
			if f.pool.IsValid() && v.Links[li].Type == LAN {
				f.space.want(f.lanBits(len(v.Links[li].Endpoints)))
			}
		}
	}
	v.reserve(families)

	var errs Errors
	full := func(f *family, path, what string) {
		errs = append(errs, Error{
			Path:   path,
			What:   fmt.Sprintf("no room for %s in the pool %s", what, f.pool),
			Remedy: "give addressing a larger pool, or name the address",
		})
		f.pool = netip.Prefix{} // one message says it
	}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		for _, f := range families {
			if !f.pool.IsValid() || slices.ContainsFunc(n.Loopbacks, func(a netip.Addr) bool { return a.Is4() == f.pool.Addr().Is4() }) {
				continue
			}
			a, ok := f.loopback(n.Name)
			if !ok {
				full(f, fmt.Sprintf("nodes[%d]", i), fmt.Sprintf("the loopback of node %q", n.Name))
				continue
			}
			n.Loopbacks = append(n.Loopbacks, a)
		}
		slices.SortStableFunc(n.Loopbacks, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	}
	v.completeRouterIDs()
	for i := range v.Links {
		l := &v.Links[i]
		blank := 0
		for ei := range l.Endpoints {
			if len(l.Endpoints[ei].Addrs) == 0 {
				blank++
			}
		}
		switch {
		case blank == 0:
		case blank < len(l.Endpoints):
			errs = append(errs, l.joinSubnets(i)...)
		default:
			for _, f := range families {
				if !f.pool.IsValid() {
					continue
				}
				from, bits := f.third, f.p2p
				if l.Type == LAN {
					from, bits = f.last, f.lanBits(len(l.Endpoints))
				}
				subnet, ok := f.subnet(from, l.Name, bits)
				if !ok {
					full(f, fmt.Sprintf("links[%d]", i), fmt.Sprintf("link %q", l.Name))
					continue
				}
				l.spread(subnet)
			}
		}
	}
	return errs
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
		for _, a := range v.Nodes[i].Loopbacks {
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

// spread gives each end an address of a freshly drawn subnet. On a
// point-to-point link the node whose name sorts first has the lower one.
func (l *Link) spread(subnet netip.Prefix) {
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
		if p, ok := host(subnet, taken, l.Endpoints[ei].Node); ok {
			l.Endpoints[ei].Addrs = append(l.Endpoints[ei].Addrs, p)
		}
	}
}

// joinSubnets addresses the ends that name no address on a link where others
// do: they join the first subnet of each family that is named there.
func (l *Link) joinSubnets(at int) Errors {
	var errs Errors
	taken := map[netip.Addr]bool{}
	var subnets [2]netip.Prefix
	var blank []int
	for ei, e := range l.Endpoints {
		if len(e.Addrs) == 0 {
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
