package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// DropReason says why a frame was dropped (bpf/drop.h).
type DropReason string

// Reasons for drops.
const (
	// The port has no other end: its link is not complete yet, or no more.
	DropUnjoined DropReason = "unjoined"
	// The root context's own stack tried to send into a virtual network.
	DropFromRoot DropReason = "from-root"
	// A LAN's frame was about to enter the root context's stack; counted at
	// the bridge. Each broadcast has such a copy.
	DropToRoot DropReason = "to-root"
	// The frame could not be edited: too short, or no memory.
	DropUneditable DropReason = "uneditable"
)

// dropReasons names the reasons in the order of their numbers.
var dropReasons = [portProgsDropReasonDROP_REASONS]DropReason{
	portProgsDropReasonDROP_UNJOINED:   DropUnjoined,
	portProgsDropReasonDROP_FROM_ROOT:  DropFromRoot,
	portProgsDropReasonDROP_TO_ROOT:    DropToRoot,
	portProgsDropReasonDROP_UNEDITABLE: DropUneditable,
}

// PortCounters counts the frames of one device since it was attached. Packets
// are those of the wire: a super-packet counts its segments. Bytes are of
// Ethernet frames without FCS; a super-packet's headers count once.
//
// What goes to a node in a shaped direction is counted as it is offered to the
// qdisc; shaper.Read has what the qdisc dropped.
type PortCounters struct {
	FromNodePackets, FromNodeBytes uint64
	ToNodePackets, ToNodeBytes     uint64
	Drops                          map[DropReason]uint64 // packets; those with none are left out
}

// Counters reads the counters of all devices, by interface index. Index 0 has
// what no device can be charged with.
func (d *Dataplane) Counters() (map[int]PortCounters, error) {
	entries, err := d.entries()
	if err != nil {
		return nil, err
	}
	entries[0] = portProgsPort{}
	counted := make(map[int]PortCounters, len(entries))
	for index, e := range entries {
		var cpus []portProgsTraffic
		if err := d.counters.Lookup(e.Slot, &cpus); err != nil {
			return nil, fmt.Errorf("read the counters of device %d: %w", index, err)
		}
		counted[int(index)] = sum(cpus)
	}
	return counted, nil
}

func sum(cpus []portProgsTraffic) PortCounters {
	c := PortCounters{Drops: map[DropReason]uint64{}}
	for _, t := range cpus {
		c.FromNodePackets += t.FromPackets
		c.FromNodeBytes += t.FromBytes
		c.ToNodePackets += t.ToPackets
		c.ToNodeBytes += t.ToBytes
		for i, n := range t.Drops {
			if n != 0 {
				c.Drops[dropReasons[i]] += n
			}
		}
	}
	return c
}

// clear zeroes a slot that another device had.
func (d *Dataplane) clear(slot uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count the processors: %w", err)
	}
	if err := d.counters.Put(slot, make([]portProgsTraffic, cpus)); err != nil {
		return fmt.Errorf("clear the counters in slot %d: %w", slot, err)
	}
	return nil
}
