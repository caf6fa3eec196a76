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
)

// hold takes the instance's lock, which ends with the process at the latest.
func (c Config) hold() (*os.File, error) {
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
		return nil, fmt.Errorf("a trellis serve runs already (%s, in %s); end it with `trellis serve --stop`, or name another --run-dir and --state-dir", who, c.RunDir)
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
func Stop(c Config) error {
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
	told := 0
	for deadline := time.Now().Add(stopTimeout); time.Now().Before(deadline); time.Sleep(stopPoll) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("stop trellis serve: %w", err)
		}
		pid := readPid(f)
		if pid == 0 || pid == told {
			continue
		}
		ok, err := c.terminate(pid)
		if err != nil {
			return fmt.Errorf("stop trellis serve (process %d): %w", pid, err)
		}
		if ok {
			told = pid
		}
	}
	return fmt.Errorf("trellis serve (process %d) has not ended within %v; see its log, or kill it: the networks stay as they are", told, stopTimeout)
}

// terminate sends SIGTERM to the process if it is the one that has the lock
// file open: an id alone may be that of an earlier service, and by now another
// program's.
func (c Config) terminate(pid int) (bool, error) {
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
		if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return false, err
		}
		return true, nil
	}
	return false, nil
}
