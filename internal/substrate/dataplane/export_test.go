package dataplane

import (
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Base gives the place of the ends of a port's node.
func (d *Dataplane) Base(port int) uint32 {
	e, _, err := d.entry(port)
	if err != nil {
		panic(err)
	}
	return e.Base
}

// RedirectsWhole is why a kernel cannot redirect all frames of an uplink.
var RedirectsWhole = redirectsWhole

// Mark has an uplink count as one that must be told of encapsulation.
func (d *Dataplane) Mark(uplink int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	u, _, err := d.uplink(uplink)
	if err != nil {
		return err
	}
	u.Marked = 1
	return d.setUplink(uplink, u)
}

// OpenWithoutTCX is Open on a kernel before 6.6.
func OpenWithoutTCX(dir string) (*Dataplane, error) { return open(dir, build{hasTCX: noTCX}) }

// OpenOtherBuild is Open, or OpenWithoutTCX, of a build whose programs have the
// same effect and other instructions.
func OpenOtherBuild(dir string, tcx bool) (*Dataplane, error) {
	b := build{hasTCX: hasTCX, edit: func(spec *ebpf.CollectionSpec) {
		for _, p := range spec.Programs {
			// Behind the first, which carries what is known of the function.
			p.Instructions = slices.Insert(p.Instructions, 1, asm.Mov.Imm(asm.R0, 0))
		}
	}}
	if !tcx {
		b.hasTCX = noTCX
	}
	return open(dir, b)
}

// OpenWithoutFastPath is Open on a kernel before 6.2.
func OpenWithoutFastPath(dir string) (*Dataplane, error) {
	return open(dir, build{hasTCX: hasTCX, edit: func(spec *ebpf.CollectionSpec) {
		if p := spec.Programs["node_in"]; p != nil { // what such a kernel makes of it
			p.Instructions = asm.Instructions{asm.BuiltinFunc(1 << 20).Call(), asm.Return()}
		}
	}})
}

func noTCX(*ebpf.Program) (bool, error) { return false, nil }

// WayOut gives the interface index of the device that a port's end redirects
// to; 0: none.
func (d *Dataplane) WayOut(port int) int {
	e, _, err := d.entry(port)
	if err != nil {
		panic(err)
	}
	end, err := d.end(e.End)
	if err != nil {
		panic(err)
	}
	var index uint32
	if err := d.maps["devices"].Lookup(end.Device, &index); err != nil {
		return 0 // the place is empty
	}
	return int(index)
}

// Tapped tells whether copies are wanted of any port.
func (d *Dataplane) Tapped() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.taps) != 0
}

// RegisterFirst registers a device before all who wait for their turn while it
// is made.
func (d *Dataplane) RegisterFirst(made func() int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	index := made()
	slot, err := d.newSlot(index)
	if err != nil {
		return err
	}
	return d.setEntry(index, portProgsPort{Slot: slot})
}

// Layout names the directory of the pinned maps.
const Layout = layoutVersion
