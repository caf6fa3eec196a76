package routing

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"trellis/internal/vnet"
)

// Metrics of interfaces without a cost in the description. They are written out, so that
// FRR and BIRD agree on them and FRR does not derive them from a veth's nominal
// speed, which it reads again some seconds after the start.
const (
	ospfCost = 10
	isisCost = 10
	ripCost  = 1
)

// uses reports whether the router has any address of the family.
func (r *router) uses(f family) bool {
	for i := range r.ports {
		if r.ports[i].has(f) {
			return true
		}
	}
	return len(announced(r.Node, f)) > 0
}

// cost gives the port's metric, at most limit.
func (p *port) cost(unset, limit int) int {
	if p.Cost == 0 {
		return unset
	}
	return min(p.Cost, limit)
}

// frrOSPF writes OSPFv2 (RFC 2328): the loopback and every interface without a
// neighbour passive.
func frrOSPF(b block, r *router) {
	o := b.open("router ospf")
	o.add("ospf router-id %s", r.RouterID)
	if t := r.timers(vnet.OSPF); t.spf[2] > 0 {
		o.add("timers throttle spf %d %d %d", t.spf[0], t.spf[1], t.spf[2])
		// By default an LSA is sent at most every 5 s and accepted at most every
		// second (MinLSInterval, MinLSArrival), which delays the first routes
		// by several seconds while adjacencies come up one after the other.
		o.add("timers throttle lsa all %d", t.lsaDelay)
		o.add("timers lsa min-arrival %d", t.lsaArrival())
	}
	if r.Routing.DefaultRoute {
		o.add("default-information originate always")
	}
	o.add("graceful-restart helper enable")
	if len(announced(r.Node, ipv4)) > 0 {
		i := b.open("interface lo")
		i.add("ip ospf area %s", areaOf(r.Node))
		i.add("ip ospf passive")
	}
	frrOSPFInterfaces(b, r, ipv4, "ip ospf")
}

// frrOSPF6 writes OSPFv3 (RFC 5340) in the same way.
func frrOSPF6(b block, r *router) {
	o := b.open("router ospf6")
	o.add("ospf6 router-id %s", r.RouterID)
	if t := r.timers(vnet.OSPF); t.spf[2] > 0 {
		o.add("timers throttle spf %d %d %d", t.spf[0], t.spf[1], t.spf[2])
		o.add("timers lsa min-arrival %d", t.lsaArrival())
	}
	if r.Routing.DefaultRoute {
		o.add("default-information originate always")
	}
	o.add("graceful-restart helper enable")
	if len(announced(r.Node, ipv6)) > 0 {
		i := b.open("interface lo")
		i.add("ipv6 ospf6 area %s", areaOf(r.Node))
		i.add("ipv6 ospf6 passive")
	}
	if r.net.quietLinks {
		b.add("ipv6 prefix-list %s seq 5 deny any", noPrefixes)
	}
	frrOSPFInterfaces(b, r, ipv6, "ipv6 ospf6")
}

// noPrefixes names the prefix list that nothing passes.
const noPrefixes = "none"

// transit reports whether the port is on a link between two routers of a network
// that does not announce such links.
func (p *port) transit() bool {
	return p.net.quietLinks && p.link.Type == vnet.PointToPoint && p.speaks(vnet.OSPF)
}

// frrOSPFInterfaces writes what both versions say of interfaces.
func frrOSPFInterfaces(b block, r *router, f family, prefix string) {
	for n := range r.ports {
		p := &r.ports[n]
		if !p.has(f) || !p.carries(vnet.OSPF) {
			continue
		}
		i := b.open("interface %s", p.Name)
		i.add("%s area %s", prefix, p.area())
		i.add("%s cost %d", prefix, p.cost(ospfCost, 65535))
		if p.link.Type == vnet.PointToPoint {
			i.add("%s network point-to-point", prefix)
		}
		if !p.speaks(vnet.OSPF) {
			i.add("%s passive", prefix)
			continue
		}
		if f == ipv6 && p.transit() {
			i.add("%s advertise prefix-list %s", prefix, noPrefixes)
		}
		if t := p.timers(vnet.OSPF); t.fast {
			i.add("%s hello-interval %d", prefix, t.hello)
			i.add("%s dead-interval %d", prefix, t.dead)
			// BIRD drops an LSA that comes within a second of the one before.
			i.add("%s retransmit-interval %d", prefix, t.retransmit)
		}
	}
}

// isisTag names the one IS-IS instance of a node.
const isisTag = "trellis"

// frrISIS writes IS-IS (ISO 10589, RFC 1195, RFC 5308) with wide metrics (RFC
// 5305). Level 2 only: FRR's routers of both levels do not tell level 2 what they
// know of level 1. The least time between LSPs comes first: the net already
// makes an LSP, and the next one waits as long as was then in force, by default
// 30 s.
func frrISIS(b block, r *router) {
	o := b.open("router isis %s", isisTag)
	if t := r.timers(vnet.ISIS); t.spf[2] > 0 {
		o.add("lsp-gen-interval %d", max(1, t.lsaDelay/1000))
		// RFC 8405. FRR takes 60 s at most.
		o.add("spf-delay-ietf init-delay %d short-delay %d long-delay %d holddown %d time-to-learn %d",
			min(max(t.spf[0], 20), 60000), min(max(t.spf[1], 100), 60000), min(t.spf[2], 60000), min(2*t.spf[2], 60000), min(max(t.spf[0], 200), 60000))
	}
	o.add("net %s", networkEntityTitle(r.Routing.Area, r.RouterID))
	o.add("is-type level-2-only")
	o.add("metric-style wide")
	if r.net.lspMTU != 0 {
		o.add("lsp-mtu %d", r.net.lspMTU)
	}
	for _, f := range []family{ipv4, ipv6} {
		if r.Routing.DefaultRoute && r.uses(f) {
			o.add("default-information originate %s level-2 always", f)
		}
	}
	if r.net.multiTopology {
		o.add("topology ipv6-unicast")
	}
	if len(r.Loopbacks)+len(r.Anycast) > 0 {
		i := b.open("interface lo")
		for _, f := range []family{ipv4, ipv6} {
			if len(announced(r.Node, f)) > 0 {
				i.add("%s router isis %s", ipWord(f), isisTag)
			}
		}
		i.add("isis passive")
	}
	for n := range r.ports {
		p := &r.ports[n]
		if !p.has(ipv4) && !p.has(ipv6) || !p.carries(vnet.ISIS) {
			continue
		}
		i := b.open("interface %s", p.Name)
		for _, f := range []family{ipv4, ipv6} {
			if p.has(f) {
				i.add("%s router isis %s", ipWord(f), isisTag)
			}
		}
		i.add("isis circuit-type level-2-only")
		i.add("isis metric %d", p.cost(isisCost, 1<<24-1))
		if p.link.Type == vnet.PointToPoint {
			i.add("isis network point-to-point")
		}
		if !p.speaks(vnet.ISIS) {
			i.add("isis passive")
			continue
		}
		if t := p.timers(vnet.ISIS); t.fast {
			i.add("isis hello-interval %d", min(t.hello, 600)) // FRR's most
			i.add("isis hello-multiplier %d", min(max(t.dead/t.hello, 2), 100))
			i.add("isis csnp-interval %d", min(2*t.hello, 10))
			i.add("isis psnp-interval %d", min(t.hello, 2))
		}
	}
}

// networkEntityTitle gives the node's NET: its area, of a private format, and
// the twelve decimal digits of the router ID as the system ID, as is usual.
func networkEntityTitle(area vnet.Area, id netip.Addr) string {
	a := id.As4()
	digits := fmt.Sprintf("%03d%03d%03d%03d", a[0], a[1], a[2], a[3])
	return isisArea(area) + "." + digits[0:4] + "." + digits[4:8] + "." + digits[8:12] + ".00"
}

// isisArea gives an area address: 49 for private use, then the number in an even
// count of decimal digits, four at least.
func isisArea(a vnet.Area) string {
	digits := string(cmp.Or(a, "1"))
	digits = strings.Repeat("0", max(4-len(digits), len(digits)%2)) + digits
	return "49." + digits
}

// ipWord gives FRR's word for a family.
func ipWord(f family) string {
	if f == ipv4 {
		return "ip"
	}
	return "ipv6"
}

// frrRIP writes RIPv2 (RFC 2453) or RIPng (RFC 2080). A cost above one is added
// on receipt, which is where RIP adds a link's cost.
func frrRIP(b block, r *router, f family) {
	name, access := "rip", "access-list"
	if f == ipv6 {
		name, access = "ripng", "ipv6 access-list"
	}
	o := b.open("router %s", name)
	if f == ipv4 {
		o.add("version 2")
	}
	if t := r.timers(vnet.RIP); t.fast {
		o.add("timers basic %d %d %d", max(t.hello, 5), max(t.dead, 5), ripGarbage(t))
	}
	if r.Routing.DefaultRoute {
		o.add("default-information originate")
	}
	o.add("allow-ecmp")
	switch list := announced(r.Node, f); {
	case f == ipv6:
		// Of an interface without a link-local address FRR 10 announces nothing.
		for _, a := range list {
			o.add("route %s/%d", a, a.BitLen())
		}
	case len(list) > 0:
		o.add("network lo")
		o.add("passive-interface lo")
	}
	offsets := false
	for n := range r.ports {
		p := &r.ports[n]
		if !p.has(f) || !p.carries(vnet.RIP) {
			continue
		}
		o.add("network %s", p.Name)
		if !p.speaks(vnet.RIP) {
			o.add("passive-interface %s", p.Name)
		}
		if c := p.cost(ripCost, ripInfinity); c > 1 {
			o.add("offset-list %s in %d %s", offsetList, c-1, p.Name)
			offsets = true
		}
	}
	if offsets {
		b.add("%s %s seq 5 permit any", access, offsetList)
	}
}

// ripGarbage gives the time, in seconds, that a route that is lost is announced
// as such.
func ripGarbage(t timers) int { return min(2*t.hello, 120) }

// offsetList names the access list of all routes, which RIP's offsets are for.
const offsetList = "any"

// ripInfinity is the metric of what cannot be reached.
const ripInfinity = 16
