// Package port makes and removes virtual interfaces: veth pairs whose inner
// end lies in a virtual node and whose outer end, the port, stays in the root
// context.
//
// Every function works in the network namespace of the calling thread, and in
// bulk: the kernel serialises all changes behind one lock, so what counts is
// the work for each device and the number of system calls, not how many
// workers wait.
package port

import "trellis/internal/vnet"

// Spec describes one virtual interface to make.
type Spec struct {
	Device string   // the port, in the root context; at most 15 bytes
	Alias  string   // trellis:<instance>:<vnet>/<node>:<if>
	Group  uint32   // the VNet's group, for DeleteGroup; never 0, the kernel's default group
	Name   string   // the inner end, as the node sees it; at most 15 bytes
	MAC    vnet.MAC // of the inner end
	MTU    int      // of the IP packet, both ends, bytes
	Node   int      // descriptor of the node's network namespace
}

// Helper describes the pair of devices that shapes what one port sends into a
// LAN. Both ends lie in the root context and are named by [HelperNames]; both
// carry the port's alias with a suffix.
type Helper struct {
	Device string // the port that is helped
	Alias  string // of that port
	Group  uint32
	MTU    int
}

// Tunnel describes the pair of devices that stands on a LAN's bridge for another
// machine: what the bridge sends to the one end leaves the other by EGRE. Both
// ends lie in the root context; [TunnelMember] names the one on the bridge.
type Tunnel struct {
	Device string // the outer end, which is connected
	Alias  string // trellis:<instance>:<vnet>/@<link>><machine>
	Group  uint32
	MTU    int // of the LAN's IP packets, bytes
}

// Kind says what a device of Trellis's in the root context is.
type Kind string

// Kinds of devices.
const (
	KindPort   Kind = "port"
	KindBridge Kind = "bridge"
	KindHelper Kind = "helper" // either end of a [Helper] pair, and the inner end of a [Tunnel]
	KindTunnel Kind = "tunnel" // the outer end of a [Tunnel]
)

// State is a device of Trellis's in the root context, as it is.
type State struct {
	Device  string
	Alias   string
	Kind    Kind
	Index   int
	Up      bool // as set; false is a pulled cable
	Carrier bool // the port is up and so is the node's end
	MTU     int  // of the IP packet, as in Spec
	Group   uint32
	Master  string // the bridge; empty: none
	// Isolated, of a bridge's port: no frame goes between it and other such ports.
	Isolated bool
	// Qdisc is the kind of the root qdisc: "noqueue", "tbf", "netem", …
	Qdisc string
}
