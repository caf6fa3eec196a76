package bench

import (
	"fmt"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/netns"
)

// Space is a network namespace that a thread of this process holds; it goes when
// the thread ends, so whatever becomes of the process, nothing stays.
type Space struct {
	// NS is the namespace; the Space owns it.
	NS    *netns.NS
	calls chan func()
}

// NewSpace makes a namespace; it needs root. A root space has a mount namespace besides, in
// which /run is empty and its own, for a bpffs that nobody else sees.
func NewSpace(root bool) (*Space, error) {
	return newSpace(func() error {
		if !root {
			return unshare(unix.CLONE_NEWNET)
		}
		if err := unshareMounts(); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "size=1m,mode=0700"); err != nil {
			return fmt.Errorf("mount a private /run: %w", err)
		}
		return nil
	})
}

// NewServiceSpace makes a namespace for a whole service: with a mount namespace
// that sees the machine's files and keeps its own mounts to itself, and with the
// loopback interface up. It needs root. What a service leaves there when it is
// killed stays until the space is closed.
func NewServiceSpace() (*Space, error) {
	return newSpace(func() error {
		if err := unshareMounts(); err != nil {
			return err
		}
		return loopbackUp()
	})
}

// newSpace starts the thread that holds a space, in the namespaces that setup
// puts it into.
func newSpace(setup func() error) (*Space, error) {
	s := &Space{calls: make(chan func())}
	ready := make(chan error)
	OnThread(func() {
		err := setup()
		if err == nil {
			err = s.open(unix.Gettid())
		}
		ready <- err
		if err != nil {
			return
		}
		for call := range s.calls {
			call()
		}
	})
	if err := <-ready; err != nil {
		return nil, err
	}
	return s, nil
}

func unshare(flags int) error {
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("make namespaces (this needs root): %w", err)
	}
	return nil
}

// unshareMounts gives the thread a network and a mount namespace, whose mounts
// do not spread to the machine.
func unshareMounts() error {
	if err := unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from spreading: %w", err)
	}
	return nil
}

// loopbackUp sets lo up in the thread's network namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// open opens the namespace of the thread, on another one: netns refuses the
// caller's own namespace.
func (s *Space) open(tid int) error {
	opened := make(chan error)
	go func() {
		var err error
		s.NS, err = netns.OfPid(tid)
		opened <- err
	}()
	return <-opened
}

// Do runs fn on the space's own thread, one call at a time.
func (s *Space) Do(fn func() error) error {
	done := make(chan error, 1)
	s.calls <- func() { done <- fn() }
	return <-done
}

// Close lets the namespace go. No call may follow.
func (s *Space) Close() error {
	close(s.calls)
	return s.NS.Close()
}
