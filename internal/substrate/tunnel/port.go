package tunnel

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/netns"
)

// Port is a virtual interface: a veth pair of package port.
type Port struct {
	Index     int       // interface index of the port, in the root context
	Node      *netns.NS // the node's namespace; only used during the call
	NodeIndex int       // interface index of the node's end, there
}

// attached is a port that has its programs.
type attached struct {
	index   int
	slot    uint32
	fastKey stackProgsEndKey
	arrival *stackProgsArrivalKey // nil: nothing arrives from the underlay
	in, out link.Link             // at the port
	node    link.Link             // at the node's end
}

func (p *attached) close() error {
	var errs []error
	for _, l := range []link.Link{p.in, p.out, p.node} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}

// AttachPort puts the programs on a port, which should be down, and on its
// node's end. Until it is connected or joined it drops what the node sends. The
// fast path is off: see [Tunnel.SetFast].
//
// The program at the node's end is held by a link that is made from outside, so
// the node's root can neither take it off nor put another in its place.
func (t *Tunnel) AttachPort(p Port) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ports[p.Index] != nil {
		return fmt.Errorf("attach the port %d: it is attached already", p.Index)
	}
	slot, err := t.slots.get()
	if err != nil {
		return fmt.Errorf("attach the port %d: %w", p.Index, err)
	}
	made := &attached{index: p.Index, slot: slot}
	if err := t.attachPort(made, p); err != nil {
		t.slots.put(slot)
		return errors.Join(fmt.Errorf("attach the port %d: %w", p.Index, err), made.close(), t.forget(made))
	}
	t.ports[p.Index] = made
	return nil
}

func (t *Tunnel) attachPort(made *attached, p Port) (err error) {
	if err := t.part(made); err != nil {
		return fmt.Errorf("enter the link end: %w", err)
	}
	zero := make([]stackProgsTunnelTraffic, ebpf.MustPossibleCPU())
	if err := t.stack.TunnelCounters.Put(made.slot, zero); err != nil {
		return fmt.Errorf("reset the counters: %w", err)
	}
	if made.in, err = link.AttachTCX(link.TCXOptions{Program: t.stack.TunnelIn, Interface: p.Index, Attach: ebpf.AttachTCXIngress}); err != nil {
		return fmt.Errorf("ingress: %w", err)
	}
	if made.out, err = link.AttachTCX(link.TCXOptions{Program: t.stack.TunnelOut, Interface: p.Index, Attach: ebpf.AttachTCXEgress}); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	err = p.Node.Do(func() error {
		cookie, err := netnsCookie()
		if err != nil {
			return err
		}
		made.fastKey = stackProgsEndKey{Netns: cookie, Ifindex: uint32(p.NodeIndex)}
		made.node, err = link.AttachXDP(link.XDPOptions{Program: t.fast.NodePass, Interface: p.NodeIndex, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		return fmt.Errorf("the node's end %d: %w", p.NodeIndex, err)
	}
	if err := t.stack.Devices.Put(uint32(p.Index), uint32(p.Index)); err != nil {
		return fmt.Errorf("enter the device: %w", err)
	}
	return nil
}

// netnsCookie gives the number of the thread's network namespace (Linux 5.14).
func netnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read the cookie of a network namespace: %w", err)
	}
	return cookie, nil
}

// SetFast turns forwarding on a node's behalf on or off, for what arrives at the
// port. It is one atomic step, and loses no frame.
func (t *Tunnel) SetFast(index int, on bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.port(index)
	if err != nil {
		return err
	}
	program := t.fast.NodePass
	if on {
		program = t.fast.NodeIn
	}
	if err := p.node.Update(program); err != nil {
		return fmt.Errorf("turn the fast path at the port %d on or off: %w", index, err)
	}
	return nil
}

func (t *Tunnel) port(index int) (*attached, error) {
	if p := t.ports[index]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("the port %d is not attached", index)
}

// DetachPort takes the programs off a port, which is down or deleted, and forgets
// it. Another port that is joined with it must be parted or detached too.
func (t *Tunnel) DetachPort(index int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.port(index)
	if err != nil {
		return err
	}
	if err := t.forget(p); err != nil {
		return fmt.Errorf("detach the port %d: %w", index, err)
	}
	delete(t.ports, index)
	t.slots.put(p.slot)
	return p.close()
}

// forget takes a port out of every map.
func (t *Tunnel) forget(p *attached) error {
	index := uint32(p.index)
	return errors.Join(t.part(p), remove(t.stack.StackEnds, index), remove(t.stack.Devices, index))
}

// remove deletes a key, which may be missing.
func remove(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forget an entry: %w", err)
	}
	return nil
}
