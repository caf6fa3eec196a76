package routing

import (
	"net/netip"

	"trellis/internal/vnet"
)

// session is one BGP session: an address family over one link with one
// neighbour.
type session struct {
	family
	local, remote netip.Addr
	peer          *vnet.Node
	port          *port
}

// sessions lists the BGP sessions of a router: external ones (RFC 4271), one a
// family with every BGP neighbour on every link, over the link's addresses.
func (r *router) sessions() []session {
	var list []session
	for n := range r.ports {
		p := &r.ports[n]
		for q := range p.peers() {
			if q.node.Routing.Protocol != vnet.BGP || q.node == r.Node {
				continue
			}
			for _, f := range []family{ipv4, ipv6} {
				if our, their, ok := facing(p.Interface, q.Interface, f); ok {
					list = append(list, session{f, our, their, q.node, p})
				}
			}
		}
	}
	return list
}

// frrBGP writes BGP: an AS of the node's own, which announces the loopback and
// all connected prefixes.
func frrBGP(b block, r *router) {
	o := b.open("router bgp %d", r.ASN)
	o.add("bgp router-id %s", r.RouterID)
	o.add("no bgp ebgp-requires-policy")
	o.add("no bgp network import-check")
	o.add("no bgp default ipv4-unicast")
	// Paths of equal length through different neighbours are equal.
	o.add("bgp bestpath as-path multipath-relax")
	if r.Routing.Timers == vnet.TimersFast {
		o.add("coalesce-time 0")
	}
	list := r.sessions()
	for _, s := range list {
		o.add("neighbor %s remote-as %d", s.remote, s.peer.ASN)
		o.add("neighbor %s description %s", s.remote, s.peer.Name)
		if s.port.timers == vnet.TimersFast {
			o.add("neighbor %s timers %d %d", s.remote, fastKeepalive, fastHold)
			o.add("neighbor %s timers connect 1", s.remote)
			o.add("neighbor %s advertisement-interval 0", s.remote)
		}
	}
	for _, f := range []family{ipv4, ipv6} {
		if !r.uses(f) {
			continue
		}
		a := o.open("address-family %s unicast", f)
		a.add("redistribute connected")
		a.add("maximum-paths %d", maxPaths)
		for _, s := range list {
			if s.family == f {
				a.add("neighbor %s activate", s.remote)
			}
		}
	}
}
