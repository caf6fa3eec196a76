package vnet

import (
	"encoding/binary"
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
		r.completeDaemon()
	}
	routers := map[uint32]int{} // BGP routers of each AS that the description names
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if n.Kind == "" {
			n.Kind = Kinds[0].Name
		}
		n.inheritRouting(*r)
		if n.Routing.Protocol == BGP && n.ASN != 0 {
			routers[n.ASN]++
		}
	}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if n.Routing.Protocol != BGP || n.Routing.IGP != "" {
			continue
		}
		switch {
		case routers[n.ASN] < 2:
			n.Routing.IGP = None
		case r.IGP != "":
			n.Routing.IGP = r.IGP
		default:
			n.Routing.IGP = OSPF
		}
	}
}

// inheritRouting completes the node's routing from the network's.
func (n *Node) inheritRouting(network Routing) {
	r := &n.Routing
	named := r.Protocol != ""
	switch {
	case !named && !n.Kind.Traits().Routes:
		r.Protocol, named = None, true
	case !named:
		r.Protocol = network.Protocol
	}
	if r.Protocol.NeedsDaemon() || !named {
		if r.Daemon == "" && r.unspoken(network.Daemon) == "" {
			r.Daemon = network.Daemon
		}
		if r.Timers == "" {
			r.Timers = network.Timers
		}
		if r.Intervals.IsZero() {
			r.Intervals = network.Intervals
		}
	}
	if r.Protocol == network.Protocol && r.Area == "" {
		r.Area = network.Area
	}
	switch {
	case r.Protocol.NeedsDaemon():
		r.completeDaemon()
	case r.Daemon == "":
		// A configuration that the user brings is there to be run.
		r.Daemon = n.OwnDaemon()
	}
}

func (r *Routing) completeDaemon() {
	if r.Daemon == "" {
		r.Daemon = DefaultDaemon
	}
	if r.Timers == "" {
		r.Timers = TimersFast
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
		if n.Repair == "" {
			n.Repair = RepairAlways
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
