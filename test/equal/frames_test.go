package equal

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
)

// shot is a frame, the interface that it comes in at, and what the underlay has done to it.
type shot struct {
	in        int
	frame     []byte
	congested bool // marked so (ECN)
	padding   int  // bytes behind the outer packet
}

func (s shot) String() string {
	text := fmt.Sprintf("in at %s: %x", ifaces[s.in].name, s.frame)
	if s.congested {
		text += ", marked as congested"
	}
	if s.padding > 0 {
		text += fmt.Sprintf(", with %d bytes of padding", s.padding)
	}
	return text
}

// maker makes frames for a world.
type maker struct {
	*rand.Rand
	dst4, dst6 []netip.Prefix // where routes lead
	plain      bool           // the frame in the making is one that a router just forwards
}

func (m *maker) one(in int) bool { return m.IntN(in) == 0 }
func (m *maker) odd(in int) bool { return !m.plain && m.one(in) }

func (m *maker) pick(of ...int) int   { return of[m.IntN(len(of))] }
func (m *maker) bytes(n int) []byte   { b := make([]byte, n); m.fill(b); return b }
func (m *maker) byte() byte           { return byte(m.Uint32()) }
func (m *maker) be16() []byte         { return binary.BigEndian.AppendUint16(nil, uint16(m.Uint32())) }
func (m *maker) addr(s string) []byte { return netip.MustParseAddr(s).AsSlice() }

func (m *maker) fill(b []byte) {
	for i := range b {
		b[i] = byte(m.Uint32())
	}
}

// choice picks one of several ways, of which the first two are odd.
func (m *maker) choice(of int) int {
	if m.plain {
		return 2 + m.IntN(of-2)
	}
	return m.IntN(of)
}

// rare picks an odd way, or -1: none.
func (m *maker) rare(of int) int {
	if m.plain {
		return -1
	}
	return m.IntN(of)
}

// within gives an address of a prefix.
func (m *maker) within(p netip.Prefix) []byte {
	a := p.Addr().AsSlice()
	for i := p.Bits(); i < len(a)*8; i++ {
		if m.one(2) {
			a[i/8] |= 0x80 >> (i % 8)
		}
	}
	return a
}

// strange are addresses that routers treat in ways of their own.
var strange4 = []string{
	"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.1.2.3", "224.0.0.1", "224.0.0.5", "239.1.2.3", "240.0.0.1", "255.255.255.255", "169.254.1.1",
	"10.1.0.1", "10.2.0.1", "10.3.0.1", "10.4.0.1", "10.5.0.1", "10.255.0.1", "10.1.0.255", "10.2.0.255", "10.3.0.0", "10.4.0.255", "10.2.0.77", "100.64.0.1",
}

var strange6 = []string{
	"::", "::1", "::ffff:10.1.0.2", "64:ff9b::1", "fe80::1", "fe80::2", "fec0::1", "ff02::1", "ff02::5", "ff0e::1", "ff01::1", "2002:a01:2::1",
	"fd01::1", "fd02::1", "fd03::1", "fd04::1", "fd05::1", "fd0f::1", "fd01::", "fd02::", "fd02::77", "::a01:2",
}

func (m *maker) source4(in int) []byte {
	switch m.choice(10) {
	case 0:
		return m.addr(strange4[m.IntN(len(strange4))])
	case 1:
		return m.bytes(4)
	case 2, 3, 4:
		return []byte{10, byte(in + 1), 0, byte(2 + m.IntN(3))}
	}
	return []byte{30, m.byte(), m.byte(), m.byte()}
}

func (m *maker) target4() []byte {
	switch m.choice(12) {
	case 0:
		return m.addr(strange4[m.IntN(len(strange4))])
	case 1:
		return m.bytes(4)
	case 2, 3:
		return []byte{10, byte(1 + m.IntN(5)), 0, byte(2 + m.IntN(4))}
	}
	return m.within(m.dst4[m.IntN(len(m.dst4))])
}

func (m *maker) source6(in int) []byte {
	switch m.choice(10) {
	case 0:
		return m.addr(strange6[m.IntN(len(strange6))])
	case 1:
		return m.bytes(16)
	case 2, 3, 4:
		return append([]byte{0xfd, byte(in + 1)}, append(make([]byte, 13), byte(2+m.IntN(3)))...)
	}
	return append([]byte{0x20, 1, 0xd, 0xb8, 0xee, m.byte()}, m.bytes(10)...)
}

func (m *maker) target6() []byte {
	switch m.choice(12) {
	case 0:
		return m.addr(strange6[m.IntN(len(strange6))])
	case 1:
		return m.bytes(16)
	case 2, 3:
		return append([]byte{0xfd, byte(1 + m.IntN(5))}, append(make([]byte, 13), byte(2+m.IntN(4)))...)
	}
	return m.within(m.dst6[m.IntN(len(m.dst6))])
}

// size is how long what a header carries is.
func (m *maker) size(header int) int {
	switch m.IntN(12) {
	case 0:
		return max(0, m.pick(68, 576, 600, 1000, 1280, 1300, 1400, 1458, 1500)-header+m.IntN(5)-2)
	case 1:
		return m.IntN(1500 - header)
	case 2:
		return m.IntN(8)
	}
	return m.IntN(100)
}

// shots makes frames: some by themselves, others of one flow in a row, of which the uplink can forward
// by itself those that come behind the first (cut-through).
func (m *maker) shots(n int) []shot {
	all := make([]shot, 0, n)
	for len(all) < n {
		s := m.shot()
		all = append(all, s)
		for len(all) < n && !m.one(4) {
			all = append(all, m.next(s))
		}
	}
	return all
}

// next makes the frame behind another of its flow, or what looks like it.
func (m *maker) next(s shot) shot {
	s.frame = slices.Clone(s.frame)
	f := s.frame
	four, six := len(f) >= 34 && f[12] == 8 && f[13] == 0 && f[14] == 0x45, len(f) >= 54 && f[12] == 0x86 && f[13] == 0xdd
	switch kind := m.IntN(30); {
	case kind < 9 || kind > 22: // the same again
	case kind == 9:
		f[m.pick(0, 5)] ^= 1 << m.IntN(8)
	case kind == 10 && four:
		f[22] = m.ttl()
		sum4(f[14:34])
	case kind == 10 && six:
		f[21] = m.ttl()
	case kind == 11 && four:
		f[15] = m.byte()
		sum4(f[14:34])
	case kind == 11 && six:
		f[15+m.IntN(3)] ^= m.byte()
	case kind == 12 && four: // fragments
		f[20], f[21] = byte(m.pick(0, 0x20, 0x40, 0x80)), byte(m.pick(0, 0, 1))
		sum4(f[14:34])
	case kind <= 15 && four || six && kind <= 15: // of another length
		header := 34
		if six {
			header = 54
		}
		f = append(f[:header], append(f[header:min(len(f), header+8)], m.bytes(m.size(header-14))...)...)
		f = f[:min(len(f), ifaces[s.in].mtu+18)]
		if four {
			binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
			sum4(f[14:34])
		} else {
			binary.BigEndian.PutUint16(f[18:], uint16(len(f)-54))
		}
	case kind == 16:
		f = append(f, make([]byte, m.IntN(60))...)
	case kind == 17:
		f = f[:min(len(f), 14+m.IntN(len(f)))]
	case kind == 18:
		f[m.IntN(len(f))] ^= 1 << m.IntN(8)
	case kind == 19:
		s.padding = 1 + m.IntN(40)
	case kind == 20:
		s.congested = true
	case kind == 21 && len(f) > 42 && (four || six): // of other ports
		f[len(f)-m.IntN(8)-1] ^= m.byte()
		f[34+m.IntN(8)] ^= m.byte()
	case kind == 22 && four: // to its neighbour's host
		f[33] ^= m.byte()
		sum4(f[14:34])
	case kind == 22 && six:
		f[53] ^= m.byte()
	}
	s.frame = f[:min(len(f), ifaces[s.in].mtu+18)]
	return s
}

// shot makes a frame.
func (m *maker) shot() shot {
	s := shot{in: m.pick(0, 0, 0, 1, 2)}
	m.plain = m.one(2)
	to, from := ifaces[s.in].mac, [6]byte{2, 0, 0, 0, 0xb0, byte(s.in)}
	switch m.rare(40) {
	case 0:
		to[5] ^= 1 << m.IntN(8)
	case 1:
		to = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	case 2:
		to[0] |= 1
	case 3:
		from[0] |= 1
	}
	f := append(append(make([]byte, 0, 128), to[:]...), from[:]...)
	if m.odd(50) {
		f = append(f, byte(m.pick(0x81, 0x88)), byte(m.pick(0, 0xa8)), 0, m.byte())
	}
	kind := m.choice(40)
	switch {
	case kind == 0:
		f = append(append(f, m.be16()...), m.bytes(m.size(0))...)
	case kind == 1: // IP of the other version, or none
		f = append(append(f, byte(m.pick(8, 0x86)), byte(m.pick(0, 0xdd))), m.bytes(m.size(0))...)
	case kind < 23:
		f = append(append(f, 8, 0), m.ipv4(s.in)...)
	default:
		f = append(append(f, 0x86, 0xdd), m.ipv6(s.in)...)
	}
	if m.odd(30) {
		f = f[:14+m.IntN(len(f)-13)]
	}
	if m.odd(8) {
		f = append(f, make([]byte, m.IntN(60))...)
	}
	if m.odd(20) {
		f[m.IntN(len(f))] ^= 1 << m.IntN(8)
	}
	// The link takes no more.
	s.frame = f[:min(len(f), ifaces[s.in].mtu+18)]
	return s
}

func (m *maker) ipv4(in int) []byte {
	h := []byte{0x45, m.tos(), 0, 0, m.byte(), m.byte(), 0, 0, m.ttl(), 0, 0, 0}
	src, dst := m.source4(in), m.target4()
	h = append(append(h, src...), dst...)
	switch m.choice(12) {
	case 0:
		h[6], h[7] = m.byte(), m.byte() // fragment
	case 1:
		h[6] = 0x20 // the first of several
	case 2:
		h[6] = 0x80
	case 3, 4, 5, 6:
		h[6] = 0x40
	}
	if m.odd(20) {
		h = append(h, m.options4()...)
		h[0] = 0x40 | byte(len(h)/4)
	}
	protocol, payload := m.upper(m.size(len(h)), false, func() []byte {
		return append([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0}, append(append(append([]byte{}, dst...), m.target4()...), m.bytes(8)...)...)
	})
	h[9] = protocol
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+len(payload)))
	switch m.rare(40) {
	case 0:
		h[3] += byte(m.IntN(5)) - 2
	case 1:
		h[0] = m.byte()
	case 2:
		copy(h[2:], m.be16())
	case 3:
		binary.BigEndian.PutUint16(h[2:], uint16(m.IntN(28)))
	}
	if ihl := int(h[0]&15) * 4; ihl >= 20 && ihl <= len(h) {
		sum4(h[:ihl])
	} else {
		sum4(h)
	}
	if m.odd(30) {
		h[10+m.IntN(2)] ^= 1 << m.IntN(8)
	}
	return append(h, payload...)
}

func (m *maker) tos() byte {
	if m.one(2) {
		return 0
	}
	return m.byte()
}

func (m *maker) ttl() byte {
	if m.odd(8) {
		return byte(m.pick(0, 1, 2, 255))
	}
	return byte(3 + m.IntN(252))
}

// options4 are IPv4 options, but for the timestamp: that one tells the time.
func (m *maker) options4() []byte {
	address := m.addr(strange4[m.IntN(len(strange4))])
	switch m.IntN(7) {
	case 0:
		return []byte{1, 1, 1, 0}
	case 1:
		return append([]byte{1, 7, 7, 4}, make([]byte, 4)...) // record the route
	case 2:
		return append([]byte{1, 131, 7, 4}, address...) // loose source route
	case 3:
		return append([]byte{1, 137, 7, 4}, address...) // strict
	case 4:
		return []byte{148, 4, 0, 0} // router alert
	case 5:
		return []byte{136, 4, 0, 1} // stream
	}
	b := m.bytes(4 * (1 + m.IntN(10)))
	for i := range b {
		if b[i] == 68 {
			b[i] = 1
		}
	}
	return b
}

// upper is what an IP packet carries, and its protocol. inner makes the packet
// that an ICMP error tells of.
func (m *maker) upper(size int, v6 bool, inner func() []byte) (protocol byte, payload []byte) {
	echo, reply, errors, icmp := byte(8), byte(0), []byte{3, 4, 5, 11, 12}, byte(1)
	if v6 {
		echo, reply, errors, icmp = 128, 129, []byte{1, 2, 3, 4}, 58
	}
	payload = m.bytes(size)
	switch m.choice(18) {
	case 0:
		protocol = icmp
		payload = append([]byte{errors[m.IntN(len(errors))], m.byte() & 15, 0, 0, 0, 0, m.byte(), m.byte()}, inner()...)
	case 1:
		protocol = m.byte()
	case 2, 3, 4, 5, 6:
		protocol = 17
		if len(payload) >= 8 && !m.one(8) {
			binary.BigEndian.PutUint16(payload[4:], uint16(len(payload)))
		}
	case 7, 8, 9, 10:
		protocol = 6
		if len(payload) >= 20 && !m.one(8) {
			payload[12] = 0x50
		}
	case 11, 12:
		protocol = icmp
		if len(payload) > 1 {
			payload[0], payload[1] = echo, 0
			if m.one(3) {
				payload[0] = reply
			}
		}
	case 13, 14:
		protocol = byte(m.pick(33, 50, 51, 132, 136, 47, 4, 41, 2, 89, 103, 112, 115, 137))
	default:
		protocol = m.byte()
	}
	if protocol == 1 && len(payload) > 0 && (payload[0] == 13 || payload[0] == 17) {
		payload[0] = 8 // a request for the time
	}
	if protocol == icmp && len(payload) >= 4 && !m.one(4) {
		payload[2], payload[3] = 0, 0
		if !v6 {
			binary.BigEndian.PutUint16(payload[2:], ^sum(payload))
		}
	}
	return protocol, payload
}

func (m *maker) ipv6(in int) []byte {
	h := []byte{0x60, 0, 0, 0, 0, 0, 0, m.ttl()}
	if m.one(2) {
		h[0], h[1], h[2], h[3] = 0x60|m.byte()&15, m.byte(), m.byte(), m.byte()
	}
	src, dst := m.source6(in), m.target6()
	h = append(append(h, src...), dst...)
	next, payload := m.upper(m.size(len(h)), true, func() []byte {
		return append([]byte{0x60, 0, 0, 0, 0, 8, 17, 64}, append(append(append([]byte{}, dst...), m.target6()...), m.bytes(8)...)...)
	})
	if next == 58 && len(payload) >= 4 && payload[0] >= 128 && !m.one(4) {
		payload[2], payload[3] = 0, 0
		pseudo := append(append([]byte{}, h[8:40]...), 0, 0, byte(len(payload)>>8), byte(len(payload)), 0, 0, 0, 58)
		binary.BigEndian.PutUint16(payload[2:], ^sum(append(pseudo, payload...)))
	}
	if m.odd(10) {
		kind := byte(m.pick(0, 43, 44, 51, 60, 135, 139, 140, 59))
		extension := append([]byte{next, 0}, m.bytes(6)...)
		switch kind {
		case 0, 60:
			copy(extension[2:], []byte{1, 4, 0, 0, 0, 0}) // padding
			if m.one(3) {
				copy(extension[2:], []byte{5, 2, 0, 0, 1, 0}) // router alert
			}
			if m.one(4) {
				copy(extension[2:], []byte{0xc2, 4, 0, 1, 0, 0}) // jumbo payload
			}
		case 43:
			extension[2], extension[3] = byte(m.pick(0, 2, 3, 4)), byte(m.IntN(2))
		}
		next, payload = kind, append(extension, payload...)
	}
	h[6] = next
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	switch m.rare(40) {
	case 0:
		h[5] += byte(m.IntN(5)) - 2
	case 1:
		h[0] = m.byte()
	case 2:
		copy(h[4:], m.be16())
	case 3:
		h[4], h[5] = 0, 0
	}
	return append(h, payload...)
}

// sum is that of RFC 1071.
func sum(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// sum4 puts the right checksum into an IPv4 header.
func sum4(h []byte) {
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], ^sum(h))
}
