package container

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	nodeinit "trellis/init"
)

// stageDir is where the stage's own tmpfs is mounted. The directory exists on
// every kernel with BPF, everyone may pass through its parents, no user keeps
// files there, and since sysfs marks it as a mount point, covering it does not
// bar nodes from mounting a sysfs of their own (mount_too_revealing in
// fs/namespace.c).
const stageDir = "/sys/fs/bpf"

// workers is how many containers are under construction at once. A start
// mostly computes, so more than the machine's CPUs gains little.
var workers = max(2, runtime.NumCPU())

// stage is a private mount namespace in which nodes are put together, and the
// threads that work in it. The host's mount table never shows what is mounted
// there, and all of it ends with the process.
//
// It holds, in a tmpfs: empty, what nodes without a sysfs have for one; init, the node's PID 1 and the helper that joins
// cgroups; dev, the nodes' /dev; base and host, read-only layers of the nodes'
// file systems; copies of these for kernels that need them; hosts, the VNets' files
// of names, mounted; nodes, those under construction.
type stage struct {
	jobs chan func()
	done sync.WaitGroup

	mu         sync.Mutex
	namespaces map[uint32]*os.File // of users, by the first id that they map to

	copying sync.Mutex // held while a layer is copied for a range of ids
}

// newStage makes the namespace. hideCgroups keeps the runtime from finding any
// cgroup file system: crun 1.8 refuses to start on a hybrid layout, even where
// it is told to leave cgroups alone.
func newStage(hideCgroups bool, hosts string) (*stage, error) {
	s := &stage{jobs: make(chan func()), namespaces: map[uint32]*os.File{}}
	ns := -1
	for i := range workers {
		enter := func() error {
			if i > 0 {
				return joinStage(ns)
			}
			var err error
			ns, err = makeStage(hideCgroups)
			return err
		}
		ready := make(chan error)
		s.done.Add(1)
		go s.work(enter, ready)
		if err := <-ready; err != nil {
			s.close()
			return nil, err
		}
	}
	unix.Close(ns)
	if err := s.do(func() error { return fillStage(hosts) }); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// work enters the namespace and does jobs until there are no more. Its thread
// is not fit for anything else afterwards, and ends with it.
func (s *stage) work(enter func() error, ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The first thread stands for the process in /proc/PID; leave it alone.
		// While it is held here, the next goroutine runs on another one.
		held := make(chan error)
		go s.work(enter, held)
		err := <-held
		runtime.UnlockOSThread()
		ready <- err
		return
	}
	defer s.done.Done()
	err := enter()
	ready <- err
	if err != nil {
		return
	}
	for job := range s.jobs {
		job()
	}
}

// do runs f on a thread in the namespace.
func (s *stage) do(f func() error) error {
	result := make(chan error, 1)
	s.jobs <- func() { result <- f() }
	return <-result
}

func (s *stage) close() {
	close(s.jobs)
	s.done.Wait()
}

func makeStage(hideCgroups bool) (ns int, err error) {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return -1, fmt.Errorf("make a mount namespace: %w", err)
	}
	// What the host mounts and unmounts later shows here, nothing the other way.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return -1, fmt.Errorf("detach the mount namespace: %w", err)
	}
	if err := unix.Mount("trellis", stageDir, "tmpfs", unix.MS_NOSUID, "mode=0755,size=1g"); err != nil {
		return -1, fmt.Errorf("mount the stage on %s: %w", stageDir, err)
	}
	if err := unix.Mount("", stageDir, "", unix.MS_PRIVATE, ""); err != nil {
		return -1, err
	}
	if hideCgroups {
		const dir = "/sys/fs/cgroup"
		if err := unix.Mount("trellis", dir, "tmpfs", unix.MS_RDONLY, "mode=0755,size=4k"); err != nil {
			return -1, fmt.Errorf("cover %s: %w", dir, err)
		}
	}
	return unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

func joinStage(ns int) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	return unix.Setns(ns, unix.CLONE_NEWNS)
}

func inStage(parts ...string) string {
	return filepath.Join(append([]string{stageDir}, parts...)...)
}

// fillStage makes what all nodes share. The directory hosts is mounted: nodes' ids
// may pass through the stage, whatever the modes of the directories that lead to it
// elsewhere.
func fillStage(hosts string) error {
	// What is made here must not depend on the umask of whoever started the service.
	for _, d := range []string{"base", "dev", "empty", "host", "nodes", hostsDir, copiesDir} {
		if err := mkdirMode(inStage(d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(hosts, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(hosts, inStage(hostsDir), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", hosts, err)
	}
	if err := writeMode(inStage("init"), nodeinit.Binary, 0o755); err != nil {
		return err
	}
	if err := fillBase(inStage("base")); err != nil {
		return fmt.Errorf("fill the nodes' base layer: %w", err)
	}
	if err := fillDev(inStage("dev")); err != nil {
		return fmt.Errorf("fill the nodes' /dev: %w", err)
	}
	if err := fillHost(inStage("host")); err != nil {
		return fmt.Errorf("copy the machine's own programs' files: %w", err)
	}
	return nil
}

// mountShifted makes the directory visible at the mount point, read-only, with
// ids 0 to 65,535 shifted by base (mount_setattr(2), id-mapped mounts). To be
// called in a job.
func (s *stage) mountShifted(dir, at string, base uint32) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	return s.mountTree(tree, dir, at, base)
}

// mountOpen is mountShifted of a directory that is open, in the stage's namespace.
func (s *stage) mountOpen(fd int, dir, at string, base uint32) error {
	tree, err := unix.OpenTree(fd, "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	return s.mountTree(tree, dir, at, base)
}

// mountTree mounts a detached tree, which it closes; dir is where it comes from.
func (s *stage) mountTree(tree int, dir, at string, base uint32) error {
	defer unix.Close(tree)
	ns, err := s.userNamespace(base)
	if err != nil {
		return err
	}
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID,
		Userns_fd:   uint64(ns.Fd()),
		Propagation: unix.MS_PRIVATE,
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		if errors.Is(err, unix.EINVAL) && strings.HasPrefix(dir, inStage()+"/") {
			return s.mountCopy(dir, at, base)
		}
		if errors.Is(err, unix.EINVAL) {
			err = fmt.Errorf("its file system has no id-mapped mounts (ext4, xfs, btrfs and from Linux 6.3 on tmpfs have them); move it to one that has: %w", err)
		}
		return fmt.Errorf("map the owners of %s: %w", dir, err)
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// maxNamespaces bounds how many user namespaces are kept for reuse.
const maxNamespaces = 256

// userNamespace returns a user namespace that maps 65,536 ids from base on.
func (s *stage) userNamespace(base uint32) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ns := s.namespaces[base]; ns != nil {
		return ns, nil
	}
	ns, err := newUserNamespace(base)
	if err != nil {
		return nil, err
	}
	if len(s.namespaces) >= maxNamespaces {
		// Files in use stay open until the collector finds them unused.
		clear(s.namespaces)
	}
	s.namespaces[base] = ns
	return ns, nil
}

// newUserNamespace makes a user namespace, which lives as long as the file.
func newUserNamespace(base uint32) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	// The node's init waits on its first extra file, and ends when that ends.
	cmd := exec.Command(inStage("init"))
	cmd.ExtraFiles = []*os.File{r}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(base), Size: idCount}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
		GidMappingsEnableSetgroups: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	w.Close()
	// It was only there to be looked at; how it ended says nothing.
	_ = cmd.Wait()
	return ns, err
}

// mkdirMode makes a directory with exactly that mode.
func mkdirMode(path string, mode os.FileMode) error {
	if err := os.Mkdir(path, mode.Perm()); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// writeMode writes a file with exactly that mode.
func writeMode(path string, content []byte, mode os.FileMode) error {
	if err := os.WriteFile(path, content, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
