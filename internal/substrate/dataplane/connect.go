package dataplane

import (
	"errors"
	"fmt"

	"trellis/internal/tunnel"
)

// Connect makes a path across the underlay the other end of a port. What the
// port sends leaves by the path; what arrives on it goes out of the port to,
// which is the same one but where a link is shaped: there the port's frames pass
// a qdisc on their way to another, which is the path's. 0 for to is from.
//
// What was the other end of from before is replaced in one step. The far end of
// to's veth pair must take XDP frames: see [Dataplane.AttachFarEnd].
func (d *Dataplane) Connect(from, to int, p tunnel.Path) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.connect(from, to, p); err != nil {
		return fmt.Errorf("connect the port %d with %v by key %#x: %w", from, p.Remote, p.Key, err)
	}
	return nil
}

func (d *Dataplane) connect(from, to int, path tunnel.Path) error {
	path.Local, path.Remote = path.Local.Unmap(), path.Remote.Unmap()
	e, err := newPathEgress(path)
	if err != nil {
		return err
	}
	if to == from {
		to = 0
	}
	p, err := d.portEntry(from)
	if err != nil {
		return err
	}
	if _, err := d.receiver(from, to); err != nil {
		return err
	}
	u, ok := d.uplinks.get(uint32(path.Route.Uplink))
	if !ok {
		return fmt.Errorf("device %d is no uplink; attach it first", path.Route.Uplink)
	}
	if other := d.keys[path.Key]; other != 0 && other != uint32(from) {
		return fmt.Errorf("port %d has that key already; each link of a machine needs a key of its own", other)
	}
	target := uint32(from)
	if to != 0 {
		target = uint32(to)
	}
	if other := d.pathOf[target]; other != 0 && other != uint32(from) {
		return fmt.Errorf("frames of port %d's path go to port %d already; unjoin it first", other, target)
	}
	e.Slot, e.Device = p.Slot, u.Slot
	if u.Flags&uplinkProgsUplinkFlagUPLINK_ENCAP_OFFLOAD != 0 {
		e.Flags |= portProgsEgressFlagEGRESS_ENCAP_OFFLOAD
	}
	if d.taps[p.Slot] != nil {
		e.Flags |= portProgsEgressFlagEGRESS_TAP
	}
	e.setFast(p, u)
	if Mode(p.Mode) == Direct || Mode(p.Mode) == Shaped {
		if err := d.clearPeer(p.Peer); err != nil {
			return err
		}
	}
	oldKey, had := d.keyOf(p)
	if had {
		d.forgetKey(uint32(from), p, oldKey)
	}
	old := p.Egress
	if p.Egress, err = d.newEgress(e); err != nil {
		return err
	}
	before := p.Peer // the port whose frames left by the old path
	p.Mode, p.Peer, p.PeerSlot, p.PeerMac = e.Mode, uint32(to), d.slotOf(uint32(to)), 0
	d.keys[path.Key], d.pathOf[target] = uint32(from), uint32(from)
	if err := d.setTunnel(p, path); err != nil {
		return err
	}
	if err := d.ports.put(uint32(from), p); err != nil {
		return err
	}
	if err := d.publishEgress(p); err != nil {
		return err
	}
	for _, other := range []uint32{before, p.Peer} {
		if err := d.syncEgress(other); err != nil {
			return err
		}
	}
	if old != 0 {
		if err := d.freeEgress(old); err != nil {
			return err
		}
	}
	if had && oldKey != path.Key {
		return d.tunnels.remove(wireKey(oldKey))
	}
	return nil
}

// portEntry gives the entry of a device that can be joined and connected.
func (d *Dataplane) portEntry(index int) (portProgsPort, error) {
	e, ok := d.ports.get(uint32(index))
	if !ok {
		return e, fmt.Errorf("device %d has no programs; attach it first", index)
	}
	if Mode(e.Mode) == Switched {
		return e, fmt.Errorf("device %d is a member of a LAN", index)
	}
	return e, nil
}

// receiver gives the entry of the port that a path's frames go to.
func (d *Dataplane) receiver(from, to int) (portProgsPort, error) {
	if to == 0 {
		to = from
	}
	e, err := d.portEntry(to)
	if err == nil && e.Ifindex == 0 {
		err = fmt.Errorf("the far end of port %d has no program, and so takes no frames of the underlay; attach it first", to)
	}
	return e, err
}

// keyOf gives the key of a port's path, if it has one.
func (d *Dataplane) keyOf(p portProgsPort) (key uint32, ok bool) {
	if !Mode(p.Mode).crosses() {
		return 0, false
	}
	e, ok := d.egresses.get(p.Egress)
	return e.path().Key, ok
}

// syncTunnel has the frames of a port's path come in, or mends how they do.
func (d *Dataplane) syncTunnel(from uint32) error {
	p, ok := d.ports.get(from)
	if !ok || !Mode(p.Mode).crosses() {
		return nil
	}
	e, ok := d.egresses.get(p.Egress)
	if !ok {
		return nil
	}
	return d.setTunnel(p, e.path())
}

// setTunnel has the frames of a path go to the port whose entry is p, or to its
// peer.
func (d *Dataplane) setTunnel(p portProgsPort, path tunnel.Path) error {
	to := p
	if p.Peer != 0 {
		var ok bool
		if to, ok = d.ports.get(p.Peer); !ok {
			return nil
		}
	}
	t := uplinkProgsTunnel{Slot: to.Slot, Block: blockHint(to), Longest: uint32(path.MTU + ethSize + tagSize)}
	if d.taps[to.Slot] != nil {
		t.Tap = metadataTap
	}
	t.Remote.In6U.U6Addr8 = path.Remote.As16()
	t.Local.In6U.U6Addr8 = path.Local.As16()
	return d.tunnels.put(wireKey(path.Key), t)
}

// forgetKey forgets which port a key is of, and where its frames go. p is the
// port's entry.
func (d *Dataplane) forgetKey(from uint32, p portProgsPort, key uint32) {
	delete(d.keys, key)
	if p.Peer != 0 {
		from = p.Peer
	}
	delete(d.pathOf, from)
}

// slotOf gives that of a port; 0: there is no such port.
func (d *Dataplane) slotOf(index uint32) uint32 {
	p, _ := d.ports.get(index)
	return p.Slot
}

// removeTunnel keeps the frames of a port's path out.
func (d *Dataplane) removeTunnel(from uint32, p portProgsPort) error {
	key, ok := d.keyOf(p)
	if !ok {
		return nil
	}
	d.forgetKey(from, p, key)
	return errors.Join(d.syncEgress(p.Peer), d.tunnels.remove(wireKey(key)))
}

// adoptPaths brings everything that hangs on the ports' entries in line with
// them, as a process that was stopped anywhere has left it.
func (d *Dataplane) adoptPaths() error {
	for index, p := range d.ports.rows {
		d.slots.reserve(p.Slot)
		if p.Egress != 0 {
			d.numbers.reserve(p.Egress)
		}
		if p.Netns == 0 {
			continue
		}
		b := d.nodes[p.Netns]
		if b == nil {
			b = &block{ports: map[uint32]bool{}}
			d.nodes[p.Netns] = b
		}
		b.ports[index] = true
		if p.BlockSize > b.size && d.index.reserve(p.Block, p.BlockSize) {
			b.base, b.size = p.Block, p.BlockSize
		}
	}
	wanted := map[uint32]bool{} // places of the index
	for index, p := range d.ports.rows {
		if p.Netns == 0 {
			continue
		}
		b := d.nodes[p.Netns]
		p.Block, p.BlockSize = b.base, b.size
		if err := d.ports.put(index, p); err != nil {
			return err
		}
		if p.Block != 0 && p.Ifindex < p.BlockSize {
			wanted[p.Block+p.Ifindex] = true
		}
	}
	keys := map[uint32]bool{}
	for index, p := range d.ports.rows {
		key, ok := d.keyOf(p)
		if !ok {
			continue
		}
		to := index
		if p.Peer != 0 {
			to = p.Peer
		}
		d.keys[key], d.pathOf[to] = index, index
		keys[wireKey(key)] = true
		if p.PeerSlot = d.slotOf(p.Peer); p.PeerSlot != 0 { // builds before rates on the fast path left it out
			if err := d.ports.put(index, p); err != nil {
				return err
			}
		}
	}
	for index := range d.ports.rows {
		if err := errors.Join(d.syncEgress(index), d.syncTunnel(index)); err != nil {
			return err
		}
	}
	for place := range uint32(maxEgressIndex) {
		if !wanted[place] && d.index.get(place) != 0 {
			d.index.set(place, 0)
		}
	}
	used, beyond := map[uint32]bool{}, map[portProgsEgressKey]bool{}
	for _, p := range d.ports.rows {
		used[p.Egress] = true
		if p.Egress != 0 && (p.Block == 0 || p.Ifindex >= p.BlockSize) {
			beyond[portProgsEgressKey{Netns: p.Netns, Ifindex: p.Ifindex}] = true
		}
	}
	return errors.Join(
		d.tunnels.prune(func(key uint32) bool { return keys[key] }),
		d.overflow.prune(func(key portProgsEgressKey) bool { return beyond[key] }),
		d.egresses.prune(func(number uint32) bool { return used[number] }),
	)
}
