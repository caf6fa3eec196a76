package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// client is a service, or a host of a sandbox, that answers the command line.
type client interface {
	Must(args ...string) string
	Trellis(args ...string) (stdout, stderr string, code int)
}

// inside runs f on a thread in the network namespace of a process. Sockets that
// f makes stay there; the process needs no program for it.
func inside(pid int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter the network of process %d: %w", pid, err)
			}
			return f()
		}()
	}()
	return <-done
}

// flow is a stream of numbered datagrams from one node to another.
type flow struct {
	what           string
	sender, target *net.UDPConn
	sent           uint64
	received       atomic.Uint64
	stopping       chan struct{}
	sending        sync.WaitGroup
	receiving      sync.WaitGroup
	stopped        bool
}

// startFlow sends a datagram every millisecond from one node to the loopback of
// another, until Stop. The first one has arrived when it returns.
func startFlow(t *testing.T, s client, network, from, to string) *flow {
	t.Helper()
	v := show(t, s, network)
	f := &flow{what: from + " to " + to, stopping: make(chan struct{})}
	addr := net.UDPAddrFromAddrPort(netip.AddrPortFrom(v.loopback(t, to), 9))
	if err := inside(v.pid(t, to), func() (err error) {
		f.target, err = net.ListenUDP("udp4", addr)
		return err
	}); err != nil {
		t.Fatalf("receive in %s: %v", to, err)
	}
	// Some seconds of the flow, whatever the machine's limit: what waits while
	// this process waits for a processor must not be lost.
	if err := forceReadBuffer(f.target, 16<<20); err != nil {
		t.Fatal(err)
	}
	if err := inside(v.pid(t, from), func() (err error) {
		f.sender, err = net.DialUDP("udp4", nil, addr)
		return err
	}); err != nil {
		t.Fatalf("send from %s: %v", from, err)
	}
	t.Cleanup(f.stop)
	f.receiving.Go(f.receive)
	f.sending.Go(f.send)
	eventually(t, 20*time.Second, "the flow "+f.what+" begins", func() bool { return f.received.Load() > 0 })
	return f
}

// forceReadBuffer gives a socket a buffer, in bytes, also beyond net.core.rmem_max.
func forceReadBuffer(c *net.UDPConn, size int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size)
	})
	return errors.Join(err, failed)
}

func (f *flow) send() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var b [64]byte
	for {
		select {
		case <-f.stopping:
			return
		case <-tick.C:
			// An error here is one of an earlier datagram, an ICMP answer for
			// instance: that one is then missing at the other end.
			binary.BigEndian.PutUint64(b[:], f.sent)
			_, _ = f.sender.Write(b[:])
			f.sent++
		}
	}
}

func (f *flow) receive() {
	var b [64]byte
	for {
		if _, err := f.target.Read(b[:]); err != nil {
			return // closed
		}
		f.received.Add(1)
	}
}

// stop ends the flow, once.
func (f *flow) stop() {
	if f.stopped {
		return
	}
	f.stopped = true
	close(f.stopping)
	f.sending.Wait()
	// What is under way arrives within a moment on one machine, or never.
	for deadline := time.Now().Add(5 * time.Second); f.received.Load() < f.sent && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	f.target.Close()
	f.sender.Close()
	f.receiving.Wait()
}

// mustNotHaveLost ends the flow and fails the test if a datagram is missing.
func (f *flow) mustNotHaveLost(t *testing.T) {
	t.Helper()
	f.stop()
	if got := f.received.Load(); got != f.sent {
		t.Errorf("the flow %s has lost %d of %d packets", f.what, int64(f.sent)-int64(got), f.sent)
	}
}

// show reads `trellis show VNET`.
func show(t *testing.T, s client, network string) shown {
	t.Helper()
	return decode[shown](t, s.Must("show", network, "-o", "json"))
}

func (v shown) pid(t *testing.T, node string) int {
	t.Helper()
	pid, ok := v.pids()[node]
	if !ok || pid <= 0 {
		t.Fatalf("node %s/%s has no process: %+v", v.Name, node, v.Nodes)
	}
	return pid
}

// pids gives the process ids of the nodes' inits.
func (v shown) pids() map[string]int {
	pids := make(map[string]int)
	for _, n := range v.Nodes {
		pids[n.Name] = n.PID
	}
	return pids
}

// loopback gives a node's IPv4 loopback.
func (v shown) loopback(t *testing.T, node string) netip.Addr {
	t.Helper()
	for _, n := range v.Nodes {
		if n.Name != node {
			continue
		}
		for _, text := range n.Loopbacks {
			text, _, _ = strings.Cut(text, "/")
			if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
				return a
			}
		}
	}
	t.Fatalf("node %s/%s has no IPv4 loopback", v.Name, node)
	return netip.Addr{}
}

// device gives the name in the root context of a node's interface.
func (v shown) device(t *testing.T, node, name string) string {
	t.Helper()
	for _, l := range v.Links {
		for _, e := range l.Ends {
			if e.Node == node && e.Name == name {
				return e.Device
			}
		}
	}
	t.Fatalf("%s/%s has no interface %s", v.Name, node, name)
	return ""
}
