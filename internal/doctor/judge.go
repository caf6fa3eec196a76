package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"trellis/internal/substrate/kernel"
	"trellis/internal/vnet"
)

// Judge turns facts into results, in the order in which to mend things.
func Judge(f *Facts) []Result {
	var out []Result
	add := func(r ...Result) { out = append(out, r...) }
	add(f.root(), f.kernel(), f.arch())
	add(f.namespaces(), f.seccomp())
	add(f.probe(ProbeUserNS, Fail, "nodes cannot be isolated and are refused",
		"allow user namespaces: sysctl -w user.max_user_namespaces=65536, and kernel.apparmor_restrict_unprivileged_userns=0 where an AppArmor profile forbids them to root"))
	add(f.probe(ProbeBPF, Fail, "links cannot be joined; no network can run",
		"use a kernel with CONFIG_BPF_SYSCALL and without lockdown in confidentiality mode"))
	add(f.hooks())
	add(f.probe(ProbeBPFFS, Fail, "links cannot outlive the service", "use a kernel with CONFIG_BPF_SYSCALL"))
	add(f.probe(ProbeVeth, Fail, "nodes get no interfaces; no network can run", "modprobe veth, or use a kernel with CONFIG_VETH"))
	add(f.probe(ProbeBridge, Warn, "links of type lan are refused", "modprobe bridge, or use a kernel with CONFIG_BRIDGE"))
	add(f.probe(ProbeTBF, Warn, "links with a rate are refused", "modprobe sch_tbf, or use a kernel with CONFIG_NET_SCH_TBF"))
	add(f.probe(ProbeNetem, Warn, "delay, jitter and loss are refused",
		"modprobe sch_netem (on Ubuntu from linux-modules-extra), or use a kernel with CONFIG_NET_SCH_NETEM"))
	add(f.probe(ProbeConfine, Warn, "packet rings, socket filters and the memory that sysctls ask for are not bounded: a node can use up the machine's",
		"use a kernel with CONFIG_CGROUP_BPF and CONFIG_DEBUG_INFO_BTF, as distributions have"), f.quotas())
	add(f.cgroup()...)
	add(f.runtime(), f.probe(ProbeTmpfs, Fail, "nodes get no file systems of their own", "use a kernel with CONFIG_TMPFS"))
	add(f.probe(ProbeOverlay, Warn, "node images other than host are refused", "modprobe overlay, or use a kernel with CONFIG_OVERLAY_FS"))
	add(f.probe(ProbeIDMapped, Warn, "node images other than host are refused",
		"put the state directory on ext4, xfs, btrfs or another file system with id-mapped mounts"))
	add(f.daemons()...)
	add(f.bridgeNetfilter(), f.ipv6())
	add(f.limits()...)
	add(f.openFiles(), f.disk(), f.memory())
	return out
}

func ok(check, found string) Result { return Result{Check: check, Status: OK, Found: found} }

func (f *Facts) root() Result {
	if f.Root {
		return ok("user", "root")
	}
	return Result{"user", Fail, "not root", "the service cannot run, and part of these checks cannot be tried", "run as root: sudo trellis doctor"}
}

func (f *Facts) kernel() Result {
	if kernel.Supported(f.Kernel) {
		return ok("kernel", f.Kernel)
	}
	return Result{"kernel", Fail, f.Kernel, fmt.Sprintf("Trellis needs Linux %v or later; the service does not start", kernel.Minimum), kernel.Remedy}
}

func (f *Facts) arch() Result {
	if f.Arch == "amd64" || f.Arch == "arm64" {
		return ok("processor", f.Arch)
	}
	return Result{"processor", Fail, f.Arch, "the nodes' init is not built for it", "use an amd64 or arm64 machine"}
}

func (f *Facts) namespaces() Result {
	var missing []string
	for _, kind := range []string{"user", "net", "mnt", "pid", "uts", "ipc"} {
		if !f.Namespaces[kind] {
			missing = append(missing, kind)
		}
	}
	if len(missing) == 0 {
		return ok("namespaces", "user, net, mnt, pid, uts, ipc")
	}
	return Result{"namespaces", Fail, "without " + strings.Join(missing, ", "), "nodes cannot be isolated and are refused", "use a kernel with CONFIG_NAMESPACES and all of its kinds"}
}

func (f *Facts) seccomp() Result {
	if f.Seccomp {
		return ok("seccomp", "filters")
	}
	return Result{"seccomp", Fail, "none", "nodes cannot be confined and are refused", "use a kernel with CONFIG_SECCOMP_FILTER"}
}

// probe judges something that was tried.
func (f *Facts) probe(p Probe, bad Status, cost, remedy string) Result {
	err, tried := f.Probes[p]
	switch {
	case !tried:
		return Result{string(p), Warn, "not tried: needs root", "unknown", "run as root: sudo trellis doctor"}
	case err == nil:
		return ok(string(p), "works")
	case errors.Is(err, fs.ErrPermission) && !f.Root:
		return Result{string(p), Warn, "not allowed to this user", "unknown", "run as root: sudo trellis doctor"}
	case errors.Is(err, syscall.ENOSPC) && p == ProbeUserNS:
		return Result{string(p), bad, "the limit is reached", cost, "sysctl -w user.max_user_namespaces=65536"}
	}
	return Result{string(p), bad, err.Error(), cost, remedy}
}

// hooks judges the two ways to put programs on devices, of which one will do.
func (f *Facts) hooks() Result {
	if f.Probes[ProbeTCX] != nil && f.Probes[ProbeFilter] == nil {
		return ok(string(ProbeTCX), "not in this kernel; tc filters do its work")
	}
	return f.probe(ProbeTCX, Fail, "links cannot be joined; no network can run",
		"modprobe sch_ingress and cls_bpf, or use a kernel with CONFIG_NET_CLS_BPF and CONFIG_NET_SCH_INGRESS")
}

func (f *Facts) cgroup() []Result {
	if f.Cgroup.Mode == "" {
		return []Result{{"cgroups", Fail, "none mounted", "the limits of nodes cannot bind", "mount -t cgroup2 none /sys/fs/cgroup"}}
	}
	out := []Result{ok("cgroups", f.Cgroup.Mode)}
	for _, c := range []struct{ name, cost string }{
		{"memory", "limits on memory cannot bind; nodes are refused"},
		{"pids", "limits on processes cannot bind; nodes are refused"},
		{"cpu", "limits on processor time cannot bind; nodes with a cpu limit are refused"},
	} {
		check := "cgroup " + c.name
		if f.Cgroup.Controllers[c.name] {
			out = append(out, ok(check, "available"))
			continue
		}
		remedy := "boot without cgroup_disable=" + c.name
		if c.name == "memory" && f.Arch == "arm64" {
			remedy += ", on a Raspberry Pi with cgroup_enable=memory"
		}
		out = append(out, Result{check, Fail, "not available", c.cost, remedy})
	}
	return out
}

// quotas judges what the kernel counts by user.
func (f *Facts) quotas() Result {
	const check = "quotas of nodes"
	if _, crun := f.Runtime["crun"]; crun || f.SysResource {
		return ok(check, "counted apart from root's")
	}
	return Result{check, Warn, "counted as root's, since runc needs CAP_SYS_RESOURCE",
		"a node can use up the machine's inotify instances, timers and message queues", "apt-get install crun, or give the service CAP_SYS_RESOURCE"}
}

func (f *Facts) runtime() Result {
	if path, found := f.Runtime["crun"]; found {
		return ok("container runtime", path)
	}
	if path, found := f.Runtime["runc"]; found {
		return Result{"container runtime", Warn, path + " only", "nodes start about twice as slowly, and only with `trellis serve --runtime runc`", "apt-get install crun"}
	}
	return Result{"container runtime", Fail, "neither crun nor runc", "no node can start", "apt-get install crun"}
}

// daemons judges each kind of routing software.
func (f *Facts) daemons() []Result {
	var out []Result
	for _, k := range vnet.DaemonKinds {
		out = append(out, f.daemon(k))
	}
	return out
}

func (f *Facts) daemon(k *vnet.DaemonKind) Result {
	remedy := fmt.Sprintf("apt-get install %s (nodes run instances of their own: the packaged service need not run)", k.Package)
	first := f.Daemons[k.Programs[0]]
	if first == "" {
		return Result{k.Title, Warn, "not installed", fmt.Sprintf("daemon: %s is refused in nodes of image host", k.Name), remedy}
	}
	var missing []string
	for _, p := range k.Programs {
		if f.Daemons[p] == "" {
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		return Result{k.Title, Warn, "without " + strings.Join(missing, ", "), "protocols of those daemons are refused in nodes of image host", remedy}
	}
	found := first
	if v := f.Versions[k.Name]; v != "" {
		found += ", version " + v
		if !slices.ContainsFunc(k.Tried, func(t string) bool { return v == t || strings.HasPrefix(v, t+".") }) {
			found += fmt.Sprintf(" (not tried: %s are)", strings.Join(k.Tried, " and "))
		}
	}
	return ok(k.Title, found)
}

// bridgeNetfilter judges whether the machine's firewall sees the frames of LANs.
// They wear a VLAN tag while they are on a bridge, which br_netfilter leaves
// alone unless it is told otherwise.
func (f *Facts) bridgeNetfilter() Result {
	if !f.BridgeVLANFilter {
		return ok("bridge netfilter", "leaves LANs alone")
	}
	return Result{"bridge netfilter", Warn, "filters VLAN-tagged frames",
		"the machine's firewall rules apply to frames of links of type lan; Docker's drop them",
		"sysctl -w net.bridge.bridge-nf-filter-vlan-tagged=0"}
}

func (f *Facts) ipv6() Result {
	if f.IPv6 {
		return ok("IPv6", "on")
	}
	return Result{"IPv6", Warn, "off in this kernel", "networks have IPv4 only", "boot without ipv6.disable=1"}
}
