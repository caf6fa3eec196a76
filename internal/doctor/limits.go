package doctor

import (
	"fmt"
	"strings"
)

// Figures to reckon with, measured: what a node takes.
const (
	frrNodeMemory = 11 << 20 // bytes, zebra with OSPF for both families
	frrNodeTasks  = 8        // processes and threads
	filterMemory  = 16 << 10 // bytes of machine code of a filter of system calls
)

// limit is a number that the kernel was told, and the least that is enough for
// a network of about a thousand nodes.
type limit struct {
	sysctl string
	enough int64
	// need is the least with which anything runs at all.
	need int64
	cost func(value int64) string
}

func nodes(per int64, what string) func(int64) string {
	return func(v int64) string { return fmt.Sprintf("room for about %d %s", v/per, what) }
}

var limits = []limit{
	{"kernel.pid_max", 65536, 300, nodes(frrNodeTasks, "nodes with FRR")},
	{"kernel.threads-max", 65536, 300, nodes(frrNodeTasks, "nodes with FRR")},
	{"user.max_user_namespaces", 4096, 1, nodes(1, "nodes")},
	{"user.max_net_namespaces", 4096, 1, nodes(1, "nodes")},
	{"user.max_mnt_namespaces", 4096, 1, nodes(1, "nodes")},
	{"user.max_pid_namespaces", 4096, 1, nodes(1, "nodes")},
	{"user.max_uts_namespaces", 4096, 1, nodes(1, "nodes")},
	{"user.max_ipc_namespaces", 4096, 1, nodes(1, "nodes")},
	// The neighbour tables are one for the whole machine and bounded by the
	// first network namespace's thresholds (net/core/neighbour.c, neigh_alloc).
	{"net.ipv4.neigh.default.gc_thresh3", 16384, 8, nodes(2, "links, in all networks together, before nodes lose their neighbours over IPv4")},
	{"net.ipv6.neigh.default.gc_thresh3", 16384, 8, nodes(4, "links, in all networks together, before nodes lose their neighbours over IPv6")},
	{"net.core.bpf_jit_enable", 1, 0, func(int64) string { return "programs on links are interpreted, several times slower" }},
	{"net.core.rmem_max", 212992, 0, func(int64) string { return "routing daemons may lose kernel notifications on large networks" }},
	{"fs.inotify.max_user_instances", 128, 0, func(v int64) string {
		return fmt.Sprintf("the programs of a node that watch files share %d instances", v)
	}},
	// Each start and each program run in a node takes a filter of system calls; the
	// limit is the whole machine's, and with it reached neither works (ENOTSUPP, 524).
	{"net.core.bpf_jit_limit", 256_000_000, 16 << 20, nodes(filterMemory, "nodes")},
	{"fs.mount-max", 1000, 100, func(v int64) string { return fmt.Sprintf("nodes can mount %d file systems each", v) }},
}

// limits judges the kernel's limits: one result for all that are high enough,
// one for each that is not.
func (f *Facts) limits() []Result {
	var out []Result
	fine := 0
	for _, l := range limits {
		v, known := f.Sysctls[l.sysctl]
		switch {
		case !known || v >= l.enough:
			fine++
		default:
			r := Result{l.sysctl, Warn, fmt.Sprint(v), l.cost(v), fmt.Sprintf("sysctl -w %s=%d", l.sysctl, l.enough)}
			if v < l.need {
				r.Status = Fail
			}
			out = append(out, r)
		}
	}
	return append([]Result{ok("kernel limits", fmt.Sprintf("%d of %d high enough for a thousand nodes", fine, len(limits)))}, out...)
}

func (f *Facts) openFiles() Result {
	const enough = 65536
	found := fmt.Sprint(f.OpenFiles)
	if f.OpenFiles >= enough {
		return ok("open files", found)
	}
	return Result{"open files", Warn, found, fmt.Sprintf("the service can look after about %d links", f.OpenFiles/4), fmt.Sprintf("ulimit -Hn %d, or LimitNOFILE=%d in the unit", enough, enough)}
}

func (f *Facts) disk() Result {
	const (
		enough = 1 << 30
		need   = 64 << 20
	)
	found := bytes(f.DiskFree) + " free for " + f.StateDir
	r := Result{"disk", OK, found, "", ""}
	switch {
	case f.DiskFree < need:
		r.Status, r.Cost = Fail, "the store cannot grow; changes are refused"
	case f.DiskFree < enough:
		r.Status, r.Cost = Warn, "images and nodes may run out of space"
	case f.Inodes > 0 && f.InodesFree < 100000:
		r.Status, r.Found, r.Cost = Warn, fmt.Sprintf("%d inodes free for %s", f.InodesFree, f.StateDir), "images and nodes may run out of files"
	default:
		return r
	}
	r.Remedy = "free some space, or serve with a --state-dir on another file system"
	return r
}

func (f *Facts) memory() Result {
	found := fmt.Sprintf("%s available, about %d nodes with FRR", bytes(f.MemoryAvailable), f.MemoryAvailable/frrNodeMemory)
	if f.MemoryAvailable >= 512<<20 {
		return ok("memory", found)
	}
	return Result{"memory", Warn, found, "larger networks are refused or slow", "free some memory"}
}

// bytes writes a size in binary units.
func bytes(n uint64) string {
	units := strings.Fields("B KiB MiB GiB TiB PiB EiB")
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return fmt.Sprintf("%.4g %s", f, units[i])
}
