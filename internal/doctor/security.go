package doctor

import "fmt"

// JudgeSecurity says of each kind of attack from a node's root (docs/security.md) what
// on this machine bounds it, or that nothing does.
func JudgeSecurity(f *Facts) []Result {
	v2 := f.Cgroup.Mode == "v2"
	confine := f.Probes[ProbeConfine]
	_, confineTried := f.Probes[ProbeConfine]
	const bpfRemedy = "use a kernel with CONFIG_CGROUP_BPF and CONFIG_DEBUG_INFO_BTF, as distributions have"
	bounded := func(check, by, cost string) Result {
		switch {
		case !confineTried:
			return Result{check, Warn, "not tried: needs root", "unknown", "run as root: sudo trellis doctor --security"}
		case confine != nil:
			return Result{check, Warn, confine.Error(), cost, bpfRemedy}
		}
		return ok(check, by)
	}
	out := []Result{f.softirqs()}
	if f.Cgroup.Freezer {
		out = append(out, ok("repeated loops", "the node is frozen"))
	} else {
		out = append(out, Result{"repeated loops", Warn, "no freezer", "a node whose packets circle can only be stopped again and again",
			"mount cgroup v2, or v1's freezer"})
	}
	out = append(out,
		ok("queues, netlink sockets, tables, devices", "watched: a node beyond its memory limit is killed"),
		bounded("packet rings", "16 MiB a node", "a node can use up the machine's memory"),
		bounded("socket filters", "16,384 instructions a node", "a node can use up net.core.bpf_jit_limit; then no node starts"),
		bounded("fragments, buffers by sysctl", "ceilings", "a node can use up the machine's memory"),
		ok("fan-out of packet sockets, rings to send by", "refused"),
		f.socketQueues(v2), f.quotas(),
		ok("neighbours", fmt.Sprintf("watched: a node that has a sixteenth of a crowded table, of %d entries, is killed", f.Sysctls["net.ipv4.neigh.default.gc_thresh3"])))
	pids := ok("processes", fmt.Sprintf("the node's limit, and room for %d", f.Sysctls["kernel.pid_max"]))
	if f.Sysctls["kernel.pid_max"] < 1<<20 && f.Sysctls["kernel.pid_max"] > 0 {
		pids = Result{"processes", Warn, fmt.Sprintf("room for %d", f.Sysctls["kernel.pid_max"]), "nodes with the largest limits use it up together",
			"start the service, which raises it, or sysctl -w kernel.pid_max=4194304"}
	}
	return append(out, pids)
}

// softirqs judges whether packets that circle are noticed.
func (f *Facts) softirqs() Result {
	const check = "packets that circle"
	err, tried := f.Probes[ProbeTracing]
	switch {
	case !tried:
		return Result{check, Warn, "not tried: needs root", "unknown", "run as root: sudo trellis doctor --security"}
	case err != nil:
		return Result{check, Warn, err.Error(), "a node can take the machine's CPUs",
			"use a kernel with CONFIG_BPF_EVENTS and CONFIG_DEBUG_INFO_BTF, as distributions have"}
	}
	return ok(check, "the node's devices are set down within a second")
}

// socketQueues judges what waits in TCP and UDP sockets.
func (f *Facts) socketQueues(v2 bool) Result {
	const check = "queues of TCP and UDP"
	switch {
	case v2:
		return ok(check, "part of the node's memory")
	case f.Cgroup.SocketMemory:
		return ok(check, "a quarter of the node's memory, 16 MiB at least")
	}
	return Result{check, Warn, "not counted by cgroups", "a node can use up the machine's tcp_mem and udp_mem",
		"boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1)"}
}
