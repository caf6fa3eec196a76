package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"trellis/internal/tunnel"
)

// newEgress adds an egress entry under a number that is not in use.
func (d *Dataplane) newEgress(e portProgsEgress) (number uint32, err error) {
	if number, err = d.numbers.allocate(); err != nil {
		return 0, err
	}
	if err := d.egresses.put(number, e); err != nil {
		d.numbers.free(number)
		return 0, err
	}
	return number, nil
}

// freeEgress gives the number of an egress entry back. The entry itself stays,
// since a program may just be reading it.
func (d *Dataplane) freeEgress(number uint32) error {
	d.numbers.free(number)
	return d.egresses.remove(number)
}

// syncEgress brings a port's egress entry, and what the fast path finds of it, in
// line with the port's own. Every frame meets the old entry or the new one.
func (d *Dataplane) syncEgress(index uint32) error {
	p, ok := d.ports.get(index)
	if !ok {
		return nil
	}
	if Mode(p.Mode) == Shaped {
		if err := d.syncRate(p); err != nil {
			return err
		}
	}
	have, _ := d.egresses.get(p.Egress)
	want := d.wantedEgress(p, have)
	old := p.Egress
	switch {
	case want == (portProgsEgress{}):
		p.Egress = 0
	case want != have:
		var err error
		if p.Egress, err = d.newEgress(want); err != nil {
			return err
		}
	}
	if err := d.ports.put(index, p); err != nil {
		return err
	}
	if err := d.publishEgress(p); err != nil {
		return err
	}
	if old != 0 && old != p.Egress {
		if err := d.freeEgress(old); err != nil {
			return err
		}
	}
	if Mode(p.Mode).crosses() && p.Peer != 0 { // whose frames leave by the path, too
		return d.syncEgress(p.Peer)
	}
	return nil
}

// wantedEgress gives the egress entry that a port should have; the zero value: none.
func (d *Dataplane) wantedEgress(p portProgsPort, have portProgsEgress) (e portProgsEgress) {
	switch Mode(p.Mode) {
	case EGRE4, EGRE6:
		e = have
		e.Flags &^= portProgsEgressFlagEGRESS_TAP | portProgsEgressFlagEGRESS_ENCAP_OFFLOAD
		// The uplink's slot, which will be another's once it is detached.
		u, ok := d.uplinks.get(e.Uplink)
		e.Device = 0
		if ok {
			e.Device = u.Slot
		}
		if u.Flags&uplinkProgsUplinkFlagUPLINK_ENCAP_OFFLOAD != 0 {
			e.Flags |= portProgsEgressFlagEGRESS_ENCAP_OFFLOAD
		}
		e.setFast(p, u)
	case Direct:
		if e = d.directEgress(p); e == (portProgsEgress{}) {
			return e
		}
	case Shaped:
		if e = d.ratedEgress(p); e == (portProgsEgress{}) {
			return e
		}
	default:
		return e
	}
	if d.taps[p.Slot] != nil {
		e.Flags |= portProgsEgressFlagEGRESS_TAP
	}
	return e
}

// directEgress gives the entry by which the fast path leaves a port for the neighbour's node; the
// zero value: it cannot.
func (d *Dataplane) directEgress(p portProgsPort) (e portProgsEgress) {
	peer, ok := d.ports.get(p.Peer)
	// A veth takes no XDP frames whose other end has no program.
	if !ok || peer.Ifindex == 0 || p.Netns == 0 {
		return e
	}
	// How long a frame may be, the kernel looks itself: both have the link's MTU.
	e = portProgsEgress{Mode: portProgsMode(Direct), Slot: p.Slot, Device: peer.Slot, PeerBlock: blockHint(peer), Longest: anyLength}
	if d.taps[peer.Slot] != nil {
		e.Flags |= portProgsEgressFlagEGRESS_PEER_TAP
	}
	e.setFast(p, uplinkProgsUplink{})
	return e
}

// ratedEgress gives the entry by which what conforms to its rate leaves a port whose frames else
// pass a qdisc: for the neighbour's node, or by the path that begins behind the qdisc.
func (d *Dataplane) ratedEgress(p portProgsPort) (e portProgsEgress) {
	if d.classOf(p).Cost == 0 || p.Netns == 0 {
		return e
	}
	from := d.pathOf[p.Index]
	if from == 0 {
		if e = d.directEgress(p); e != (portProgsEgress{}) {
			e.Flags |= portProgsEgressFlagEGRESS_RATED
		}
		return e
	}
	behind, _ := d.ports.get(from)
	e, ok := d.egresses.get(behind.Egress)
	u, attached := d.uplinks.get(e.Uplink)
	if !ok || !attached {
		return portProgsEgress{}
	}
	e.Slot, e.Flags = p.Slot, portProgsEgressFlagEGRESS_RATED
	if e.setFast(p, u); e.Netns == 0 {
		return portProgsEgress{}
	}
	return e
}

// setFast has the fast path leave by the entry, of a port and its uplink, if it can; the zero
// uplink: there is none.
func (e *portProgsEgress) setFast(p portProgsPort, u uplinkProgsUplink) {
	e.Netns, e.Ifindex = 0, 0
	if p.Netns != 0 && u.Flags&uplinkProgsUplinkFlagUPLINK_NO_TRANSMIT == 0 {
		e.Netns, e.Ifindex = p.Netns, p.Ifindex
	}
}

const anyLength = 1 << 16

// syncSenders has those that send to a port know its node's block, and its slot.
func (d *Dataplane) syncSenders(port uint32) error {
	p, ok := d.ports.get(port)
	if !ok {
		return nil
	}
	if m := Mode(p.Mode); m == Direct || m == Shaped {
		if err := d.syncEgress(p.Peer); err != nil {
			return err
		}
	}
	if from := d.pathOf[port]; from != 0 {
		return d.syncTunnel(from)
	}
	return nil
}

const (
	ethSize  = 14
	tagSize  = 4
	outerTTL = 64 // fixed: an inherited one loses packets with a TTL of 1, as OSPF's

	greFlags    = 0x2000 // a key and nothing else
	greEthernet = 0x6558
	maxMTU      = 65535
)

// newPathEgress gives the egress entry of a path, with its outer header.
func newPathEgress(path tunnel.Path) (portProgsEgress, error) {
	local, remote := path.Local, path.Remote
	if !local.IsValid() || !remote.IsValid() || local.Is4() != remote.Is4() {
		return portProgsEgress{}, fmt.Errorf("its addresses %v and %v are not of one family", path.Local, path.Remote)
	}
	e := portProgsEgress{Mode: portProgsMode(EGRE4), Uplink: uint32(path.Route.Uplink), LinkMtu: uint32(path.MTU)}
	header := append(append([]byte(nil), path.Route.NextHop[:]...), path.Route.Source[:]...)
	if local.Is4() {
		header = append(header, 0x08, 0x00)
		ip := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, outerTTL, 47, 0, 0} // DF, ID 0
		ip = append(append(ip, local.AsSlice()...), remote.AsSlice()...)
		for i := 0; i < len(ip); i += 2 {
			e.Outer.Sum += uint32(binary.NativeEndian.Uint16(ip[i:]))
		}
		header = append(header, ip...)
	} else {
		e.Mode = portProgsMode(EGRE6)
		header = append(header, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 47, outerTTL)
		header = append(append(header, local.AsSlice()...), remote.AsSlice()...)
	}
	header = binary.BigEndian.AppendUint16(header, greFlags)
	header = binary.BigEndian.AppendUint16(header, greEthernet)
	header = binary.BigEndian.AppendUint32(header, path.Key)
	copy(e.Outer.Bytes[:], header)
	inner := path.Route.MTU - tunnel.Overhead(remote)
	for what, mtu := range map[string]int{"the link": path.MTU, "the underlay": inner} {
		if mtu < 1 || mtu > maxMTU {
			return portProgsEgress{}, fmt.Errorf("%d bytes of IP packet cannot be the MTU of %s", mtu, what)
		}
	}
	e.Longest = uint32(inner + ethSize)
	return e, nil
}

// path reads the path back from an egress entry.
func (e *portProgsEgress) path() tunnel.Path {
	p := tunnel.Path{MTU: int(e.LinkMtu), Route: tunnel.Route{Uplink: int(e.Uplink)}}
	header := e.Outer.Bytes[:]
	copy(p.Route.NextHop[:], header)
	copy(p.Route.Source[:], header[6:])
	ip := header[ethSize:]
	var gre []byte
	if Mode(e.Mode) == EGRE4 {
		p.Local, p.Remote = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
		gre = ip[20:]
	} else {
		p.Local, p.Remote = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		gre = ip[40:]
	}
	p.Route.MTU = int(e.Longest) - ethSize + tunnel.Overhead(p.Remote)
	p.Key = binary.BigEndian.Uint32(gre[4:])
	return p
}

// wireKey is the key as it stands in a frame.
func wireKey(key uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, key))
}
