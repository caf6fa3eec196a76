package routing

import (
	"net/netip"

	"trellis/internal/vnet"
)

// session is one BGP session: an address family with one neighbour.
type session struct {
	family
	local, remote netip.Addr
	peer          *vnet.Node
	port          *port // over whose link it goes; nil: between loopbacks
	internal      bool  // within the AS
	client        bool  // the neighbour is one of ours as a route reflector
	timers        timers
}

// sessions lists the BGP sessions of a router (RFC 4271): external ones, one a
// family with every BGP neighbour of another AS on every link, over the link's
// addresses; and internal ones between loopbacks, with every other router of the
// AS, or with its route reflectors (RFC 4456). In an AS without an IGP internal
// ones are like external ones.
func (r *router) sessions() []session {
	if r.Routing.Protocol != vnet.BGP {
		return nil
	}
	var list []session
	for n := range r.ports {
		p := &r.ports[n]
		if p.link.Routing.Passive || !p.carries(vnet.BGP) {
			continue
		}
		for q := range p.peers() {
			internal := q.node.ASN == r.ASN
			if q.node.Routing.Protocol != vnet.BGP || internal && r.igp() != vnet.None {
				continue
			}
			for _, f := range []family{ipv4, ipv6} {
				if our, their, ok := p.faces(q, f); ok {
					list = append(list, session{
						family: f, local: our, remote: their, peer: q.node, port: p, internal: internal,
						client: internal && r.reflects(q.node), timers: p.timers(vnet.BGP),
					})
				}
			}
		}
	}
	if r.igp() == vnet.None {
		return list
	}
	for _, n := range r.net.systems[r.ASN] {
		if n == r.Node || !r.peersInside(n) {
			continue
		}
		for _, f := range []family{ipv4, ipv6} {
			our, their := loopback(r.Node, f), loopback(n, f)
			if our.IsValid() && their.IsValid() {
				list = append(list, session{
					family: f, local: our, remote: their, peer: n, internal: true, client: r.reflects(n),
					timers: r.timers(vnet.BGP).slower(timersOf(n.Routing, vnet.BGP, r.net.load)),
				})
			}
		}
	}
	return list
}

// peersInside reports whether the router has a session with another of its AS.
func (r *router) peersInside(n *vnet.Node) bool {
	if r.Routing.RouteReflector || n.Routing.RouteReflector {
		return true
	}
	for _, m := range r.net.systems[r.ASN] {
		if m.Routing.RouteReflector {
			return false
		}
	}
	return true
}

// reflects reports whether a router of the AS is one of our clients.
func (r *router) reflects(n *vnet.Node) bool {
	return r.Routing.RouteReflector && !n.Routing.RouteReflector
}

// igpWords are FRR's words for the routes of an IGP, by family.
var igpWords = map[vnet.Protocol][2]string{
	vnet.OSPF: {"ospf", "ospf6"}, vnet.ISIS: {"isis", "isis"}, vnet.RIP: {"rip", "ripng"},
}

// frrBGP writes BGP, which announces the loopback and all connected prefixes.
func frrBGP(b block, r *router) {
	o := b.open("router bgp %d", r.ASN)
	o.add("bgp router-id %s", r.RouterID)
	o.add("no bgp ebgp-requires-policy")
	o.add("no bgp network import-check")
	o.add("no bgp default ipv4-unicast")
	// Paths of equal length through different neighbours are equal.
	o.add("bgp bestpath as-path multipath-relax")
	if t := r.timers(vnet.BGP); t.spf[2] > 0 && t.spf[2] <= minSPF {
		o.add("coalesce-time 0")
	}
	list := r.sessions()
	inside, outside := false, false
	for _, s := range list {
		o.add("neighbor %s remote-as %d", s.remote, s.peer.ASN)
		o.add("neighbor %s description %s", s.remote, s.peer.Name)
		if s.port == nil {
			o.add("neighbor %s update-source %s", s.remote, s.local)
		}
		if s.timers.fast {
			o.add("neighbor %s timers %d %d", s.remote, s.timers.hello, s.timers.dead)
			o.add("neighbor %s timers connect %d", s.remote, max(1, s.timers.hello/3))
			o.add("neighbor %s advertisement-interval 0", s.remote)
		}
		inside, outside = inside || s.internal, outside || !s.internal
	}
	for _, f := range []family{ipv4, ipv6} {
		if !r.uses(f) {
			continue
		}
		a := o.open("address-family %s unicast", f)
		a.add("redistribute connected")
		if word := igpWords[r.igp()][f]; outside && word != "" {
			// The AS's loopbacks, which their routers announce too, are no use from
			// them: FRR takes no route whose next hop it would resolve itself.
			a.add("redistribute %s", word)
		}
		a.add("maximum-paths %d", maxPaths)
		if inside {
			a.add("maximum-paths ibgp %d", maxPaths)
		}
		for _, s := range list {
			if s.family != f {
				continue
			}
			a.add("neighbor %s activate", s.remote)
			if s.internal {
				// The AS's own routers know no links to others.
				a.add("neighbor %s next-hop-self", s.remote)
			}
			if s.client {
				a.add("neighbor %s route-reflector-client", s.remote)
			}
			if r.Routing.DefaultRoute {
				a.add("neighbor %s default-originate", s.remote)
			}
		}
	}
}
