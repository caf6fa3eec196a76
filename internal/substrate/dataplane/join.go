package dataplane

import (
	"errors"
	"fmt"
)

// Mode says what happens to the frames that come in at a device.
type Mode uint32

// Modes.
const (
	Unjoined = Mode(portProgsModeMODE_UNJOINED) // dropped
	Direct   = Mode(portProgsModeMODE_DIRECT)   // handed into the peer's node (bpf_redirect_peer)
	Shaped   = Mode(portProgsModeMODE_SHAPED)   // sent by way of the peer's qdisc (bpf_redirect)
	Switched = Mode(portProgsModeMODE_SWITCHED) // left to the bridge; of members
)

func (m Mode) String() string {
	switch m {
	case Unjoined:
		return "unjoined"
	case Direct:
		return "direct"
	case Shaped:
		return "shaped"
	case Switched:
		return "switched"
	}
	return fmt.Sprintf("mode %d", uint32(m))
}

// End is one end of a joint.
type End struct {
	Index int // interface index of the port
	// Shaped sends what goes to this end through its qdisc. It must be set for
	// the shaped end of a helper pair, qdisc or not: its other end is in the
	// same namespace, where the kernel refuses the direct way.
	Shaped bool
}

// Join joins two ports in both directions, each attached in role [Port]. If one
// was joined with a third, that joint is parted.
func (d *Dataplane) Join(a, b End) error {
	if err := d.join(a, b); err != nil {
		return fmt.Errorf("join the ports %d and %d: %w", a.Index, b.Index, err)
	}
	return nil
}

func (d *Dataplane) join(a, b End) error {
	if a.Index == b.Index {
		return errors.New("a port cannot be joined with itself")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var entries [2]portProgsPort
	for i, end := range []End{a, b} {
		e, ok, err := d.entry(end.Index)
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("device %d has no programs; attach it first", end.Index)
		case Mode(e.Mode) == Switched:
			return fmt.Errorf("device %d is a member of a LAN", end.Index)
		}
		entries[i] = e
	}
	for i, other := range []End{b, a} {
		if p := int(entries[i].Peer); p != 0 && p != other.Index {
			if err := d.unjoin(p); err != nil {
				return err
			}
		}
	}
	return errors.Join(
		d.setEntry(a.Index, toward(b, entries[0].Slot, entries[1].Slot)),
		d.setEntry(b.Index, toward(a, entries[1].Slot, entries[0].Slot)),
	)
}

// toward is the entry of a port whose frames go to an end.
func toward(to End, slot, peerSlot uint32) portProgsPort {
	mode := Direct
	if to.Shaped {
		mode = Shaped
	}
	return portProgsPort{Peer: uint32(to.Index), Mode: portProgsMode(mode), Slot: slot, PeerSlot: peerSlot}
}

// Part ends the joints of the ports, in both directions. Ports that are not
// joined, or not attached, are no error.
func (d *Dataplane) Part(ifindexes ...int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, i := range ifindexes {
		e, ok, err := d.entry(i)
		if err == nil && ok && e.Peer != 0 {
			err = errors.Join(d.unjoin(i), d.unjoin(int(e.Peer)))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("part port %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// unjoin makes a port drop what it gets.
func (d *Dataplane) unjoin(ifindex int) error {
	e, ok, err := d.entry(ifindex)
	if err != nil || !ok || e.Peer == 0 {
		return err
	}
	return d.setEntry(ifindex, portProgsPort{Mode: portProgsMode(Unjoined), Slot: e.Slot})
}
