package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a lock that is taken is tried again.
const lockPoll = 20 * time.Millisecond

// lock makes the caller the only one that changes sandboxes here, until unlock.
// It waits for whoever does so now, and reports that. The lock ends with the
// process at the latest.
func (p Place) lock(ctx context.Context, progress func(phase string)) (unlock func(), err error) {
	return p.flock(ctx, unix.LOCK_EX, progress)
}

// share keeps others from making and removing sandboxes, and from changing an underlay,
// but not from starting and ending services: a service may wait for that of another host.
func (p Place) share(ctx context.Context) (unlock func(), err error) {
	return p.flock(ctx, unix.LOCK_SH, func(string) {})
}

func (p Place) flock(ctx context.Context, how int, progress func(phase string)) (unlock func(), err error) {
	dir := filepath.Join(p.RunDir, folder)
	path := filepath.Join(dir, "lock")
	for reported := false; ; {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("make the directory of sandboxes: %w; run as root, or name directories of your own", err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the last sandbox has just gone, and the directory with it
		} else if err != nil {
			return nil, fmt.Errorf("lock the sandboxes: %w", err)
		}
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return func() { p.unlock(f) }, nil
		}
		f.Close()
		if err == nil {
			continue // of a directory that has gone
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !reported {
			reported = true
			progress("waiting for another `trellis sandbox`")
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another `trellis sandbox`, which holds %s: %w", path, context.Cause(ctx))
		case <-time.After(lockPoll):
		}
	}
}

// unlock ends the lock, and removes the directories of sandboxes if they are
// empty.
func (p Place) unlock(f *os.File) {
	if names, err := p.names(); err == nil && len(names) == 0 {
		_ = os.Remove(f.Name())
		_ = os.Remove(filepath.Join(p.RunDir, folder))
		_ = os.Remove(filepath.Join(p.StateDir, folder)) // each stays if it is not empty
	}
	f.Close()
}

func sameFile(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(open, named)
}
