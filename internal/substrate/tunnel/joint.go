package tunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"trellis/internal/vnet"
)

// Path is the way of a link across the underlay, as one of its ends sees it.
type Path struct {
	Uplink int // interface index, attached

	// Source and NextHop are the outer frame's addresses: the uplink's, and
	// the peer's or a router's on the way there.
	Source, NextHop vnet.MAC

	// Local and Remote are the outer packet's addresses, of one family.
	Local, Remote netip.Addr

	// Key tells the links of two machines apart, in both directions.
	Key uint32

	UnderlayMTU int // of the outer packet on the whole way, bytes
	LinkMTU     int // of the IP packet, both ends, bytes
}

// Bytes that EGRE takes of an underlay packet, and Ethernet's own.
const (
	over4    = 20 + greSize
	over6    = 40 + greSize
	greSize  = 8
	ethSize  = 14
	tagSize  = 4
	outerTTL = 64 // fixed: an inherited one loses packets with a TTL of 1, as OSPF's
)

// Connect makes an EGRE path the other end of a port. What was its other end
// before is replaced in one step.
func (t *Tunnel) Connect(index int, path Path) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.connect(index, path); err != nil {
		return fmt.Errorf("connect the port %d with %v by key %d: %w", index, path.Remote, path.Key, err)
	}
	return nil
}

func (t *Tunnel) connect(index int, path Path) error {
	p, err := t.port(index)
	if err != nil {
		return err
	}
	e, err := path.end()
	if err != nil {
		return err
	}
	if t.uplinks[path.Uplink] == nil {
		return fmt.Errorf("the uplink %d is not attached", path.Uplink)
	}
	key := path.arrivalKey()
	for _, other := range t.ports {
		if other != p && other.arrival != nil && *other.arrival == key {
			return fmt.Errorf("the port %d has that key and peer already; each link needs a key of its own", other.index)
		}
	}
	if p.arrival != nil && *p.arrival != key {
		if err := remove(t.stack.Arrivals, p.arrival); err != nil {
			return err
		}
	}
	arrival := stackProgsArrival{Port: uint32(p.index), Slot: p.slot, Longest: uint32(path.LinkMTU + ethSize + tagSize)}
	if err := t.stack.Arrivals.Put(key, arrival); err != nil {
		return fmt.Errorf("enter what arrives: %w", err)
	}
	p.arrival = &key
	return t.enter(p, e)
}

// Join makes two ports of this machine each other's other end.
func (t *Tunnel) Join(a, b int, linkMTU int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, way := range [][2]int{{a, b}, {b, a}} {
		p, err := t.port(way[0])
		if err != nil {
			return err
		}
		peer, err := t.port(way[1])
		if err != nil {
			return err
		}
		e := stackProgsEnd{
			Device: uint32(peer.index), Kind: stackProgsEndKindEND_LOCAL, PeerSlot: peer.slot,
			Longest: uint32(linkMTU + ethSize + tagSize),
		}
		if err := errors.Join(t.part(p), t.enter(p, e)); err != nil {
			return fmt.Errorf("join the ports %d and %d: %w", a, b, err)
		}
	}
	return nil
}

// Part takes a port's other end away; frames are dropped and counted.
func (t *Tunnel) Part(index int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.port(index)
	if err != nil {
		return err
	}
	if err := t.part(p); err != nil {
		return fmt.Errorf("part the port %d: %w", index, err)
	}
	return nil
}

func (t *Tunnel) part(p *attached) error {
	errs := []error{remove(t.stack.FastEnds, p.fastKey), t.stack.StackEnds.Put(uint32(p.index), stackProgsEnd{Slot: p.slot})}
	if p.arrival != nil {
		errs = append(errs, remove(t.stack.Arrivals, p.arrival))
		p.arrival = nil
	}
	return errors.Join(errs...)
}

func (t *Tunnel) enter(p *attached, e stackProgsEnd) error {
	e.Slot = p.slot
	if err := errors.Join(t.stack.StackEnds.Put(uint32(p.index), e), t.stack.FastEnds.Put(p.fastKey, e)); err != nil {
		return fmt.Errorf("enter the link end: %w", err)
	}
	return nil
}

func (path Path) arrivalKey() stackProgsArrivalKey {
	var k stackProgsArrivalKey
	k.Remote.In6U.U6Addr8 = path.Remote.As16()
	k.Local.In6U.U6Addr8 = path.Local.As16()
	k.Key = binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, path.Key))
	return k
}

// end prepares the outer header.
func (path Path) end() (stackProgsEnd, error) {
	local, remote := path.Local.Unmap(), path.Remote.Unmap()
	if !local.IsValid() || !remote.IsValid() || local.Is4() != remote.Is4() {
		return stackProgsEnd{}, fmt.Errorf("its addresses %v and %v are not of one family", path.Local, path.Remote)
	}
	e := stackProgsEnd{Device: uint32(path.Uplink), Kind: stackProgsEndKindEND_EGRE4}
	over := over4
	header := append(append([]byte(nil), path.NextHop[:]...), path.Source[:]...)
	if local.Is4() {
		header = append(header, 0x08, 0x00)
		ip := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, outerTTL, 47, 0, 0} // DF, ID 0
		ip = append(append(ip, local.AsSlice()...), remote.AsSlice()...)
		for i := 0; i < len(ip); i += 2 {
			e.Outer.Sum += uint32(binary.NativeEndian.Uint16(ip[i:]))
		}
		header = append(header, ip...)
	} else {
		e.Kind, over = stackProgsEndKindEND_EGRE6, over6
		header = append(header, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 47, outerTTL)
		header = append(append(header, local.AsSlice()...), remote.AsSlice()...)
	}
	header = append(header, 0x20, 0x00, 0x65, 0x58)
	header = binary.BigEndian.AppendUint32(header, path.Key)
	copy(e.Outer.Bytes[:], header)
	if least := path.LinkMTU + ethSize + over; path.LinkMTU <= 0 || path.UnderlayMTU < least {
		return stackProgsEnd{}, fmt.Errorf("a link of MTU %d needs an underlay of MTU %d, which has %d; lower the link's", path.LinkMTU, least, path.UnderlayMTU)
	}
	e.Longest = uint32(path.UnderlayMTU - over)
	return e, nil
}
