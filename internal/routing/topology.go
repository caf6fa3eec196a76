package routing

import (
	"fmt"
	"iter"
	"net/netip"

	"trellis/internal/vnet"
)

// router is a node as its configuration sees it.
type router struct {
	*vnet.Node
	ports []port
}

// port is one interface of a router, with what is at the far ends of its link.
type port struct {
	*vnet.Interface
	link   *vnet.Link
	timers vnet.Timers // settled for all speakers of the protocol on the link
	self   int         // index of this end in ends
	ends   []peer      // all ends, shared by the ports of the link
}

// peers yields the far ends in the order of the link's endpoints.
func (p *port) peers() iter.Seq[peer] {
	return func(yield func(peer) bool) {
		for i, e := range p.ends {
			if i != p.self && !yield(e) {
				return
			}
		}
	}
}

// peer is an end of a link, with the node that it is on.
type peer struct {
	*vnet.Interface
	node *vnet.Node
}

// has reports whether the interface has an address of the family.
func (p *port) has(f family) bool { return hasFamily(p.Interface, f) }

// speaks reports whether a neighbour on the link may speak the protocol: one
// that is configured to, or one that brings software of its own.
func (p *port) speaks(proto vnet.Protocol) bool {
	for q := range p.peers() {
		if q.node.Routing.Protocol == proto || q.node.Routing.Protocol == vnet.None && ownSoftware(q.node) {
			return true
		}
	}
	return false
}

// ownSoftware reports whether the node may run routing software that Trellis
// does not configure.
func ownSoftware(n *vnet.Node) bool {
	return n.Image != "" && n.Image != "host" || len(n.Cmd) > 0 || len(n.Files) > 0 || len(n.Exec) > 0
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

func hasFamily(i *vnet.Interface, f family) bool {
	for _, a := range i.Addrs {
		if f.of(a.Addr()) {
			return true
		}
	}
	return false
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
func routers(v *vnet.VNet) ([]router, error) {
	rs := make([]router, len(v.Nodes))
	index := make(map[string]int, len(v.Nodes))
	for i := range v.Nodes {
		rs[i].Node = &v.Nodes[i]
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
		for j, e := range ends {
			r := &rs[index[e.Node]]
			r.ports = append(r.ports, port{
				Interface: e.Interface, link: l, timers: settle(ends, e.node.Routing), self: j, ends: ends,
			})
		}
	}
	return rs, nil
}

// settle decides the timers of a link for one protocol. Ends that disagree on
// hello and dead intervals never become neighbours, so the slower choice holds
// for all of them: a router that asked for default timers is never made to send
// a hello each second by someone else's wish.
func settle(ends []peer, r vnet.Routing) vnet.Timers {
	for _, e := range ends {
		if e.node.Routing.Protocol == r.Protocol && e.node.Routing.Timers != vnet.TimersFast {
			return vnet.TimersDefault
		}
	}
	return vnet.TimersFast
}
