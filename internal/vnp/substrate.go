package vnp

import (
	"context"
	"io"
	"syscall"
	"time"

	"trellis/internal/plan"
)

// Substrate is what the service needs from the agent beside the store: looking
// at the kernel, and reaching into nodes. Names that the agent does not know
// give an error that is a store.ErrNotFound.
type Substrate interface {
	// Prepare refuses, before anything is touched, a plan that this machine
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
	// Ping sends echo requests between the loopbacks of the plan's nodes.
	// Progress may be called from any goroutine, though not by two at once.
	Ping(ctx context.Context, p *plan.Plan, o PingOptions, progress func(done, total int)) (*PingResult, error)
	// NodeStats tells what the nodes of a VNet that run use now, by name.
	NodeStats(ctx context.Context, vnet string) (map[string]NodeStats, error)
	// PortStats tells the counters of a VNet's interfaces, by "node:interface".
	PortStats(ctx context.Context, vnet string) (map[string]PortStats, error)
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

// PingOptions say what to ping.
type PingOptions struct {
	Sample  int           // so many random pairs; 0: all
	Timeout time.Duration // of one echo; 0: one second
	Seed    int64         // of the sample
}

// PingResult is the outcome of a Ping.
type PingResult struct {
	Pairs     int // ordered pairs of nodes times families
	Reachable int
	Failed    []PingFailure
	// Round-trip times of the pairs that were reached.
	Min, Median, Max time.Duration
	Seed             int64
}

// PingFailure is a pair without an answer.
type PingFailure struct {
	From, To string
	Family   string // ipv4 | ipv6
	Reason   string
}

// NodeStats is what a node uses.
type NodeStats struct {
	Memory   int64   // bytes charged to it
	CPU      float64 // seconds since its start
	Services []ServiceStats
}

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
	Drops              uint64
}
