package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"trellis/internal/tunnel"
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
	Rate         uint64       // bit/s that what the port sends conforms to, on the fast path and the qdisc's; 0: it has no fast path
	Path         *tunnel.Path // of modes EGRE4 and EGRE6
	TakesXDP     bool         // the far end of the pair takes XDP frames
	Fast         bool         // and forwards them on its node's behalf
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
	d.mu.Lock()
	defer d.mu.Unlock()
	old, known := d.device(vnet, device)
	if old.index != 0 && old.index != ifindex { // an earlier one of the name
		if err := d.forgetPorts(map[uint32]bool{uint32(old.index): true}); err != nil {
			return err
		}
	}
	// Until it is entered, and while its entry is of another role, the programs
	// drop what comes.
	if err := d.register(ifindex, role); err != nil {
		return err
	}
	now := devicePins{index: ifindex, role: role, complete: true}
	if known && old.index == ifindex && role != Bridge {
		now.xdp, now.fast = old.xdp, old.fast
	}
	d.setDevice(vnet, device, now)
	return nil
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
	entry, ok := d.ports.get(uint32(ifindex))
	switch {
	case !ok:
		return d.addPort(ifindex, role)
	case role == Port && Mode(entry.Mode) != Switched:
		return nil // joined already, or not yet
	case Mode(entry.Mode) == role.mode():
		return nil
	}
	if err := d.clearPeer(uint32(ifindex)); err != nil {
		return err
	}
	entry, _ = d.ports.get(uint32(ifindex))
	entry.Mode = portProgsMode(role.mode())
	return d.ports.put(uint32(ifindex), entry)
}

// mode is that of a device of the role before anything is joined with it.
func (r Role) mode() Mode {
	if r == Member {
		return Switched
	}
	return Unjoined
}

// addPort enters a device in a slot of its own.
func (d *Dataplane) addPort(ifindex int, role Role) error {
	slot, err := d.newSlot(ifindex)
	if err != nil {
		return err
	}
	return d.ports.put(uint32(ifindex), portProgsPort{Slot: slot, Mode: portProgsMode(role.mode())})
}
