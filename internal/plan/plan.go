// Package plan says what one substrate node must hold for one virtual network:
// containers, ports, joints, bridges, addresses, routes. The PIP compiles a
// plan from an admitted VNet and stores it; the agent of the substrate node
// converges the kernel to it. The package is pure.
//
// A plan is complete in itself: an agent with nothing but the plan can build
// everything, and with nothing but an empty plan remove everything.
package plan

import (
	"net/netip"

	"trellis/internal/routing"
	"trellis/internal/vnet"
)

// Plan is one VNet's share of one substrate node.
type Plan struct {
	VNet string `json:"vnet"`
	// Generation grows by one with every admitted change of the VNet.
	Generation int64 `json:"generation"`
	// IDBase is the first of the 65,536 user and group ids of the host that the
	// VNet's nodes map their own ids 0 to 65,535 to.
	IDBase uint32  `json:"idBase"`
	Nodes  []Node  `json:"nodes"`
	Joints []Joint `json:"joints"`
	LANs   []LAN   `json:"lans,omitempty"`
	// Destinations holds, for each component of the network, the loopbacks that
	// every node of the component must have routes to. Empty without routing.
	Destinations [][]netip.Addr `json:"destinations,omitempty"`
}

// Node is one virtual node on this substrate node.
type Node struct {
	Name      string            `json:"name"`
	Image     string            `json:"image"`
	Cmd       []string          `json:"cmd,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	Files     []vnet.File       `json:"files,omitempty"` // the user's, sorted by path
	Exec      []string          `json:"exec,omitempty"`
	Sysctls   map[string]string `json:"sysctls,omitempty"`
	Limits    Limits            `json:"limits"`
	Hosts     []byte            `json:"hosts,omitempty"` // /etc/hosts
	Daemons   routing.Daemons   `json:"daemons,omitzero"`
	Loopbacks []netip.Prefix    `json:"loopbacks,omitempty"`
	Ports     []Port            `json:"ports"`
	Routes    []routing.Route   `json:"routes,omitempty"` // static routing only
	// Component indexes Plan.Destinations; -1 where convergence is not waited for.
	Component int `json:"component"`
}

// Limits bind a node's container.
type Limits struct {
	CPU    float64 `json:"cpu,omitempty"` // cores; 0: no quota
	Memory int64   `json:"memory"`        // bytes
	Pids   int     `json:"pids"`
	Disk   int64   `json:"disk"` // bytes, all writable file systems together
}

// Port is one virtual interface of a node: a veth pair, its inner end named
// Name in the node, its outer end named Device in the root context.
type Port struct {
	Name   string         `json:"name"`
	Device string         `json:"device"`
	MAC    vnet.MAC       `json:"mac"`
	MTU    int            `json:"mtu"`
	Addrs  []netip.Prefix `json:"addrs,omitempty"`
	Link   string         `json:"link"`
	Down   bool           `json:"down,omitempty"` // no carrier
	// Egress shapes what goes from the root context into the node. On a
	// point-to-point link that is the far end's Tx, on a LAN this end's Rx.
	Egress vnet.Shape `json:"egress,omitzero"`
	// Ingress shapes what the node sends into a LAN (this end's Tx).
	Ingress vnet.Shape `json:"ingress,omitzero"`
}

// Joint is a point-to-point link with both ends on this substrate node: a
// shortbridge. A and B are Port.Device names.
type Joint struct {
	Link string `json:"link"`
	A    string `json:"a"`
	B    string `json:"b"`
}

// LAN is a multipoint link: a bridge and the ports on it.
type LAN struct {
	Link   string   `json:"link"`
	Device string   `json:"device"` // the bridge's name
	MTU    int      `json:"mtu"`
	Ports  []string `json:"ports"` // Port.Device names
}
