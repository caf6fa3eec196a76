package interop

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"trellis/internal/substrate/nstest"
)

// patience is how long a frame may take; a user-space datapath under emulation
// is slow.
const patience = 5 * time.Second

// Frames of every kind and length cross as they are, both ways.
func TestFrames(t *testing.T) {
	matrix(t, 1500, func(t *testing.T, l *lab) {
		near, far := l.pair(t)
		cross(t, l, near, far, 1)
		l.wire.sound(t)
	})
}

// The same with packets of 9000 bytes on the underlay.
func TestJumboFrames(t *testing.T) {
	matrix(t, 9000, func(t *testing.T, l *lab) {
		near, far := l.pair(t)
		cross(t, l, near, far, 61)
		transfer(t, near, far, "10.0.0.2", 4*bulk())
		transfer(t, far, near, "fd00::1", 4*bulk())
		l.wire.sound(t)
	})
}

// cross sends frames of every kind, and of each step-th length, both ways.
func cross(t *testing.T, l *lab, near, far *nstest.Node, step int) {
	t.Helper()
	mtu := l.linkMTU()
	_, linux := l.there.(*gretap)
	a, b := near.Tap(t, "eth1"), far.Tap(t, "eth1")
	for name, way := range map[string][2]*nstest.Tap{"to the peer": {a, b}, "from the peer": {b, a}} {
		for kind, f := range kinds(mtu) {
			if linux && strings.HasSuffix(kind, ", cut") {
				continue // gretap looks for the header of IP's, and drops
			}
			pass(t, name+", "+kind, way, f)
		}
		if testing.Short() {
			step = max(step, 97)
		}
		failed := 0
		for n := ethSize; n <= mtu+ethSize; n += step {
			if !passes(t, way, opaque(n)) {
				if failed++; failed < 4 {
					t.Errorf("%s: %d bytes did not arrive as they were sent", name, n)
				}
			}
		}
		if failed > 3 {
			t.Errorf("%s: %d lengths in all did not arrive", name, failed)
		}
		pass(t, name+", the longest", way, opaque(mtu+ethSize))
	}
}

func pass(t *testing.T, name string, way [2]*nstest.Tap, f []byte) {
	t.Helper()
	if !passes(t, way, f) {
		t.Errorf("%s: a frame of %d bytes did not arrive as it was sent", name, len(f))
	}
}

// passes reports whether a frame arrives as it was sent.
func passes(t *testing.T, way [2]*nstest.Tap, f []byte) bool {
	t.Helper()
	if err := way[0].Send(f); err != nil {
		t.Errorf("send %d bytes: %v", len(f), err)
		return false
	}
	return way[1].Receive(patience, func(got []byte) bool { return bytes.Equal(got, f) }) != nil
}

// opaque is a frame of an EtherType that no stack knows, of a length from 14 on.
func opaque(length int) []byte {
	f := append([]byte{2, 0, 0, 0, 0, 9}, rawMAC[:]...)
	f = append(f, 0x88, 0xb5)
	for i := ethSize; i < length; i++ {
		f = append(f, byte(i*7+length))
	}
	return f
}

// kinds are frames that a wire carries, whole as a raw socket gives them.
func kinds(mtu int) map[string][]byte {
	from := rawMAC[:]
	to := func(group ...byte) []byte { return group }
	host := to(2, 0, 0, 0, 0, 9)
	all := to(0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	frame := func(to []byte, parts ...[]byte) []byte { return join(append([][]byte{to, from}, parts...)...) }
	llc := func(payload []byte) []byte { return join(be16(len(payload)), payload) }
	data := func(n int) []byte { return opaque(n + ethSize)[ethSize:] }
	vlan := func(tci int) []byte { return join([]byte{0x81, 0}, be16(tci)) }
	service := func(tci int) []byte { return join([]byte{0x88, 0xa8}, be16(tci)) }
	isis := func(n int) []byte { return join([]byte{0xfe, 0xfe, 3, 0x83}, data(n-4)) }
	ipv4 := join([]byte{8, 0}, packet4(protoUDP, []byte{10, 9, 0, 1}, []byte{10, 9, 0, 2}, 9, data(30)))
	ipv6 := join([]byte{0x86, 0xdd}, packet6(protoUDP, ip6(1), ip6(2), 9, data(30)))
	arp := join([]byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, from, []byte{10, 9, 0, 1, 0, 0, 0, 0, 0, 0, 10, 9, 0, 2})
	return map[string][]byte{
		"ARP":                                frame(all, arp),
		"ARP, padded":                        frame(all, arp, make([]byte, 18)),
		"IPv4":                               frame(host, ipv4),
		"IPv6":                               frame(host, ipv6),
		"IPv4 to a group":                    frame(to(1, 0, 0x5e, 0, 0, 5), ipv4),
		"IPv6 to a group":                    frame(to(0x33, 0x33, 0, 0, 0, 5), ipv6),
		"IPv4, cut":                          frame(host, []byte{8, 0, 0x45}),
		"IPv4, more than its length":         frame(host, ipv4, data(50)),
		"IPv6, cut":                          frame(host, []byte{0x86, 0xdd, 0x60, 0}),
		"IS-IS, a hello of full size":        frame(to(1, 0x80, 0xc2, 0, 0, 0x14), llc(isis(min(mtu, 1497)))),
		"IS-IS, a short one":                 frame(to(1, 0x80, 0xc2, 0, 0, 0x15), llc(isis(43)), make([]byte, 3)),
		"STP":                                frame(to(1, 0x80, 0xc2, 0, 0, 0), llc(data(38)), make([]byte, 8)),
		"LLDP":                               frame(to(1, 0x80, 0xc2, 0, 0, 0x0e), []byte{0x88, 0xcc}, data(100)),
		"MPLS":                               frame(host, []byte{0x88, 0x47}, data(60)),
		"CFM":                                frame(to(1, 0x80, 0xc2, 0, 0, 0x31), []byte{0x89, 2}, data(60)),
		"a VLAN tag":                         frame(host, vlan(100), ipv4),
		"a VLAN tag, hardly more":            frame(host, vlan(100), []byte{0x88, 0xb5, 1, 2}),
		"a VLAN tag, full":                   frame(host, vlan(0xefff), []byte{0x88, 0xb5}, data(mtu-4)),
		"a VLAN tag, IS-IS":                  frame(to(1, 0x80, 0xc2, 0, 0, 0x14), vlan(7), llc(isis(900))),
		"a priority tag":                     frame(host, vlan(0xe000), ipv6),
		"a service tag":                      frame(host, service(1), ipv4),
		"QinQ":                               frame(host, service(1), vlan(2), ipv4),
		"QinQ, ARP":                          frame(all, service(1), vlan(2), arp),
		"two VLAN tags":                      frame(host, vlan(1), vlan(2), ipv6),
		"three VLAN tags":                    frame(host, vlan(1), vlan(2), vlan(3), data(60)),
		"EGRE inside, as data":               frame(host, []byte{8, 0}, packet4(protoGRE, []byte{192, 0, 2, 1}, []byte{192, 0, 2, 2}, 0, data(60))),
		"a frame whose type is its length":   frame(host, llc(data(46))),
		"a frame longer than its LLC length": frame(host, be16(3), data(60)),
	}
}

// packet4 is an IPv4 packet from one address to another; UDP has its header,
// with a port, and its checksum.
func packet4(protocol byte, src, dst []byte, port int, data []byte) []byte {
	payload := datagram(protocol, join(src, dst), port, data)
	ip := join([]byte{0x45, 0}, be16(20+len(payload)), []byte{0x12, 0x34, 0x40, 0, 64, protocol, 0, 0}, src, dst)
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum(0, ip)))
	return join(ip, payload)
}

// packet6 is the same over IPv6.
func packet6(protocol byte, src, dst []byte, port int, data []byte) []byte {
	payload := datagram(protocol, join(src, dst), port, data)
	return join([]byte{0x60, 0, 0, 0}, be16(len(payload)), []byte{protocol, 64}, src, dst, payload)
}

func datagram(protocol byte, addresses []byte, port int, data []byte) []byte {
	if protocol != protoUDP {
		return data
	}
	u := join(be16(port), be16(port), be16(8+len(data)), []byte{0, 0}, data)
	check := ^uint16(sum(sum(0, addresses)+protoUDP+uint32(len(u)), u))
	if check == 0 {
		check = 0xffff
	}
	binary.BigEndian.PutUint16(u[6:], check)
	return u
}

// ip6 is an address for documentation, not of the underlay: ip6gretap refuses to
// carry a packet from what seems to be its own peer.
func ip6(last byte) []byte { return []byte{0x20, 1, 0xd, 0xb8, 0, 1, 15: last} }

func be16(v int) []byte { return binary.BigEndian.AppendUint16(nil, uint16(v)) }

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
