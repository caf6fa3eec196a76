package dataplane

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/rtnl"
)

// FarEnd is the far end of a veth pair whose near end is a port: the node's end;
// or, where a LAN goes on to another machine, the bridge's member in the root
// context.
type FarEnd struct {
	Node  string    // <vnet>/<node>, for messages
	NS    *netns.NS // the node's; only used during the call. nil: the root context
	Index int       // interface index, there
}

// AttachFarEnd puts a program on the far end of a port's veth pair, so that the
// pair takes XDP frames: those of the underlay, and those that the fast path
// hands to a neighbour. The port must be attached. The program lets every frame
// go to the stack until [Dataplane.SetFast].
//
// What holds it is made from outside, so the node's root can neither take it off
// nor put another in its place. Attaching again changes nothing, or mends what
// is missing.
func (d *Dataplane) AttachFarEnd(vnet, device string, end FarEnd) error {
	if err := d.attachFarEnd(vnet, device, end); err != nil {
		return fmt.Errorf("attach the data plane to the far end of %s of %s, device %d of %s: %w", device, vnet, end.Index, end.where(), err)
	}
	return nil
}

func (end FarEnd) where() string {
	switch {
	case end.Node != "":
		return end.Node
	case end.NS == nil:
		return "the root context"
	}
	return "a node"
}

func (end FarEnd) do(fn func() error) error {
	if end.NS == nil {
		return fn()
	}
	return end.NS.Do(fn)
}

func (d *Dataplane) attachFarEnd(vnet, device string, end FarEnd) error {
	path, err := d.pinPath(vnet, device, "")
	if err != nil {
		return err
	}
	port, err := d.attachedPort(vnet, device)
	if err != nil {
		return err
	}
	path += xdpSuffix
	program, err := d.farEndProgram(path, end.Index)
	if err != nil {
		return err
	}
	var (
		cookie uint64
		made   link.Link
	)
	err = end.do(func() (err error) {
		if err := isOtherEnd(end.Index, port); err != nil {
			return err
		}
		if end.NS != nil {
			if cookie, err = netnsCookie(); err != nil {
				return err
			}
		}
		if program == "" {
			made, err = attachXDP(end.Index, d.programs["node_pass"], Native)
		}
		return err
	})
	if err != nil {
		return err
	}
	// Here, since the thread that was in the node may have other mounts.
	if made != nil {
		if err := pinLink(made, path); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.registerFarEnd(uint32(port), cookie, uint32(end.Index)); err != nil {
		return err
	}
	dev, _ := d.device(vnet, device)
	dev.xdp, dev.fast = true, program == "node_in"
	d.setDevice(vnet, device, dev)
	d.syncCut(dev)
	return nil
}

// attachedPort gives the interface index of an attached device.
func (d *Dataplane) attachedPort(vnet, device string) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dev, ok := d.device(vnet, device)
	switch {
	case !ok:
		return 0, errors.New("the port has no programs; attach it first")
	case dev.index == 0 || dev.gone:
		return 0, errors.New("the port is gone")
	}
	return dev.index, nil
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

// farEndProgram gives the name of the program that the anchor at path has at the
// device; "" if there is none. It removes that of an earlier device.
func (d *Dataplane) farEndProgram(path string, index int) (string, error) {
	old, err := openAnchor(path)
	if err != nil || old == nil {
		return "", err
	}
	defer old.Close()
	if old.index == index && old.program != 0 {
		return d.programName(old.program)
	}
	return "", old.remove()
}

// registerFarEnd has the maps know the far end of a port.
func (d *Dataplane) registerFarEnd(port uint32, cookie uint64, ifindex uint32) error {
	e, ok := d.ports.get(port)
	if !ok {
		return errors.New("the port has no entry; attach it first")
	}
	if e.Netns == cookie && e.Ifindex == ifindex {
		return nil
	}
	d.stopCut(port)
	if err := d.leaveBlock(port, e); err != nil {
		return err
	}
	e.Netns, e.Ifindex, e.Block, e.BlockSize = cookie, ifindex, 0, 0
	if cookie != 0 {
		b, err := d.growBlock(cookie, ifindex)
		if err != nil {
			return err
		}
		b.ports[port] = true
		e.Block, e.BlockSize = b.base, b.size
	}
	if err := d.ports.put(port, e); err != nil {
		return err
	}
	return errors.Join(d.syncEgress(port), d.syncSenders(port))
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
	d.mu.Lock()
	dev, ok := d.device(vnet, device)
	d.mu.Unlock()
	if ok && dev.xdp && dev.fast == on {
		return nil
	}
	if !on { // at once, and not when the program has ceased to look
		d.mu.Lock()
		d.stopCut(uint32(dev.index))
		d.mu.Unlock()
	}
	a, err := openAnchor(path)
	if err != nil {
		return err
	}
	if a == nil {
		return fmt.Errorf("there is no program at its far end; attach one first: %w", os.ErrNotExist)
	}
	defer a.Close()
	if a.program != d.ids[name] {
		if err := a.update(d.programs[name]); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev, ok := d.device(vnet, device); ok {
		dev.xdp, dev.fast = true, on
		d.setDevice(vnet, device, dev)
		d.syncCut(dev)
	}
	return nil
}
