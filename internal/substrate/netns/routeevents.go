package netns

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// RouteEvents notifies of changes of the routes of many nodes, by one goroutine and
// a socket for each watch.
type RouteEvents struct {
	epoll, stop int
	ended       chan struct{}
	routeMTU    func(*NS) (bool, error) // [NS.RouteMTU]

	mu      sync.Mutex
	watches map[int32]interface{ ready(buf []byte) } // by descriptor
	closed  bool
}

// RouteWatch is the watch of one node's routes. Of its changes the first is
// notified of; what follows is not even read until the watch is armed again, so
// that a node that learns 100,000 routes costs no more than one that learns a
// single one.
type RouteWatch struct {
	events *RouteEvents
	fd     int
	notify func() // under events.mu
}

// routeBuffer is the receive buffer of a watch, in bytes: the least there is. What
// does not fit is lost, and has been told of.
const routeBuffer = 1

// eventBuffer holds any one notification, in bytes.
const eventBuffer = 64 << 10

// NewRouteEvents starts the goroutine.
func NewRouteEvents() (*RouteEvents, error) {
	e := &RouteEvents{watches: map[int32]interface{ ready(buf []byte) }{}, ended: make(chan struct{}), routeMTU: (*NS).RouteMTU}
	var err error
	if e.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("watch nodes' routes: %w", err)
	}
	if e.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, e.stop, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(e.stop)})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch nodes' routes: %w", err), unix.Close(e.epoll))
	}
	go e.run()
	return e, nil
}

func (e *RouteEvents) run() {
	defer close(e.ended)
	events := make([]unix.EpollEvent, 64)
	buf := make([]byte, eventBuffer)
	for {
		n, err := unix.EpollWait(e.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // the descriptor is closed
		}
		for i := range max(n, 0) {
			e.mu.Lock()
			w, closed := e.watches[events[i].Fd], e.closed
			e.mu.Unlock()
			if closed {
				return
			}
			if w != nil {
				w.ready(buf)
			}
		}
	}
}

// Watch has notify called, from the goroutine, when a route or an interface of the
// node changes; once, and again after each Arm.
func (e *RouteEvents) Watch(n *NS, notify func()) (*RouteWatch, error) {
	fd, err := n.listen(unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, err
	}
	w := &RouteWatch{events: e, fd: fd, notify: notify}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, routeBuffer),
		// A socket that counts what it loses is congested from then on until something
		// is received, and gets nothing while it is. One that another core finds full
		// in the moment in which Arm empties it would be so for good
		// (netlink_overrun and netlink_rcv_wake, net/netlink/af_netlink.c).
		unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_NO_ENOBUFS, 1),
	)
	if err == nil {
		err = e.add(fd, unix.EPOLLIN|unix.EPOLLONESHOT, w)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch a node's routes: %w", err), unix.Close(fd))
	}
	return w, nil
}

// listen opens a socket for notifications of the groups.
func (n *NS) listen(groups ...int) (fd int, err error) {
	err = n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("watch a node's routes: %w", err)
	}
	bits := uint32(0)
	for _, g := range groups {
		bits |= 1 << (g - 1)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: bits}); err != nil {
		return -1, errors.Join(fmt.Errorf("watch a node's routes: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// add has the goroutine call ready when there is something to receive.
func (e *RouteEvents) add(fd int, events uint32, w interface{ ready(buf []byte) }) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.control(unix.EPOLL_CTL_ADD, fd, events); err != nil {
		return err
	}
	e.watches[int32(fd)] = w
	return nil
}

func (e *RouteEvents) control(op, fd int, events uint32) error {
	return unix.EpollCtl(e.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// remove closes a watch's socket.
func (e *RouteEvents) remove(fd int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.watches, int32(fd))
	unix.Close(fd) // which takes it out of the epoll set
}

// ready passes a change on.
func (w *RouteWatch) ready([]byte) {
	w.events.mu.Lock()
	notify := w.notify
	w.events.mu.Unlock()
	notify()
}

// SetNotify has another function called from now on.
func (w *RouteWatch) SetNotify(notify func()) {
	w.events.mu.Lock()
	defer w.events.mu.Unlock()
	w.notify = notify
}

// Arm forgets what has happened, and has the next change told of. Who reads the
// routes after it misses none.
func (w *RouteWatch) Arm() error {
	var b [1]byte
	for {
		_, _, err := unix.Recvfrom(w.fd, b[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case err == nil, errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return w.events.control(unix.EPOLL_CTL_MOD, w.fd, unix.EPOLLIN|unix.EPOLLONESHOT)
		}
		return fmt.Errorf("watch a node's routes: %w", err)
	}
}

// Close ends the watch.
func (w *RouteWatch) Close() { w.events.remove(w.fd) }

// Close ends the goroutine. The watches are to be closed before.
func (e *RouteEvents) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	var one = [8]byte{7: 1}
	if _, err := unix.Write(e.stop, one[:]); err != nil {
		return fmt.Errorf("end the watch of nodes' routes: %w", err)
	}
	<-e.ended
	return errors.Join(unix.Close(e.stop), unix.Close(e.epoll))
}
