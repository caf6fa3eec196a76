package container

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// exits watches for the end of processes: one epoll instance and one thread,
// however many there are.
type exits struct {
	mu     sync.Mutex
	epoll  int // 0: not yet made
	wake   int // eventfd that ends the thread
	done   chan struct{}
	closed bool
	watch  map[int32]chan struct{} // by pidfd
}

// Exited returns a channel that is closed when the PID 1 of the container, as
// List returned it, is gone; at once, if it is not running. Closing the Runtime
// leaves the channel open.
func (r *Runtime) Exited(s State) (<-chan struct{}, error) {
	gone := make(chan struct{})
	c, err := r.load(s.ID)
	if err != nil || s.Pid == 0 || c.Pid != s.Pid {
		close(gone)
		return gone, nil
	}
	fd, err := c.pidfd()
	if errors.Is(err, unix.ESRCH) {
		close(gone)
		return gone, nil
	}
	if err == nil {
		err = r.exits.add(fd, gone)
	}
	if err != nil {
		return nil, fmt.Errorf("watch container %s: %w", s.ID, err)
	}
	return gone, nil
}

func (e *exits) add(pidfd int, gone chan struct{}) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.open()
	if err == nil {
		e.watch[int32(pidfd)] = gone
		err = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, pidfd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(pidfd)})
	}
	if err != nil {
		delete(e.watch, int32(pidfd))
		unix.Close(pidfd)
	}
	return err
}

func (e *exits) open() (err error) {
	switch {
	case e.closed:
		return os.ErrClosed
	case e.epoll != 0:
		return nil
	}
	if e.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if e.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, e.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(e.wake)})
	}
	if err != nil {
		unix.Close(e.epoll)
		e.epoll = 0
		return err
	}
	e.watch = map[int32]chan struct{}{}
	e.done = make(chan struct{})
	go e.run(e.epoll, int32(e.wake))
	return nil
}

func (e *exits) run(epoll int, wake int32) {
	defer close(e.done)
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(fmt.Sprintf("container: wait for exits: %v", err)) // a bad descriptor: a bug
		}
		for _, ev := range events[:max(n, 0)] {
			if ev.Fd == wake {
				return
			}
			e.mu.Lock()
			gone := e.watch[ev.Fd]
			delete(e.watch, ev.Fd)
			e.mu.Unlock()
			unix.Close(int(ev.Fd)) // leaves the epoll set with it
			close(gone)
		}
	}
}

func (e *exits) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	if e.epoll == 0 {
		return
	}
	// The lock is free for run's last events.
	e.mu.Unlock()
	_, _ = unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-e.done
	e.mu.Lock()
	for fd := range e.watch {
		unix.Close(int(fd))
	}
	unix.Close(e.epoll)
	unix.Close(e.wake)
}
