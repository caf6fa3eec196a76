package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"trellis/internal/vnet"
)

// end reads an end by its place.
func (d *Dataplane) end(place uint32) (e portProgsEnd, err error) {
	if err := d.maps["ends"].Lookup(place, &e); err != nil {
		return e, fmt.Errorf("read the link end in place %d: %w", place, err)
	}
	return e, nil
}

// newEnd puts an end in a place where none is in use.
func (d *Dataplane) newEnd(e portProgsEnd) (place uint32, err error) {
	if place, err = d.places.get(); err != nil {
		return 0, err
	}
	if err := d.maps["ends"].Put(place, e); err != nil {
		d.places.put(place)
		return 0, fmt.Errorf("enter a link end: %w", err)
	}
	return place, nil
}

// settle brings a port's end, and what the fast path finds of it, in line with
// the port's entry. Every frame meets the old end or the new one.
func (d *Dataplane) settle(index uint32) error {
	p, ok, err := d.entry(int(index))
	if err != nil || !ok {
		return err
	}
	have := portProgsEnd{}
	if p.End != 0 {
		if have, err = d.end(p.End); err != nil {
			return err
		}
	}
	want, err := d.wantedEnd(p, have)
	if err != nil {
		return err
	}
	old := p.End
	switch {
	case want == (portProgsEnd{}):
		p.End = 0
	case want != have:
		if p.End, err = d.newEnd(want); err != nil {
			return err
		}
	}
	if p.End != old {
		if err := d.setEntry(int(index), p); err != nil {
			return err
		}
	}
	if err := d.show(p); err != nil {
		return err
	}
	if old != 0 && old != p.End {
		d.places.put(old)
	}
	return nil
}

// wantedEnd gives the end that a port should have; the zero value: none.
func (d *Dataplane) wantedEnd(p portProgsPort, have portProgsEnd) (e portProgsEnd, err error) {
	switch Mode(p.Mode) {
	case EGRE4, EGRE6:
		e = have
		e.Flags &^= portProgsEndFlagEND_TAP | portProgsEndFlagEND_MARKED
		// The uplink's place, which will be another's once it is detached.
		u, ok, err := d.uplink(int(e.Uplink))
		if err != nil {
			return e, err
		}
		e.Device = 0
		if ok {
			e.Device = u.Slot
		}
		if u.Marked != 0 {
			e.Flags |= portProgsEndFlagEND_MARKED
		}
	case Direct:
		peer, ok, err := d.entry(int(p.Peer))
		// A veth takes no XDP frames whose other end has no program.
		if err != nil || !ok || peer.Ifindex == 0 || p.Netns == 0 {
			return e, err
		}
		// How long a frame may be, the kernel looks itself: both have the link's MTU.
		e = portProgsEnd{Mode: p.Mode, Slot: p.Slot, Device: peer.Slot, PeerBase: peer.Base, Longest: anyLength}
		if d.taps[peer.Slot] != nil {
			e.Flags |= portProgsEndFlagEND_PEER_TAP
		}
	default:
		return e, nil
	}
	if d.taps[p.Slot] != nil {
		e.Flags |= portProgsEndFlagEND_TAP
	}
	e.Netns, e.Ifindex = p.Netns, 0
	if p.Netns != 0 {
		e.Ifindex = p.Ifindex
	}
	return e, nil
}

const anyLength = 1 << 16

// tell has those that send to a port know its node's places, and itself.
func (d *Dataplane) tell(port uint32) error {
	p, ok, err := d.entry(int(port))
	if err != nil || !ok {
		return err
	}
	if Mode(p.Mode) == Direct {
		if err := d.settle(p.Peer); err != nil {
			return err
		}
	}
	if from := d.receives[port]; from != 0 {
		return d.admit(from)
	}
	return nil
}

// Path is the way of a link across the underlay, as one of its ends sees it.
type Path struct {
	Uplink int // interface index, attached

	// Source and NextHop are the outer frame's addresses: the uplink's, and
	// the peer's or a router's on the way there.
	Source, NextHop vnet.MAC

	// Local and Remote are the outer packet's addresses, of one family.
	Local, Remote netip.Addr

	// Key tells the links of a machine apart, in both directions.
	Key uint32

	// UnderlayMTU is that of the outer packet on the whole way, in bytes. Where
	// it is less than the link needs, longer frames are dropped and counted.
	UnderlayMTU int
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

	greFlags    = 0x2000 // a key and nothing else
	greEthernet = 0x6558
	maxMTU      = 65535
)

// end prepares the outer header of a path.
func (path Path) end() (portProgsEnd, error) {
	local, remote := path.Local, path.Remote
	if !local.IsValid() || !remote.IsValid() || local.Is4() != remote.Is4() {
		return portProgsEnd{}, fmt.Errorf("its addresses %v and %v are not of one family", path.Local, path.Remote)
	}
	e := portProgsEnd{Mode: portProgsMode(EGRE4), Uplink: uint32(path.Uplink), LinkMtu: uint32(path.LinkMTU)}
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
		e.Mode, over = portProgsMode(EGRE6), over6
		header = append(header, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 47, outerTTL)
		header = append(append(header, local.AsSlice()...), remote.AsSlice()...)
	}
	header = binary.BigEndian.AppendUint16(header, greFlags)
	header = binary.BigEndian.AppendUint16(header, greEthernet)
	header = binary.BigEndian.AppendUint32(header, path.Key)
	copy(e.Outer.Bytes[:], header)
	for what, mtu := range map[string]int{"the link": path.LinkMTU, "the underlay": path.UnderlayMTU - over - ethSize} {
		if mtu < 1 || mtu > maxMTU {
			return portProgsEnd{}, fmt.Errorf("%d bytes of IP packet cannot be the MTU of %s", mtu, what)
		}
	}
	e.Longest = uint32(path.UnderlayMTU - over)
	return e, nil
}

// path reads the path back from an end.
func (e *portProgsEnd) path() Path {
	p := Path{Uplink: int(e.Uplink), LinkMTU: int(e.LinkMtu)}
	header := e.Outer.Bytes[:]
	copy(p.NextHop[:], header)
	copy(p.Source[:], header[6:])
	ip := header[ethSize:]
	var gre []byte
	if Mode(e.Mode) == EGRE4 {
		p.Local, p.Remote = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		gre, p.UnderlayMTU = ip[20:], int(e.Longest)+over4
	} else {
		p.Local, p.Remote = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		gre, p.UnderlayMTU = ip[40:], int(e.Longest)+over6
	}
	p.Key = binary.BigEndian.Uint32(gre[4:])
	return p
}

// arrivalKey is the key as it stands in a frame.
func arrivalKey(key uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, key))
}
