package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"trellis/internal/vnet"
	"trellis/test/testenv"
)

// healthy gives the facts of a machine on which everything works.
func healthy() *Facts {
	f := &Facts{
		Root: true, Kernel: "6.8.0-45-generic", Arch: "amd64", Sysctls: map[string]int64{},
		Namespaces: map[string]bool{"user": true, "net": true, "mnt": true, "pid": true, "uts": true, "ipc": true},
		Probes:     map[Probe]error{},
		Cgroup:     Cgroup{Mode: "v2", Controllers: map[string]bool{"memory": true, "pids": true, "cpu": true}, Freezer: true},
		Runtime:    map[string]string{"crun": "/usr/bin/crun"},
		Daemons:    map[string]string{},
		IPv6:       true, Seccomp: true, SysResource: true, OpenFiles: 1 << 20,
		StateDir: "/var/lib/trellis", DiskFree: 10 << 30, Inodes: 1 << 20, InodesFree: 1 << 20, MemoryAvailable: 8 << 30,
	}
	for _, l := range limits {
		f.Sysctls[l.sysctl] = l.enough
	}
	for _, p := range []Probe{ProbeBPF, ProbeTCX, ProbeFilter, ProbeVeth, ProbeBridge, ProbeTBF, ProbeNetem, ProbeUserNS, ProbeOverlay, ProbeIDMapped, ProbeBPFFS, ProbeTmpfs, ProbeConfine, ProbeTracing} {
		f.Probes[p] = nil
	}
	for _, k := range vnet.DaemonKinds {
		for _, p := range k.Programs {
			f.Daemons[p] = k.Dirs[0] + "/" + p
		}
	}
	return f
}

func TestHealthyMachine(t *testing.T) {
	results := Judge(healthy())
	if Worst(results) != OK {
		for _, r := range results {
			if r.Status != OK {
				t.Errorf("%+v", r)
			}
		}
	}
}

func TestVersionsThatNobodyTriedSaySo(t *testing.T) {
	k := vnet.FRR.Kind()
	for version, tried := range map[string]bool{"8.4.4": true, "8.4": true, "8.40": false, "10.3.1": true, "9.1": false} {
		f := healthy()
		f.Versions = map[vnet.Daemon]string{vnet.FRR: version}
		r := f.daemon(k)
		if told := strings.Contains(r.Found, "not tried: 8.4 and 10.3 are"); told == tried || !strings.Contains(r.Found, version) || r.Status != OK {
			t.Errorf("%s: %+v", version, r)
		}
	}
}

func TestQuotasNeedACapabilityForRunc(t *testing.T) {
	f := healthy()
	for runtime, want := range map[string]Status{"crun": OK, "runc": Warn} {
		f.SysResource, f.Runtime = false, map[string]string{runtime: "/usr/bin/" + runtime}
		if got := f.quotas(); got.Status != want {
			t.Errorf("%s: %+v", runtime, got)
		}
	}
}

// Debian 12's kernel has no tcx, and needs none.
func TestSecurity(t *testing.T) {
	find := func(f *Facts, check string) Result {
		t.Helper()
		for _, r := range JudgeSecurity(f) {
			if r.Check == check {
				return r
			}
		}
		t.Fatalf("no check %q", check)
		return Result{}
	}
	f := healthy()
	f.Sysctls["kernel.pid_max"] = 4194304
	for _, r := range JudgeSecurity(f) {
		if r.Status != OK {
			t.Errorf("%+v", r)
		}
		if r.Status != OK && (r.Cost == "" || r.Remedy == "") {
			t.Errorf("neither cost nor remedy: %+v", r)
		}
	}
	for check, change := range map[string]func(){
		"packets that circle":   func() { f.Probes[ProbeTracing] = errors.New("no tracing") },
		"repeated loops":        func() { f.Cgroup.Freezer = false },
		"packet rings":          func() { f.Probes[ProbeConfine] = errors.New("no programs") },
		"queues of TCP and UDP": func() { f.Cgroup.Mode = "v1" },
		"processes":             func() { f.Sysctls["kernel.pid_max"] = 32768 },
	} {
		change()
		if r := find(f, check); r.Status != Warn || r.Cost == "" || r.Remedy == "" {
			t.Errorf("%+v", r)
		}
	}
	f.Cgroup.SocketMemory = true
	if r := find(f, "queues of TCP and UDP"); r.Status != OK {
		t.Errorf("%+v", r)
	}
}

func TestKernelWithoutTCX(t *testing.T) {
	f := healthy()
	f.Kernel, f.Probes[ProbeTCX] = "6.1.0-25-amd64", errors.New("not supported (requires >= v6.6)")
	for _, r := range Judge(f) {
		if r.Status != OK || r.Check == "tcx" && !strings.Contains(r.Found, "tc filters do its work") {
			t.Errorf("%+v", r)
		}
	}
}

// Each fault changes the results as it should, tells its cost and its remedy,
// and no other check.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		check  string
		status Status
		want   string // in the result
		spoil  func(*Facts)
	}{
		{"kernel", Fail, "Linux 6.1 or later", func(f *Facts) { f.Kernel = "5.15.0-119-generic" }},
		{"kernel", Fail, "Linux 6.1 or later", func(f *Facts) { f.Kernel = "unknown" }},
		{"processor", Fail, "riscv64", func(f *Facts) { f.Arch = "riscv64" }},
		{"namespaces", Fail, "without user", func(f *Facts) { f.Namespaces["user"] = false }},
		{"seccomp", Fail, "CONFIG_SECCOMP_FILTER", func(f *Facts) { f.Seccomp = false }},
		{"netem", Warn, "delay, jitter and loss are refused", func(f *Facts) { f.Probes[ProbeNetem] = errors.New("not in this kernel") }},
		{"bounds on sockets", Warn, "CONFIG_CGROUP_BPF", func(f *Facts) { f.Probes[ProbeConfine] = syscall.EINVAL }},
		{"net.core.bpf_jit_limit", Warn, "nodes", func(f *Facts) { f.Sysctls["net.core.bpf_jit_limit"] = 32 << 20 }},
		{"tcx", Fail, "no network can run", func(f *Facts) { f.Probes[ProbeTCX], f.Probes[ProbeFilter] = syscall.EINVAL, syscall.ENOENT }},
		{"user namespaces", Fail, "the limit is reached", func(f *Facts) { f.Probes[ProbeUserNS] = syscall.ENOSPC }},
		{"overlayfs", Warn, "modprobe overlay", func(f *Facts) { f.Probes[ProbeOverlay] = syscall.ENODEV }},
		{"cgroups", Fail, "mount -t cgroup2", func(f *Facts) { f.Cgroup = Cgroup{} }},
		{"cgroup memory", Fail, "cgroup_disable=memory", func(f *Facts) { delete(f.Cgroup.Controllers, "memory") }},
		{"container runtime", Fail, "apt-get install crun", func(f *Facts) { f.Runtime = nil }},
		{"container runtime", Warn, "--runtime runc", func(f *Facts) { f.Runtime = map[string]string{"runc": "/usr/bin/runc"} }},
		{"FRR", Warn, "apt-get install frr", func(f *Facts) { delete(f.Daemons, "zebra") }},
		{"FRR", Warn, "without isisd", func(f *Facts) { delete(f.Daemons, "isisd") }},
		{"BIRD", Warn, "apt-get install bird2", func(f *Facts) { delete(f.Daemons, "bird") }},
		{"bridge netfilter", Warn, "bridge-nf-filter-vlan-tagged=0", func(f *Facts) { f.BridgeVLANFilter = true }},
		{"IPv6", Warn, "ipv6.disable=1", func(f *Facts) { f.IPv6 = false }},
		{"user.max_user_namespaces", Fail, "room for about 0 nodes", func(f *Facts) { f.Sysctls["user.max_user_namespaces"] = 0 }},
		{"net.ipv4.neigh.default.gc_thresh3", Warn, "room for about 512 links", func(f *Facts) { f.Sysctls["net.ipv4.neigh.default.gc_thresh3"] = 1024 }},
		{"open files", Warn, "LimitNOFILE", func(f *Facts) { f.OpenFiles = 1024 }},
		{"disk", Fail, "--state-dir", func(f *Facts) { f.DiskFree = 1 << 20 }},
		{"disk", Warn, "--state-dir", func(f *Facts) { f.DiskFree = 500 << 20 }},
		{"disk", Warn, "inodes", func(f *Facts) { f.InodesFree = 10 }},
		{"memory", Warn, "free some memory", func(f *Facts) { f.MemoryAvailable = 100 << 20 }},
	} {
		f := healthy()
		c.spoil(f)
		found := false
		for _, r := range Judge(f) {
			if r.Check != c.check {
				if r.Status != OK {
					t.Errorf("with a fault of %s: %+v", c.check, r)
				}
				continue
			}
			found = true
			if r.Status != c.status || r.Cost == "" || r.Remedy == "" || !strings.Contains(r.Found+r.Cost+r.Remedy, c.want) {
				t.Errorf("%s: %+v, want %s with %q", c.check, r, c.status, c.want)
			}
		}
		if !found {
			t.Errorf("no result for %s", c.check)
		}
	}
}

func TestWithoutRootNothingFailsForWantOfTrying(t *testing.T) {
	f := healthy()
	f.Root, f.Probes = false, nil
	for _, r := range Judge(f) {
		if r.Status == Fail && r.Check != "user" {
			t.Errorf("%+v", r)
		}
		if r.Check == "tcx" && !strings.Contains(r.Found, "needs root") {
			t.Errorf("%+v", r)
		}
	}
}

func TestCgroupArrangements(t *testing.T) {
	const (
		v1     = "30 25 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n32 25 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
		named  = "33 25 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
		header = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
	)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("cgroup.controllers", "cpu io memory pids\n")
	v2 := "34 25 0:30 / " + dir + " rw - cgroup2 cgroup2 rw\n"
	for _, c := range []struct {
		mounts, controllers, mode string
		memory                    bool
	}{
		{v1 + named, header, "v1", true},
		{v1 + named + v2, header, "hybrid", true},
		{v2, header, "v2", true},
		{named + v2, header, "v2", true},
		{v1, header + "memory\t0\t1\t0\ncpu\t2\t1\t1\n", "v1", false},
		{"", header, "", false},
	} {
		got, err := gatherCgroup(write("mountinfo", c.mounts), write("cgroups", c.controllers))
		if err != nil {
			t.Fatal(err)
		}
		if got.Mode != c.mode || got.Controllers["memory"] != c.memory {
			t.Errorf("%q: %+v, want %s with memory %v", c.mounts, got, c.mode, c.memory)
		}
	}
}

// The probes leave nothing on the machine.
func TestGatherHere(t *testing.T) {
	testenv.NeedRoot(t, "tries kernel features in namespaces of its own")
	state := func() string {
		all, err := os.ReadFile("/proc/self/mounts")
		if err != nil {
			t.Fatal(err)
		}
		var mounts []string
		for line := range strings.Lines(string(all)) {
			// Other tests make theirs meanwhile, in directories of their own.
			if !strings.Contains(line, " "+os.TempDir()+"/") {
				mounts = append(mounts, line)
			}
		}
		devices, err := os.ReadFile("/proc/net/dev")
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for line := range strings.Lines(string(devices)) {
			name, _, _ := strings.Cut(line, ":")
			if strings.Contains(name, "probe") {
				names = append(names, name)
			}
		}
		return strings.Join(mounts, "") + strings.Join(names, " ")
	}
	before := state()
	f, err := Gather(filepath.Join(t.TempDir(), "not", "there"))
	if err != nil {
		t.Fatal(err)
	}
	if after := state(); after != before {
		t.Errorf("something is left: %s", after)
	}
	if f.Arch != runtime.GOARCH || f.Kernel == "" || f.DiskFree == 0 || f.MemoryAvailable == 0 || f.OpenFiles == 0 || len(f.Sysctls) < 5 {
		t.Errorf("gathered %+v", f)
	}
	if err := f.Probes[ProbeFilter]; err != nil && f.Probes[ProbeTCX] != nil {
		t.Errorf("neither link nor filter: %v", err)
	}
	for _, p := range []Probe{ProbeBPF, ProbeTCX, ProbeFilter, ProbeVeth, ProbeBridge, ProbeTBF, ProbeNetem, ProbeUserNS, ProbeOverlay, ProbeIDMapped, ProbeBPFFS, ProbeTmpfs, ProbeConfine, ProbeTracing} {
		if _, tried := f.Probes[p]; !tried {
			t.Errorf("%s was not tried", p)
		}
	}
}
