package container

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// idCount is how many user and group ids a node has.
const idCount = 65536

// Open files of a node, soft and hard. Daemons size tables by the soft limit
// (FRR's poll array, for one), so it stays small.
const (
	softFiles = 1024
	hardFiles = 65536
)

// oomScore makes the kernel look for victims in nodes before it does among the
// machine's own services, and at a node's init after all else in it.
const (
	oomScoreInit = 200
	oomScore     = 400 // of what is run in a node; init sets the same for services
)

// capabilities of the node's root, all relative to the node's user namespace.
// docs/security.md says what each is for.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_SYS_ADMIN",
}

// hiddenPaths are hidden, as OCI runtimes do by default; a runtime passes over
// those that the kernel does not have.
var hiddenPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
	"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
}

// hidden gives what hides those paths: mounts over directories, and paths for the
// runtime to hide. The runtime takes a tmpfs for each directory, and every file
// system there is takes 16 bytes of every memory cgroup (alloc_shrinker_info in
// mm/shrinker.c: 520 bytes for 64, in slabs of 1,024): one for each of 10,000 nodes,
// 1.6 GB. runc refuses mounts in /proc, and hides all by itself.
func (r *Runtime) hidden(bindOptions []string) (mounts []specs.Mount, paths []string) {
	for _, p := range hiddenPaths {
		if info, err := os.Stat(p); err == nil && info.IsDir() && r.oci.mountsInProc && strings.HasPrefix(p, "/proc/") {
			mounts = append(mounts, specs.Mount{Destination: p, Type: "bind", Source: inStage("empty"), Options: bindOptions})
			continue
		}
		paths = append(paths, p)
	}
	return mounts, paths
}

// readonlyPaths are those of OCI runtimes, with all of /proc/sys but
// /proc/sys/net, which belongs to the node's own network namespace.
var readonlyPaths = sync.OnceValue(func() []string {
	paths := []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sysrq-trigger"}
	entries, err := os.ReadDir("/proc/sys")
	if err != nil {
		return append(paths, "/proc/sys")
	}
	for _, e := range entries {
		if e.Name() != "net" {
			paths = append(paths, "/proc/sys/"+e.Name())
		}
	}
	return paths
})

// process is how anything in a node runs.
func process(argv, env []string, terminal bool) *specs.Process {
	return &specs.Process{
		Terminal:        terminal,
		Args:            argv,
		Env:             env,
		Cwd:             "/",
		NoNewPrivileges: true,
		Capabilities: &specs.LinuxCapabilities{
			Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
		},
		Rlimits: []specs.POSIXRlimit{
			{Type: "RLIMIT_CORE"},
			openFiles(),
		},
		OOMScoreAdj: new(oomScore),
	}
}

// openFiles cannot be more than this process may itself have: the runtime sets
// it from within the node's user namespace.
var openFiles = sync.OnceValue(func() specs.POSIXRlimit {
	hard := uint64(hardFiles)
	var own syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own); err == nil {
		hard = min(hard, own.Max)
	}
	return specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: min(softFiles, hard), Hard: hard}
})

// linux is specs.Linux with the profile as it is already encoded.
type linux struct {
	specs.Linux
	Seccomp json.RawMessage `json:"seccomp"`
}

// config is specs.Spec with that.
type config struct {
	specs.Spec
	Linux linux `json:"linux"`
}

// writeBundle writes the OCI configuration of a node whose file system is
// assembled in the directory at of the stage.
func (r *Runtime) writeBundle(s *Spec, host bool, at string) error {
	private := []string{"nosuid", "noexec", "nodev"}
	bindPrivate := []string{"nosuid", "noexec", "nodev", "bind", "ro"}
	init := process([]string{ownDir + "/init"}, nil, false)
	init.OOMScoreAdj = new(oomScoreInit)
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: private},
		{Destination: "/dev", Type: "bind", Source: inStage("dev"), Options: []string{"bind", "ro", "nosuid", "noexec"}},
		{Destination: ownDir + "/disk", Type: "bind", Source: filepath.Join(at, "disk"), Options: bindPrivate},
		{Destination: ownDir + "/hosts", Type: "bind", Source: inStage(hostsDir, s.VNet), Options: bindPrivate},
	}
	if !terminalsOnDemand(s, host) {
		mounts = append(mounts, specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", fmt.Sprintf("max=%d", maxTerminals)}})
	}
	if host {
		mounts = append(mounts, specs.Mount{Destination: "/usr", Type: "bind", Source: "/usr",
			Options: []string{"bind", "ro", "nosuid", "nodev"}},
			specs.Mount{Destination: "/sys", Type: "bind", Source: inStage("empty"), Options: bindPrivate})
	} else {
		// The machine's own programs for networks do without it, and each one there is
		// makes the next one cost more (kernfs_test_super in fs/kernfs/mount.c).
		mounts = append(mounts, specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: append(slices.Clone(private), "ro")})
	}
	hiding, masked := r.hidden(bindPrivate)
	mounts = append(mounts, hiding...)
	ids := []specs.LinuxIDMapping{{HostID: s.IDBase, Size: idCount}}
	c := config{
		Spec: specs.Spec{
			Version:  "1.0.0",
			Process:  init,
			Root:     &specs.Root{Path: filepath.Join(at, "root")},
			Hostname: s.Node,
			Mounts:   mounts,
		},
		Linux: linux{
			Linux: specs.Linux{
				UIDMappings: ids, GIDMappings: ids,
				Namespaces: []specs.LinuxNamespace{
					{Type: specs.UserNamespace, Path: filepath.Join(at, usersFile)}, {Type: specs.NetworkNamespace}, {Type: specs.MountNamespace},
					{Type: specs.PIDNamespace}, {Type: specs.UTSNamespace}, {Type: specs.IPCNamespace},
					{Type: specs.CgroupNamespace},
				},
				MaskedPaths: masked, ReadonlyPaths: readonlyPaths(),
				CgroupsPath: r.oci.cgroupsPath(r.cgroups.Dir(), s.ID),
			},
		},
	}
	if err := r.filter.configure(&c); err != nil {
		return err
	}
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.nodeDir(s.ID), configFile), b, 0o600)
}
