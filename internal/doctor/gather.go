package doctor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/container"
	"trellis/internal/substrate/kernel"
	"trellis/internal/vnet"
)

// Gather looks at the machine. stateDir is where the service keeps its state;
// it need not exist. An error means that the machine could not be looked at,
// not that something is missing.
func Gather(stateDir string) (*Facts, error) {
	f := &Facts{
		Root: os.Geteuid() == 0, Arch: runtime.GOARCH, StateDir: stateDir,
		Sysctls: map[string]int64{}, Namespaces: map[string]bool{}, Probes: map[Probe]error{},
		Runtime: map[string]string{}, Daemons: map[string]string{}, Versions: map[vnet.Daemon]string{},
	}
	var err error
	if f.Kernel, err = kernel.Release(); err != nil {
		return nil, err
	}
	for _, l := range limits {
		if v, err := readInt("/proc/sys/" + sysctlPath(l.sysctl)); err == nil {
			f.Sysctls[l.sysctl] = v
		}
	}
	for _, kind := range []string{"user", "net", "mnt", "pid", "uts", "ipc"} {
		_, err := os.Stat("/proc/self/ns/" + kind)
		f.Namespaces[kind] = err == nil
	}
	vlan, err := readInt("/proc/sys/net/bridge/bridge-nf-filter-vlan-tagged")
	f.BridgeVLANFilter = err == nil && vlan != 0
	_, err = os.Stat("/proc/net/if_inet6")
	f.IPv6 = err == nil
	actions, err := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail")
	f.Seccomp = err == nil && strings.Contains(string(actions), "errno")

	if f.Cgroup, err = gatherCgroup("/proc/self/mountinfo", "/proc/cgroups"); err != nil {
		return nil, err
	}
	f.SysResource = container.SysResource()
	f.programs()
	if err := f.resources(); err != nil {
		return nil, err
	}
	if f.Root {
		f.probeAll()
	}
	return f, nil
}

// sysctlPath turns a sysctl's name into its path under /proc/sys.
func sysctlPath(name string) string { return strings.ReplaceAll(name, ".", "/") }

func readInt(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// version is how the routing daemons write theirs: 8.4.4, 2.0.12, 10.3.
var version = regexp.MustCompile(`\d+\.\d+(\.\d+)*`)

// programs looks for the runtimes and the routing daemons, where Debian,
// Ubuntu and others put them.
func (f *Facts) programs() {
	find := func(into map[string]string, name string, dirs ...string) {
		for _, dir := range dirs {
			path := filepath.Join(dir, name)
			if unix.Access(path, unix.X_OK) == nil {
				into[name] = path
				return
			}
		}
		if path, err := exec.LookPath(name); err == nil {
			into[name] = path
		}
	}
	find(f.Runtime, "crun")
	find(f.Runtime, "runc")
	for _, k := range vnet.DaemonKinds {
		for _, p := range slices.Concat(k.Programs, k.More) {
			find(f.Daemons, p, k.Dirs...)
		}
		if first := f.Daemons[k.Programs[0]]; first != "" {
			// BIRD writes it to its error output.
			if out, err := exec.Command(first, "--version").CombinedOutput(); err == nil {
				f.Versions[k.Name] = version.FindString(string(out))
			}
		}
	}
}

// resources reads what is left of disk, memory and open files.
func (f *Facts) resources() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit on open files: %w", err)
	}
	f.OpenFiles = limit.Max
	dir := existing(f.StateDir)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("read the free space of %s: %w", dir, err)
	}
	f.DiskFree = st.Bavail * uint64(st.Bsize)
	f.Inodes, f.InodesFree = st.Files, st.Ffree
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return fmt.Errorf("read the free memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "MemAvailable:" {
			kib, err := strconv.ParseUint(fields[1], 10, 64)
			if err != nil {
				return fmt.Errorf("read the free memory: %w", err)
			}
			f.MemoryAvailable = kib << 10
		}
	}
	return nil
}

// existing returns the nearest directory above path that exists.
func existing(path string) string {
	for {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return path
		}
		parent := filepath.Dir(path)
		if parent == path {
			return path
		}
		path = parent
	}
}

// gatherCgroup reads the arrangement of control groups from a mountinfo file
// (proc_pid_mountinfo(5)) and the kernel's list of controllers.
func gatherCgroup(mountinfo, controllers string) (Cgroup, error) {
	c := Cgroup{Controllers: map[string]bool{}}
	text, err := os.ReadFile(mountinfo)
	if err != nil {
		return c, fmt.Errorf("read the mounts: %w", err)
	}
	v1, v2 := false, ""
	for line := range strings.Lines(string(text)) {
		before, after, found := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(kind) < 3 {
			continue
		}
		switch kind[0] {
		case "cgroup2":
			v2, c.Freezer = fields[4], true
		case "cgroup":
			for option := range strings.SplitSeq(kind[2], ",") {
				switch option {
				case "memory", "pids", "cpu":
					v1, c.Controllers[option] = true, true
					if _, err := os.Stat(filepath.Join(fields[4], "memory.kmem.tcp.limit_in_bytes")); err == nil {
						c.SocketMemory = true
					}
				case "freezer":
					c.Freezer = true
				}
			}
		}
	}
	switch {
	case v1 && v2 != "":
		c.Mode = "hybrid"
	case v1:
		c.Mode = "v1"
	case v2 != "":
		c.Mode = "v2"
		text, err := os.ReadFile(filepath.Join(v2, "cgroup.controllers"))
		if err != nil {
			return c, fmt.Errorf("read the cgroup controllers: %w", err)
		}
		for name := range strings.FieldsSeq(string(text)) {
			c.Controllers[name] = true
		}
	}
	disabled, err := disabledControllers(controllers)
	if err != nil {
		return c, err
	}
	for _, name := range disabled {
		delete(c.Controllers, name)
	}
	return c, nil
}

// disabledControllers lists those that the boot command line switched off.
// Kernels without version 1 have no such list.
func disabledControllers(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the cgroup controllers: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 4 && fields[3] == "0" {
			out = append(out, fields[0])
		}
	}
	return out, nil
}
