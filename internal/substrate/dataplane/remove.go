package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// Remove detaches the devices of a VNet, all of them if none is named, and
// forgets them. A device that still exists is taken down first: without its
// programs, what its node sends would reach the root context's stack.
func (d *Dataplane) Remove(vnet string, names ...string) error {
	if _, err := d.pinPath(vnet, "x", ""); err != nil {
		return fmt.Errorf("remove the data plane of a VNet: %w", err)
	}
	if err := d.removeDevices(vnet, names); err != nil {
		return fmt.Errorf("remove the data plane of %s: %w", vnet, err)
	}
	return nil
}

func (d *Dataplane) removeDevices(vnet string, names []string) error {
	all := len(names) == 0
	pins, err := d.pins(vnet)
	if err != nil {
		return err
	}
	byDevice := make(map[string][]string, len(pins)/2)
	for _, pin := range pins {
		byDevice[deviceOf(pin)] = append(byDevice[deviceOf(pin)], pin)
	}
	if all {
		names = slices.Collect(maps.Keys(byDevice))
	}
	indexes, err := d.indexes(vnet, names, byDevice)
	if err != nil {
		return err
	}
	exists, err := takeDown(slices.Collect(maps.Values(indexes)))
	if err != nil {
		return err
	}
	var errs []error
	gone := map[uint32]bool{}
	for _, name := range names {
		pins := byDevice[name]
		slices.Reverse(pins) // the ingress last: it keeps frames from the root context
		for _, pin := range pins {
			path := filepath.Join(d.dir, vnet, pin)
			if exists[indexes[name]] {
				errs = append(errs, detach(path))
			} else { // with the device, the programs have gone
				errs = append(errs, unpin(path))
			}
		}
		if indexes[name] != 0 {
			gone[uint32(indexes[name])] = true
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	errs = append(errs, d.forgetPorts(gone))
	d.forgetDevices(vnet, names)
	if all {
		if err := os.Remove(filepath.Join(d.dir, vnet)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove its directory: %w", err))
		}
	}
	return errors.Join(errs...)
}

// indexes gives the interface indexes of the devices, as they were attached; those
// that are not known, as their pins tell.
func (d *Dataplane) indexes(vnet string, names []string, pins map[string][]string) (map[string]int, error) {
	found := make(map[string]int, len(names))
	d.mu.Lock()
	for _, name := range names {
		if dev, ok := d.device(vnet, name); ok && dev.index != 0 {
			found[name] = dev.index
		}
	}
	d.mu.Unlock()
	for _, name := range names {
		for _, pin := range pins[name] {
			if found[name] != 0 || strings.HasSuffix(pin, xdpSuffix) { // that is of another namespace, perhaps
				continue
			}
			a, err := openAnchor(filepath.Join(d.dir, vnet, pin))
			if err != nil {
				return nil, err
			}
			if a != nil {
				found[name] = a.index
				if err := a.Close(); err != nil {
					return nil, err
				}
			}
		}
	}
	return found, nil
}

// takeDown takes devices down, and tells which there are.
func takeDown(indexes []int) (exists map[int]bool, err error) {
	exists = make(map[int]bool, len(indexes))
	var b rtnl.Batch
	for _, i := range indexes {
		if i != 0 {
			exists[i] = true
		}
	}
	asked := slices.Collect(maps.Keys(exists))
	if len(asked) == 0 {
		return exists, nil
	}
	c, err := rtnl.Dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, i := range asked {
		b.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(i, 0, unix.IFF_UP))
	}
	failed, err := c.Execute(&b)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range failed {
		if errors.Is(f.Err, unix.ENODEV) {
			delete(exists, asked[f.Index])
			continue
		}
		errs = append(errs, fmt.Errorf("take device %d down: %w", asked[f.Index], f.Err))
	}
	return exists, errors.Join(errs...)
}

// forgetPorts removes all that the maps have of devices, and unjoins those that
// were joined with them.
func (d *Dataplane) forgetPorts(gone map[uint32]bool) error {
	for index := range gone {
		entry, ok := d.ports.get(index)
		if !ok {
			continue
		}
		// The port that it is joined with, and that whose path's frames go to it.
		for _, other := range []uint32{entry.Peer, d.pathOf[index]} {
			if e, ok := d.ports.get(other); !ok || gone[other] || e.Peer != index {
				continue
			}
			if err := d.clearPeer(other); err != nil {
				return err
			}
		}
		if err := d.forgetPort(index); err != nil {
			return err
		}
	}
	return nil
}

// forgetPort removes all that the maps have of a port.
func (d *Dataplane) forgetPort(index uint32) error {
	entry, _ := d.ports.get(index)
	if err := d.removeTunnel(index, entry); err != nil {
		return err
	}
	if err := d.leaveBlock(index, entry); err != nil {
		return err
	}
	if err := d.ports.remove(index); err != nil {
		return fmt.Errorf("forget device %d: %w", index, err)
	}
	if entry.Egress != 0 {
		if err := d.freeEgress(entry.Egress); err != nil {
			return err
		}
	}
	// Taps are by slot, which will be another's.
	if d.taps[entry.Slot] != nil {
		delete(d.taps, entry.Slot)
		if err := d.maps.remove("taps", entry.Slot); err != nil {
			return err
		}
	}
	return d.freeSlot(entry.Slot)
}
