// Package container makes, watches and removes the containers of virtual
// nodes, through an OCI runtime (crun or runc) and with no daemon in between.
//
// A container comes to life in two steps. [Runtime.Start] makes everything:
// cgroups, file system, namespaces, and a PID 1 that waits. The caller then
// places links, addresses and routes into the namespaces of [Held.Pid], and
// [Held.Release] lets the node run. PID 1 waits on a pipe whose other end only
// this process holds, so a node that was never released ends with it.
//
// All that must outlive the process is under RunDir, written before what it
// describes exists; another Runtime over the same RunDir adopts what runs. What
// a killed predecessor left, [Runtime.List] shows and [Runtime.Remove] cleans. One
// Runtime at a time: each keeps what it has read and done in memory.
package container

import (
	"io"
	"log/slog"
	"time"

	"trellis/internal/substrate/image"
	"trellis/internal/vnet"
)

// Config says where a Runtime keeps its things and what it runs.
type Config struct {
	Instance string // tag of the service instance, [a-z0-9]{1,8}; names cgroups
	RunDir   string // volatile state, root's alone: nodes, sockets of the runtime
	StateDir string // durable state: extracted images
	// Runtime is "", "crun", "runc" or an absolute path of either. Empty means
	// crun, and runc where there is no crun.
	Runtime string
	Images  image.Policy // which images nodes may have
	// Changed, where it is set, is called when a node's PID 1 has ended and when its
	// init reports something new of its services; always from the same goroutine,
	// which it must not keep waiting.
	Changed func(ID)
	Log     *slog.Logger // of what fails in the background; nil: nobody is told
}

// ID names a container: one node of one virtual network.
type ID struct {
	VNet string `json:"vnet"`
	Node string `json:"node"`
}

// String returns "vnet/node".
func (id ID) String() string { return id.VNet + "/" + id.Node }

// Limits bind a container. Zero means no limit of its own.
type Limits struct {
	CPU    float64 `json:"cpu,omitempty"`    // cores
	Memory int64   `json:"memory,omitempty"` // bytes, with what its file systems hold
	Pids   int     `json:"pids,omitempty"`   // processes and threads
	Disk   int64   `json:"disk,omitempty"`   // bytes, all writable file systems together
}

// Service is one process that the node's init supervises.
type Service struct {
	Name string   `json:"name"` // [a-z0-9-]{1,31}, unique in the node, not "command"
	Argv []string `json:"argv"` // Argv[0] is an absolute path inside the node
	Env  []string `json:"env,omitempty"`
	// After names a path inside the node that must exist before init starts the
	// service (FRR's daemons need zebra's socket); empty: none. Init looks for
	// it every few milliseconds, and starts the service anyway after 60 s. Such a
	// service starts anew when one that waits for nothing ends.
	After string `json:"after,omitempty"`
	// Ready names a path inside the node by which the service is ready to have its
	// configuration loaded; empty: it is not loaded. Init removes it before a start.
	Ready string `json:"ready,omitempty"`
	// Loads says that the service loads the configuration of those that have Ready; one
	// of a node's at most. It runs once all of these are ready, or have been waited for
	// 60 s, and ends; for one of them that starts anew it runs again, with two arguments
	// more: -d and the name.
	Loads bool `json:"loads,omitempty"`
	// Optional says that the service is left out, and unknown to the node's init, where
	// the node has no such program.
	Optional bool `json:"optional,omitempty"`
}

// Spec describes a container to start.
type Spec struct {
	ID
	// IDBase is the first of the 65,536 user and group ids of the host that
	// ids 0 to 65,535 inside stand for.
	IDBase uint32
	Image  string // see [Runtime.Prepare]
	// Cmd replaces the image's own command, but not its entry point.
	Cmd []string
	// Restart says when the command, or the image's own, starts again after its end;
	// the zero value is vnet.RestartNever.
	Restart vnet.Restart
	Env     map[string]string // over the image's
	Files   []vnet.File       // written before anything runs, root's
	// Saved are the paths of those of Files that the node may change for good: its
	// version comes back when it is restarted, until another content is placed.
	Saved    []string
	Dirs     []string // made before anything runs, root's, mode 0755
	Services []Service
	// Yields says that the services are left out where the image has a command.
	Yields bool
	Limits Limits
	// Fingerprint is the caller's own mark. It is kept with the container and
	// returned by List.
	Fingerprint string
}

// State is what List knows about a container.
type State struct {
	ID
	Pid         int  // of PID 1, as the host sees it; 0: not running
	Running     bool // PID 1 is alive, and has not begun to end
	Released    bool // Held.Release was called
	Fingerprint string
	Limits      Limits
	// ServicesDigest is [Digest] of the services last given to it.
	ServicesDigest string
	Started        time.Time
	// KilledForMemory, of one that has ended: the kernel has killed PID 1 for want of
	// memory within the limit.
	KilledForMemory bool
}

// ExecSpec describes a process to run in a node.
type ExecSpec struct {
	Argv []string
	Env  []string // over the node's own
	TTY  bool     // give it a terminal; Stderr is unused then
	// Rows and Cols are the terminal's size in characters; 0 means 24 × 80.
	Rows, Cols uint16
	// Stdin may be nil for an empty one, Stdout and Stderr for none.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Stats is what a container uses now.
type Stats struct {
	Memory   int64   // bytes charged to its memory cgroup, kernel memory included
	CPU      float64 // seconds since its start
	Pids     int     // processes and threads
	Disk     int64   // bytes written in its file systems
	OOMKills int64   // processes killed for want of memory
	Services []ServiceStatus
}

// ServiceState is the state of a supervised process.
type ServiceState string

// States of a service.
const (
	ServiceRunning  ServiceState = "running"
	ServiceWaiting  ServiceState = "waiting" // for what it starts after
	ServiceLoading  ServiceState = "loading" // runs, and its configuration is to be loaded
	ServiceStopping ServiceState = "stopping"
	ServiceBackoff  ServiceState = "backoff" // ended; starts again after a pause
	ServiceExited   ServiceState = "exited"  // the image's command, which runs once
	ServiceStopped  ServiceState = "stopped" // by [Runtime.StopService]
)

// ServiceStatus is a supervised process as the node's init sees it.
type ServiceStatus struct {
	Name     string
	State    ServiceState
	Pid      int // inside the node; 0 when not running
	Restarts int
	Exit     int // of the last run: its exit code, or 128 + the signal that ended it
	// ForMemory is when that was seen, if the signal was the kernel's, for want of
	// memory within the limit; zero: it was not.
	ForMemory time.Time
}
