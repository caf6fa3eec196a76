package routing

import (
	"fmt"
	"net/netip"

	"trellis/internal/vnet"
)

// Metrics of interfaces whose cost is not said. They are written out, so that
// FRR and BIRD agree on them and FRR does not derive them from a veth's nominal
// speed, which it reads again some seconds after the start.
const (
	ospfCost = 10
	isisCost = 10
	ripCost  = 1
)

// Fast timers, in seconds; see docs/routing.md for what they lead to.
const (
	fastHello = 1
	fastDead  = 4
	// BIRD's least.
	fastRetransmit = 2
	// RIP: update, timeout, garbage collection. Five is FRR's least.
	fastUpdate  = 5
	fastTimeout = 15
	fastGarbage = 10
	// BGP: keepalive and hold time.
	fastKeepalive = 3
	fastHold      = 9
)

// uses reports whether the router has any address of the family.
func (r *router) uses(f family) bool {
	for i := range r.ports {
		if r.ports[i].has(f) {
			return true
		}
	}
	return loopback(r.Node, f).IsValid()
}

// cost gives the port's metric, at most limit.
func (p *port) cost(unset, limit int) int {
	if p.Cost == 0 {
		return unset
	}
	return min(p.Cost, limit)
}

// frrOSPF writes OSPFv2 (RFC 2328): one backbone area, the loopback and every
// interface without a neighbour passive.
func frrOSPF(b block, r *router) {
	o := b.open("router ospf")
	o.add("ospf router-id %s", r.RouterID)
	if r.Routing.Timers == vnet.TimersFast {
		// By default an LSA is sent at most every 5 s and accepted at most every
		// second (MinLSInterval, MinLSArrival), which delays the first routes
		// by several seconds while adjacencies come up one after the other.
		o.add("timers throttle spf 0 50 500")
		o.add("timers throttle lsa all 0")
		o.add("timers lsa min-arrival 0")
	}
	o.add("graceful-restart helper enable")
	if loopback(r.Node, ipv4).IsValid() {
		i := b.open("interface lo")
		i.add("ip ospf area 0")
		i.add("ip ospf passive")
	}
	for n := range r.ports {
		p := &r.ports[n]
		if !p.has(ipv4) {
			continue
		}
		i := b.open("interface %s", p.Name)
		i.add("ip ospf area 0")
		i.add("ip ospf cost %d", p.cost(ospfCost, 65535))
		frrOSPFInterface(i, p, "ip ospf")
	}
}

// frrOSPF6 writes OSPFv3 (RFC 5340) in the same way.
func frrOSPF6(b block, r *router) {
	o := b.open("router ospf6")
	o.add("ospf6 router-id %s", r.RouterID)
	if r.Routing.Timers == vnet.TimersFast {
		o.add("timers throttle spf 0 50 500")
		o.add("timers lsa min-arrival 0")
	}
	o.add("graceful-restart helper enable")
	if loopback(r.Node, ipv6).IsValid() {
		i := b.open("interface lo")
		i.add("ipv6 ospf6 area 0")
		i.add("ipv6 ospf6 passive")
	}
	for n := range r.ports {
		p := &r.ports[n]
		if !p.has(ipv6) {
			continue
		}
		i := b.open("interface %s", p.Name)
		i.add("ipv6 ospf6 area 0")
		i.add("ipv6 ospf6 cost %d", p.cost(ospfCost, 65535))
		frrOSPFInterface(i, p, "ipv6 ospf6")
	}
}

// frrOSPFInterface writes what both versions say of an interface.
func frrOSPFInterface(i block, p *port, prefix string) {
	if p.link.Type == vnet.PointToPoint {
		i.add("%s network point-to-point", prefix)
	}
	if !p.speaks(vnet.OSPF) {
		i.add("%s passive", prefix)
		return
	}
	if p.timers == vnet.TimersFast {
		i.add("%s hello-interval %d", prefix, fastHello)
		i.add("%s dead-interval %d", prefix, fastDead)
		// BIRD drops an LSA that comes within a second of the one before.
		i.add("%s retransmit-interval %d", prefix, fastRetransmit)
	}
}

// isisTag names the one IS-IS instance of a node.
const isisTag = "trellis"

// frrISIS writes IS-IS (ISO 10589, RFC 1195, RFC 5308): one level-2 area, wide
// metrics (RFC 5305). The least time between LSPs comes first: the net already
// makes an LSP, and the next one waits as long as was then in force, by default
// 30 s.
func frrISIS(b block, r *router, s network) {
	o := b.open("router isis %s", isisTag)
	if r.Routing.Timers == vnet.TimersFast {
		o.add("lsp-gen-interval 1")
		// RFC 8405.
		o.add("spf-delay-ietf init-delay 20 short-delay 100 long-delay 500 holddown 1000 time-to-learn 200")
	}
	o.add("net %s", networkEntityTitle(r.RouterID))
	o.add("is-type level-2-only")
	o.add("metric-style wide")
	if s.lspMTU != 0 {
		o.add("lsp-mtu %d", s.lspMTU)
	}
	if s.multiTopology {
		o.add("topology ipv6-unicast")
	}
	if len(r.Loopbacks) > 0 {
		i := b.open("interface lo")
		for _, a := range r.Loopbacks {
			i.add("%s router isis %s", ipWord(family4(a)), isisTag)
		}
		i.add("isis passive")
	}
	for n := range r.ports {
		p := &r.ports[n]
		if !p.has(ipv4) && !p.has(ipv6) {
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
		if p.timers == vnet.TimersFast {
			i.add("isis hello-interval %d", fastHello)
			i.add("isis hello-multiplier %d", fastDead/fastHello)
			i.add("isis csnp-interval 2")
			i.add("isis psnp-interval 1")
		}
	}
}

// networkEntityTitle gives the node's NET: area 49.0001 (a private one) and the
// twelve decimal digits of the router ID as the system ID, as is usual.
func networkEntityTitle(id netip.Addr) string {
	a := id.As4()
	digits := fmt.Sprintf("%03d%03d%03d%03d", a[0], a[1], a[2], a[3])
	return "49.0001." + digits[0:4] + "." + digits[4:8] + "." + digits[8:12] + ".00"
}

// ipWord gives FRR's word for a family.
func ipWord(f family) string {
	if f == ipv4 {
		return "ip"
	}
	return "ipv6"
}

// family4 gives the family of an address.
func family4(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
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
	if r.Routing.Timers == vnet.TimersFast {
		o.add("timers basic %d %d %d", fastUpdate, fastTimeout, fastGarbage)
	}
	o.add("allow-ecmp")
	if loopback(r.Node, f).IsValid() {
		o.add("network lo")
		o.add("passive-interface lo")
	}
	dear := false
	for n := range r.ports {
		p := &r.ports[n]
		if !p.has(f) {
			continue
		}
		o.add("network %s", p.Name)
		if !p.speaks(vnet.RIP) {
			o.add("passive-interface %s", p.Name)
		}
		if c := p.cost(ripCost, ripInfinity); c > 1 {
			o.add("offset-list %s in %d %s", offsetList, c-1, p.Name)
			dear = true
		}
	}
	if dear {
		b.add("%s %s seq 5 permit any", access, offsetList)
	}
}

// offsetList names the access list of all routes, which RIP's offsets are for.
const offsetList = "any"

// ripInfinity is the metric of what cannot be reached.
const ripInfinity = 16
