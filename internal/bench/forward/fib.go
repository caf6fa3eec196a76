package forward

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"trellis/internal/vnet"
)

// table is the FIB of a forwarder in user space: a hash for each length of
// prefixes that it has, the longest first. With the few lengths of a bench, a
// look-up costs little of what the system calls about it do.
type table struct {
	lengths []int // in descending order
	hops    [33]map[uint32]hop
}

// hop is where a forwarder sends a packet: addresses of its own interface and of
// the next hop.
type hop struct{ src, dst vnet.MAC }

func (t *table) add(p netip.Prefix, h hop) {
	n := p.Bits()
	if t.hops[n] == nil {
		t.hops[n] = map[uint32]hop{}
		t.lengths = append(t.lengths, n)
		slices.Sort(t.lengths)
		slices.Reverse(t.lengths)
	}
	a := p.Masked().Addr().As4()
	t.hops[n][binary.BigEndian.Uint32(a[:])] = h
}

func (t *table) lookUp(dst uint32) (hop, bool) {
	for _, n := range t.lengths {
		if h, ok := t.hops[n][dst&(^uint32(0)<<(32-n))]; ok {
			return h, true
		}
	}
	return hop{}, false
}

// forward makes of a frame what a router makes of it, in place, and tells
// whether it is to be sent. Whatever a router would have to look at twice
// (options, fragments' reassembly, ICMP of its own) is dropped.
func (t *table) forward(b []byte) bool {
	const ttlAt, dstAt = 8, 16
	if len(b) < ethernetLen+ipv4Len || binary.BigEndian.Uint16(b[12:]) != etherTypeIPv4 {
		return false
	}
	ip := b[ethernetLen : ethernetLen+ipv4Len]
	if ip[0] != 0x45 || ip[ttlAt] <= 1 || checksum(ip) != 0 {
		return false
	}
	h, ok := t.lookUp(binary.BigEndian.Uint32(ip[dstAt:]))
	if !ok {
		return false
	}
	ip[ttlAt]--
	// RFC 1624, equation 3: the TTL is the upper byte of its word.
	sum := uint32(binary.BigEndian.Uint16(ip[checksumAt:])) + 0x0100
	carry := uint32(0)
	if sum >= 0xffff {
		carry = 1
	}
	binary.BigEndian.PutUint16(ip[checksumAt:], uint16(sum+carry))
	copy(b, h.dst[:])
	copy(b[6:], h.src[:])
	return true
}
