// Package doctor tells whether a machine can host virtual networks: what its
// kernel, limits and programs allow, what a missing part costs, and what to do
// about it.
//
// [Gather] looks at the machine and returns [Facts]; [Judge] turns facts into
// results and is pure. Gathering changes nothing that outlives it: what has to
// be tried is tried in namespaces that vanish with the attempt.
package doctor

import "trellis/internal/vnet"

// Status is the outcome of a check.
type Status string

// Outcomes, from good to bad.
const (
	OK   Status = "ok"
	Warn Status = "warn" // something is refused, slower or limited
	Fail Status = "fail" // networks cannot run
)

// Result is the outcome of one check.
type Result struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Found  string `json:"found"`
	Cost   string `json:"cost,omitempty"`   // what does not work; empty when ok
	Remedy string `json:"remedy,omitempty"` // what to do about it; empty when ok
}

// Worst returns the worst status among results, OK for none.
func Worst(results []Result) Status {
	worst := OK
	for _, r := range results {
		if r.Status == Fail || r.Status == Warn && worst == OK {
			worst = r.Status
		}
	}
	return worst
}

// Facts is what was found on a machine.
type Facts struct {
	Root    bool   // the effective user is root
	Kernel  string // release, as uname -r prints it
	Arch    string // Go's name: amd64, arm64
	Sysctls map[string]int64
	// Namespaces holds the kinds of namespaces that the kernel knows, by their
	// names in /proc/self/ns.
	Namespaces map[string]bool
	// Probes holds what was tried. A probe that is absent was not tried, since
	// only root can.
	Probes  map[Probe]error
	Cgroup  Cgroup
	Runtime map[string]string // path of crun and runc, where found
	// Daemons holds the paths of routing daemons' programs by name, where found.
	Daemons map[string]string
	// Versions holds the versions of routing software, where it says one.
	Versions map[vnet.Daemon]string
	// BridgeVLANFilter says whether br_netfilter shows the firewall bridged frames
	// that have a VLAN tag.
	BridgeVLANFilter bool
	IPv6             bool
	Seccomp          bool
	SysResource      bool   // this process has CAP_SYS_RESOURCE
	OpenFiles        uint64 // hard limit of this process
	StateDir         string
	DiskFree         uint64 // bytes, on the state directory's file system
	InodesFree       uint64 // there; 0 with Inodes 0: the file system counts none
	Inodes           uint64
	MemoryAvailable  uint64 // bytes
}

// Probe names something that was tried.
type Probe string

// What is tried.
const (
	ProbeBPF      Probe = "bpf"               // load a program
	ProbeTCX      Probe = "tcx"               // attach it to a device, from Linux 6.6 on
	ProbeFilter   Probe = "tc filters"        // attach it to a device, as before
	ProbeVeth     Probe = "veth"              // make a pair
	ProbeBridge   Probe = "bridge"            // make a bridge
	ProbeTBF      Probe = "tbf"               // limit a rate
	ProbeNetem    Probe = "netem"             // delay frames
	ProbeUserNS   Probe = "user namespaces"   // start a process in one
	ProbeOverlay  Probe = "overlayfs"         // mount one
	ProbeIDMapped Probe = "id-mapped mounts"  // map the ids of the state directory
	ProbeBPFFS    Probe = "bpf file system"   // mount one
	ProbeTmpfs    Probe = "tmpfs with a size" // mount one
	ProbeConfine  Probe = "bounds on sockets" // load the programs of package confine
	ProbeTracing  Probe = "tracing"           // load the program of package softirq
)

// Cgroup is the machine's arrangement of control groups.
type Cgroup struct {
	Mode        string          // "v1", "v2", "hybrid", or empty for none
	Controllers map[string]bool // that limits can be set with
	Freezer     bool            // processes can be frozen
	// SocketMemory, of version 1: what waits in sockets can be limited.
	SocketMemory bool
}
