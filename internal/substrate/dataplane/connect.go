package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Connect makes a path across the underlay the other end of a port. What the
// port sends leaves by the path; what arrives on it goes out of the port to,
// which is the same one but where a link is shaped: there the port's frames pass
// a qdisc on their way to another, which is the path's. 0 for to is from.
//
// What was the other end of from before is replaced in one step. The far end of
// to's veth pair must take XDP frames: see [Dataplane.AttachInner].
func (d *Dataplane) Connect(from, to int, p Path) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.connect(from, to, p); err != nil {
		return fmt.Errorf("connect the port %d with %v by key %#x: %w", from, p.Remote, p.Key, err)
	}
	return nil
}

func (d *Dataplane) connect(from, to int, path Path) error {
	path.Local, path.Remote = path.Local.Unmap(), path.Remote.Unmap()
	e, err := path.end()
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
	u, ok, err := d.uplink(path.Uplink)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("device %d is no uplink; attach it first", path.Uplink)
	}
	if other := d.keys[path.Key]; other != 0 && other != uint32(from) {
		return fmt.Errorf("port %d has that key already; each link of a machine needs a key of its own", other)
	}
	target := uint32(from)
	if to != 0 {
		target = uint32(to)
	}
	if other := d.receives[target]; other != 0 && other != uint32(from) {
		return fmt.Errorf("frames of port %d's path go to port %d already; part it first", other, target)
	}
	e.Slot, e.Device = p.Slot, u.Slot
	if u.Marked != 0 {
		e.Flags |= portProgsEndFlagEND_MARKED
	}
	if d.taps[p.Slot] != nil {
		e.Flags |= portProgsEndFlagEND_TAP
	}
	if e.Netns = p.Netns; p.Netns != 0 {
		e.Ifindex = p.Ifindex
	}
	if Mode(p.Mode) == Direct || Mode(p.Mode) == Shaped {
		if err := d.unjoin(int(p.Peer)); err != nil {
			return err
		}
	}
	oldKey, had, err := d.keyOf(p)
	if err != nil {
		return err
	}
	if had {
		d.unbind(uint32(from), p, oldKey)
	}
	old := p.End
	if p.End, err = d.newEnd(e); err != nil {
		return err
	}
	p.Mode, p.Peer, p.PeerSlot, p.PeerMac = e.Mode, uint32(to), 0, 0
	d.keys[path.Key], d.receives[target] = uint32(from), uint32(from)
	if err := d.admitAs(p, path); err != nil {
		return err
	}
	if err := d.setEntry(from, p); err != nil {
		return err
	}
	if err := d.show(p); err != nil {
		return err
	}
	if old != 0 {
		d.places.put(old)
	}
	if had && oldKey != path.Key {
		return d.maps.remove("arrivals", arrivalKey(oldKey))
	}
	return nil
}

// portEntry gives the entry of a device that can be joined and connected.
func (d *Dataplane) portEntry(index int) (portProgsPort, error) {
	e, ok, err := d.entry(index)
	switch {
	case err != nil:
	case !ok:
		err = fmt.Errorf("device %d has no programs; attach it first", index)
	case Mode(e.Mode) == Switched:
		err = fmt.Errorf("device %d is a member of a LAN", index)
	}
	return e, err
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
func (d *Dataplane) keyOf(p portProgsPort) (key uint32, ok bool, err error) {
	if !Mode(p.Mode).crosses() || p.End == 0 {
		return 0, false, nil
	}
	e, err := d.end(p.End)
	if err != nil {
		return 0, false, err
	}
	return e.path().Key, true, nil
}

// admit has the frames of a port's path come in, or mends how they do.
func (d *Dataplane) admit(from uint32) error {
	p, ok, err := d.entry(int(from))
	if err != nil || !ok || !Mode(p.Mode).crosses() {
		return err
	}
	e, err := d.end(p.End)
	if err != nil {
		return err
	}
	return d.admitAs(p, e.path())
}

// admitAs has the frames of a path go to the port whose entry is p, or to its
// peer.
func (d *Dataplane) admitAs(p portProgsPort, path Path) error {
	to := p
	if p.Peer != 0 {
		var ok bool
		var err error
		if to, ok, err = d.entry(int(p.Peer)); err != nil || !ok {
			return err
		}
	}
	a := uplinkProgsArrival{Slot: to.Slot, Base: to.Base, Longest: uint32(path.LinkMTU + ethSize + tagSize)}
	if d.taps[to.Slot] != nil {
		a.Tap = to.Slot
	}
	a.Remote.In6U.U6Addr8 = path.Remote.As16()
	a.Local.In6U.U6Addr8 = path.Local.As16()
	// What is right stays as it is. The kernel may give the memory of a replaced
	// value to the next key's at once, while a program still reads it.
	have := uplinkProgsArrival{}
	switch err := d.maps["arrivals"].Lookup(arrivalKey(path.Key), &have); {
	case err == nil && have == a:
		return nil
	case err != nil && !errors.Is(err, ebpf.ErrKeyNotExist):
		return fmt.Errorf("look up what arrives: %w", err)
	}
	if err := d.maps["arrivals"].Put(arrivalKey(path.Key), a); err != nil {
		return fmt.Errorf("enter what arrives: %w", err)
	}
	return nil
}

// unbind forgets which port a key is of, and where its frames go. p is the
// port's entry.
func (d *Dataplane) unbind(from uint32, p portProgsPort, key uint32) {
	delete(d.keys, key)
	if p.Peer != 0 {
		from = p.Peer
	}
	delete(d.receives, from)
}

// disconnect keeps the frames of a port's path out.
func (d *Dataplane) disconnect(from uint32, p portProgsPort) error {
	key, ok, err := d.keyOf(p)
	if err != nil || !ok {
		return err
	}
	d.unbind(from, p, key)
	return d.maps.remove("arrivals", arrivalKey(key))
}

// adoptPaths brings everything that hangs on the ports' entries in line with
// them, as a process that was stopped anywhere has left it.
func (d *Dataplane) adoptPaths() error {
	entries, err := d.entries()
	if err != nil {
		return err
	}
	for index, p := range entries {
		d.slots.take(p.Slot)
		if p.End != 0 {
			d.places.take(p.End)
		}
		if p.Netns == 0 {
			continue
		}
		b := d.nodes[p.Netns]
		if b == nil {
			b = &block{ends: map[uint32]bool{}}
			d.nodes[p.Netns] = b
		}
		b.ends[index] = true
		if p.Span > b.span && d.egress.take(p.Base, p.Span) {
			b.base, b.span = p.Base, p.Span
		}
	}
	wanted := map[uint32]bool{} // places of egress
	for index, p := range entries {
		if b := d.nodes[p.Netns]; p.Netns != 0 && (p.Base != b.base || p.Span != b.span) {
			p.Base, p.Span = b.base, b.span
			if err := d.setEntry(int(index), p); err != nil {
				return err
			}
		}
		if p.Netns != 0 && p.Base != 0 && p.Ifindex < p.Span {
			wanted[p.Base+p.Ifindex] = true
		}
	}
	keys := map[uint32]bool{}
	for index, p := range entries {
		if err := d.settle(index); err != nil {
			return err
		}
		key, ok, err := d.keyOf(p)
		if err != nil {
			return err
		}
		if ok {
			to := index
			if p.Peer != 0 {
				to = p.Peer
			}
			d.keys[key], d.receives[to] = index, index
			keys[arrivalKey(key)] = true
			if err := d.admit(index); err != nil {
				return err
			}
		}
	}
	for place := range uint32(maxEgress) {
		if !wanted[place] && d.egress.get(place) != 0 {
			d.egress.set(place, 0)
		}
	}
	return errors.Join(
		prune(d.maps["arrivals"], func(key uint32) bool { return keys[key] }),
		prune(d.maps["far_egress"], func(key portProgsEndKey) bool {
			b := d.nodes[key.Netns]
			return b != nil && (b.base == 0 || key.Ifindex >= b.span) && d.isEnd(entries, key)
		}),
	)
}

func (d *Dataplane) isEnd(entries map[uint32]portProgsPort, key portProgsEndKey) bool {
	for _, p := range entries {
		if p.Netns == key.Netns && p.Ifindex == key.Ifindex && p.End != 0 {
			return true
		}
	}
	return false
}

// prune deletes the keys of a map that are not to be kept.
func prune[K any](m *ebpf.Map, keep func(K) bool) error {
	var (
		key   K
		value = make([]byte, m.ValueSize())
		gone  []K
	)
	it := m.Iterate()
	for it.Next(&key, &value) {
		if !keep(key) {
			gone = append(gone, key)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read the map %v: %w", m, err)
	}
	for _, k := range gone {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete an entry of the map %v: %w", m, err)
		}
	}
	return nil
}
