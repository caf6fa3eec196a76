// Package tunnel says what an EGRE path between two substrate nodes is: its
// endpoints, the route there, and the key. It is pure. The underlay finds routes,
// the reconciler compares paths, and the data plane is connected with them.
package tunnel

import (
	"net/netip"

	"trellis/internal/vnet"
)

// Overhead of EGRE in a packet of the underlay, in bytes: the outer IP header,
// GRE with a key (RFC 2890), the inner Ethernet header.
const (
	OverheadIPv4 = 20 + 8 + 14
	OverheadIPv6 = 40 + 8 + 14
)

// Overhead is that of a tunnel to a remote endpoint.
func Overhead(remote netip.Addr) int {
	if remote.Is4() {
		return OverheadIPv4
	}
	return OverheadIPv6
}

// Endpoints are a tunnel's outer addresses, of one family, neither of them IPv4
// in IPv6.
type Endpoints struct{ Local, Remote netip.Addr }

// Route is how packets to a remote endpoint leave: what the underlay's FIB and
// neighbour table say.
type Route struct {
	Uplink  int      // interface index
	Source  vnet.MAC // of the uplink
	NextHop vnet.MAC // of the remote endpoint, or of the router that leads there
	MTU     int      // of the outer packet on the whole path, as far as it is known; bytes
	// Narrow reports whether MTU was learned from a router on the path.
	Narrow bool
}

// Path is what a device is connected with; the zero value: nothing.
type Path struct {
	Endpoints
	Key   uint32 // tells the links of a machine apart, in both directions
	MTU   int    // of the link, bytes of the IP packet
	Route Route
}
