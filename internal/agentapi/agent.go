// Package agentapi is what the rest of Trellis asks of the agent of a substrate
// node, beside what goes through the store. Package agent implements it in this
// process, package fleet for the agents of other machines.
package agentapi

import (
	"context"
	"io"
	"net/netip"
	"strings"
	"syscall"
	"time"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/plan"
)

// Agent is the agent of one substrate node: looking at the kernel, and reaching
// into nodes. Names that it does not know give an error that is a
// store.ErrNotFound.
type Agent interface {
	// Prepare refuses, before anything is touched, a plan that the machine
	// cannot hold: an unknown image, a shape without netem in the kernel, a
	// missing daemon, a name that a device of the host has. It may fetch images.
	Prepare(ctx context.Context, p *plan.Plan) error
	// DryRun gives the steps that converging the kernel, as it is now, to the
	// plan would take; none when nothing differs.
	DryRun(ctx context.Context, p *plan.Plan) ([]Step, error)
	// Exec starts a process in a node. The context ends with the call and does
	// not bound the process.
	Exec(ctx context.Context, vnet, node string, e ExecSpec) (Process, error)
	// Capture writes a pcap file of an interface's frames to w, header first,
	// until count frames are written (0: no limit), ctx ends, or w fails.
	// Snaplen bounds the bytes of a frame; 0: whole frames.
	Capture(ctx context.Context, vnet, node, iface string, snaplen uint32, count uint64, w io.Writer) error
	// Logs reads what the services of a node have printed, and ends when that is
	// read or, following, when the node or ctx ends.
	Logs(ctx context.Context, vnet, node string, q LogQuery, each func(service string, text []byte) error) error
	// Restart restarts a service of a node or, if none is named, the node, and
	// returns when the node runs again.
	Restart(ctx context.Context, vnet, node, service string) error
	// StopService ends a service of a node, which stays so until it, or the node, is
	// started again. It returns when the service has ended.
	StopService(ctx context.Context, vnet, node, service string) error
	// StartService starts a service of a node that was stopped.
	StartService(ctx context.Context, vnet, node, service string) error
	// Addresses gives the global addresses that nodes of a VNet that run here have,
	// by node, those of lo first; all nodes when none is named.
	Addresses(ctx context.Context, vnet string, nodes []string) (map[string][]netip.Addr, error)
	// Ping sends echo requests from nodes that run here to nodes anywhere.
	// Progress may be called from any goroutine, though not by two at once.
	Ping(ctx context.Context, r PingRequest, progress func(done, total int)) (*PingResult, error)
	// NodeStats gives what the nodes of a VNet that run here use now, by name.
	NodeStats(ctx context.Context, vnet string) (map[string]NodeStats, error)
	// PortStats gives the counters of the interfaces that a VNet has here, by
	// "node:interface", and of the tunnels from its LANs' bridges to those on
	// other substrate nodes, by "@link>host": what they received came from there.
	PortStats(ctx context.Context, vnet string) (map[string]PortStats, error)
	// UplinkStats gives those of the machine's uplinks, sorted by interface.
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

// LogQuery says what of a node's logs to read.
type LogQuery struct {
	Service string // empty: all services, one after the other
	Tail    int    // so many lines of each at most; 0: all that is kept
	Follow  bool   // go on with what comes
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

// PingNode is an end of pings: a node with the addresses that it sends from, and
// is reached at, at most one of each family. A node may be several ends.
type PingNode struct {
	Name  string
	Addrs []netip.Addr
}

// Address families of a [PingPair].
const (
	IPv4 = "ipv4"
	IPv6 = "ipv6"
)

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
	// What the agent knows of it at this moment, which the store may not yet; State
	// empty: nothing.
	State    string // see store.NodeState
	Pid      int    // of its init
	Message  string
	Restarts int
	Repairs  int // of what its root did to its own interfaces
}

// FastPathOn is what NodeStats.FastPath holds where the fast path carries the
// node's packets.
const FastPathOn = "on"

// ServiceStats is a supervised process of a node.
type ServiceStats struct {
	Name     string
	State    string // running | stopping | waiting | failing | exited | failed
	Pid      int    // inside the node; 0 when it does not run
	Restarts int
	Exit     int // status of the last end, 128+n for a signal n
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
	// StackBy are packets that arrived on the fast path and left it for the node's
	// stack, by reason; none where it is 0.
	StackBy map[string]uint64
	// Fault is why nothing passes the interface: what the node's root did to it;
	// empty: nothing is wrong.
	Fault string
	Paths []PathStats // to other substrate nodes, sorted by peer
}

// States of a path.
const (
	PathUp   = "up"
	PathDown = "down"
)

// PathStats is the path of a link across the underlay, as one of its ends sees it.
type PathStats struct {
	Peer    string     // substrate node
	Remote  netip.Addr // its address
	Key     uint32     // of EGRE
	MTU     int        // of the underlay on the path, bytes; 0: not known
	State   string     // PathUp | PathDown
	Message string     // why it is down, or that it has become too narrow
}

// Proto gives the path in the words of the API.
func (p PathStats) Proto() *trellisv1.Path {
	return &trellisv1.Path{
		Peer: p.Peer, Remote: p.Remote.String(), Key: p.Key, Mtu: int32(p.MTU), State: p.State, Message: p.Message,
	}
}

// UplinkStats is an interface of the machine's that tunnels leave by.
type UplinkStats struct {
	Interface string
	XDP       string            // native | generic; empty: not attached
	MTU       int               // bytes
	Drops     map[string]uint64 // packets that no port can be charged with, by reason
	Message   string            // what is wrong with it
}

// SplitTunnel takes apart a name of PortStats that is a tunnel's.
func SplitTunnel(object string) (link, peer string, ok bool) {
	rest, ok := strings.CutPrefix(object, "@")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ">")
}

// Unreachable is the error about a substrate node whose agent cannot be asked
// now. What runs there goes on.
type Unreachable struct {
	Host string
	Why  string // a sentence that names the host
	Err  error  // what was met; nil: nothing was tried
}

func (e *Unreachable) Error() string { return e.Why }
func (e *Unreachable) Unwrap() error { return e.Err }
