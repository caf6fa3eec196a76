package vnp

import (
	"context"
	"io"
	"net/netip"
	"syscall"
	"time"

	"trellis/internal/plan"
)

// Substrate is what the service needs from the agent of one substrate node beside
// the store: looking at the kernel, and reaching into nodes. Names that the agent
// does not know give an error that is a store.ErrNotFound.
type Substrate interface {
	// Prepare refuses, before anything is touched, a plan that the machine
	// cannot hold: an unknown image, a shape without netem in the kernel, a
	// missing daemon, a name that a device of the host has. It may fetch images.
	Prepare(ctx context.Context, p *plan.Plan) error
	// DryRun tells the steps that converging the kernel, as it is now, to the
	// plan would take; none when nothing differs.
	DryRun(ctx context.Context, p *plan.Plan) ([]Step, error)
	// Exec starts a process in a node. The context ends with the call and does
	// not bound the process.
	Exec(ctx context.Context, vnet, node string, e ExecSpec) (Process, error)
	// Capture writes a pcap file of an interface's frames to w, header first,
	// until count frames are written (0: no limit), ctx ends, or w fails.
	// Snaplen bounds the bytes of a frame; 0: whole frames.
	Capture(ctx context.Context, vnet, node, iface string, snaplen uint32, count uint64, w io.Writer) error
	// Ping sends echo requests from nodes that run here to loopbacks anywhere.
	// Progress may be called from any goroutine, though not by two at once.
	Ping(ctx context.Context, r PingRequest, progress func(done, total int)) (*PingResult, error)
	// NodeStats tells what the nodes of a VNet that run here use now, by name.
	NodeStats(ctx context.Context, vnet string) (map[string]NodeStats, error)
	// PortStats tells the counters of the interfaces that a VNet has here, by
	// "node:interface", and of the tunnels between its LANs' parts, by
	// "@link>host": what they received came from there.
	PortStats(ctx context.Context, vnet string) (map[string]PortStats, error)
	// UplinkStats tells of the machine's uplinks, sorted by interface.
	UplinkStats(ctx context.Context) ([]UplinkStats, error)
	// SweepAll removes whatever carries this service's tag and no plan in the
	// store asks for.
	SweepAll(ctx context.Context) error
}

// Step is one step of the reconciler, for people.
type Step struct {
	Op     string // "start", "join", "shape", …
	Object string // "node denver", "link denver:eth1 - seattle:eth1"
	Detail string
}

// ExecSpec describes a process to start in a node.
type ExecSpec struct {
	Argv []string
	Env  []string // "NAME=value", over the node's own
	TTY  bool     // give it a terminal; Stderr is unused then
	// Rows and Cols are the terminal's size in characters; 0 means 24 × 80.
	Rows, Cols uint16
	// Stdin is read until it ends, or the process does.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Process is a process in a node.
type Process interface {
	// Wait returns the exit code, 128+n for signal n, when the process has ended
	// and its output is written. It does not wait for Stdin to end.
	Wait() (int, error)
	Resize(rows, cols uint16) error
	Signal(sig syscall.Signal) error
}

// PingRequest says which echo requests to send.
type PingRequest struct {
	VNet string
	// Nodes are the ends of the pairs, wherever they run.
	Nodes []PingNode
	// Pairs are the echoes to send. Their sources run on the substrate node that
	// is asked.
	Pairs   []PingPair
	Timeout time.Duration // of one echo; 0: one second
}

// PingNode is a node with its loopbacks, at most one of each family.
type PingNode struct {
	Name      string
	Loopbacks []netip.Addr
}

// PingPair is one echo: From and To index the nodes.
type PingPair struct {
	From, To int
	Family   string // IPv4 | IPv6
}

// PingResult is the outcome of a PingRequest.
type PingResult struct {
	RTT    []time.Duration // of the pairs that were reached, in any order
	Failed []PingFailure   // the others, in the order of the pairs
}

// PingFailure is a pair without an answer.
type PingFailure struct {
	Pair   int // index in the request's pairs
	Reason string
}

// NodeStats is what a node uses.
type NodeStats struct {
	Memory   int64   // bytes charged to it
	CPU      float64 // seconds since its start
	FastPath string  // FastPathOn, or "off: " and why; empty: not known
	Services []ServiceStats
}

// FastPathOn is what NodeStats.FastPath holds where the fast path carries the
// node's packets.
const FastPathOn = "on"

// ServiceStats is a supervised process of a node.
type ServiceStats struct {
	Name     string
	State    string // running | waiting | failed
	Pid      int    // inside the node; 0 when it does not run
	Restarts int
}

// PortStats are the counters of an interface. Rx is what the node received.
type PortStats struct {
	Device             string // its port in the root context
	RxPackets, RxBytes uint64
	TxPackets, TxBytes uint64
	// Of these, what the fast path carried: received as, or forwarded as, XDP
	// frames. The rest went by the node's stack.
	RxFastPackets, RxFastBytes uint64
	TxFastPackets, TxFastBytes uint64
	Drops                      uint64            // packets, for any reason
	DropsBy                    map[string]uint64 // the same by reason; none where it is 0
	Paths                      []PathStats       // to other substrate nodes, sorted by peer
}

// States of a path.
const (
	PathUp   = "up"
	PathDown = "down"
)

// PathStats is the way of a link across the underlay, as one of its ends sees it.
type PathStats struct {
	Peer    string     // substrate node
	Remote  netip.Addr // its address
	Key     uint32     // of EGRE
	MTU     int        // of the underlay on the way there, bytes; 0: not known
	State   string     // PathUp | PathDown
	Message string     // why it is down, or that it has become too narrow
}

// UplinkStats is an interface of the machine's that tunnels leave by.
type UplinkStats struct {
	Interface string
	XDP       string            // native | generic; empty: not attached
	MTU       int               // bytes
	Drops     map[string]uint64 // packets that no port can be charged with, by reason
	Message   string            // what is wrong with it
}
