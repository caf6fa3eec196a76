package vnet

import (
	"fmt"
	"slices"
	"time"
)

// kind checks what a node is, and what that keeps it from.
func (c *checker) kind(at, who string, n *Node) {
	switch {
	case !n.Kind.known():
		c.add(at+".kind", "use "+orList(KindNames()), "%s is of the unknown kind %q", who, clip(string(n.Kind)))
	case !n.Kind.Traits().Routes && n.Routing.Protocol != None:
		c.add(at+".routing", fmt.Sprintf("leave routing out (a %s has a default gateway), or say kind: %s", n.Kind, Router),
			"%s is a %s and asks for %s", who, n.Kind, n.Routing.Protocol)
	}
	if n.Addressing != AddressesAuto && n.Addressing != AddressesNone {
		c.add(at+".addressing", "use none, or leave it out", "%s has the unknown addressing %q", who, clip(string(n.Addressing)))
	}
}

func (c *checker) routing(path, who string, r Routing) {
	switch r.Protocol {
	case None, Static, OSPF, ISIS, BGP, RIP:
	default:
		c.add(path, "use none, static, ospf, isis, bgp or rip", "%s has the unknown routing protocol %q", who, clip(string(r.Protocol)))
		return
	}
	switch r.IGP {
	case "":
	case None, OSPF, ISIS, RIP:
		if r.Protocol != BGP {
			c.add(path+".igp", "leave igp out, or use protocol bgp", "%s names an IGP besides %s", who, r.Protocol)
		}
	default:
		c.add(path+".igp", "use ospf, isis, rip or none", "%s has the unknown IGP %q", who, clip(string(r.IGP)))
	}
	if r.Daemon != "" && r.Daemon.Kind() == nil {
		c.add(path, "use "+orList(DaemonNames()), "%s has the unknown routing daemon %q", who, clip(string(r.Daemon)))
	}
	switch r.Timers {
	case "", TimersDefault, TimersFast:
	default:
		c.add(path, "use default or fast", "%s has the unknown timers %q", who, clip(string(r.Timers)))
	}
	switch p := r.unspoken(r.Daemon); {
	case p != "":
		speak := daemonsThat(func(k *DaemonKind) bool { _, ok := k.Speaks[p]; return ok })
		c.add(path, fmt.Sprintf("use daemon %s for %s", orList(speak), p), "%s asks for %s from %s, which does not speak it", who, p, r.Daemon)
	case r.Protocol.NeedsDaemon() && (r.Daemon == "" || r.Timers == ""):
		c.add(path, "complete the description first", "%s has no routing daemon or timers", who)
	}
	c.intervals(path, who, r.Intervals)
	if r.Area != "" {
		c.area(path+".area", who, r.Area)
		if r.Protocol != None && !r.Speaks(OSPF) && !r.Speaks(ISIS) {
			c.add(path+".area", "leave area out, or use ospf or isis", "%s names an area, and %s has none", who, r.Protocol)
		}
	}
	if r.DefaultRoute && !r.Protocol.NeedsDaemon() {
		c.add(path+".default-route", "leave default-route out, or use a routing protocol", "%s announces a default route, and with %s it announces nothing", who, r.Protocol)
	}
	if r.RouteReflector && r.Protocol != BGP {
		c.add(path+".route-reflector", "leave route-reflector out, or use bgp", "%s is a route reflector, and speaks no BGP", who)
	}
}

func (c *checker) area(path, who string, a Area) {
	if parsed, err := ParseArea(string(a)); err != nil || parsed != a {
		c.add(path, "write a number from 0 to 4294967295, or one like 0.0.0.1", "%s has the area %q", who, clip(string(a)))
	}
}

// Bounds of named timers.
const (
	maxInterval = 65535 * time.Second // OSPF's dead interval is the wider field; FRR takes no more for either
	maxSPFDelay = 600 * time.Second   // FRR's
)

func (c *checker) intervals(path, who string, i Intervals) {
	for _, t := range []struct {
		key string
		d   time.Duration
	}{{"hello", i.Hello}, {"dead", i.Dead}} {
		if t.d < 0 || t.d > maxInterval || t.d%time.Second != 0 {
			c.add(path+".timers", "use whole seconds, 1s to 65535s", "%s: timer %s is %s", who, t.key, t.d)
		}
	}
	if i.Hello > 0 && i.Dead > 0 && i.Dead <= i.Hello {
		c.add(path+".timers", "make dead some times hello", "%s: timer dead (%s) is not longer than hello (%s)", who, i.Dead, i.Hello)
	}
	for k, d := range i.SPF {
		if d < 0 || d > maxSPFDelay || d%time.Millisecond != 0 || k > 0 && d < i.SPF[k-1] {
			c.add(path+".timers", "use [first, next, most] in rising order, whole milliseconds up to 600s", "%s: timers spf are %s, %s and %s", who, i.SPF[0], i.SPF[1], i.SPF[2])
			break
		}
	}
}

const staticRemedy = "leave the daemon out, or use another protocol"

// ownDaemon checks a node whose routing software the user configures.
func (c *checker) ownDaemon(at, who string, n *Node) {
	if n.Routing.Protocol.NeedsDaemon() || n.Routing.Daemon == "" {
		return
	}
	own := n.OwnDaemon()
	if own == "" && n.Routing.Protocol == Static {
		c.add(at+".routing", staticRemedy, "%s asks for static routes and a daemon: static routes are written straight into the kernel", who)
		return
	}
	if own == "" {
		c.add(at+".routing", "place its configuration with files, name a protocol, or leave the daemon out",
			"%s asks for %s and for no protocol that it is to speak", who, n.Routing.Daemon)
		return
	}
	if all := n.configuredDaemons(); len(all) > 1 {
		c.add(at+".files", "keep one, or say which with routing: {protocol: …, daemon: …}", "%s has configurations of %s and of %s", who, all[0].Title, all[1].Title)
	}
}

// linkRouting checks what links say of routing, and unnumbered links.
func (c *checker) linkRouting() {
	for i := range c.v.Links {
		l := &c.v.Links[i]
		at := fmt.Sprintf("links[%d]", i)
		who := fmt.Sprintf("link %q", clip(l.Name))
		switch l.Routing.Protocol {
		case "", None:
		case OSPF, ISIS, BGP, RIP:
			spoken := 0
			for ei := range l.Endpoints {
				if n := c.nodeNamed(l.Endpoints[ei].Node); n != nil && n.Routing.Speaks(l.Routing.Protocol) {
					spoken++
				}
			}
			if spoken == 0 {
				c.add(at+".routing", "name a protocol of its ends, or none", "%s: no end of it speaks %s", who, l.Routing.Protocol)
			}
		default:
			c.add(at+".routing", "use none, ospf, isis, bgp or rip", "%s has the unknown routing protocol %q", who, clip(string(l.Routing.Protocol)))
		}
		if l.Routing.Area != "" {
			c.area(at+".routing.area", who, l.Routing.Area)
		}
		switch l.Addressing {
		case AddressesAuto, AddressesNone:
		case AddressesUnnumbered:
			c.unnumbered(at, who, l)
		default:
			c.add(at+".addressing", "use none or unnumbered, or leave it out", "%s has the unknown addressing %q", who, clip(string(l.Addressing)))
		}
	}
}

// unnumbered checks a link whose ends borrow their addresses.
func (c *checker) unnumbered(at, who string, l *Link) {
	if l.Type != PointToPoint {
		c.add(at+".addressing", "give the LAN a subnet", "%s is a LAN, and only point-to-point links can be unnumbered", who)
		return
	}
	for ei := range l.Endpoints {
		n := c.nodeNamed(l.Endpoints[ei].Node)
		if n == nil {
			continue
		}
		end := fmt.Sprintf("%s.endpoints[%d]", at, ei)
		if len(n.Loopbacks) == 0 {
			c.add(end, "give the node a loopback address, or the link a subnet", "%s is unnumbered, and node %q has no loopback address to borrow", who, n.Name)
		}
		if !n.Routing.unnumbered(l.Routing.Protocol) {
			c.add(end, "use "+unnumberedRouting()+", or give the link a subnet",
				"%s is unnumbered, which %s of node %q cannot route over", who, describeRouting(n.Routing), n.Name)
		}
	}
}

// unnumbered reports whether the routing can do without a link's subnet; only is
// the one protocol that is spoken over the link, empty: any.
func (r Routing) unnumbered(only Protocol) bool {
	if !r.Protocol.NeedsDaemon() {
		return r.Protocol != Static
	}
	k := r.Daemon.Kind()
	if k == nil {
		return true // refused elsewhere
	}
	for _, p := range []Protocol{OSPF, ISIS, BGP, RIP} {
		if r.Speaks(p) && (only == "" || only == p) && !slices.Contains(k.Unnumbered, p) {
			return false
		}
	}
	return len(k.Unnumbered) > 0
}

// unnumberedRouting writes what can route over links without subnets.
func unnumberedRouting() string {
	var all []string
	for _, k := range DaemonKinds {
		var protocols []string
		for _, p := range k.Unnumbered {
			protocols = append(protocols, string(p))
		}
		if len(protocols) > 0 {
			all = append(all, fmt.Sprintf("%s under %s", orList(protocols), k.Name))
		}
	}
	return orList(all)
}

func describeRouting(r Routing) string {
	if r.Daemon == "" {
		return string(r.Protocol)
	}
	return fmt.Sprintf("%s under %s", r.Protocol, r.Daemon)
}

// nodeNamed gives the first node of a name, nil where there is none.
func (c *checker) nodeNamed(name string) *Node {
	if i, ok := c.nodes[name]; ok {
		return &c.v.Nodes[i]
	}
	return nil
}

// MaxMesh bounds the routers of one AS that have BGP sessions each with each.
const MaxMesh = 100

// reflectors refuses an AS that is too large for sessions of each with each.
func (c *checker) reflectors() {
	routers := map[uint32]int{}
	reflected := map[uint32]bool{}
	for i := range c.v.Nodes {
		if n := &c.v.Nodes[i]; n.Routing.Protocol == BGP {
			routers[n.ASN]++
			reflected[n.ASN] = reflected[n.ASN] || n.Routing.RouteReflector
		}
	}
	for i := range c.v.Nodes {
		n := &c.v.Nodes[i]
		if count := routers[n.ASN]; n.Routing.Protocol == BGP && count > MaxMesh && !reflected[n.ASN] {
			c.add(fmt.Sprintf("nodes[%d].asn", i), "say routing: {route-reflector: true} at one or two of them",
				"AS %d has %d routers, which need %d BGP sessions without a route reflector", n.ASN, count, count*(count-1)/2)
			delete(routers, n.ASN) // once for each AS
		}
	}
}
