package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space is a network namespace that a mount keeps.
type space struct {
	file *os.File
}

// openSpace opens the namespace that is pinned at path, fs.ErrNotExist if there
// is none.
func openSpace(path string) (*space, error) {
	pinned, err := isPin(path)
	if err != nil {
		return nil, err
	}
	if !pinned {
		return nil, &fs.PathError{Op: "open the network namespace", Path: path, Err: fs.ErrNotExist}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &space{f}, nil
}

// isPin reports whether a namespace is mounted at path.
func isPin(path string) (bool, error) {
	var s unix.Statfs_t
	err := unix.Statfs(path, &s)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return s.Type == unix.NSFS_MAGIC, nil
}

// makeSpace opens the namespace that is pinned at path, and makes it if there is
// none.
func makeSpace(path string) (*space, error) {
	s, err := openSpace(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err := os.WriteFile(path, nil, 0o400); err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	made := make(chan error)
	// The thread stays locked, and so ends with the goroutine: nothing else ever
	// runs in the new namespace by accident.
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- fmt.Errorf("make a network namespace: %w; run as root", err)
			return
		}
		own := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if err := unix.Mount(own, path, "", unix.MS_BIND, ""); err != nil {
			made <- fmt.Errorf("pin a network namespace at %s: %w", path, err)
			return
		}
		made <- nil
	}()
	if err := <-made; err != nil {
		return nil, err
	}
	return openSpace(path)
}

// unpin lets the namespace at path go. It ends with the last process in it.
func unpin(path string) error {
	if pinned, err := isPin(path); err != nil {
		return err
	} else if pinned {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (s *space) close() { s.file.Close() }

func (s *space) fd() int { return int(s.file.Fd()) }

// do runs f on a thread in the namespace. What f starts stays there.
func (s *space) do(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, see makeSpace
		if err := unix.Setns(s.fd(), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter a network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// netlink opens a connection to the namespace's network configuration.
func (s *space) netlink() (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(s.fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a network namespace's configuration: %w", err)
	}
	return h, nil
}

// sysctls sets parameters of the namespace, by their path below /proc/sys/net.
func (s *space) sysctls(values map[string]string) error {
	return s.do(func() error {
		for name, value := range values {
			if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// killTime bounds how long killed processes may take to be gone.
const killTime = 10 * time.Second

// killAll ends every process in the namespace, and returns when they are gone.
// A process is in it or not: no number or name is taken for it.
func (s *space) killAll() error {
	for deadline := time.Now().Add(killTime); ; time.Sleep(5 * time.Millisecond) {
		n, last, err := s.kill()
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d has not ended within %v of being killed; look at it in /proc, and try again", last, killTime)
		}
	}
}

// kill sends SIGKILL to each process in the namespace but this one, and counts
// them.
func (s *space) kill() (n, last int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || !s.has(pid) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // gone
		}
		// The number may have been given to another process before the open.
		if s.has(pid) {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			n, last = n+1, pid
		}
		unix.Close(fd)
	}
	return n, last, nil
}

// has reports whether a process is in the namespace, now.
func (s *space) has(pid int) bool {
	var own, its unix.Stat_t
	return unix.Fstat(s.fd(), &own) == nil &&
		unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &its) == nil &&
		own.Dev == its.Dev && own.Ino == its.Ino
}
