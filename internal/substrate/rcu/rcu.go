// Package rcu has the kernel wait less while much is built or torn down.
//
// Every tcx program that is attached, and every one that goes with its device,
// has the kernel wait for a grace period of RCU (tcx_entry_sync, kernel commit
// e420bed02507) under the lock of all network configuration: about 20 ms each,
// over a minute for a network of 900 links, both to make and to remove. An
// expedited grace period takes about 0.05 ms, at the price of an interrupt to
// each busy processor.
package rcu

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// knob is described in Documentation/ABI/testing/sysfs-kernel-rcu of the
	// kernel: 1 expedites all grace periods, of the whole machine.
	knob = "/sys/kernel/rcu_expedited"
	// marker exists while the knob is 1 because of us. It survives a crash, not
	// a boot, so that the next user of this package puts the knob back, and
	// leaves it be where the machine's owner had set it.
	marker = "/run/trellis-rcu-expedited"
)

var (
	mu      sync.Mutex
	holders int
	lock    *os.File // the knob, locked shared with other processes' holders
)

// Expedite makes grace periods short until the returned function is called. It
// may be nested, and held by several goroutines and processes at once; the last
// to let go puts the machine's setting back. Where the kernel has no such
// setting, or it cannot be written, nothing happens but that things take longer.
func Expedite() (release func() error, err error) {
	mu.Lock()
	defer mu.Unlock()
	if holders == 0 {
		if err := begin(); err != nil {
			return nil, fmt.Errorf("expedite RCU grace periods: %w", err)
		}
	}
	holders++
	return sync.OnceValue(func() error {
		mu.Lock()
		defer mu.Unlock()
		if holders--; holders > 0 {
			return nil
		}
		if err := end(); err != nil {
			return fmt.Errorf("put RCU grace periods back (echo 0 > %s): %w", knob, err)
		}
		return nil
	}), nil
}

func begin() error {
	f, err := os.OpenFile(knob, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := raise(f); err != nil {
		return errors.Join(err, f.Close())
	}
	lock = f
	return nil
}

func raise(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		return err
	}
	buf := make([]byte, 16)
	n, err := f.ReadAt(buf, 0)
	if n == 0 {
		return err
	}
	if !bytes.Equal(bytes.TrimSpace(buf[:n]), []byte("0")) {
		return nil // by another holder, by one that crashed, or by the owner
	}
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("1"), 0)
	return err
}

func end() error {
	if lock == nil {
		return nil
	}
	f := lock
	lock = nil
	err := lower(f)
	return errors.Join(err, f.Close())
}

func lower(f *os.File) error {
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil // another process still holds it, and will put it back
	case err != nil:
		return err
	}
	if _, err := os.Stat(marker); errors.Is(err, fs.ErrNotExist) {
		return nil // the owner's own setting
	}
	if _, err := f.WriteAt([]byte("0"), 0); err != nil {
		return err
	}
	return os.Remove(marker)
}
