// Package cgroup makes the control groups of virtual nodes: one directory per
// node, in every hierarchy that accounts or limits what Trellis limits, on
// machines with cgroup v1, v2 or both (hybrid).
//
// The groups sit at the root of each hierarchy, apart from the service's own,
// so that stopping or upgrading the service touches no node.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// needed are the controllers without which limits would not bind.
var needed = []string{"cpu", "memory", "pids"}

// accounting is used where it exists.
const accounting = "cpuacct"

// Limits bind a group. Zero means no limit.
type Limits struct {
	CPU    float64 // cores
	Memory int64   // bytes, swap included
	Pids   int     // processes and threads
}

// Usage is what a group uses.
type Usage struct {
	Memory   int64         // bytes now, kernel memory included
	CPU      time.Duration // since the group was made
	Pids     int           // now
	OOMKills int64         // since the group was made
}

// hierarchy is one mounted cgroup file system that the tree uses.
type hierarchy struct {
	mount       string
	v2          bool
	controllers []string // of ours, those that live here
}

// Tree is the set of groups of one instance: dir in every hierarchy.
type Tree struct {
	dir         string
	hierarchies []hierarchy
	// others are v1 hierarchies without any controller of ours. An OCI runtime
	// that insists on managing cgroups (runc) leaves directories there.
	others []string
	// unified is where the hierarchy of version 2 is mounted, with controllers of ours
	// or without; empty in kernels that have none. freezer is where version 1's freezer
	// is; empty: nowhere.
	unified, freezer string
}

// Find reads the machine's cgroup layout for a tree named dir. It fails where a
// needed controller is not available.
func Find(dir string) (*Tree, error) {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	var v1 []hierarchy
	var v2 string
	scan := bufio.NewScanner(mounts)
	for scan.Scan() {
		mount, kind, options, ok := parseMount(scan.Text())
		switch {
		case !ok:
		case kind == "cgroup2" && v2 == "":
			v2 = mount
		case kind == "cgroup":
			v1 = append(v1, hierarchy{mount: mount, controllers: strings.Split(options, ",")})
		}
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	var unified []string
	if v2 != "" {
		b, err := os.ReadFile(filepath.Join(v2, "cgroup.controllers"))
		if err != nil {
			return nil, err
		}
		unified = strings.Fields(string(b))
	}
	t, err := arrange(dir, v1, v2, unified)
	if err == nil && t.unified == "" {
		err = t.mountUnified()
	}
	return t, err
}

// mountUnified makes the hierarchy of version 2 reachable where nobody has mounted it:
// programs for nodes' processes can be attached there alone. The mount is this
// process's, and nowhere in the file system.
func (t *Tree) mountUnified() error {
	context, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the cgroup hierarchy of version 2: %w", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return fmt.Errorf("open the cgroup hierarchy of version 2: %w", err)
	}
	fd, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return fmt.Errorf("mount the cgroup hierarchy of version 2: %w", err)
	}
	t.unified = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	t.others = append(t.others, t.unified)
	return nil
}

// Unified is the tree's directory in the hierarchy of version 2, which all its groups
// are below where they are in that hierarchy at all; empty where the kernel has none.
func (t *Tree) Unified() string {
	if t.unified == "" {
		return ""
	}
	return filepath.Join(t.unified, t.dir)
}

// UnifiedEntry is the directory in that hierarchy that processes of a group start in:
// the tree's, or, where it has controllers of ours, the group's own. With no limits
// wanted from the start, it is empty there.
func (t *Tree) UnifiedEntry(group string, limited bool) string {
	for _, h := range t.hierarchies {
		if h.v2 && limited {
			return t.path(h, group)
		} else if h.v2 {
			return ""
		}
	}
	return t.Unified()
}

// parseMount takes a line of mountinfo (proc_pid_mountinfo(5)) apart. The mount
// must show the hierarchy's root.
func parseMount(line string) (mount, kind, superOptions string, ok bool) {
	left, right, found := strings.Cut(line, " - ")
	l, r := strings.Fields(left), strings.Fields(right)
	if !found || len(l) < 6 || len(r) < 3 || l[3] != "/" {
		return "", "", "", false
	}
	return l[4], r[0], r[2], true
}

// arrange picks a hierarchy for each controller.
func arrange(dir string, v1 []hierarchy, v2 string, unified []string) (*Tree, error) {
	t := &Tree{dir: dir, unified: v2}
	seen := map[string]bool{}
	for _, h := range v1 {
		if slices.Contains(h.controllers, "freezer") {
			t.freezer = h.mount
		}
		var ours []string
		for _, c := range append(slices.Clone(needed), accounting) {
			if slices.Contains(h.controllers, c) && !seen[c] {
				seen[c] = true
				ours = append(ours, c)
			}
		}
		if len(ours) > 0 {
			t.hierarchies = append(t.hierarchies, hierarchy{mount: h.mount, controllers: ours})
		} else {
			t.others = append(t.others, h.mount)
		}
	}
	h := hierarchy{mount: v2, v2: true}
	var missing []string
	for _, c := range needed {
		switch {
		case seen[c]:
		case slices.Contains(unified, c):
			h.controllers = append(h.controllers, c)
		default:
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the cgroup controller %s is not available, so limits cannot bind; boot with cgroup_enable=%s, or mount its hierarchy",
			strings.Join(missing, " and "), strings.Join(missing, ","))
	}
	if len(h.controllers) > 0 {
		t.hierarchies = append(t.hierarchies, h)
	} else if v2 != "" {
		t.others = append(t.others, v2)
	}
	return t, nil
}

// String names the layout: "v1", "v2" or "hybrid".
func (t *Tree) String() string {
	n := 0
	for _, h := range t.hierarchies {
		if h.v2 {
			n++
		}
	}
	switch {
	case n == 0 && !slices.ContainsFunc(t.others, func(m string) bool { return exists(m + "/cgroup.controllers") }):
		return "v1"
	case n == len(t.hierarchies):
		return "v2"
	}
	return "hybrid"
}

// Dir is the tree's own directory, relative to a hierarchy's root.
func (t *Tree) Dir() string { return t.dir }

func (t *Tree) path(h hierarchy, group string) string {
	return filepath.Join(h.mount, t.dir, group)
}

// Create makes a group, "a/b", with its limits. It may exist.
func (t *Tree) Create(group string, l Limits) error {
	for _, h := range t.hierarchies {
		if h.v2 {
			// Controllers are enabled from the top down, each level for the next.
			for _, dir := range ancestors(h.mount, filepath.Join(t.dir, group)) {
				if err := mkdir(dir); err != nil {
					return err
				}
				if err := enable(dir, h.controllers); err != nil {
					return err
				}
			}
		}
		if err := os.MkdirAll(t.path(h, group), 0o755); err != nil {
			return fmt.Errorf("make the cgroup: %w", err)
		}
	}
	return t.setLimits(group, l, true)
}

// ancestors lists mount and every directory below it that leads to group,
// without group itself.
func ancestors(mount, group string) []string {
	dirs := []string{mount}
	for part := range strings.SplitSeq(filepath.Dir(group), "/") {
		dirs = append(dirs, filepath.Join(dirs[len(dirs)-1], part))
	}
	return dirs
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the cgroup: %w", err)
	}
	return nil
}

// enable hands controllers on to the children of a v2 group.
func enable(dir string, controllers []string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	have, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	on := strings.Fields(string(have))
	for _, c := range controllers {
		if slices.Contains(on, c) {
			continue
		}
		if err := write(file, "+"+c); err != nil {
			return fmt.Errorf("enable the cgroup controller %s: %w", c, err)
		}
	}
	return nil
}

// Members are the processes in a group, without the caller's own.
func (t *Tree) Members(group string) ([]int, error) {
	seen := map[int]bool{os.Getpid(): true}
	var pids []int
	for _, h := range t.hierarchies {
		b, err := os.ReadFile(filepath.Join(t.path(h, group), "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 && !seen[pid] {
				seen[pid] = true
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// Has reports whether the process is in the group, now.
func (t *Tree) Has(group string, pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	want := "/" + filepath.Join(t.dir, group)
	for line := range strings.SplitSeq(strings.TrimSpace(string(b)), "\n") {
		part := strings.SplitN(line, ":", 3)
		if len(part) == 3 && (part[2] == want || strings.HasPrefix(part[2], want+"/")) {
			return true
		}
	}
	return false
}

// EntryFiles are the files of a group: a single-threaded process that writes
// "0" to each becomes a member.
func (t *Tree) EntryFiles(group string) []string {
	var files []string
	for _, h := range t.hierarchies {
		name := "tasks"
		if h.v2 {
			name = "cgroup.procs"
		}
		files = append(files, filepath.Join(t.path(h, group), name))
	}
	return files
}

// Groups lists the groups of two levels, "a/b", in any of the hierarchies.
func (t *Tree) Groups() ([]string, error) {
	seen := map[string]bool{}
	for _, m := range t.mounts() {
		top := filepath.Join(m, t.dir)
		for _, a := range subdirs(top) {
			for _, b := range subdirs(filepath.Join(top, a)) {
				seen[a+"/"+b] = true
			}
		}
	}
	groups := make([]string, 0, len(seen))
	for g := range seen {
		groups = append(groups, g)
	}
	slices.Sort(groups)
	return groups, nil
}

func (t *Tree) mounts() []string {
	var m []string
	for _, h := range t.hierarchies {
		m = append(m, h.mount)
	}
	return append(m, t.others...)
}

// subdirs are the child groups of a directory; none if it is gone.
func subdirs(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// Remove removes a group without members, waiting up to timeout for the last of
// them to be gone. It may be missing.
func (t *Tree) Remove(group string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for _, m := range t.mounts() {
		if err := removeAll(filepath.Join(m, t.dir, group), deadline); err != nil {
			return fmt.Errorf("remove the cgroup: %w", err)
		}
	}
	return nil
}

// removeAll removes a group and the groups that were made inside it.
func removeAll(dir string, deadline time.Time) error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY):
			return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
		}
		for _, sub := range subdirs(dir) {
			if err := removeAll(filepath.Join(dir, sub), deadline); err != nil {
				return err
			}
		}
		if time.Now().After(deadline) {
			return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
		}
		time.Sleep(pause)
	}
}

// Parents lists the groups of one level, "a", in any of the hierarchies.
func (t *Tree) Parents() []string {
	var names []string
	for _, m := range t.mounts() {
		names = append(names, subdirs(filepath.Join(m, t.dir))...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// RemoveParent removes a group of one level, unless there are groups in it.
func (t *Tree) RemoveParent(group string) {
	for _, m := range t.mounts() {
		// A group in use, or with groups in it, stays: rmdir refuses.
		_ = unix.Rmdir(filepath.Join(m, t.dir, group))
	}
}

// Sweep removes the tree's directories that are empty, from below.
func (t *Tree) Sweep() {
	for _, m := range t.mounts() {
		top := filepath.Join(m, t.dir)
		for _, a := range subdirs(top) {
			// A group in use, or with groups in it, stays: rmdir refuses.
			_ = unix.Rmdir(filepath.Join(top, a))
		}
		_ = unix.Rmdir(top)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func write(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
