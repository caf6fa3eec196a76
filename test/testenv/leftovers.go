package testenv

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dirPrefix  = "trellis-test-"
	tagFile    = "instance" // in each directory: the tag that goes with it
	cgroupRoot = "/sys/fs/cgroup"
)

// Leftovers returns what the instance has now and did not have when it was new:
// interfaces in the root context, cgroups, processes, mounts, pinned BPF
// objects, files; each as its kind and its name, sorted. The running service
// may keep its bpffs mounted as long as nothing is pinned there, and the file system
// of nodes' names.
func (s *Service) Leftovers() []string {
	s.t.Helper()
	now, err := s.everything()
	if err != nil {
		s.t.Fatalf("look for leftovers: %v", err)
	}
	var left []string
	for what := range now {
		if !s.baseline[what] && !(s.Running() && (what == "mount "+s.pins() || what == "mount "+s.names())) {
			left = append(left, what)
		}
	}
	slices.Sort(left)
	return left
}

// pins is where the instance mounts its bpffs.
func (s *Service) pins() string { return filepath.Join(s.RunDir, "bpf") }

// names is where the instance mounts the file system of nodes' names.
func (s *Service) names() string { return filepath.Join(s.RunDir, "hosts") }

// everything lists what the instance has on the machine.
func (s *Service) everything() (map[string]bool, error) {
	all := make(map[string]bool)
	note := func(kind string, names []string) {
		for _, n := range names {
			all[kind+" "+n] = true
		}
	}
	links, err1 := s.NS.Links()
	note("link", links)
	groups, err2 := Cgroups(s.Instance)
	note("cgroup", groups)
	mounts, err3 := mountsBelow(s.dir)
	note("mount", mounts)
	processes, err4 := s.processes()
	note("process", processes)
	files, pins, err5 := s.files()
	note("file", files)
	note("pin", pins)
	return all, errors.Join(err1, err2, err3, err4, err5)
}

// Cgroups returns the directories of an instance's cgroups in every hierarchy.
func Cgroups(instance string) ([]string, error) {
	name := "trellis-" + instance
	var found []string
	for _, pattern := range []string{filepath.Join(cgroupRoot, name), filepath.Join(cgroupRoot, "*", name)} {
		tops, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, top := range tops {
			err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				if err == nil && d.IsDir() {
					found = append(found, path)
				}
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// mountsBelow returns the mount points at or below a directory, the last made
// last.
func mountsBelow(dir string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		if p := fields[4]; p == dir || strings.HasPrefix(p, dir+"/") {
			found = append(found, p)
		}
	}
	return found, lines.Err()
}

// processes returns the processes in the instance's cgroups or in its root
// context, without the service and this process.
func (s *Service) processes() ([]string, error) {
	var root unix.Stat_t
	if err := unix.Fstat(s.NS.FD(), &root); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || pid == s.cmd.Process.Pid || ended(pid) {
			continue
		}
		// A process may end at any moment: what cannot be read is not there.
		groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		var ns unix.Stat_t
		inside := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &ns) == nil && ns.Ino == root.Ino && ns.Dev == root.Dev
		if inside || strings.Contains(string(groups), "/trellis-"+s.Instance+"/") {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			found = append(found, fmt.Sprintf("%d %s", pid, strings.TrimSpace(string(name))))
		}
	}
	return found, nil
}

// ended reports whether a process has ended and waits only for its parent to
// ask how. It is then listed in its cgroup yet (version 2), and is none of it.
func ended(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b[max(0, bytes.LastIndexByte(b, ')')):]), " ") // a name may hold anything
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// files returns what is in the instance's directories, relative to the place
// of both, the database's own files aside, and what is pinned in its bpffs.
func (s *Service) files() (files, pins []string, err error) {
	for _, top := range []string{s.RunDir, s.StateDir} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			name, err := filepath.Rel(s.dir, path)
			if err != nil {
				return err
			}
			switch {
			case path == top || path == s.pins():
			case strings.HasPrefix(path, s.pins()+"/"):
				// The kernel puts two files of its own into every bpffs.
				if !d.IsDir() && !strings.HasSuffix(path, ".debug") {
					pins = append(pins, name)
				}
			case d.IsDir() && d.Name() == "member": // etcd's
				return filepath.SkipDir
			case s.Running() && path == filepath.Join(s.RunDir, "oci", ".cache"): // the container runtime's, while there is a service
				return filepath.SkipDir
			default:
				files = append(files, name)
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return files, pins, nil
}

// sweepStale removes what processes that are gone have left.
func sweepStale(t testing.TB) {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		pid, err := strconv.Atoi(owner)
		if err != nil || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			continue
		}
		tag, err := os.ReadFile(filepath.Join(dir, tagFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("look into %s, which a former test run has left: %v", dir, err)
		}
		t.Logf("removing %s, which the test process %d has left", dir, pid)
		if _, err := os.Stat(filepath.Join(dir, sandboxFile)); err == nil {
			sweepSandbox(t, dir)
		}
		sweep(t, dir, string(tag))
	}
}

// sweep removes an instance by force: its processes, cgroups, mounts and files.
// What was in its namespaces went with the processes.
func sweep(t testing.TB, dir, instance string) {
	for deadline := time.Now().Add(10 * time.Second); instance != ""; time.Sleep(10 * time.Millisecond) {
		groups, err := Cgroups(instance)
		if err != nil {
			t.Errorf("sweep %s: %v", dir, err)
			break
		}
		if len(groups) == 0 {
			break
		}
		slices.Reverse(groups) // children first
		for _, g := range groups {
			killGroup(g)
			os.Remove(g) // fails until its processes have gone: tried again
		}
		if time.Now().After(deadline) {
			t.Errorf("sweep %s: cannot remove the cgroups %q", dir, groups)
			break
		}
	}
	mounts, err := mountsBelow(dir)
	if err != nil {
		t.Errorf("sweep %s: %v", dir, err)
	}
	slices.Reverse(mounts)
	for _, m := range mounts {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("sweep: unmount %s: %v", m, err)
		}
	}
	if left, err := mountsBelow(dir); err != nil || len(left) > 0 {
		t.Errorf("sweep: %s has mounts yet, so it stays: %q, %v", dir, left, err)
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Errorf("sweep: %v", err)
	}
}

// killGroup kills the processes of a cgroup.
func killGroup(dir string) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return // it is gone
	}
	for _, f := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
			unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
	}
}
