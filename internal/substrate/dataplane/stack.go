package dataplane

import "fmt"

// metadataTap is METADATA_TAP of bpf/metadata.h.
const metadataTap = 1 << 31

// StackReason says why a packet left the fast path for its node's stack
// (bpf/stack.h).
type StackReason string

// Reasons for the stack.
const (
	StackOff StackReason = "off" // the fast path is off at the node's interface

	// Of the frame:
	StackMAC       StackReason = "mac"       // for a group's or another's MAC address
	StackNotIP     StackReason = "not-ip"    // ARP, VLAN-tagged, IS-IS, …
	StackMalformed StackReason = "malformed" // a wrong checksum or length, or cut
	StackOptions   StackReason = "options"   // IPv4 options, IPv6 extension headers
	StackFragment  StackReason = "fragment"
	StackTTL       StackReason = "ttl"       // it ends here
	StackAddress   StackReason = "address"   // multicast, loopback, link-local, …
	StackTransport StackReason = "transport" // ICMP but echoes, AH, a header that is cut

	// Of what the node's root has set up:
	StackNetfilter StackReason = "netfilter"
	StackTC        StackReason = "tc"     // a program, filter or qdisc at an interface
	StackMaster    StackReason = "master" // the interface is in a bridge, bond or VRF, or has a macvlan
	StackSysctl    StackReason = "sysctl" // rp_filter, forwarding, multipath hash policy, …
	StackIPsec     StackReason = "ipsec"
	StackRules     StackReason = "rules" // routing rules that the lookup cannot follow

	// Of the FIB:
	StackLocal       StackReason = "local"       // for the node itself, or no route
	StackUnreachable StackReason = "unreachable" // a route says so: blackhole, unreachable, prohibit
	StackForwarding  StackReason = "forwarding"  // the interface does not forward
	StackEncapRoute  StackReason = "encap-route" // the route encapsulates
	StackNeighbour   StackReason = "neighbour"   // not resolved
	StackMTU         StackReason = "mtu"         // longer than the route, link or device carries
	StackRedirect    StackReason = "redirect"    // it leaves by the interface that it came by
	StackSource      StackReason = "source"      // the node's own address, or not routed
	StackLookup      StackReason = "lookup"      // failed

	// Of the interface that it leaves by:
	StackEgress StackReason = "egress" // of a LAN, delayed or lossy, or the node's own
	StackDown   StackReason = "down"   // or without carrier
	StackRate   StackReason = "rate"   // its rate is used up, or its queue has not drained yet
)

// stackReasons names the reasons in the order of their numbers; 0 is none.
var stackReasons = [fastProgsStackReasonSTACK_REASONS]StackReason{
	fastProgsStackReasonSTACK_OFF: StackOff,

	fastProgsStackReasonSTACK_MAC:       StackMAC,
	fastProgsStackReasonSTACK_NOT_IP:    StackNotIP,
	fastProgsStackReasonSTACK_MALFORMED: StackMalformed,
	fastProgsStackReasonSTACK_OPTIONS:   StackOptions,
	fastProgsStackReasonSTACK_FRAGMENT:  StackFragment,
	fastProgsStackReasonSTACK_TTL:       StackTTL,
	fastProgsStackReasonSTACK_ADDRESS:   StackAddress,
	fastProgsStackReasonSTACK_TRANSPORT: StackTransport,

	fastProgsStackReasonSTACK_NETFILTER: StackNetfilter,
	fastProgsStackReasonSTACK_TC:        StackTC,
	fastProgsStackReasonSTACK_MASTER:    StackMaster,
	fastProgsStackReasonSTACK_SYSCTL:    StackSysctl,
	fastProgsStackReasonSTACK_IPSEC:     StackIPsec,
	fastProgsStackReasonSTACK_RULES:     StackRules,

	fastProgsStackReasonSTACK_LOCAL:       StackLocal,
	fastProgsStackReasonSTACK_UNREACHABLE: StackUnreachable,
	fastProgsStackReasonSTACK_FORWARDING:  StackForwarding,
	fastProgsStackReasonSTACK_ENCAP_ROUTE: StackEncapRoute,
	fastProgsStackReasonSTACK_NEIGHBOUR:   StackNeighbour,
	fastProgsStackReasonSTACK_MTU:         StackMTU,
	fastProgsStackReasonSTACK_REDIRECT:    StackRedirect,
	fastProgsStackReasonSTACK_SOURCE:      StackSource,
	fastProgsStackReasonSTACK_LOOKUP:      StackLookup,

	fastProgsStackReasonSTACK_EGRESS: StackEgress,
	fastProgsStackReasonSTACK_DOWN:   StackDown,
	fastProgsStackReasonSTACK_RATE:   StackRate,
}

// exitsToStack reads what left the fast path, by the slot of a device.
func (d *Dataplane) exitsToStack(slot uint32) (map[StackReason]uint64, error) {
	var each fastProgsStackCounts
	if err := d.maps["stack_exits"].Lookup(slot, &each); err != nil {
		return nil, fmt.Errorf("read the counters of what left the fast path: %w", err)
	}
	found := map[StackReason]uint64{}
	for i, reason := range stackReasons {
		if n := each.Packets[i]; n != 0 && i != 0 {
			found[reason] = n
		}
	}
	return found, nil
}
