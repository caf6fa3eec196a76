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
	// The frame could not be edited: too short, no room, or no memory.
	DropUneditable DropReason = "uneditable"

	// Of what comes from the underlay; counted at the uplink:
	DropUnknownPeer DropReason = "unknown-peer"   // no link has this source, destination and key
	DropVersion     DropReason = "gre-version"    // not 0
	DropKeyless     DropReason = "gre-keyless"    // no key
	DropFlags       DropReason = "gre-flags"      // checksum, routing, sequence, or bits 4 and 5 (RFC 2784)
	DropProtocol    DropReason = "gre-protocol"   // GRE, but not of Ethernet
	DropFragment    DropReason = "outer-fragment" // the outer packet is one
	DropOptions     DropReason = "outer-options"  // or extension headers
	DropChecksum    DropReason = "outer-checksum" // of the outer IPv4 header, is wrong
	DropLength      DropReason = "outer-length"   // the outer packet says it is longer than it is
	DropRunt        DropReason = "runt"           // too short for GRE and an Ethernet header

	DropLong   DropReason = "too-long"       // longer than the link, or the path, carries
	DropTags   DropReason = "too-many-tags"  // more than three VLAN tags
	DropNested DropReason = "nested-offload" // a super-packet of a tunnel that the node itself has made
	// The underlay marked it as congested, and its sender knows no ECN (RFC 6040).
	DropCongestion DropReason = "congestion"
)

// dropReasons names the reasons in the order of their numbers.
var dropReasons = [portProgsDropReasonDROP_REASONS]DropReason{
	portProgsDropReasonDROP_UNJOINED:   DropUnjoined,
	portProgsDropReasonDROP_FROM_ROOT:  DropFromRoot,
	portProgsDropReasonDROP_TO_ROOT:    DropToRoot,
	portProgsDropReasonDROP_UNEDITABLE: DropUneditable,

	portProgsDropReasonDROP_UNKNOWN_PEER: DropUnknownPeer,
	portProgsDropReasonDROP_VERSION:      DropVersion,
	portProgsDropReasonDROP_KEYLESS:      DropKeyless,
	portProgsDropReasonDROP_FLAGS:        DropFlags,
	portProgsDropReasonDROP_PROTOCOL:     DropProtocol,
	portProgsDropReasonDROP_FRAGMENT:     DropFragment,
	portProgsDropReasonDROP_OPTIONS:      DropOptions,
	portProgsDropReasonDROP_CHECKSUM:     DropChecksum,
	portProgsDropReasonDROP_LENGTH:       DropLength,
	portProgsDropReasonDROP_RUNT:         DropRunt,
	portProgsDropReasonDROP_LONG:         DropLong,
	portProgsDropReasonDROP_TAGS:         DropTags,
	portProgsDropReasonDROP_NESTED:       DropNested,
	portProgsDropReasonDROP_CONGESTION:   DropCongestion,
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
	// Of these, XDP frames: what the fast path has sent on the node's behalf, and
	// what arrived at the node's end from the underlay or a neighbour's fast path.
	FastFromNodePackets, FastFromNodeBytes uint64
	FastToNodePackets, FastToNodeBytes     uint64
	Drops                                  map[DropReason]uint64 // packets; those with none are left out
	// What arrived here as XDP frames, and left the fast path for the node's stack.
	// What a stack sends arrives as skbs, and never was on the fast path.
	Stack map[StackReason]uint64
}

// Counters reads the counters of the devices of VNets, of all devices if none is
// named, by interface index. Of all, index 0 has what no device can be charged
// with. Uplinks' drops are in [Dataplane.Uplinks].
func (d *Dataplane) Counters(vnets ...string) (map[int]PortCounters, error) {
	slots := d.slotsOf(vnets)
	counted := make(map[int]PortCounters, len(slots))
	for index, slot := range slots {
		var cpus []portProgsTraffic
		if err := d.maps["counters"].Lookup(slot, &cpus); err != nil {
			return nil, fmt.Errorf("read the counters of device %d: %w", index, err)
		}
		c := sum(cpus)
		var err error
		if c.Drops, err = d.dropped(slot); err != nil {
			return nil, fmt.Errorf("device %d: %w", index, err)
		}
		if c.Stack, err = d.exitsToStack(slot); err != nil {
			return nil, fmt.Errorf("device %d: %w", index, err)
		}
		counted[index] = c
	}
	return counted, nil
}

// slotsOf gives the slots of the devices of VNets, by interface index.
func (d *Dataplane) slotsOf(vnets []string) map[int]uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	slots := map[int]uint32{}
	if len(vnets) == 0 {
		slots[0] = 0
		for index, e := range d.ports.rows {
			slots[int(index)] = e.Slot
		}
		return slots
	}
	for _, vnet := range vnets {
		for _, dev := range d.devices[vnet] {
			if e, ok := d.ports.get(uint32(dev.index)); ok {
				slots[dev.index] = e.Slot
			}
		}
	}
	return slots
}

func sum(cpus []portProgsTraffic) PortCounters {
	var c PortCounters
	for _, t := range cpus {
		c.FromNodePackets += t.FromPackets + t.FastFromPackets
		c.FromNodeBytes += t.FromBytes + t.FastFromBytes
		c.ToNodePackets += t.ToPackets + t.FastToPackets
		c.ToNodeBytes += t.ToBytes + t.FastToBytes
		c.FastFromNodePackets += t.FastFromPackets
		c.FastFromNodeBytes += t.FastFromBytes
		c.FastToNodePackets += t.FastToPackets
		c.FastToNodeBytes += t.FastToBytes
	}
	return c
}

// dropped reads what was dropped, by the slot of a device.
func (d *Dataplane) dropped(slot uint32) (map[DropReason]uint64, error) {
	var each portProgsDropped
	if err := d.maps["drops"].Lookup(slot, &each); err != nil {
		return nil, fmt.Errorf("read the counters of drops: %w", err)
	}
	found := map[DropReason]uint64{}
	for i, reason := range dropReasons {
		if n := each.Packets[i]; n != 0 {
			found[reason] = n
		}
	}
	return found, nil
}

// newSlot gives a device a slot with counters at 0, through which programs can
// redirect to it.
func (d *Dataplane) newSlot(index int) (uint32, error) {
	slot, err := d.slots.allocate()
	if err != nil {
		return 0, err
	}
	if err := d.fillSlot(slot, uint32(index)); err != nil {
		d.slots.free(slot)
		return 0, err
	}
	return slot, nil
}

func (d *Dataplane) fillSlot(slot, index uint32) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count the processors: %w", err)
	}
	if err := d.maps["counters"].Put(slot, make([]portProgsTraffic, cpus)); err != nil {
		return fmt.Errorf("clear the counters in slot %d: %w", slot, err)
	}
	if err := d.maps["drops"].Put(slot, portProgsDropped{}); err != nil {
		return fmt.Errorf("clear the counters of drops in slot %d: %w", slot, err)
	}
	if err := d.maps["stack_exits"].Put(slot, fastProgsStackCounts{}); err != nil {
		return fmt.Errorf("clear the counters of what left the fast path in slot %d: %w", slot, err)
	}
	if err := d.rates.put(slot, portProgsRate{}); err != nil {
		return fmt.Errorf("clear the rate in slot %d: %w", slot, err)
	}
	if err := d.maps["classes"].Put(slot, portProgsClass{}); err != nil {
		return fmt.Errorf("clear the class in slot %d: %w", slot, err)
	}
	if err := d.maps["devices"].Put(slot, index); err != nil {
		return fmt.Errorf("enter device %d: %w", index, err)
	}
	return nil
}

// freeSlot takes a slot back.
func (d *Dataplane) freeSlot(slot uint32) error {
	d.slots.free(slot)
	d.cuts.clear(slot)
	return d.maps.remove("devices", slot)
}
