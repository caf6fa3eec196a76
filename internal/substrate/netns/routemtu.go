package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// recheckRouteMTU is how often a node that has had a route with an MTU is asked
// whether it still does: routes also go without a word, with their interfaces.
const recheckRouteMTU = time.Second

// RouteMTU tells whether a node has a route, of either family and in any table,
// with an MTU of its own that is not locked. The node's stack heeds it for the
// packets that it forwards; the kernel's FIB helper, which the fast path asks,
// heeds locked ones alone (ip_mtu_from_fib_result, net/ipv4/route.c), and does
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

// WatchRouteMTU calls changed with what [NS.RouteMTU] says, at first and whenever
// that changes, until ctx ends; that is no error. A route that comes is told of
// as soon as the kernel notifies, one that goes within a second or two. The NS may
// be closed meanwhile.
func (n *NS) WatchRouteMTU(ctx context.Context, changed func(has bool)) error {
	c, err := n.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	var m *rtnl.Monitor
	if err := n.Do(func() (err error) {
		m, err = rtnl.Listen(unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		return err
	}); err != nil {
		return err
	}
	ended := make(chan error, 1)
	defer func() { m.Close(); <-ended }()
	come := make(chan struct{}, 1) // a route with an MTU, or none can tell
	if err := m.Filter(metricsOnly); err != nil {
		ended <- nil
		return err
	}
	go func() { ended <- receiveRouteMTU(m, come) }()
	has, err := routeMTU(c)
	if err != nil {
		return err
	}
	changed(has)
	tick := time.NewTicker(recheckRouteMTU)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			ended <- nil
			return fmt.Errorf("watch a node's routes for MTUs: %w", err)
		case <-come:
			if !has {
				has = true
				changed(true)
			}
		case <-tick.C:
			if !has {
				continue
			}
			if has, err = routeMTU(c); err != nil {
				return err
			}
			if !has {
				changed(false)
			}
		}
	}
}

// receiveRouteMTU tells of routes with an MTU until the monitor is closed.
func receiveRouteMTU(m *rtnl.Monitor, come chan<- struct{}) error {
	for {
		found := false
		err := m.Receive(func(typ uint16, body []byte) {
			found = found || typ == unix.RTM_NEWROUTE && hasRouteMTU(body)
		})
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil
		case errors.Is(err, rtnl.ErrOverrun):
			found = true // the next look tells
		case err != nil:
			return err
		}
		if found {
			select {
			case come <- struct{}{}:
			default:
			}
		}
	}
}
