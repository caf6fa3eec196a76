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
	"time"

	"trellis/internal/routing"
	"trellis/internal/vnet"
)

// Plan is one VNet's share of one substrate node. A plan without nodes and
// links is the order to remove the VNet.
type Plan struct {
	VNet string `json:"vnet"`
	// Generation grows by one with every admitted change of the VNet.
	Generation int64 `json:"generation"`
	// Scope names the ports, by device, that this generation's changes are confined
	// to; empty: it differs in nothing here; nil: anything may differ from the
	// generation before. An agent to which the generation before is in place need
	// not look at anything else.
	Scope []string `json:"scope,omitzero"`
	// IDBase is the first of the 65,536 user and group ids of the host that the
	// VNet's nodes map their own ids 0 to 65,535 to.
	IDBase uint32 `json:"idBase"`
	// Host is the substrate node that this share is for.
	Host string `json:"host,omitempty"`
	// Group is the link group (IFLA_GROUP) of the VNet's devices in the root
	// context, for removing them at once.
	Group  uint32  `json:"group"`
	Nodes  []Node  `json:"nodes"`
	Joints []Joint `json:"joints"`
	LANs   []LAN   `json:"lans,omitempty"`
	// Tunnels are the ends of links that go on at other substrate nodes.
	Tunnels []Tunnel `json:"tunnels,omitempty"`
	// Hosts is the /etc/hosts of every node.
	Hosts []byte `json:"hosts,omitempty"`
	// Destinations holds, for each group of nodes that route together, the
	// loopbacks that each of them must have routes to.
	Destinations [][]netip.Addr `json:"destinations,omitempty"`
	// Prefixes are what Node.Routes route to; one list for all nodes, because a
	// large network has as many routes as nodes squared.
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
}

// Empty reports whether the plan asks for nothing, that is, for removal.
func (p *Plan) Empty() bool { return len(p.Nodes) == 0 && len(p.LANs) == 0 }

// Node is one virtual node on this substrate node.
type Node struct {
	Name    string            `json:"name"`
	Image   string            `json:"image"`
	Cmd     []string          `json:"cmd,omitempty"`
	Restart vnet.Restart      `json:"restart,omitempty"` // of Cmd
	Env     map[string]string `json:"env,omitempty"`
	Files   []vnet.File       `json:"files,omitempty"` // the user's, sorted by path
	Exec    []string          `json:"exec,omitempty"`
	// ExecTimeout is how long each of those commands may take.
	ExecTimeout time.Duration     `json:"execTimeout,omitempty"`
	Sysctls     map[string]string `json:"sysctls,omitempty"`
	Limits      Limits            `json:"limits"`
	Daemons     routing.Daemons   `json:"daemons,omitzero"`
	Loopbacks   []netip.Prefix    `json:"loopbacks,omitempty"` // the node's own, then those of Anycast
	// Anycast are those that other nodes may have, too.
	Anycast []netip.Addr `json:"anycast,omitempty"`
	Ports   []Port       `json:"ports"`
	Routes  RouteTable   `json:"routes,omitzero"` // static routing only
	// Components index Plan.Destinations: the groups, at most one for each address
	// family, that the node routes with and whose loopbacks it must learn.
	Components []int `json:"components,omitempty"`
	// NoFastPath keeps the node's packets on its own stack.
	NoFastPath bool `json:"noFastPath,omitempty"`
	// NoRepair leaves what the node does to its own interfaces until somebody asks.
	NoRepair bool `json:"noRepair,omitempty"`
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
	// Ingress shapes what the node sends into a LAN, or into a tunnel (this end's Tx).
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

// Tunnel is this substrate node's end of an EGRE path to another one: of a
// point-to-point link whose other end is there, or of a LAN that has ports there.
type Tunnel struct {
	Link   string     `json:"link"`
	Peer   string     `json:"peer"`   // the other substrate node
	Local  netip.Addr `json:"local"`  // outer addresses, of one family
	Remote netip.Addr `json:"remote"` //
	Key    uint32     `json:"key"`    // in both directions; of this pair of ends alone
	MTU    int        `json:"mtu"`    // of the link, bytes of the IP packet
	// Device is, of a point-to-point link, the Port.Device that goes on there; of
	// a LAN, the outer end of the pair of devices that stands on the bridge for
	// the peer.
	Device string `json:"device"`
	// LAN is the LAN.Device of a multipoint link; empty on a point-to-point one.
	LAN string `json:"lan,omitempty"`
}

// Limits in numbers that follow from kernel and format limits.
const (
	// IDsPerVNet is the size of a VNet's range of user and group ids.
	IDsPerVNet = 1 << 16
	// maxDeviceName is IFNAMSIZ less the closing zero.
	maxDeviceName = 15
)
