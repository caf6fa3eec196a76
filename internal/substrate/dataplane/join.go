package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"

	"trellis/internal/vnet"
)

// Mode says what happens to the frames that come in at a device.
type Mode uint32

// Modes.
const (
	Unjoined = Mode(portProgsModeMODE_UNJOINED) // dropped
	Direct   = Mode(portProgsModeMODE_DIRECT)   // handed into the peer's node (bpf_redirect_peer)
	Shaped   = Mode(portProgsModeMODE_SHAPED)   // sent by way of the peer's qdisc (bpf_redirect)
	Switched = Mode(portProgsModeMODE_SWITCHED) // left to the bridge; of members
	EGRE4    = Mode(portProgsModeMODE_EGRE4)    // sent to another machine over IPv4
	EGRE6    = Mode(portProgsModeMODE_EGRE6)    // over IPv6
)

// crosses tells whether the link goes to another machine.
func (m Mode) crosses() bool { return m == EGRE4 || m == EGRE6 }

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
	case EGRE4:
		return "EGRE over IPv4"
	case EGRE6:
		return "EGRE over IPv6"
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
	// Rate is what the qdisc holds what goes to this end to, and all that it does to it; the
	// zero value: it does more, or what it does is not known. It takes effect if Shaped.
	Rate Rate
	// MAC is the address of the node's interface behind this end. Frames for others
	// and for groups then go through the veth pair, where the kernel tells them
	// apart; without it, all pass for the node's own.
	MAC vnet.MAC
}

// Join joins two ports in both directions, each attached in role [Port]. If one
// was joined with a third, or connected, that joint is ended.
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
		var err error
		if entries[i], err = d.portEntry(end.Index); err != nil {
			return err
		}
	}
	for i, other := range []End{b, a} {
		e := entries[i]
		if Mode(e.Mode).crosses() {
			if err := d.removeTunnel(uint32([]End{a, b}[i].Index), e); err != nil {
				return err
			}
		} else if e.Peer != 0 && int(e.Peer) != other.Index {
			if err := d.clearPeer(e.Peer); err != nil {
				return err
			}
		}
	}
	return errors.Join(
		d.ports.put(uint32(a.Index), toward(b, entries[0], entries[1].Slot)),
		d.ports.put(uint32(b.Index), toward(a, entries[1], entries[0].Slot)),
		d.rateToward(b, uint32(a.Index)),
		d.rateToward(a, uint32(b.Index)),
		d.syncEgress(uint32(a.Index)),
		d.syncEgress(uint32(b.Index)),
	)
}

// rateToward sets the rate of what a port sends to an end.
func (d *Dataplane) rateToward(to End, from uint32) error {
	p, _ := d.ports.get(from)
	if !to.Shaped {
		to.Rate = Rate{}
	}
	return d.setRate(p, to.Rate)
}

// toward is the entry of a port whose frames go to an end.
func toward(to End, e portProgsPort, peerSlot uint32) portProgsPort {
	e.Mode = portProgsMode(Direct)
	if to.Shaped {
		e.Mode = portProgsMode(Shaped)
	}
	e.Peer, e.PeerSlot, e.PeerMac = uint32(to.Index), peerSlot, macWord(to.MAC)
	return e
}

// macWord gives an address as the programs compare it.
func macWord(m vnet.MAC) uint64 {
	var b [8]byte
	copy(b[:], m[:])
	return binary.NativeEndian.Uint64(b[:])
}

func macOf(word uint64) (m vnet.MAC) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], word)
	copy(m[:], b[:])
	return m
}

// Unjoin ends the joints of the ports, in both directions, and takes paths to
// other machines away. Ports that are neither joined nor connected, or not
// attached, are no error.
func (d *Dataplane) Unjoin(ifindexes ...int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, i := range ifindexes {
		e, ok := d.ports.get(uint32(i))
		if !ok || Mode(e.Mode) == Switched {
			continue
		}
		err := d.clearPeer(uint32(i))
		if e.Peer != 0 && !Mode(e.Mode).crosses() {
			err = errors.Join(err, d.clearPeer(e.Peer))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("unjoin port %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// clearPeer makes a port drop what it gets.
func (d *Dataplane) clearPeer(ifindex uint32) error {
	e, ok := d.ports.get(ifindex)
	if !ok || Mode(e.Mode) == Unjoined || Mode(e.Mode) == Switched {
		return nil
	}
	if err := d.removeTunnel(ifindex, e); err != nil {
		return err
	}
	e.Mode, e.Peer, e.PeerSlot, e.PeerMac = portProgsMode(Unjoined), 0, 0, 0
	if err := d.ports.put(ifindex, e); err != nil {
		return err
	}
	return d.syncEgress(ifindex)
}
