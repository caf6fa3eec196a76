// Package links keeps one view of the devices of the root context and of their
// queueing disciplines, so that nobody reads the whole machine to learn about one
// virtual network.
//
// The view is read once, and kept current by what the kernel notifies of (the
// groups RTNLGRP_LINK and RTNLGRP_TC). Notifications lie in the socket before the
// kernel acknowledges the change that they are about; so whoever has changed
// something and calls [Table.Sync] sees its own change, without asking the kernel.
// Two changes go without a notification while a device is down (netdev_state_change
// in net/core/dev.c): of its alias and of a bridge port's isolation; whoever makes
// those calls [Table.Refresh] with the devices' names. Where the kernel had more to
// notify of than the socket could hold, everything is read anew.
package links

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/port"
	"trellis/internal/substrate/rtnl"
	"trellis/internal/substrate/shaper"
	"trellis/internal/vnet"
)

// receiveBuffer holds the notifications of some ten thousand changes.
const receiveBuffer = 64 << 20

// Device is a device of the instance.
type Device struct {
	port.State
	VNet   string     // whose it is
	Object string     // what of the VNet's: "denver:eth1", "@exchange", …; see plan.Alias
	Shape  vnet.Shape // of its root qdisc; zero: none that is ours
}

// Table is the view. Its methods may be called from several goroutines.
type Table struct {
	prefix  string // of the aliases of the instance
	monitor *rtnl.Monitor
	ended   chan struct{}

	mu    sync.Mutex
	conn  *rtnl.Conn
	stale bool // notifications were lost
	links map[int]*entry
	names map[string]int              // interface index by name
	owned map[string]map[int]struct{} // interface indexes by VNet
	// changed are the VNets of which a port has gone, or has got or lost its carrier,
	// since TakeChanged; ports tells that there are any.
	changed map[string]struct{}
	ports   chan struct{}
	groups  map[uint32]map[string]struct{} // see GroupShared; VNets are never taken out while they own devices
}

// entry is a device as the table keeps it.
type entry struct {
	port.State
	master       int
	vnet, object string // "": not of the instance
	shape        vnet.Shape
}

// Open reads the devices of the calling thread's network namespace, and follows
// them from then on.
func Open(instance string) (_ *Table, err error) {
	t := &Table{prefix: "trellis:" + instance + ":", ended: make(chan struct{}), changed: map[string]struct{}{}, ports: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			err = fmt.Errorf("watch the machine's devices: %w", err)
		}
	}()
	if t.conn, err = rtnl.Dial(); err != nil {
		return nil, err
	}
	if t.monitor, err = rtnl.Listen(unix.RTNLGRP_LINK, unix.RTNLGRP_TC); err != nil {
		return nil, errors.Join(err, t.conn.Close())
	}
	if err = t.monitor.SetBuffer(receiveBuffer); err == nil {
		err = t.read()
	}
	if err != nil {
		return nil, errors.Join(err, t.monitor.Close(), t.conn.Close())
	}
	go t.follow()
	return t, nil
}

// Close ends it.
func (t *Table) Close() error {
	err := t.monitor.Close()
	<-t.ended
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(err, t.conn.Close())
}

// follow takes notifications in as they come, so that they do not pile up.
func (t *Table) follow() {
	defer close(t.ended)
	for t.monitor.Wait() == nil {
		// An error is met again, and reported, by whoever needs the view.
		_ = t.Sync()
	}
}

// Sync brings the view up to date with every change that the kernel has
// acknowledged.
func (t *Table) Sync() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sync()
}

func (t *Table) sync() error {
	for {
		more, err := t.monitor.Poll(t.take)
		switch {
		case errors.Is(err, rtnl.ErrOverrun):
			t.stale = true
		case err != nil:
			return err
		case !more && t.stale:
			return t.read()
		case !more:
			return nil
		}
	}
}

// read reads everything anew. What is notified of meanwhile is taken in after it:
// it is as new as what was read, or newer.
func (t *Table) read() error {
	t.stale = true
	links, err := t.conn.Links()
	if err != nil {
		return fmt.Errorf("read the machine's devices: %w", err)
	}
	shapes, err := shaper.Read()
	if err != nil {
		return err
	}
	t.links = make(map[int]*entry, len(links))
	t.names = make(map[string]int, len(links))
	t.owned, t.groups = map[string]map[int]struct{}{}, map[uint32]map[string]struct{}{}
	for i := range links {
		t.put(&links[i])
	}
	for index, q := range shapes {
		if e := t.links[index]; e != nil {
			e.shape = q.Shape
		}
	}
	t.stale = false
	for _, e := range t.links { // of what was lost, nobody knows what it was about
		t.portChanged(e)
	}
	return nil
}

// take takes one notification in.
func (t *Table) take(typ uint16, body []byte) {
	switch typ {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		// A bridge's messages about its ports (AF_BRIDGE) have but a part of the
		// attributes, and that a port has left is no end of the device.
		if len(body) < unix.SizeofIfInfomsg || body[0] != unix.AF_UNSPEC {
			return
		}
		if typ == unix.RTM_DELLINK {
			t.drop(int((*unix.IfInfomsg)(unsafe.Pointer(&body[0])).Index))
			return
		}
		l := rtnl.ParseLink(body)
		t.put(&l)
	case unix.RTM_NEWQDISC, unix.RTM_DELQDISC:
		index, q, ok := shaper.Parse(body)
		e := t.links[index]
		if !ok || e == nil {
			return
		}
		if typ == unix.RTM_DELQDISC {
			q.Shape = vnet.Shape{}
		}
		e.shape = q.Shape
	}
}

// put enters a device as it is now.
func (t *Table) put(l *rtnl.Link) {
	e := &entry{State: port.StateOf(l), master: l.Master}
	if rest, ours := strings.CutPrefix(l.Alias, t.prefix); ours {
		e.vnet, e.object, _ = strings.Cut(rest, "/")
	}
	if old := t.links[l.Index]; old != nil {
		e.shape = old.shape
		if old.Device != e.Device && t.names[old.Device] == l.Index {
			delete(t.names, old.Device)
		}
		if old.vnet != e.vnet {
			t.disown(old)
		}
		if old.Carrier != e.Carrier {
			t.portChanged(e)
		}
	}
	t.links[l.Index] = e
	t.names[e.Device] = l.Index
	if e.vnet == "" {
		return
	}
	if t.owned[e.vnet] == nil {
		t.owned[e.vnet] = map[int]struct{}{}
	}
	t.owned[e.vnet][l.Index] = struct{}{}
	if t.groups[e.Group] == nil {
		t.groups[e.Group] = map[string]struct{}{}
	}
	t.groups[e.Group][e.vnet] = struct{}{}
}

// drop forgets a device that has gone.
func (t *Table) drop(index int) {
	e := t.links[index]
	if e == nil {
		return
	}
	t.portChanged(e)
	delete(t.links, index)
	if t.names[e.Device] == index {
		delete(t.names, e.Device)
	}
	t.disown(e)
}

// portChanged notes that something has happened to a port.
func (t *Table) portChanged(e *entry) {
	if e.vnet == "" || e.Kind != port.KindPort {
		return
	}
	t.changed[e.vnet] = struct{}{}
	select {
	case t.ports <- struct{}{}:
	default:
	}
}

// PortsChanged gives a channel that tells that a port has gone, or has got or lost
// its carrier.
func (t *Table) PortsChanged() <-chan struct{} { return t.ports }

// TakeChanged gives the VNets of such ports, each once.
func (t *Table) TakeChanged() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	vnets := make([]string, 0, len(t.changed))
	for v := range t.changed {
		vnets = append(vnets, v)
	}
	clear(t.changed)
	return vnets
}

func (t *Table) disown(e *entry) {
	if e.vnet == "" {
		return
	}
	delete(t.owned[e.vnet], e.Index)
	if len(t.owned[e.vnet]) > 0 {
		return
	}
	delete(t.owned, e.vnet)
	for g, owners := range t.groups {
		if delete(owners, e.vnet); len(owners) == 0 {
			delete(t.groups, g)
		}
	}
}

// Refresh brings the view up to date, and reads the devices of these names from
// the kernel.
func (t *Table) Refresh(names ...string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	// First what was notified of before: it is older than what is read.
	if err := t.sync(); err != nil {
		return err
	}
	found, err := t.conn.LinksNamed(names...)
	if err != nil {
		return err
	}
	for _, l := range found {
		t.put(&l)
	}
	return nil
}

// Of gives the devices of a VNet, and the names of all their bridges.
func (t *Table) Of(vnet string) ([]Device, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.sync(); err != nil {
		return nil, err
	}
	devices := make([]Device, 0, len(t.owned[vnet]))
	for index := range t.owned[vnet] {
		devices = append(devices, t.device(t.links[index]))
	}
	return devices, nil
}

func (t *Table) device(e *entry) Device {
	d := Device{State: e.State, VNet: e.vnet, Object: e.object, Shape: e.shape}
	if m := t.links[e.master]; m != nil {
		d.Master = m.Device
	}
	return d
}

// Names gives the names of the machine's devices at some interface indexes, where
// there is one.
func (t *Table) Names(indexes ...int) map[int]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := make(map[int]string, len(indexes))
	for _, i := range indexes {
		if e := t.links[i]; e != nil {
			names[i] = e.Device
		}
	}
	return names
}

// Indexes gives the interface indexes of those of the devices that exist, whoever
// owns them.
func (t *Table) Indexes(names ...string) (map[string]int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.sync(); err != nil {
		return nil, err
	}
	indexes := make(map[string]int, len(names))
	for _, name := range names {
		if i, ok := t.names[name]; ok {
			indexes[name] = i
		}
	}
	return indexes, nil
}

// VNets gives the names of the VNets that own a device.
func (t *Table) VNets() ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.sync(); err != nil {
		return nil, err
	}
	vnets := make([]string, 0, len(t.owned))
	for v := range t.owned {
		vnets = append(vnets, v)
	}
	return vnets, nil
}

// Alone reports whether all devices of a link group are the VNet's.
func (t *Table) Alone(group uint32, vnet string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.sync(); err != nil {
		return false, err
	}
	for owner := range t.groups[group] {
		if owner != vnet {
			return false, nil
		}
	}
	return true, nil
}
