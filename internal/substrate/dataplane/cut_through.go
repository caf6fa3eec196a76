package dataplane

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// cutEnds is the map of that name (bpf/cut_through.h), in this process's memory: which
// node's end a port leads to, while the fast path is on there. For such a port, uplinks
// forward what they can by themselves.
type cutEnds struct {
	ends   []uplinkProgsCutEnd // by slot
	memory []byte
}

// openCutEnds maps the map into memory. Until its ends are set, nothing is cut through: a build
// before this one may have changed what they tell of, and left them alone.
func openCutEnds(m *ebpf.Map) (*cutEnds, error) {
	const size = maxPorts * int(unsafe.Sizeof(uplinkProgsCutEnd{}))
	memory, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the ends of cut-through into memory: %w", err)
	}
	c := &cutEnds{memory: memory, ends: unsafe.Slice((*uplinkProgsCutEnd)(unsafe.Pointer(&memory[0])), maxPorts)}
	for slot := range c.ends {
		if c.get(uint32(slot)) != (uplinkProgsCutEnd{}) {
			c.clear(uint32(slot))
		}
	}
	return c, nil
}

func (c *cutEnds) close() error {
	if c == nil {
		return nil
	}
	return unix.Munmap(c.memory)
}

func (c *cutEnds) get(slot uint32) uplinkProgsCutEnd {
	e := &c.ends[slot]
	return uplinkProgsCutEnd{Netns: atomic.LoadUint64(&e.Netns), Ifindex: atomic.LoadUint32(&e.Ifindex)}
}

// clear ends cut-through for a slot. Programs that run just now may still finish a frame.
func (c *cutEnds) clear(slot uint32) { c.set(slot, 0, 0) }

// set has programs cut through what arrives by a slot and what the node's end would forward. A
// program that reads meanwhile finds no end, the old one, or the new one.
func (c *cutEnds) set(slot uint32, netns uint64, ifindex uint32) {
	e := &c.ends[slot]
	if c.get(slot) == (uplinkProgsCutEnd{Netns: netns, Ifindex: ifindex}) {
		return
	}
	atomic.StoreUint64(&e.Netns, 0)
	atomic.StoreUint32(&e.Ifindex, ifindex)
	atomic.StoreUint64(&e.Netns, netns)
}

// syncCut has uplinks forward for a device's node, or not, as is known of the device.
func (d *Dataplane) syncCut(dev devicePins) {
	p, ok := d.ports.get(uint32(dev.index))
	switch {
	case !ok:
	case dev.gone || !dev.xdp || !dev.fast || p.Netns == 0:
		d.cuts.clear(p.Slot)
	default:
		d.cuts.set(p.Slot, p.Netns, p.Ifindex)
	}
}

// stopCut ends cut-through for a port, whose far end changes.
func (d *Dataplane) stopCut(index uint32) {
	if p, ok := d.ports.get(index); ok {
		d.cuts.clear(p.Slot)
	}
}

// CutThroughSupported tells why the kernel's uplinks cannot forward on nodes' behalf; nil if they
// can. It takes what the fast path takes. Without it, what they receive goes by the nodes.
func (d *Dataplane) CutThroughSupported() error { return d.noCut }

// loadUplink loads the program of uplinks. A kernel that cannot run the one that forwards
// by cut-through runs the other, under the same name: so builds replace either by either.
func (d *Dataplane) loadUplink(fresh map[string]*ebpf.Program) error {
	const name, plain = "uplink_in", "uplink_plain"
	first := func() (*ebpf.CollectionSpec, error) {
		spec, err := loadUplinkProgs()
		if err == nil {
			delete(spec.Programs, plain)
		}
		return spec, err
	}
	err := d.loadSpec(first, fresh)
	if err == nil {
		return nil
	}
	d.noCut = fmt.Errorf("this kernel's uplinks cannot forward on nodes' behalf, which takes Linux 6.2 with BTF: %w", err)
	other := func() (*ebpf.CollectionSpec, error) {
		spec, err := loadUplinkProgs()
		if err != nil {
			return nil, err
		}
		p := spec.Programs[plain]
		if p == nil {
			return nil, errors.New("the programs of uplinks lack " + plain)
		}
		p.Name = name
		spec.Programs = map[string]*ebpf.ProgramSpec{name: p}
		return spec, nil
	}
	return d.loadSpec(other, fresh)
}
