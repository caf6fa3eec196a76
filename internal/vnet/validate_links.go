package vnet

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
)

func (c *checker) links() {
	names := make(map[string]int, len(c.v.Links))
	type port struct{ node, name string }
	ports := map[port]string{}
	for i := range c.v.Links {
		l := &c.v.Links[i]
		at := fmt.Sprintf("links[%d]", i)
		if !linkName.MatchString(l.Name) {
			c.add(at+".name", "use up to 128 of a-z, A-Z, 0-9 and . _ : -", "%q is not a valid link name", clip(l.Name))
		}
		if first, dup := names[l.Name]; dup {
			c.add(at+".name", "give every link a name of its own", "link %q is there twice (links %d and %d)", clip(l.Name), first+1, i+1)
		} else {
			names[l.Name] = i
		}
		c.linkEnds(at, l)
		for ei := range l.Endpoints {
			e := &l.Endpoints[ei]
			where := fmt.Sprintf("%s.endpoints[%d]", at, ei)
			c.end(where, l, e)
			if other, dup := ports[port{e.Node, e.Name}]; dup {
				c.add(where, "name another interface, or none", "interface %s:%s is used twice, by links %q and %q", clip(e.Node), clip(e.Name), other, l.Name)
			}
			ports[port{e.Node, e.Name}] = l.Name
		}
	}
}

func (c *checker) linkEnds(at string, l *Link) {
	switch l.Type {
	case PointToPoint:
		if len(l.Endpoints) != 2 {
			c.add(at, "name two ends, or say type: lan", "link %q has %d ends, a point-to-point link has two", clip(l.Name), len(l.Endpoints))
		}
	case LAN:
		if len(l.Endpoints) == 0 {
			c.add(at, "name at least one end", "LAN %q has no ends", clip(l.Name))
		}
	default:
		c.add(at+".type", "use p2p or lan", "link %q has the unknown type %q", clip(l.Name), clip(string(l.Type)))
	}
	on := make(map[string]bool, len(l.Endpoints))
	macs := make(map[MAC]bool, len(l.Endpoints))
	for ei := range l.Endpoints {
		e := &l.Endpoints[ei]
		where := fmt.Sprintf("%s.endpoints[%d]", at, ei)
		if on[e.Node] && l.Type == PointToPoint {
			c.add(where, "join different nodes, or say type: lan", "node %q is on link %q twice", clip(e.Node), clip(l.Name))
		}
		on[e.Node] = true
		if macs[e.MAC] && !e.MAC.IsZero() {
			c.add(where+".mac", "give each end its own", "MAC address %s is twice on link %q", e.MAC, clip(l.Name))
		}
		macs[e.MAC] = true
		if l.Type == PointToPoint && e.Down {
			c.add(where+".down", "say `state: down` of the link", "%s:%s alone is down, which only ends of a LAN may be", clip(e.Node), clip(e.Name))
		}
		if l.Type == PointToPoint && !e.Rx.IsZero() {
			c.add(where, "shape the other end's sending direction", "%s:%s shapes what it receives, which only ends of a LAN may", clip(e.Node), clip(e.Name))
		}
	}
}

func (c *checker) end(at string, l *Link, e *Interface) {
	who := fmt.Sprintf("%s:%s", clip(e.Node), clip(e.Name))
	if _, ok := c.nodes[e.Node]; !ok {
		remedy := "add it under nodes"
		if near := c.nearestNode(e.Node); near != "" {
			remedy = fmt.Sprintf("write %q, or add it under nodes", near)
		}
		c.add(at, remedy, "link %q ends at node %q, which does not exist", clip(l.Name), clip(e.Node))
	}
	if bad := checkInterfaceName(e.Name); bad != "" {
		c.add(at+".name", "use a name like eth1 or wan0", "interface name %q of node %q %s", clip(e.Name), clip(e.Node), bad)
	}
	if e.MAC.IsZero() || e.MAC[0]&1 != 0 {
		c.add(at+".mac", "use one like 02:00:00:00:00:01", "%s: MAC address %s is not a unicast address", who, e.MAC)
	}
	least := MinMTU
	if slices.ContainsFunc(e.Addrs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		least = MinMTUIPv6
	}
	if e.MTU < least || e.MTU > MaxMTU {
		remedy := fmt.Sprintf("use %d to %d", least, MaxMTU)
		if least == MinMTUIPv6 && e.MTU >= MinMTU {
			remedy += " (IPv6 needs 1280), or leave IPv6 out of addressing"
		}
		c.add(at+".mtu", remedy, "%s: MTU %d is out of range", who, e.MTU)
	}
	if e.Cost < 0 || e.Cost > MaxCost {
		c.add(at+".cost", fmt.Sprintf("use 1 to %d, or leave it out", MaxCost), "%s: cost %d is out of range", who, e.Cost)
	}
	c.shape(at+".tx", who, e.Tx)
	c.shape(at+".rx", who, e.Rx)
	if len(e.Addrs) > MaxAddrs {
		c.add(at+".addrs", fmt.Sprintf("keep it to %d", MaxAddrs), "%s has %d addresses", who, len(e.Addrs))
	}
	seen := map[netip.Addr]bool{}
	for _, p := range e.Addrs {
		a := p.Addr()
		switch {
		case !p.IsValid() || !usable(a) || p.Bits() == 0:
			c.add(at+".addrs", "write a unicast address with its prefix length, like 192.0.2.1/24", "%s: %s cannot be an interface's address", who, p)
		case a.Is4() && p.Bits() < 31 && (a == p.Masked().Addr() || a == lastAddr(p)):
			c.add(at+".addrs", "use one between the two, or a /31", "%s: %s is the network or broadcast address of its subnet", who, p)
		case seen[a]:
			c.add(at+".addrs", "name it once", "%s has the address %s twice", who, a)
		}
		seen[a] = true
	}
}

func (c *checker) shape(at, who string, s Shape) {
	if s.Rate != 0 && (s.Rate < MinRate || s.Rate > MaxRate) {
		c.add(at+".rate", "leave it out for an unlimited link", "%s: rate %s is outside %s to %s", who, FormatRate(s.Rate), FormatRate(MinRate), FormatRate(MaxRate))
	}
	if s.Delay < 0 || s.Delay > MaxDelay {
		c.add(at+".delay", "use 0 to 60s", "%s: delay %s is out of range", who, s.Delay)
	}
	if s.Jitter < 0 || s.Jitter > MaxDelay || s.Jitter > s.Delay {
		c.add(at+".jitter", "use no more than the delay", "%s: jitter %s is out of range", who, s.Jitter)
	}
	if math.IsNaN(s.Loss) || s.Loss < 0 || s.Loss > 1 {
		c.add(at+".loss", "use 0% to 100%", "%s: loss %g is out of range", who, s.Loss)
	}
}

// subnets finds addresses that clash: one address at two places, and one subnet
// on two links. Link-local addresses mean something on their link only, and those of
// links that overlap may be on other such links.
func (c *checker) subnets(loopbacks map[netip.Addr]string) {
	type holder struct {
		node, name string
		link       int // -1: lo
		overlap    bool
	}
	owner := make(map[netip.Addr]holder, len(loopbacks))
	for a, n := range loopbacks {
		owner[a] = holder{n, "lo", -1, false}
	}
	type use struct {
		p    netip.Prefix
		link int
		at   string
	}
	var uses []use
	for i := range c.v.Links {
		l := &c.v.Links[i]
		local := map[netip.Addr]holder{}
		mine := map[netip.Prefix]bool{}
		for ei := range l.Endpoints {
			e := &l.Endpoints[ei]
			at := fmt.Sprintf("links[%d].endpoints[%d].addrs", i, ei)
			who := holder{e.Node, e.Name, i, l.Overlap}
			for _, p := range e.Addrs {
				if !p.IsValid() {
					continue
				}
				in := owner
				if p.Addr().IsLinkLocalUnicast() {
					in = local
				}
				// Interfaces of one node may share a host address: unnumbered links do.
				other, used := in[p.Addr()]
				apart := other.link != i && other.overlap && l.Overlap
				if used && other != who && !apart && !(p.IsSingleIP() && other.node == who.node) {
					remedy := "give each interface its own"
					if other.link >= 0 && other.link != i {
						remedy += ", or say overlap: true for both links"
					}
					c.add(at, remedy, "address %s is at %s:%s and %s:%s", p.Addr(), other.node, other.name, who.node, who.name)
				}
				in[p.Addr()] = who
				if !p.Addr().IsLinkLocalUnicast() && !p.IsSingleIP() && !mine[p.Masked()] {
					mine[p.Masked()] = true
					uses = append(uses, use{p.Masked(), i, at})
				}
			}
		}
	}
	// Sorted by address, then shorter first, every prefix follows what contains it.
	slices.SortStableFunc(uses, func(a, b use) int {
		if d := a.p.Addr().Compare(b.p.Addr()); d != 0 {
			return d
		}
		return a.p.Bits() - b.p.Bits()
	})
	var open []use
	for _, u := range uses {
		for len(open) > 0 && !open[len(open)-1].p.Overlaps(u.p) {
			open = open[:len(open)-1]
		}
		for _, o := range open {
			if o.link != u.link && !(c.v.Links[o.link].Overlap && c.v.Links[u.link].Overlap) {
				c.add(u.at, "give each link its own subnet, or say overlap: true for both", "subnet %s of link %q overlaps %s of link %q", u.p, c.v.Links[u.link].Name, o.p, c.v.Links[o.link].Name)
				break
			}
		}
		open = append(open, u)
	}
}

// lastAddr is the broadcast address of an IPv4 prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	host := uint64(1)<<(32-p.Bits()) - 1
	return offset(p.Masked().Addr(), host, 0)
}

// nearestNode is the node that was probably meant, or "".
func (c *checker) nearestNode(name string) string {
	if len(c.v.Nodes) > 2000 || len(name) > 64 {
		return ""
	}
	names := make([]string, len(c.v.Nodes))
	for i := range c.v.Nodes {
		names[i] = c.v.Nodes[i].Name
	}
	return Nearest(name, names)
}
