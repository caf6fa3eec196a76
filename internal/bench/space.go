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
	s := &Space{calls: make(chan func())}
	ready := make(chan error)
	OnThread(func() {
		err := isolate(root)
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

func isolate(root bool) error {
	flags := unix.CLONE_NEWNET
	if root {
		flags |= unix.CLONE_NEWNS
	}
	if err := unix.Unshare(flags); err != nil {
		return fmt.Errorf("make a network namespace (this needs root): %w", err)
	}
	if !root {
		return nil
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts from spreading: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		return fmt.Errorf("mount a private /run: %w", err)
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
