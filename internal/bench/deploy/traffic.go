package deploy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/substrate/netns"
)

const (
	// datagramEvery is the pace of a flow.
	datagramEvery = time.Millisecond
	// lastDatagram is how long the last datagrams of a flow may be on their way.
	lastDatagram = 2 * time.Second
)

// flow is UDP from one node of a network to another, past the service: from
// sockets in the nodes' namespaces. Each datagram has a number.
type flow struct {
	from, to *net.UDPConn
	stop     context.CancelFunc
	sent     chan uint64
	received chan uint64
	failed   error // of the sender, after sent
}

// startFlow sends from the first node of a network to the loopback of another
// one, which must be reachable, through the kernels' stacks of those between.
func startFlow(ctx context.Context, client Client, network, from, to string) (*flow, error) {
	got, err := client.Get(ctx, connect.NewRequest(&trellisv1.GetRequest{Name: network}))
	if err != nil {
		return nil, fmt.Errorf("look for the nodes of %s: %w", network, err)
	}
	pids := map[string]int{}
	for _, n := range got.Msg.GetNodes() {
		pids[n.GetName()] = int(n.GetPid())
	}
	var target netip.Addr
	for _, n := range got.Msg.GetVnet().GetNodes() {
		if n.GetName() == to && len(n.GetLoopbacks()) > 0 {
			if target, err = netip.ParseAddr(n.GetLoopbacks()[0]); err != nil {
				return nil, fmt.Errorf("the loopback of %s/%s: %w", network, to, err)
			}
		}
	}
	if !target.IsValid() {
		return nil, fmt.Errorf("%s/%s has no loopback address to send to", network, to)
	}
	f := &flow{sent: make(chan uint64, 1), received: make(chan uint64, 1)}
	err = within(pids[to], func() (err error) {
		f.to, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(target, 0)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("receive at %s/%s: %w", network, to, err)
	}
	err = within(pids[from], func() (err error) {
		f.from, err = net.DialUDP("udp", nil, f.to.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("send from %s/%s: %w", network, from, err), f.to.Close())
	}
	ctx, f.stop = context.WithCancel(ctx)
	go f.receive()
	go f.send(ctx)
	return f, nil
}

// within runs fn in the network namespace of a process.
func within(pid int, fn func() error) error {
	if pid <= 0 {
		return errors.New("the service does not tell the node's process")
	}
	ns, err := netns.OfPid(pid)
	if err != nil {
		return err
	}
	return errors.Join(ns.Do(fn), ns.Close())
}

func (f *flow) send(ctx context.Context) {
	pace := time.NewTicker(datagramEvery)
	defer pace.Stop()
	var n uint64
	for ctx.Err() == nil {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], n)
		if _, err := f.from.Write(b[:]); err != nil {
			f.failed = err
			break
		}
		n++
		select {
		case <-ctx.Done():
		case <-pace.C:
		}
	}
	f.sent <- n
}

// receive counts what arrives, each number once, until the deadline that end
// sets.
func (f *flow) receive() {
	seen := map[uint64]bool{}
	var b [16]byte
	for {
		n, err := f.to.Read(b[:])
		if err != nil {
			f.received <- uint64(len(seen))
			return
		}
		if n == 8 {
			seen[binary.BigEndian.Uint64(b[:])] = true
		}
	}
}

// end stops the flow and tells how much was sent, and how much of it never came.
func (f *flow) end() (sent, lost uint64, err error) {
	f.stop()
	sent = <-f.sent
	if err := f.to.SetReadDeadline(time.Now().Add(lastDatagram)); err != nil {
		return sent, 0, err
	}
	received := <-f.received
	if f.failed != nil {
		err = fmt.Errorf("the flow ended early: %w", f.failed)
	}
	return sent, sent - received, errors.Join(err, f.from.Close(), f.to.Close())
}
