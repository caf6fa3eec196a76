package routing

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"trellis/internal/vnet"
)

// router is a node as its configuration sees it.
type router struct {
	*vnet.Node
	ports []port
	net   *network
}

// network is what all routers of one network share, or must agree on.
type network struct {
	load Load
	// systems lists the BGP routers of each AS in the order of the description.
	systems map[uint32][]*vnet.Node
	// lspMTU is the size of the largest IS-IS LSP that passes every link of the
	// network, since a router floods the LSPs of others unchanged (ISO 10589,
	// 7.2.4.1); 0 leaves the daemon's default, which is already less.
	lspMTU int
	// quietLinks says that routes to the links between routers are too many to be
	// worth their memory: each router would have one for each link. FRR's ospf6d
	// can be kept from announcing them, its ospfd (8.4) cannot.
	quietLinks bool
	prefixes   int // of loopbacks and links: what a router has routes to, in each family
	// multiTopology says that some IS-IS link carries only one address family,
	// so that the two need shortest paths of their own (RFC 5120).
	multiTopology bool
}

// timers gives what the router itself asks for.
func (r *router) timers(p vnet.Protocol) timers { return timersOf(r.Routing, p, r.net.load) }

// igp gives the interior protocol that the router speaks, None if there is none.
func (r *router) igp() vnet.Protocol {
	switch r.Routing.Protocol {
	case vnet.BGP:
		return r.Routing.IGP
	case vnet.OSPF, vnet.ISIS, vnet.RIP:
		return r.Routing.Protocol
	}
	return vnet.None
}

// port is one interface of a router, with what is at the far ends of its link.
type port struct {
	*vnet.Interface
	link *vnet.Link
	net  *network
	self int    // index of this end in ends
	ends []peer // all ends, shared by the ports of the link
	// several lists the ends of each node, by their numbers, where one of the link's
	// nodes has more than one; else it is nil.
	several map[*vnet.Node][]int
}

// peers yields the ends of other nodes in the order of the link's endpoints. A node
// that is on a LAN by several interfaces is no neighbour of itself.
func (p *port) peers() iter.Seq[peer] {
	return func(yield func(peer) bool) {
		for _, e := range p.ends {
			if e.node != p.ends[p.self].node && !yield(e) {
				return
			}
		}
	}
}

// faces gives the addresses of the family, ours and theirs, over which the port's
// node talks to the end's: of two nodes with several ends on a link one pair of ends
// talks, the first that shares a subnet, and both nodes find the same.
func (p *port) faces(q peer, f family) (our, their netip.Addr, ok bool) {
	mine := p.ends[p.self]
	if p.several != nil {
		// The pair whose ends come first in the description, in whichever order.
		none := len(p.ends)
		first := [2]int{none, none}
		for _, i := range p.several[mine.node] {
			for _, j := range p.several[q.node] {
				pair := [2]int{min(i, j), max(i, j)}
				if _, _, ok := facing(p.ends[i].Interface, p.ends[j].Interface, f); ok && slices.Compare(pair[:], first[:]) < 0 {
					first = pair
				}
			}
		}
		if i, j := first[0], first[1]; j == none || !(p.ends[i].Interface == mine.Interface && p.ends[j].Interface == q.Interface ||
			p.ends[j].Interface == mine.Interface && p.ends[i].Interface == q.Interface) {
			return our, their, false
		}
	}
	return facing(mine.Interface, q.Interface, f)
}

// peer is an end of a link, with the node that it is on.
type peer struct {
	*vnet.Interface
	node *vnet.Node
}

// has reports whether the interface speaks the family: it has an address of it,
// or is unnumbered and has its node's, or a link-local one.
func (p *port) has(f family) bool {
	if p.link.Addressing == vnet.AddressesUnnumbered && loopback(p.ends[p.self].node, f).IsValid() {
		return true
	}
	return hasFamily(p.Interface, f)
}

// carries reports whether the protocol has anything to do with the port's link:
// its prefixes are announced by it at least.
func (p *port) carries(proto vnet.Protocol) bool {
	if q := p.link.Routing.Protocol; q != "" && q != proto {
		return false
	}
	// Links to other autonomous systems are BGP's, but one to a host or a router
	// without BGP as well is the IGP's too.
	r := p.ends[p.self].node
	if r.Routing.Protocol != vnet.BGP || proto == vnet.BGP {
		return true
	}
	outside := false
	for q := range p.peers() {
		if q.node.Routing.Protocol != vnet.BGP || q.node.ASN == r.ASN {
			return true
		}
		outside = true
	}
	return !outside
}

// speaks reports whether a neighbour on the link may speak the protocol with the
// port: one that is configured to, or one that brings software of its own.
func (p *port) speaks(proto vnet.Protocol) bool {
	if p.link.Routing.Passive || !p.carries(proto) || !p.talksForNode() {
		return false
	}
	r := p.ends[p.self].node
	for q := range p.peers() {
		if p.talks(r, q.node, proto) || q.node.Routing.Protocol == vnet.None && q.node.Kind.Traits().Routes && ownSoftware(q.node) {
			return true
		}
	}
	return false
}

// talksForNode reports whether the port is the one by which its node talks on the link:
// its first. OSPFv3 knows neighbours by their router IDs alone (RFC 5340,
// section 4.9), and FRR and BIRD lack the rules for two interfaces of one router there:
// adjacencies would come and go for ever.
func (p *port) talksForNode() bool {
	mine := p.several[p.ends[p.self].node]
	return len(mine) == 0 || mine[0] == p.self
}

// talks reports whether both nodes are configured to speak the protocol with
// each other. IGPs end at the border of an AS.
func (p *port) talks(r, q *vnet.Node, proto vnet.Protocol) bool {
	if !r.Routing.Speaks(proto) || !q.Routing.Speaks(proto) {
		return false
	}
	return proto == vnet.BGP || r.Routing.Protocol != vnet.BGP || q.Routing.Protocol != vnet.BGP || r.ASN == q.ASN
}

// timers gives the timers of the link for a protocol: what all that speak it
// there keep to.
func (p *port) timers(proto vnet.Protocol) timers {
	r := p.ends[p.self].node
	t := timersOf(r.Routing, proto, p.net.load)
	for q := range p.peers() {
		if p.talks(r, q.node, proto) {
			t = t.slower(timersOf(q.node.Routing, proto, p.net.load))
		}
	}
	if d := defaultTimers[proto]; t.hello == d.hello && t.dead == d.dead {
		t.fast = false
	}
	return t
}

// area gives the OSPF area of the port: that of the link, or the one that all
// OSPF routers on it are in, or the backbone.
func (p *port) area() string {
	if a := p.link.Routing.Area; a != "" {
		return string(a)
	}
	r := p.ends[p.self].node
	area := areaOf(r)
	for q := range p.peers() {
		if p.talks(r, q.node, vnet.OSPF) && areaOf(q.node) != area {
			return backbone
		}
	}
	return area
}

const backbone = "0"

// areaOf gives a node's own OSPF area.
func areaOf(n *vnet.Node) string {
	if n.Routing.Area == "" {
		return backbone
	}
	return string(n.Routing.Area)
}

// ownSoftware reports whether the node may run routing software that Trellis
// does not configure.
func ownSoftware(n *vnet.Node) bool {
	return n.Image != "" && n.Image != vnet.DefaultImage || len(n.Cmd) > 0 || len(n.Files) > 0 || len(n.Exec) > 0
}

// family is an address family.
type family int

const (
	ipv4 family = iota
	ipv6
)

func (f family) of(a netip.Addr) bool { return a.Is4() == (f == ipv4) }

// String gives the name that FRR and BIRD use.
func (f family) String() string {
	if f == ipv4 {
		return "ipv4"
	}
	return "ipv6"
}

// anywhere gives the prefix of the family's default route.
func (f family) anywhere() netip.Prefix {
	if f == ipv4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func hasFamily(i *vnet.Interface, f family) bool {
	return slices.ContainsFunc(i.Addrs, func(a netip.Prefix) bool { return f.of(a.Addr()) })
}

// loopback gives the node's loopback address of the family; the zero Addr if it
// has none.
func loopback(n *vnet.Node, f family) netip.Addr {
	for _, a := range n.Loopbacks {
		if f.of(a) {
			return a
		}
	}
	return netip.Addr{}
}

// announced gives the addresses of the family that lo has: the node's own loopback, and
// those that other nodes may have, too.
func announced(n *vnet.Node, f family) (out []netip.Addr) {
	for _, a := range slices.Concat(n.Loopbacks, n.Anycast) {
		if f.of(a) {
			out = append(out, a)
		}
	}
	return out
}

// facing gives the first pair of addresses of the family, ours and theirs, that
// share a subnet.
func facing(ours, theirs *vnet.Interface, f family) (our, their netip.Addr, ok bool) {
	for _, a := range ours.Addrs {
		if !f.of(a.Addr()) {
			continue
		}
		for _, b := range theirs.Addrs {
			if f.of(b.Addr()) && a.Masked() == b.Masked() && a.Addr() != b.Addr() {
				return a.Addr(), b.Addr(), true
			}
		}
	}
	return netip.Addr{}, netip.Addr{}, false
}

// routers gives the nodes in the order of the description, each with its ports
// in the order of the links.
func routers(v *vnet.VNet, l Load) ([]router, error) {
	net := survey(v)
	net.load = l
	rs := make([]router, len(v.Nodes))
	index := make(map[string]int, len(v.Nodes))
	for i := range v.Nodes {
		rs[i].Node = &v.Nodes[i]
		rs[i].net = net
		index[v.Nodes[i].Name] = i
	}
	for i := range v.Links {
		l := &v.Links[i]
		ends := make([]peer, len(l.Endpoints))
		for j := range l.Endpoints {
			e := &l.Endpoints[j]
			n, ok := index[e.Node]
			if !ok {
				return nil, fmt.Errorf("link %s: endpoint %s:%s is on no node of the network", l.Name, e.Node, e.Name)
			}
			ends[j] = peer{Interface: e, node: &v.Nodes[n]}
		}
		several := endsOfNodes(ends)
		for j, e := range ends {
			r := &rs[index[e.Node]]
			r.ports = append(r.ports, port{Interface: e.Interface, link: l, net: net, self: j, ends: ends, several: several})
		}
	}
	return rs, nil
}

// endsOfNodes lists the ends of each node, where one has several; else it gives nil.
func endsOfNodes(ends []peer) map[*vnet.Node][]int {
	of := make(map[*vnet.Node][]int, len(ends))
	for i, e := range ends {
		of[e.node] = append(of[e.node], i)
	}
	if len(of) == len(ends) {
		return nil
	}
	return of
}

// survey finds what the whole network shares.
func survey(v *vnet.VNet) *network {
	s := &network{systems: map[uint32][]*vnet.Node{}}
	isis := map[string]bool{}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		isis[n.Name] = n.Routing.Speaks(vnet.ISIS)
		if n.Routing.Protocol == vnet.BGP {
			s.systems[n.ASN] = append(s.systems[n.ASN], n)
		}
	}
	const (
		llc        = 3    // bytes of LLC header before an IS-IS PDU (ISO 8802-2)
		defaultLSP = 1497 // FRR's lsp-mtu
	)
	smallest := defaultLSP
	for i := range v.Links {
		l := &v.Links[i]
		for j := range l.Endpoints {
			e := &l.Endpoints[j]
			if !isis[e.Node] {
				continue
			}
			if e.MTU > 0 {
				smallest = min(smallest, e.MTU-llc)
			}
			s.multiTopology = s.multiTopology || l.Addressing != vnet.AddressesUnnumbered && hasFamily(e, ipv4) != hasFamily(e, ipv6)
		}
	}
	if smallest < defaultLSP {
		s.lspMTU = smallest
	}
	s.prefixes = len(v.Nodes) + len(v.Links)
	s.quietLinks = 2*len(v.Links)*len(v.Nodes) > MaxLinkRoutes
	return s
}
