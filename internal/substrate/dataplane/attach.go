package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
	"trellis/internal/vnet"
)

// Role says where in the data plane a device stands.
type Role uint8

// Roles.
const (
	Port   Role = iota // a node's port, or the shaped end of a helper pair: joined with one other
	Member             // a device enslaved to a LAN's bridge
	Bridge             // the LAN's bridge device itself
)

func (r Role) String() string {
	switch r {
	case Port:
		return "port"
	case Member:
		return "member"
	case Bridge:
		return "bridge"
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// Attachment is a device that carries the programs of its role.
type Attachment struct {
	VNet, Device string
	Index        int // of the interface; 0: the device is gone, Remove forgets it
	Role         Role
	Peer         int      // interface index of the joint's other end; of a path, the port that arriving frames go to, if another; 0: none
	PeerMAC      vnet.MAC // of the node's interface at the joint's other end, if it is known
	Mode         Mode
	Path         *Path // of modes EGRE4 and EGRE6
	Inner        bool  // the far end of the pair takes XDP frames
	Fast         bool  // and forwards them on its node's behalf
}

// Attach puts the programs of the role on a device, which should be down: until
// a port is joined, they drop whatever comes. Attaching again changes nothing,
// or mends what is missing; another role replaces the programs.
func (d *Dataplane) Attach(vnet, device string, ifindex int, role Role) error {
	if err := d.attach(vnet, device, ifindex, role); err != nil {
		return fmt.Errorf("attach the data plane to %s of %s: %w", device, vnet, err)
	}
	return nil
}

func (d *Dataplane) attach(vnet, device string, ifindex int, role Role) error {
	if ifindex <= 0 {
		return fmt.Errorf("%d is no interface index", ifindex)
	}
	if _, known := hooks[role]; !known {
		return fmt.Errorf("there is no %v", role)
	}
	in, err := d.pinPath(vnet, device, "")
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Dir(in), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	for _, h := range hooks[role] {
		if err := d.attachHook(in+h.suffix, ifindex, h); err != nil {
			return err
		}
	}
	if role == Bridge {
		for _, suffix := range suffixes {
			if err := detach(in + suffix); err != nil {
				return err
			}
		}
	}
	// Until it is entered, and while its entry is of another role, the programs
	// drop what comes.
	return d.register(ifindex, role)
}

// attachHook makes the anchor at path be that of the hook.
func (d *Dataplane) attachHook(path string, ifindex int, h hook) error {
	program := d.programs[h.program]
	old, err := openAnchor(path)
	if err != nil {
		return err
	}
	if old != nil {
		defer old.Close()
		if old.index == ifindex && old.attach == h.attach {
			if old.program == d.ids[h.program] {
				return nil
			}
			return old.update(program)
		}
		if err := old.remove(); err != nil { // of an earlier device of the name
			return err
		}
	}
	return d.set(path, ifindex, h.attach, program)
}

// register enters the device in the map, unjoined, unless it is there.
func (d *Dataplane) register(ifindex int, role Role) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	entry, ok, err := d.entry(ifindex)
	if err != nil {
		return err
	}
	mode := Unjoined
	if role == Member {
		mode = Switched
	}
	switch {
	case !ok:
		slot, err := d.newSlot(ifindex)
		if err != nil {
			return err
		}
		entry = portProgsPort{Slot: slot}
	case role == Port && Mode(entry.Mode) != Switched:
		return nil // joined already, or not yet
	case Mode(entry.Mode) == mode:
		return nil
	default:
		if err := d.unjoin(ifindex); err != nil {
			return err
		}
		if entry, _, err = d.entry(ifindex); err != nil {
			return err
		}
	}
	entry.Mode = portProgsMode(mode)
	return d.setEntry(ifindex, entry)
}

func (d *Dataplane) entry(ifindex int) (e portProgsPort, ok bool, err error) {
	switch err = d.maps["ports"].Lookup(uint32(ifindex), &e); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return e, false, nil
	case err != nil:
		return e, false, fmt.Errorf("look up device %d: %w", ifindex, err)
	}
	return e, true, nil
}

func (d *Dataplane) setEntry(ifindex int, e portProgsPort) error {
	if err := d.maps["ports"].Put(uint32(ifindex), e); err != nil {
		return fmt.Errorf("set the entry of device %d: %w", ifindex, err)
	}
	return nil
}

// Read gives the attachments of the VNets, of all if none is named, sorted by
// VNet and device. A device of which a program is missing is not listed: Attach
// mends it.
func (d *Dataplane) Read(vnets ...string) ([]Attachment, error) {
	if len(vnets) == 0 {
		var err error
		if vnets, err = d.vnets(); err != nil {
			return nil, err
		}
	}
	entries, err := d.entries()
	if err != nil {
		return nil, err
	}
	var found []Attachment
	for _, vnet := range vnets {
		pins, err := d.pins(vnet)
		if err != nil {
			return nil, err
		}
		for _, pin := range pins {
			if deviceOf(pin) != pin {
				continue
			}
			a, whole, err := d.attachment(vnet, pin)
			if err != nil {
				return nil, err
			}
			if !whole {
				continue
			}
			if e, ok := entries[uint32(a.Index)]; ok {
				a.Peer, a.PeerMAC, a.Mode = int(e.Peer), macOf(e.PeerMac), Mode(e.Mode)
				if a.Mode.crosses() {
					end, err := d.end(e.End)
					if err != nil {
						return nil, err
					}
					path := end.path()
					a.Path = &path
				}
			}
			if slices.Contains(pins, pin+xdpSuffix) {
				if a.Inner, a.Fast, err = d.innerOf(vnet, pin); err != nil {
					return nil, err
				}
			}
			found = append(found, a)
		}
	}
	slices.SortFunc(found, func(a, b Attachment) int {
		return cmp.Or(cmp.Compare(a.VNet, b.VNet), cmp.Compare(a.Device, b.Device))
	})
	return found, nil
}

// attachment reads a device's anchors; whole is false if one is missing, or its
// program. Of a device that is gone nothing is missing.
func (d *Dataplane) attachment(vnet, device string) (a Attachment, whole bool, err error) {
	path := filepath.Join(d.dir, vnet, device)
	in, err := openAnchor(path)
	if err != nil || in == nil {
		return a, false, err
	}
	defer in.Close()
	if in.program == 0 {
		return Attachment{VNet: vnet, Device: device}, in.index == 0, nil
	}
	name, err := d.programName(in.program)
	if err != nil {
		return a, false, err
	}
	a = Attachment{VNet: vnet, Device: device, Index: in.index, Role: roles[name]}
	for _, h := range hooks[a.Role] {
		if h.suffix == "" {
			continue
		}
		other, err := openAnchor(path + h.suffix)
		if err != nil || other == nil {
			return a, false, err
		}
		defer other.Close()
		if other.index != in.index || other.program != d.ids[h.program] {
			return a, false, nil
		}
	}
	return a, true, nil
}

// Remove detaches the devices of a VNet, all of them if none is named, and
// forgets them. A device that still exists is taken down first: without its
// programs, what its node sends would reach the root context's stack.
func (d *Dataplane) Remove(vnet string, devices ...string) error {
	if _, err := d.pinPath(vnet, "x", ""); err != nil {
		return fmt.Errorf("remove the data plane of a VNet: %w", err)
	}
	all := len(devices) == 0
	if all {
		pins, err := d.pins(vnet)
		if err != nil {
			return err
		}
		for _, p := range pins {
			devices = append(devices, deviceOf(p))
		}
		slices.Sort(devices)
		devices = slices.Compact(devices)
	}
	indexes, err := d.indexes(vnet, devices)
	if err != nil {
		return err
	}
	if err := takeDown(indexes); err != nil {
		return fmt.Errorf("remove the data plane of %s: %w", vnet, err)
	}
	var errs []error
	for _, device := range devices {
		path, err := d.pinPath(vnet, device, "")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, suffix := range suffixes {
			errs = append(errs, detach(path+suffix))
		}
		errs = append(errs, detach(path))
	}
	errs = append(errs, d.forget(indexes))
	if all {
		if err := os.Remove(filepath.Join(d.dir, vnet)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the directory of %s: %w", vnet, err))
		}
	}
	return errors.Join(errs...)
}

// indexes gives the interface indexes of those of the devices that still exist.
func (d *Dataplane) indexes(vnet string, devices []string) ([]int, error) {
	var found []int
	for _, device := range devices {
		for _, suffix := range []string{"", outSuffix} {
			path, err := d.pinPath(vnet, device, suffix)
			if err != nil {
				return nil, err
			}
			l, err := openAnchor(path)
			if err != nil {
				return nil, err
			}
			if l == nil {
				continue
			}
			if l.index != 0 {
				found = append(found, l.index)
			}
			if err := l.Close(); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// takeDown takes devices down; those that have gone meanwhile are no error.
func takeDown(indexes []int) error {
	if len(indexes) == 0 {
		return nil
	}
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	var b rtnl.Batch
	for _, i := range indexes {
		b.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(i, 0, unix.IFF_UP))
	}
	failed, err := c.Execute(&b)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range failed {
		if !errors.Is(f.Err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("take device %d down: %w", indexes[f.Index], f.Err))
		}
	}
	return errors.Join(errs...)
}

// forget removes the entries of the devices, and of all others that no longer
// exist. Entries of devices that went before Remove was called are found by
// asking which interfaces there are; under the lock, since one that is made and
// registered after that is no less alive.
func (d *Dataplane) forget(indexes []int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, err := rtnl.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	links, err := c.Links()
	if err != nil {
		return fmt.Errorf("read the devices of the root context: %w", err)
	}
	alive := make(map[uint32]bool, len(links))
	for i := range links {
		alive[uint32(links[i].Index)] = true
	}
	for _, i := range indexes {
		delete(alive, uint32(i))
	}
	return d.forgetExcept(alive)
}

// forgetExcept removes the entries of devices that are not alive, and parts
// those that were joined with them.
func (d *Dataplane) forgetExcept(alive map[uint32]bool) error {
	entries, err := d.entries()
	if err != nil {
		return err
	}
	for index, entry := range entries {
		if alive[index] {
			if entry.Peer != 0 && !alive[entry.Peer] {
				if err := d.unjoin(int(index)); err != nil {
					return err
				}
			}
			continue
		}
		if err := d.forgetPort(index, entry); err != nil {
			return err
		}
	}
	return nil
}

// forgetPort removes all that the maps have of a port.
func (d *Dataplane) forgetPort(index uint32, entry portProgsPort) error {
	if err := d.disconnect(index, entry); err != nil {
		return err
	}
	if err := d.release(index, entry); err != nil {
		return err
	}
	if err := d.maps.remove("ports", index); err != nil {
		return fmt.Errorf("forget device %d: %w", index, err)
	}
	if entry.End != 0 {
		d.places.put(entry.End)
	}
	// Taps are by slot, which will be another's.
	delete(d.taps, entry.Slot)
	if err := d.maps.remove("taps", entry.Slot); err != nil {
		return err
	}
	return d.freeSlot(entry.Slot)
}
