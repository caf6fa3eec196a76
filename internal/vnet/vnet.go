// Package vnet is the model of a virtual network: nodes, links, interfaces,
// their addresses and limits, and the rules that make a description valid.
//
// A VNet is first described (by a reader in internal/format, or by an API
// client) with any of its addresses, names and defaults left out, then
// completed by [VNet.Complete], which fills in every gap deterministically, and
// checked by [VNet.Validate]. What leaves Complete and Validate without an
// error is ready to be embedded. The package is pure: values in, values out.
package vnet

import (
	"net/netip"
	"time"
)

// VNet describes one virtual network.
//
// The order of Nodes and of Links is the order in which the user wrote them; it
// decides interface names and automatic addresses, so it is part of the
// description.
type VNet struct {
	Name       string     `json:"name"`
	Routing    Routing    `json:"routing"`
	Addressing Addressing `json:"addressing"`
	Nodes      []Node     `json:"nodes"`
	Links      []Link     `json:"links"`
}

// Addressing says which addresses the network's objects are given where the
// description names none: from the pools IPv4 and IPv6, or none. An invalid
// (zero) prefix means that the family is not used.
type Addressing struct {
	Mode AddressMode  `json:"mode,omitempty"` // AddressesAuto or AddressesNone
	IPv4 netip.Prefix `json:"ipv4,omitzero"`
	IPv6 netip.Prefix `json:"ipv6,omitzero"`
}

// AddressMode says which addresses an object gets that names none itself.
type AddressMode string

// Address modes.
const (
	AddressesAuto AddressMode = ""     // from the pools
	AddressesNone AddressMode = "none" // none: the user's software sets them, or nobody does
	// AddressesUnnumbered is for point-to-point links: each end borrows the IPv4
	// loopback address of its node, and has a link-local one in IPv6.
	AddressesUnnumbered AddressMode = "unnumbered"
)

// FastPath says whether a node's packets may be forwarded on its behalf, past
// its own network stack.
type FastPath string

// What Node.FastPath may say.
const (
	FastPathAuto FastPath = "auto" // while nothing in the node speaks against it
	FastPathOff  FastPath = "off"  // never
)

// Repair says whether what a node's root does to the node's own interfaces is undone
// while the network runs.
type Repair string

// What Node.Repair may say.
const (
	RepairAlways Repair = "always" // as soon as it is seen, limited in rate
	RepairNever  Repair = "never"  // it is shown; the next change of the network, or a restart, undoes it
)

// Restart says when a node's own command is started again.
type Restart string

// When a command that has ended is started again.
const (
	RestartAlways    Restart = "always"
	RestartOnFailure Restart = "on-failure" // after a status other than 0, or a signal
	RestartNever     Restart = "no"
)

// Node is a virtual node: a router or a host of the network.
type Node struct {
	Name string `json:"name"`
	// Display is the name as people write it, where that is no DNS label: "New York".
	Display string `json:"display,omitempty"`
	Kind    Kind   `json:"kind,omitempty"`  // Router where the description does not say
	Image   string `json:"image,omitempty"` // "host", a directory, a tar archive, an OCI layout, or a registry reference
	// Cmd replaces the image's own command; empty keeps the image's (none for "host").
	Cmd []string `json:"cmd,omitempty"`
	// Restart says when Cmd is started again after it has ended; empty: RestartAlways.
	Restart Restart `json:"restart,omitempty"`
	// Limits of the node's container. Zero means: Complete fills in the default.
	CPU    float64 `json:"cpu,omitempty"`    // cores; 0 after Complete means no quota
	Memory int64   `json:"memory,omitempty"` // bytes
	Pids   int     `json:"pids,omitempty"`   // processes and threads
	Disk   int64   `json:"disk,omitempty"`   // bytes that the node may write in its file systems

	Env   map[string]string `json:"env,omitempty"`
	Files []File            `json:"files,omitempty"` // sorted by Path
	Exec  []string          `json:"exec,omitempty"`  // shell commands, run once when the node has started
	// ExecTimeout bounds each command of Exec; 0: DefaultExecTimeout.
	ExecTimeout time.Duration     `json:"execTimeout,omitempty"`
	Sysctls     map[string]string `json:"sysctls,omitempty"` // net.* only
	Routing     Routing           `json:"routing"`
	ASN         uint32            `json:"asn,omitempty"` // BGP; 0: Complete picks one
	On          string            `json:"on,omitempty"`  // substrate node; empty: the embedder picks one
	// FastPath is FastPathAuto where the description does not say.
	FastPath FastPath `json:"fastPath,omitempty"`
	// Repair is RepairAlways where the description does not say.
	Repair Repair `json:"repair,omitempty"`

	// Addressing is AddressesNone where the node is given no loopback address, and
	// its interfaces no addresses, but what the description names.
	Addressing AddressMode `json:"addressing,omitempty"`
	// Loopbacks holds the addresses of lo, /32 and /128, at most one per family.
	// The first IPv4 one is the router ID.
	Loopbacks []netip.Addr `json:"loopbacks,omitempty"`
	// Anycast holds further addresses of lo, /32 and /128, that other nodes may have, too.
	// A packet to one goes to the nearest, so that none stands for the node.
	Anycast  []netip.Addr `json:"anycast,omitempty"`
	RouterID netip.Addr   `json:"routerID,omitzero"` // IPv4-shaped, unique in the VNet; set by Complete

	// Position is where a drawing puts the node; nil: the layout decides.
	Position *Position `json:"position,omitempty"`
}

// File is a file that the user places in a node before anything runs there.
type File struct {
	Path    string `json:"path"` // absolute, inside the node
	Content []byte `json:"content"`
	Mode    uint32 `json:"mode"` // permission bits; 0 means 0644
}

// Position is a place on the globe, in degrees.
type Position struct {
	Latitude  float64 `json:"latitude"`
	Longitude float64 `json:"longitude"`
}

// LinkType is the kind of a virtual link.
type LinkType string

// Kinds of links.
const (
	PointToPoint LinkType = "p2p" // exactly two ends
	LAN          LinkType = "lan" // one or more ends, a shared Ethernet segment
)

// Link is a virtual link.
type Link struct {
	Name      string      `json:"name"` // unique in the VNet; Complete names the unnamed
	Type      LinkType    `json:"type"`
	Endpoints []Interface `json:"endpoints"`
	Down      bool        `json:"down,omitempty"` // the cable is pulled: no carrier at any end
	// Addressing is AddressesNone or AddressesUnnumbered where the ends are given
	// no subnet; ends that name addresses keep them.
	Addressing AddressMode `json:"addressing,omitempty"`
	Routing    LinkRouting `json:"routing,omitzero"`
	// Overlap says that the link's subnets and addresses may be those of other links
	// that say so, too.
	Overlap bool `json:"overlap,omitempty"`
}

// Interface is a virtual interface: one end of a link, in one node.
type Interface struct {
	Node string `json:"node"`
	Name string `json:"name,omitempty"` // as the node sees it; Complete gives eth1, eth2, …
	// Auto says that Complete gave the name, so that it may change; see
	// KeepInterfaceNames.
	Auto bool `json:"auto,omitempty"`
	MAC  MAC  `json:"mac,omitzero"`
	MTU  int  `json:"mtu,omitempty"` // of the IP packet, bytes
	// AutoMTU says that nobody gave the MTU, so that it follows what the path of
	// the link carries: DefaultMTU within one machine, less between machines.
	AutoMTU bool `json:"autoMTU,omitempty"`
	// Addrs holds the interface's addresses with their prefix lengths.
	Addrs []netip.Prefix `json:"addrs,omitempty"`
	// Tx shapes what the node sends here, on its way to the other ends.
	Tx Shape `json:"tx,omitzero"`
	// Rx shapes what a node receives here from a LAN; always zero on
	// point-to-point links, where the other end's Tx says it.
	Rx Shape `json:"rx,omitzero"`
	// Cost is the routing metric of the interface; 0 leaves the protocol's default.
	Cost int `json:"cost,omitempty"`
	// Down pulls the cable of this end of a LAN: it has no carrier, the others keep theirs.
	// Always false on point-to-point links, whose ends have a carrier only together.
	Down bool `json:"down,omitempty"`
}

// Shape is what a link does to the frames of one direction. The zero value is
// a perfect wire.
type Shape struct {
	Rate   uint64        `json:"rate,omitempty"`   // bit/s, Ethernet frame without FCS; 0: unlimited
	Delay  time.Duration `json:"delay,omitempty"`  // one way
	Jitter time.Duration `json:"jitter,omitempty"` // ± around Delay
	Loss   float64       `json:"loss,omitempty"`   // probability, 0 to 1
}

// IsZero reports whether the shape changes nothing.
func (s Shape) IsZero() bool { return s == Shape{} }

// NeedsNetem reports whether the shape needs more than a rate limit.
func (s Shape) NeedsNetem() bool { return s.Delay != 0 || s.Jitter != 0 || s.Loss != 0 }
