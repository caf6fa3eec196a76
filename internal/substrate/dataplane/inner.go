package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/rtnl"
)

// Inner is the far end of a veth pair whose near end is a port: the node's end;
// or, where a LAN goes on to another machine, the bridge's member in the root
// context.
type Inner struct {
	Node  string    // <vnet>/<node>, for messages
	NS    *netns.NS // the node's; only used during the call. nil: the root context
	Index int       // interface index, there
}

// AttachInner puts a program on the far end of a port's veth pair, so that the
// pair takes XDP frames: those of the underlay, and those that the fast path
// hands to a neighbour. The port must be attached. The program lets every frame
// go to the stack until [Dataplane.SetFast].
//
// What holds it is made from outside, so the node's root can neither take it off
// nor put another in its place. Attaching again changes nothing, or mends what
// is missing.
func (d *Dataplane) AttachInner(vnet, device string, in Inner) error {
	if err := d.attachInner(vnet, device, in); err != nil {
		return fmt.Errorf("attach the data plane to the far end of %s of %s, device %d of %s: %w", device, vnet, in.Index, in.where(), err)
	}
	return nil
}

func (in Inner) where() string {
	switch {
	case in.Node != "":
		return in.Node
	case in.NS == nil:
		return "the root context"
	}
	return "a node"
}

func (in Inner) do(fn func() error) error {
	if in.NS == nil {
		return fn()
	}
	return in.NS.Do(fn)
}

func (d *Dataplane) attachInner(vnet, device string, in Inner) error {
	path, err := d.pinPath(vnet, device, "")
	if err != nil {
		return err
	}
	port, err := anchoredAt(path)
	if err != nil {
		return err
	}
	path += xdpSuffix
	there, err := d.hasInner(path, in.Index)
	if err != nil {
		return err
	}
	var (
		cookie uint64
		made   link.Link
	)
	err = in.do(func() (err error) {
		if err := isOtherEnd(in.Index, port); err != nil {
			return err
		}
		if in.NS != nil {
			if cookie, err = netnsCookie(); err != nil {
				return err
			}
		}
		if !there {
			made, err = attachXDP(in.Index, d.programs["node_pass"], Native)
		}
		return err
	})
	if err != nil {
		return err
	}
	// Here, since the thread that was in the node may have other mounts.
	if made != nil {
		if err := keep(made, path); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.enterInner(uint32(port), cookie, uint32(in.Index))
}

// anchoredAt gives the interface index of the device that a pin is of.
func anchoredAt(path string) (int, error) {
	a, err := openAnchor(path)
	switch {
	case err != nil:
		return 0, err
	case a == nil:
		return 0, errors.New("the port has no programs; attach it first")
	}
	if err := a.Close(); err != nil {
		return 0, err
	}
	if a.index == 0 {
		return 0, errors.New("the port is gone")
	}
	return a.index, nil
}

// isOtherEnd looks whether a device of the calling thread's network namespace is
// the other end of the veth pair of a port.
func isOtherEnd(index, port int) error {
	if index <= 0 {
		return fmt.Errorf("%d is no interface index", index)
	}
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.Link(index, "")
	if err != nil {
		return fmt.Errorf("look at the device: %w", err)
	}
	if l.Kind != "veth" || l.Peer != port {
		return fmt.Errorf("%s is not the other end of port %d", l.Name, port)
	}
	return nil
}

// hasInner tells whether the anchor at path is one at the device, and removes
// another's.
func (d *Dataplane) hasInner(path string, index int) (bool, error) {
	old, err := openAnchor(path)
	if err != nil || old == nil {
		return false, err
	}
	defer old.Close()
	if old.index == index && old.program != 0 {
		return true, nil
	}
	return false, old.remove() // of an earlier device
}

// enterInner has the maps know the far end of a port.
func (d *Dataplane) enterInner(port uint32, cookie uint64, ifindex uint32) error {
	e, ok, err := d.entry(int(port))
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("the port has no entry; attach it first")
	}
	if e.Netns == cookie && e.Ifindex == ifindex {
		return nil
	}
	if err := d.release(port, e); err != nil {
		return err
	}
	e.Netns, e.Ifindex, e.Base, e.Span = cookie, ifindex, 0, 0
	if cookie != 0 {
		b, err := d.reserve(cookie, ifindex)
		if err != nil {
			return err
		}
		b.ends[port] = true
		e.Base, e.Span = b.base, b.span
	}
	if err := d.setEntry(int(port), e); err != nil {
		return err
	}
	return errors.Join(d.settle(port), d.tell(port))
}

// netnsCookie gives the number of the thread's network namespace (Linux 5.14),
// which the kernel gives out once.
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

// FastPathSupported tells why the kernel cannot forward on nodes' behalf; nil if
// it can. It takes Linux 6.2 (bpf_cast_to_kern_ctx, commit fd264ca02094) with
// BTF. Everything else works without.
func (d *Dataplane) FastPathSupported() error { return d.noFast }

// SetFast turns forwarding on a node's behalf on or off, for what arrives at the
// far end of a port by XDP. It is one atomic step, and loses no frame.
func (d *Dataplane) SetFast(vnet, device string, on bool) error {
	if err := d.setFast(vnet, device, on); err != nil {
		return fmt.Errorf("turn the fast path at %s of %s on or off: %w", device, vnet, err)
	}
	return nil
}

func (d *Dataplane) setFast(vnet, device string, on bool) error {
	path, err := d.pinPath(vnet, device, xdpSuffix)
	if err != nil {
		return err
	}
	name := "node_pass"
	if on {
		if d.noFast != nil {
			return d.noFast
		}
		name = "node_in"
	}
	a, err := openAnchor(path)
	if err != nil {
		return err
	}
	if a == nil {
		return fmt.Errorf("there is no program at its far end; attach one first: %w", os.ErrNotExist)
	}
	defer a.Close()
	if a.program == d.ids[name] {
		return nil
	}
	return a.update(d.programs[name])
}

// innerOf reads what runs at the far end of a device; inner is false if nothing
// does.
func (d *Dataplane) innerOf(vnet, device string) (inner, fast bool, err error) {
	a, err := openAnchor(filepath.Join(d.dir, vnet, device+xdpSuffix))
	if err != nil || a == nil {
		return false, false, err
	}
	defer a.Close()
	if a.index == 0 || a.program == 0 {
		return false, false, nil
	}
	name, err := d.programName(a.program)
	return true, name == "node_in", err
}
