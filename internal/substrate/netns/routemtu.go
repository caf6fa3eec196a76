package netns

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// recheckRouteMTU is how often a node that has had a route with an MTU is asked
// whether it still does: routes also go without a word, with their interfaces.
const recheckRouteMTU = time.Second

// RouteMTU tells whether a node has a route, of either family and in any table,
// with an MTU of its own that is not locked. The node's stack respects it for the
// packets that it forwards; the kernel's FIB helper, which the fast path asks,
// respects locked ones alone (ip_mtu_from_fib_result, net/ipv4/route.c), and does
// not tell.
func (n *NS) RouteMTU() (bool, error) {
	c, err := n.dial()
	if err != nil {
		return false, err
	}
	defer c.Close()
	return routeMTU(c)
}

func routeMTU(c *rtnl.Conn) (bool, error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		has, h := false, unix.RtMsg{Family: family}
		err := c.Dump(unix.RTM_GETROUTE, rtnl.Header(&h), nil, func() { has = false }, func(body []byte) error {
			has = has || hasRouteMTU(body)
			return nil
		})
		if err != nil {
			return false, fmt.Errorf("read whether a node's routes have MTUs: %w", err)
		}
		if has {
			return true, nil
		}
	}
	return false, nil
}

// hasRouteMTU looks at the body of a route's message.
func hasRouteMTU(body []byte) bool {
	if len(body) < unix.SizeofRtMsg {
		return false
	}
	for typ, v := range rtnl.Attrs(body[unix.SizeofRtMsg:]) {
		if typ != unix.RTA_METRICS {
			continue
		}
		var mtu, locked uint32
		for metric, v := range rtnl.Attrs(v) {
			switch metric {
			case unix.RTAX_MTU:
				mtu = rtnl.Uint32(v)
			case unix.RTAX_LOCK:
				locked = rtnl.Uint32(v)
			}
		}
		return mtu != 0 && locked&(1<<unix.RTAX_MTU) == 0
	}
	return false
}

// metricsOnly is a filter of the kernel's for notifications of routes: those that
// have metrics. A node that learns 100,000 routes without costs nothing.
var metricsOnly = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_IMM, K: unix.SizeofNlMsghdr + unix.SizeofRtMsg},
	{Code: unix.BPF_LDX | unix.BPF_IMM, K: unix.RTA_METRICS},
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: skfNlattr}, // where it is; 0: nowhere
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
}

// skfNlattr is SKF_AD_OFF + SKF_AD_NLATTR (linux/filter.h).
const skfNlattr = 0xfffff000 + 12

// MTUWatch is the watch of what [NS.RouteMTU] gives of one node.
type MTUWatch struct {
	events *RouteEvents
	fd     int

	checking sync.Mutex // held while the routes are read

	mu      sync.Mutex // held while the change is notified of
	changed func(has bool, err error)
	closed  bool
	known   bool // changed has been called
	has     bool
	fault   string      // why that is not known; "": it is
	came    bool        // a route has come since the last read began
	recheck *time.Timer // of the next check; nil: nothing is against the node
}

// WatchMTU calls changed with what [NS.RouteMTU] gives: before it returns, and
// whenever that changes; with an error while it cannot be read, which is tried
// again. A route that comes is told of as soon as the kernel notifies, one that
// goes within a second or two. changed must not close the watch. The NS may be
// closed meanwhile: the watch is one descriptor, of its socket.
func (e *RouteEvents) WatchMTU(n *NS, changed func(has bool, err error)) (*MTUWatch, error) {
	fd, err := n.listen(unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, err
	}
	program := unix.SockFprog{Len: uint16(len(metricsOnly)), Filter: &metricsOnly[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return nil, errors.Join(fmt.Errorf("filter the notifications of a node's routes: %w", err), unix.Close(fd))
	}
	w := &MTUWatch{events: e, fd: fd, changed: changed}
	w.check()
	if err := e.add(fd, unix.EPOLLIN, w); err != nil {
		w.Close()
		return nil, fmt.Errorf("watch a node's routes for MTUs: %w", err)
	}
	return w, nil
}

// Close ends the watch; changed is not called any more.
func (w *MTUWatch) Close() {
	w.checking.Lock() // the namespace is not held for reading any more either
	defer w.checking.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.recheck != nil {
		w.recheck.Stop()
	}
	w.events.remove(w.fd)
}

// ready receives notifications, until there are no more.
func (w *MTUWatch) ready(buf []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	found := false
	for more := true; more; {
		var err error
		more, err = rtnl.Poll(w.fd, buf, func(typ uint16, body []byte) {
			found = found || typ == unix.RTM_NEWROUTE && hasRouteMTU(body)
		})
		switch {
		case errors.Is(err, rtnl.ErrOverrun):
			found = true // the next check tells
		case err != nil:
			w.came = true // perhaps
			w.set(true, fmt.Errorf("watch a node's routes for MTUs: %w", err))
			return
		}
	}
	if found {
		w.came = true
		w.set(true, nil)
	}
}

// check reads the routes.
func (w *MTUWatch) check() {
	w.checking.Lock()
	defer w.checking.Unlock()
	w.mu.Lock()
	closed := w.closed
	w.came, w.recheck = false, nil
	w.mu.Unlock()
	if closed {
		return
	}
	has, err := w.read()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(has || w.came, err)
}

func (w *MTUWatch) read() (bool, error) {
	fd, err := unix.IoctlRetInt(w.fd, unix.SIOCGSKNS) // the socket's namespace, since Linux 4.10
	if err != nil {
		return false, fmt.Errorf("open the network namespace of a socket: %w", err)
	}
	n := &NS{fd: fd}
	has, err := w.events.routeMTU(n)
	return has, errors.Join(err, n.Close())
}

// set notifies of a change, and has the routes read again while something is
// against the node: what goes may do so without a word.
func (w *MTUWatch) set(has bool, err error) {
	fault := ""
	if err != nil {
		has, fault = false, err.Error()
	}
	if !w.known || w.has != has || w.fault != fault {
		w.known, w.has, w.fault = true, has, fault
		w.changed(has, err)
	}
	if (has || err != nil) && w.recheck == nil {
		w.recheck = time.AfterFunc(recheckRouteMTU, w.check)
	}
}
