package vnet

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"
)

// Protocol names a routing protocol.
type Protocol string

// The protocols that Trellis configures.
const (
	None   Protocol = "none"   // connected routes only
	Static Protocol = "static" // computed shortest paths, no daemon
	OSPF   Protocol = "ospf"   // OSPFv2 (RFC 2328) and OSPFv3 (RFC 5340)
	ISIS   Protocol = "isis"   // ISO 10589, RFC 1195, RFC 5308
	BGP    Protocol = "bgp"    // RFC 4271; between autonomous systems, and within those of several nodes
	RIP    Protocol = "rip"    // RIPv2 (RFC 2453) and RIPng (RFC 2080)
)

// NeedsDaemon reports whether the protocol is spoken by a routing daemon.
func (p Protocol) NeedsDaemon() bool { return p != None && p != Static && p != "" }

// Daemon names the routing software that speaks the protocol.
type Daemon string

// Timers selects protocol timers.
type Timers string

// Timer sets.
const (
	TimersDefault Timers = "default" // the protocol's and daemon's own
	TimersFast    Timers = "fast"    // as fast as the machines hold; a second to a few on small networks
)

// Intervals are timers that the description names, in place of those of the set.
// Zero values name nothing.
type Intervals struct {
	// Hello and Dead are the hello and dead (hold) intervals of OSPF and IS-IS,
	// keepalive and hold time of BGP, update and timeout of RIP, in whole seconds.
	Hello time.Duration `json:"hello,omitempty"`
	Dead  time.Duration `json:"dead,omitempty"`
	// SPF is how long a shortest-path calculation waits after a change: the first,
	// the next, and at most; in whole milliseconds. Used if SPF[2] is not 0.
	SPF [3]time.Duration `json:"spf,omitzero"`
}

// IsZero reports whether no timer is named.
func (i Intervals) IsZero() bool { return i == Intervals{} }

// Area is a number of 32 bits in decimal, as [ParseArea] gives it: an area of
// OSPF, or the number in the area address 49.NNNN of IS-IS. Empty: not said.
type Area string

// ParseArea reads an area written as a number or like an IPv4 address.
func ParseArea(s string) (Area, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Is4() {
		b := a.As4()
		return Area(strconv.FormatUint(uint64(b[0])<<24|uint64(b[1])<<16|uint64(b[2])<<8|uint64(b[3]), 10)), nil
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return "", fmt.Errorf("%q is not an area; write a number from 0 to 4294967295, or one like 0.0.0.1", clip(s))
	}
	return Area(strconv.FormatUint(n, 10)), nil
}

// Routing says how a node (or, as the default, every node) learns its routes.
// The zero value means "not said": Complete fills it in.
type Routing struct {
	Protocol Protocol `json:"protocol,omitempty"`
	// IGP is what the nodes of one AS speak to each other under BGP: OSPF, ISIS,
	// RIP or None. Complete fills in OSPF where an AS has several nodes.
	IGP    Protocol `json:"igp,omitempty"`
	Daemon Daemon   `json:"daemon,omitempty"`
	Timers Timers   `json:"timers,omitempty"`
	// Intervals take the place of single timers of the set.
	Intervals Intervals `json:"intervals,omitzero"`
	// Area is the node's area under OSPF (default 0) and IS-IS (default 1), and so
	// that of the links between two nodes of one area; other links are in area 0 of OSPF.
	Area Area `json:"area,omitempty"`
	// DefaultRoute has the node announce a default route to its neighbours. A node's own.
	DefaultRoute bool `json:"defaultRoute,omitempty"`
	// RouteReflector has the node reflect the BGP routes of its AS (RFC 4456), so
	// that the others need sessions with reflectors alone. A node's own.
	RouteReflector bool `json:"routeReflector,omitempty"`
}

// Speaks reports whether a node of this routing speaks the protocol.
func (r Routing) Speaks(p Protocol) bool {
	return r.Protocol == p || r.Protocol == BGP && r.IGP == p && p != None
}

// LinkRouting is what the routing protocols of a link's ends do on it. The zero
// value leaves it to the nodes.
type LinkRouting struct {
	// Protocol is the only one of the ends' protocols that is spoken over the link;
	// None: no protocol is, and none announces the link.
	Protocol Protocol `json:"protocol,omitempty"`
	Area     Area     `json:"area,omitempty"` // OSPF
	// Passive has the link announced without neighbours over it.
	Passive bool `json:"passive,omitempty"`
}
