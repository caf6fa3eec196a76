package dataplane

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Block gives the hint at the places of a port's node in the index of egress entries.
func (d *Dataplane) Block(port int) uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, _ := d.ports.get(uint32(port))
	return blockHint(e)
}

// Slot gives that of a port in the maps of counters.
func (d *Dataplane) Slot(port int) uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, _ := d.ports.get(uint32(port))
	return e.Slot
}

// Redirectable is why a kernel cannot redirect all frames of an uplink.
var Redirectable = redirectable

// Mark has an uplink count as one that must be told of encapsulation.
func (d *Dataplane) Mark(uplink int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	u, _ := d.uplinks.get(uint32(uplink))
	u.Flags |= uplinkProgsUplinkFlagUPLINK_ENCAP_OFFLOAD
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
	var refused []*ebpf.ProgramSpec
	return open(dir, build{hasTCX: hasTCX, edit: func(spec *ebpf.CollectionSpec) {
		for _, name := range []string{"node_in", "uplink_in"} {
			p := spec.Programs[name]
			if p == nil || name == "uplink_in" && len(refused) > 0 && refused[0].Name == name { // the plain one
				continue
			}
			refused = append(refused, p)
			p.Instructions = asm.Instructions{asm.BuiltinFunc(1 << 20).Call(), asm.Return()} // what such a kernel makes of it
		}
	}})
}

// Cuts tells whether frames that arrive by a port may be cut through.
func (d *Dataplane) Cuts(port int) bool { return d.cuts.get(d.Slot(port)).Netns != 0 }

func noTCX(*ebpf.Program) (bool, error) { return false, nil }

// EgressDevice gives the interface index of the device that a port's egress entry redirects
// to; 0: none.
func (d *Dataplane) EgressDevice(port int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, _ := d.ports.get(uint32(port))
	egress, _ := d.egresses.get(e.Egress)
	var index uint32
	if err := d.maps["devices"].Lookup(egress.Device, &index); err != nil {
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
	return d.ports.put(uint32(index), portProgsPort{Slot: slot})
}

// Layout names the directory of the pinned maps.
const Layout = layoutVersion

// CarriedLayout is the layout before, and Carried what of its maps goes on in this one.
const CarriedLayout = carriedLayout

var Carried = carried

// OpenPreemptible is Open on a kernel with PREEMPT_RT: what such a kernel makes of the question
// whether a spinlock is one (bpf/fib_cache.h).
func OpenPreemptible(dir string) (*Dataplane, error) {
	return open(dir, build{hasTCX: hasTCX, edit: func(spec *ebpf.CollectionSpec) {
		for _, p := range spec.Programs {
			for i := range p.Instructions {
				ins := &p.Instructions[i]
				if r := btf.CORERelocationMetadata(ins); r != nil && strings.Contains(r.String(), `"spinlock"`) {
					*ins = asm.Mov.Imm(ins.Dst, 0)
				}
			}
		}
	}})
}
