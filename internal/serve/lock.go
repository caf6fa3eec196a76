package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrRunning is the error of a start where a service of the instance runs, or starts,
// already.
var ErrRunning = errors.New("a trellis serve runs already")

// running is an ErrRunning that says which.
type running string

func (r running) Error() string   { return string(r) }
func (r running) Is(e error) bool { return e == ErrRunning }

// acquireLock takes the instance's lock, which ends with the process at the latest.
func (c Config) acquireLock() (*os.File, error) {
	f, err := os.OpenFile(c.lockPath(), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the run directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", c.lockPath(), err)
		}
		who := "another process"
		if pid := readPid(f); pid != 0 {
			who = fmt.Sprintf("process %d", pid)
		}
		return nil, running(fmt.Sprintf("a trellis serve runs already (%s, in %s); end it with `trellis serve --stop`, or name another --run-dir and --state-dir", who, c.RunDir))
	}
	if err := errors.Join(f.Truncate(0), writePid(f)); err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", c.lockPath(), err)
	}
	return f, nil
}

func writePid(f *os.File) error {
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// readPid reads the id of the process that has the lock; 0 before it is written.
func readPid(f *os.File) int {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	line, _, _ := strings.Cut(string(b[:n]), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return 0
	}
	return pid
}

// stopTimeout bounds the wait for a service to end: it finishes the steps that
// it is at, and closes the store.
const (
	stopTimeout = 30 * time.Second
	stopPoll    = 10 * time.Millisecond
)

// Stop ends the service of the instance, and returns when it is gone. It is
// fine if none runs. What runs in the networks goes on.
func Stop(c Config) error { return end(c, syscall.SIGTERM) }

// Kill is Stop without warning: the service has no time to finish anything, as
// in a crash.
func Kill(c Config) error { return end(c, syscall.SIGKILL) }

func end(c Config, sig syscall.Signal) error {
	c, err := c.complete()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(c.lockPath(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("stop trellis serve: %w", err)
	}
	defer f.Close()
	signalled := 0
	var process *os.Process // that was signalled
	for deadline := time.Now().Add(stopTimeout); time.Now().Before(deadline); time.Sleep(stopPoll) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return ended(process, time.Until(deadline))
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("stop trellis serve: %w", err)
		}
		pid := readPid(f)
		if pid == 0 || pid == signalled {
			continue
		}
		p, err := os.FindProcess(pid)
		if err != nil {
			continue // gone
		}
		defer p.Release()
		ok, err := c.signal(pid, sig)
		if err != nil {
			return fmt.Errorf("stop trellis serve (process %d): %w", pid, err)
		}
		if ok {
			signalled, process = pid, p
		}
	}
	return fmt.Errorf("trellis serve (process %d) has not ended within %v; see its log, or kill it: the networks stay as they are", signalled, stopTimeout)
}

// ended waits for the process that has given up its lock, if there is one, to
// be gone altogether.
func ended(p *os.Process, within time.Duration) error {
	if p == nil {
		return nil
	}
	var failed error
	err := p.WithHandle(func(handle uintptr) {
		fds := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}} // pidfd_open(2)
		for deadline := time.Now().Add(within); ; {
			n, err := unix.Poll(fds, int(max(time.Until(deadline), 0)/time.Millisecond))
			if err == unix.EINTR {
				continue
			}
			if err == nil && n == 0 {
				err = errors.New("it has stopped its work and does not exit; kill it")
			}
			failed = err
			return
		}
	})
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, os.ErrNoHandle) {
		return nil
	}
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("stop trellis serve (process %d): %w", p.Pid, err)
	}
	return nil
}

// Running gives the process id of the service of the instance; 0 if none runs.
func Running(c Config) (int, error) {
	c, err := c.complete()
	if err != nil {
		return 0, err
	}
	f, err := os.Open(c.lockPath())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("look for trellis serve: %w", err)
	}
	defer f.Close()
	// The lock itself is left alone: to try it would bar a service that starts.
	pid := readPid(f)
	if pid == 0 {
		return 0, nil
	}
	if ok, err := c.signal(pid, 0); err != nil || !ok {
		return 0, err
	}
	return pid, nil
}

// signal sends a signal, or with 0 none, to the process if it is the one that has
// the lock file open: an id alone may be that of an earlier service, and by now
// another program's.
func (c Config) signal(pid int, sig syscall.Signal) (bool, error) {
	p, err := os.FindProcess(pid) // holds a pidfd, so that the id stays its
	if err != nil {
		return false, nil
	}
	defer p.Release()
	lock, err := os.Stat(c.lockPath())
	if err != nil {
		return false, err
	}
	fds := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(fds)
	if errors.Is(err, fs.ErrPermission) {
		return false, fmt.Errorf("it is another user's; run as that user, or as root")
	} else if err != nil {
		return false, nil // gone
	}
	for _, e := range entries {
		open, err := os.Stat(filepath.Join(fds, e.Name()))
		if err != nil || !os.SameFile(open, lock) {
			continue
		}
		if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return false, err
		}
		return true, nil
	}
	return false, nil
}
