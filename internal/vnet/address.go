package vnet

import (
	"math"
	"net/netip"
)

// A pool is split: loopbacks are drawn from its lower half, the subnets of
// point-to-point links from its third quarter, those of LANs from its fourth. So
// objects of one kind cannot get in the way of those of another.

// Prefix lengths of automatic subnets. A LAN gets 254 hosts in IPv4, so that one
// that grows keeps its addresses, and the 64 bits that stateless configuration
// wants (RFC 4291, section 2.5.1) in IPv6.
const (
	lanBitsIPv4 = 24
	lanBitsIPv6 = 64
	p2pBitsIPv4 = 31  // RFC 3021
	p2pBitsIPv6 = 127 // RFC 6164
	// A pool must hold this many LANs (as a power of two) before one gets its
	// full size; from smaller pools a LAN gets what its ends need.
	lanRoomBits = 6
)

// family says how one address family is drawn.
type family struct {
	pool         netip.Prefix // masked; invalid: not used
	loopbackPool netip.Prefix // half of the pool: loopbacks
	p2pPool      netip.Prefix // quarter of the pool: point-to-point links
	lanPool      netip.Prefix // quarter of the pool: LANs
	p2p          int          // prefix length of a point-to-point link
	space        *space
}

func newFamily(pool netip.Prefix, p2p int) *family {
	f := &family{p2p: p2p, space: newSpace()}
	if !pool.IsValid() || pool.Bits()+2 > pool.Addr().BitLen() {
		return f
	}
	f.pool = pool.Masked()
	quarter := func(i uint64) netip.Prefix {
		bits := pool.Bits() + 2
		return netip.PrefixFrom(offset(f.pool.Addr(), i, pool.Addr().BitLen()-bits), bits)
	}
	f.loopbackPool, f.p2pPool, f.lanPool = netip.PrefixFrom(f.pool.Addr(), pool.Bits()+1), quarter(2), quarter(3)
	f.space.want(pool.Addr().BitLen())
	f.space.want(p2p)
	return f
}

// lanBits gives the length of the prefix for a LAN with so many ends.
func (f *family) lanBits(ends int) int {
	total := f.pool.Addr().BitLen()
	// Two addresses are kept free: the network's and the broadcast one in IPv4,
	// the subnet routers' anycast address (RFC 4291, section 2.6.1) in IPv6.
	need := 2
	for 1<<need < ends+2 {
		need++
	}
	full := lanBitsIPv4
	if total == 128 {
		full = lanBitsIPv6
	}
	if full >= f.lanPool.Bits()+lanRoomBits {
		return min(full, total-need)
	}
	return total - need
}

// loopback draws a node's loopback address.
func (f *family) loopback(node string) (netip.Addr, bool) {
	at := func(slot uint64) netip.Prefix {
		// Slot 0 would be the pool's own network address.
		a := offset(f.loopbackPool.Addr(), slot+1, 0)
		return netip.PrefixFrom(a, a.BitLen())
	}
	size := slots(f.loopbackPool.Addr().BitLen() - f.loopbackPool.Bits())
	slot, ok := drawSlot(size-1, func(s uint64) bool { return !f.space.overlaps(at(s)) }, "loopback", node)
	if !ok {
		return netip.Addr{}, false
	}
	p := at(slot)
	f.space.add(p)
	return p.Addr(), true
}

// subnet draws the subnet of a link, with the given prefix length, from a part
// of the pool.
func (f *family) subnet(from netip.Prefix, link string, bits int) (netip.Prefix, bool) {
	if bits < from.Bits() {
		return netip.Prefix{}, false
	}
	shift := from.Addr().BitLen() - bits
	at := func(slot uint64) netip.Prefix {
		return netip.PrefixFrom(offset(from.Addr(), slot, shift), bits)
	}
	slot, ok := drawSlot(slots(bits-from.Bits()), func(s uint64) bool { return !f.space.overlaps(at(s)) }, "link", link)
	if !ok {
		return netip.Prefix{}, false
	}
	p := at(slot)
	f.space.add(p)
	return p, true
}

// host draws an address inside a subnet for a node, skipping taken ones.
func host(subnet netip.Prefix, taken map[netip.Addr]bool, node string) (netip.Prefix, bool) {
	hostBits := subnet.Addr().BitLen() - subnet.Bits()
	size, first := slots(hostBits), uint64(0)
	if hostBits >= 2 {
		size, first = size-2, 1
	}
	at := func(slot uint64) netip.Addr { return offset(subnet.Addr(), slot+first, 0) }
	slot, ok := drawSlot(size, func(s uint64) bool { return !taken[at(s)] }, "host", node)
	if !ok {
		return netip.Prefix{}, false
	}
	taken[at(slot)] = true
	return netip.PrefixFrom(at(slot), subnet.Bits()), true
}

// slots gives how many things can be told apart by so many bits. IPv6 pools are
// drawn from as if they had 32 bits at most, which keeps addresses short to read.
func slots(bits int) uint64 {
	if bits >= 32 {
		return math.MaxUint32
	}
	return 1 << bits
}

// offset adds slot<<shift to an address; shift is 0 to 127 and slot is below
// 2^32. What goes beyond the address's width is lost.
func offset(a netip.Addr, slot uint64, shift int) netip.Addr {
	b := a.As16()
	carry := uint64(0)
	for i := range 16 {
		// Byte i, from the right, of slot<<shift.
		low := i*8 - shift
		var part uint64
		switch {
		case low >= 64 || low <= -8:
		case low >= 0:
			part = slot >> low & 0xff
		default:
			part = slot << -low & 0xff
		}
		sum := uint64(b[15-i]) + part + carry
		b[15-i], carry = byte(sum), sum>>8
	}
	r := netip.AddrFrom16(b)
	if a.Is4() {
		return r.Unmap()
	}
	return r
}

// space is a set of prefixes that answers quickly whether another one overlaps
// any of them, for prefixes of the wanted lengths.
type space struct {
	used    map[netip.Prefix]bool
	lengths [129]bool             // of the prefixes in used
	covers  map[netip.Prefix]bool // the prefixes of wanted lengths that contain a used one
	wanted  []int
}

func newSpace() *space {
	return &space{used: map[netip.Prefix]bool{}, covers: map[netip.Prefix]bool{}}
}

// want announces a length that overlaps will be asked about. It must come
// before the first add.
func (s *space) want(bits int) {
	for _, w := range s.wanted {
		if w == bits {
			return
		}
	}
	s.wanted = append(s.wanted, bits)
}

func (s *space) add(p netip.Prefix) {
	p = p.Masked()
	s.used[p] = true
	s.lengths[p.Bits()] = true
	for _, w := range s.wanted {
		if w < p.Bits() {
			s.covers[netip.PrefixFrom(p.Addr(), w).Masked()] = true
		}
	}
}

// overlaps needs a masked prefix.
func (s *space) overlaps(p netip.Prefix) bool {
	if s.covers[p] {
		return true
	}
	for bits := 0; bits <= p.Bits(); bits++ {
		if s.lengths[bits] && s.used[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			return true
		}
	}
	return false
}
