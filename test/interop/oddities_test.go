package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"testing"
	"time"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
)

// gre is the header of the wire format before its key.
var gre = []byte{0x20, 0, 0x65, 0x58}

// quiet is how long a frame that must not arrive is waited for.
const quiet = 50 * time.Millisecond

// soon waits until something holds: on a busy machine a frame may be late.
func soon(holds func() bool) bool {
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// bare is a lab with nobody at the far end but the test, which writes and reads
// the underlay's frames itself.
type bare struct {
	*lab
	end       end
	key       uint32
	port, out *nstest.Tap // of the node's interface; of the far uplink
	near      *nstest.Node
}

func newBare(t *testing.T, u underlay, mtu int) *bare {
	t.Helper()
	b := &bare{lab: newLab(t, u), key: 0x01020304, near: newNode(t)}
	b.wire.trust(true, false)
	b.far.address(t, "up0")
	b.end = b.here.port(t, b.near, "eth1", b.key, mtu)
	b.port, b.out = b.near.Tap(t, "eth1"), b.far.Tap(t, "up0")
	return b
}

// packet is an outer IP packet with an inner frame.
func (b *bare) packet(inner []byte) []byte {
	payload := join(gre, binary.BigEndian.AppendUint32(nil, b.key), inner)
	if b.ipv6 {
		return packet6(protoGRE, b.far.addr6.AsSlice(), b.own.addr6.AsSlice(), 0, payload)
	}
	return packet4(protoGRE, b.far.addr4.AsSlice(), b.own.addr4.AsSlice(), 0, payload)
}

// frame is an outer frame with a packet.
func (b *bare) frame(packet []byte) []byte {
	protocol := ethIPv4
	if b.ipv6 {
		protocol = ethIPv6
	}
	return join(b.own.mac[:], b.far.mac[:], be16(protocol), packet)
}

// edit changes bytes of an IPv4 header, and its checksum.
func edit(packet []byte, at int, bytes ...byte) []byte {
	copy(packet[at:], bytes)
	packet[10], packet[11] = 0, 0
	binary.BigEndian.PutUint16(packet[10:], ^uint16(sum(0, packet[:packet[0]&15*4])))
	return packet
}

// What the wire format leaves to the sender, a receiver takes as it comes: TTL,
// ID, DF, traffic class, flow label, padding of a short frame.
func TestLenience(t *testing.T) {
	b4, b6 := newBare(t, underlay{mtu: 1500}, 1458), newBare(t, underlay{ipv6: true, mtu: 1500}, 1438)
	arrives := func(name string, b *bare, inner, f []byte) {
		t.Helper()
		must(t, b.out.Send(f))
		if b.port.Receive(patience, func(got []byte) bool { return bytes.Equal(got, inner) }) == nil {
			t.Errorf("%s: the frame did not arrive as it was sent", name)
		}
	}
	big, short := opaque(1000), opaque(14)
	p4 := func(at int, bytes ...byte) []byte { return b4.frame(edit(b4.packet(big), at, bytes...)) }
	arrives("no DF", b4, big, p4(6, 0))
	arrives("TTL 1", b4, big, p4(8, 1))
	for _, id := range []byte{0, 1, 0x7f, 0xff} {
		arrives("an ID", b4, big, p4(4, id, id))
	}
	for class := range 256 {
		arrives(fmt.Sprintf("traffic class %#x", class), b4, big, p4(1, byte(class)))
	}
	arrives("padding", b4, short, join(b4.frame(b4.packet(short)), make([]byte, 4)))
	p6 := func(at int, bytes ...byte) []byte {
		p := b6.packet(big)
		copy(p[at:], bytes)
		return b6.frame(p)
	}
	arrives("IPv6, hop limit 1", b6, big, p6(7, 1))
	arrives("IPv6, traffic class and flow label", b6, big, p6(0, 0x6f, 0xf5, 0x43, 0x21))
	arrives("IPv6, padding", b6, short, join(b6.frame(b6.packet(short)), make([]byte, 4)))
	for _, b := range []*bare{b4, b6} {
		if drops := b.here.drops(t); len(drops) != 0 {
			t.Errorf("the uplink dropped %v", drops)
		}
	}
}

// What is not EGRE to the bit, or not for a link, is dropped and counted.
func TestStrictness(t *testing.T) {
	const mtu = 1300
	b4, b6 := newBare(t, underlay{mtu: 1500}, mtu), newBare(t, underlay{ipv6: true, mtu: 1500}, mtu)
	f := opaque(200)
	p4 := func(at int, bytes ...byte) []byte { return b4.frame(edit(b4.packet(f), at, bytes...)) }
	other := func(at int, v byte) []byte { // than the GRE header has at a place
		return p4(20+at, v)
	}
	for _, c := range []struct {
		name  string
		b     *bare
		frame []byte
		why   dataplane.DropReason
	}{
		{"the first fragment", b4, p4(6, 0x20), dataplane.DropFragment},
		{"a later fragment", b4, p4(6, 0x00, 0x10), dataplane.DropFragment},
		{"another key", b4, other(7, 9), dataplane.DropUnknownPeer},
		{"another source", b4, p4(15, 99), dataplane.DropUnknownPeer},
		{"a sequence number", b4, other(0, 0x30), dataplane.DropFlags},
		{"a checksum", b4, other(0, 0xa0), dataplane.DropFlags},
		{"no key", b4, other(0, 0), dataplane.DropKeyless},
		{"another version", b4, other(1, 1), dataplane.DropVersion},
		{"IPv4 inside", b4, b4.frame(edit(b4.packet(f), 22, 8, 0)), dataplane.DropProtocol},
		{"a wrong checksum", b4, func() []byte { p := p4(8, 64); p[ethSize+10] ^= 1; return p }(), dataplane.DropChecksum},
		{"13 bytes inside", b4, b4.frame(b4.packet(f[:13])), dataplane.DropRunt},
		{"IPv6, 13 bytes inside", b6, b6.frame(b6.packet(f[:13])), dataplane.DropRunt},
		{"IPv6, a length beyond the frame", b6, b6.frame(b6.packet(f))[:100], dataplane.DropLength},
	} {
		want := maps.Clone(c.b.here.drops(t))
		want[c.why]++
		must(t, c.b.out.Send(c.frame))
		if got := c.b.port.Receive(quiet, func(got []byte) bool { return bytes.HasPrefix(got, f[:14]) }); got != nil {
			t.Errorf("%s: %d bytes arrived", c.name, len(got))
		}
		if !soon(func() bool { return maps.Equal(c.b.here.drops(t), want) }) {
			t.Errorf("%s: counted %v, want %v", c.name, c.b.here.drops(t), want)
		}
	}
	for _, b := range []*bare{b4, b6} { // too long for the link, either way
		must(t, b.out.Send(b.frame(b.packet(opaque(mtu+14+4+1)))))
		b.port.Receive(quiet, func([]byte) bool { return false })
		if !soon(func() bool { return b.here.counters(t, b.end).Drops[dataplane.DropLong] == 1 }) {
			t.Errorf("a frame over the link's MTU is counted as %v", b.here.counters(t, b.end).Drops)
		}
	}
	full := newBare(t, underlay{mtu: 1500}, 1458)
	must(t, full.port.Send(join(opaque(1458 + 14)[:12], []byte{0x81, 0, 0, 7}, opaque(1458 + 14)[12:])))
	if full.out.Receive(quiet, func(got []byte) bool { return len(got) > 1400 }) != nil {
		t.Error("a full frame with a VLAN tag left, which the underlay has no room for")
	}
	if !soon(func() bool { return full.here.counters(t, full.end).Drops[dataplane.DropLong] == 1 }) {
		t.Errorf("a full frame with a VLAN tag is counted as %v", full.here.counters(t, full.end).Drops)
	}
}

// ECN of the outer header (RFC 6040, RFC 9601). Trellis writes Not-ECT, so no
// router marks its packets; gretap and Open vSwitch copy the inner packet's ECT. A
// mark that arrives goes to the inner packet, or drops it if it is Not-ECT.
func TestECN(t *testing.T) {
	const notECT, ect0, ect1, ce = 0, 2, 1, 3
	matrix(t, 1500, func(t *testing.T, l *lab) {
		near, far := l.pair(t)
		a, b := near.Tap(t, "eth1"), far.Tap(t, "eth1")
		_, twin := l.there.(*trellis)
		_, linux := l.there.(*gretap)
		sees := 2 + 4 // Open vSwitch looks behind one tag, if not told otherwise
		if linux {
			sees = 2
		}
		l.wire.settled(t)
		number := byte(0)
		crosses := func(name string, send func(f []byte) error, at *nstest.Tap, kind innerKind, class, want int) {
			t.Helper()
			number++
			must(t, send(kind.frame(byte(class), number)))
			wait := patience
			if want < 0 {
				wait = quiet
			}
			got := at.Receive(wait, func(f []byte) bool {
				return bytes.HasSuffix(f, []byte{number, 0xec, 0x4e}) && bytes.HasPrefix(f, []byte{2, 0, 0, 0, 0, 9})
			})
			if is := kind.class(got); is != want {
				t.Errorf("%s, %s: class %d arrived as %d, want %d (-1: not at all)", name, kind.name, class, is, want)
			} else if err := soundFrame(got); got != nil && err != nil {
				t.Errorf("%s, %s: %v", name, kind.name, err)
			}
		}
		for _, k := range innerKinds {
			for _, class := range []int{notECT, ect0, ect1, ce, 0xb8 | ect0} {
				crosses("to the peer", a.Send, b, k, class, class)
				crosses("from the peer", b.Send, a, k, class, class)
			}
		}
		seen := l.wire.settled(t)
		if n := seen[0].toss[ect0] + seen[0].toss[ect1]; n != 0 {
			t.Error("Trellis copies ECT to the outer header")
		}
		if n := seen[1].toss[ect0]; (n > 0) == (twin || linux && l.ipv6) {
			t.Errorf("the peer has sent %d outer headers with ECT(0)", n)
		}

		// A router on the way marks what Trellis gets, and then what the peer gets.
		l.wire.trust(false, false)
		marked := func(from, to *host) func([]byte) error {
			return func(f []byte) error { return from.Tap(t, "up0").Send(l.marked(from, to, f)) }
		}
		dropped := l.here.portDrops(t, dataplane.DropCongestion)
		for _, k := range innerKinds {
			for class, want := range map[int]int{notECT: -1, ect0: ce, ect1: ce, ce: ce, 0xb8: -1, 0xb8 | ect0: 0xb8 | ce} {
				if !k.ip {
					want = class
				}
				crosses("marked, to Trellis", marked(l.far, l.own), a, k, class, want)
				if want < 0 {
					dropped++
				}
				if !twin && len(k.tags) <= sees {
					crosses("marked, to the peer", marked(l.own, l.far), b, k, class, want)
				}
			}
		}
		if !soon(func() bool { return l.here.portDrops(t, dataplane.DropCongestion) == dropped }) {
			t.Errorf("counted %d drops by congestion, want %d", l.here.portDrops(t, dataplane.DropCongestion), dropped)
		}
		l.wire.settled(t)
	})
}

// marked is an EGRE frame of the link made last, marked by the underlay.
func (l *lab) marked(from, to *host, f []byte) []byte {
	const ce = 3
	payload := join(gre, binary.BigEndian.AppendUint32(nil, 0xfeed0000+l.keys), f)
	if l.ipv6 {
		p := packet6(protoGRE, from.addr6.AsSlice(), to.addr6.AsSlice(), 0, payload)
		p[1] |= ce << 4
		return join(to.mac[:], from.mac[:], be16(ethIPv6), p)
	}
	return join(to.mac[:], from.mac[:], be16(ethIPv4), edit(packet4(protoGRE, from.addr4.AsSlice(), to.addr4.AsSlice(), 0, payload), 1, ce))
}

// innerKind is a kind of frame with a traffic class.
type innerKind struct {
	name string
	ip   bool   // it is IP, so marks are for it
	tags []byte // and the EtherType
	v6   bool
}

var innerKinds = []innerKind{
	{"IPv4", true, be16(ethIPv4), false},
	{"IPv6", true, be16(ethIPv6), true},
	{"IPv4 in a VLAN", true, join([]byte{0x81, 0, 0, 7}, be16(ethIPv4)), false},
	{"IPv6 in QinQ", true, join([]byte{0x88, 0xa8, 0, 1, 0x81, 0, 0, 2}, be16(ethIPv6)), true},
	{"no IP", false, []byte{0x88, 0xb5}, false},
}

// frame is a frame that ends with a number.
func (k innerKind) frame(class, number byte) []byte {
	data := []byte{0, number, 0xec, 0x4e}
	p := edit(packet4(protoUDP, []byte{10, 9, 0, 1}, []byte{10, 9, 0, 2}, 9, data), 1, class)
	if k.v6 {
		p = packet6(protoUDP, ip6(1), ip6(2), 9, data)
		p[0], p[1] = 0x60|class>>4, class<<4
	}
	return join([]byte{2, 0, 0, 0, 0, 9}, []byte{2, 0, 0, 0, 0, 7}, k.tags, p)
}

// class reads it back; -1 from no frame.
func (k innerKind) class(f []byte) int {
	if f == nil {
		return -1
	}
	p := f[12+len(k.tags):]
	if k.v6 {
		return int(p[0]<<4 | p[1]>>4)
	}
	return int(p[1])
}

// misfit is a setting of a peer's that does not fit Trellis.
type misfit struct {
	name    string
	options string
	keyless bool
	key     uint32 // added to the right one
	why     dataplane.DropReason
}

// What a peer sends that is set up otherwise is dropped, and the reason tells
// what to change.
func TestMisfits(t *testing.T) {
	matrix(t, 1500, func(t *testing.T, l *lab) {
		var table []misfit
		switch there := l.there.(type) {
		case *ovs:
			table = []misfit{
				{"csum", "options:csum=true", false, 0, dataplane.DropFlags},
				{"seq", "options:seq=true", false, 0, dataplane.DropFlags},
				{"no key", "", true, 0, dataplane.DropKeyless},
				{"another key", "", false, 1000, dataplane.DropUnknownPeer},
			}
		case *gretap:
			right := there.options
			table = []misfit{
				{"csum", right + " icsum ocsum", false, 0, dataplane.DropFlags},
				{"seq", right + " iseq oseq", false, 0, dataplane.DropFlags},
				{"no key", right, true, 0, dataplane.DropKeyless},
				{"another key", right, false, 1000, dataplane.DropUnknownPeer},
			}
			if l.ipv6 {
				table = append(table, misfit{"the default encaplimit", "hoplimit 64", false, 0, dataplane.DropOptions})
			}
		default:
			table = []misfit{{"another key", "", false, 1000, dataplane.DropUnknownPeer}}
		}
		l.wire.trust(false, false)
		for _, m := range table {
			near, far := newNode(t), newNode(t)
			l.keys++
			key := 0xfeed0000 + l.keys
			l.here.port(t, near, "eth1", key, 1400)
			switch there := l.there.(type) {
			case *ovs:
				there.options, there.keyless = m.options, m.keyless
			case *gretap:
				there.options, there.keyless = m.options, m.keyless
			}
			l.there.link(t, far, "eth1", key+m.key, 1400)
			in, out := far.Tap(t, "eth1"), near.Tap(t, "eth1")
			before := l.here.drops(t)[m.why]
			deadline := time.Now().Add(10 * time.Second) // the peer may ask for its neighbour first
			for l.here.drops(t)[m.why] == before {
				if time.Now().After(deadline) {
					t.Errorf("%s: not counted as %s: %v", m.name, m.why, l.here.drops(t))
					break
				}
				must(t, in.Send(opaque(100)))
				if out.Receive(quiet, func(got []byte) bool { return bytes.Equal(got, opaque(100)) }) != nil {
					t.Errorf("%s: a frame arrived", m.name)
					break
				}
			}
		}
	})
}

// Options of a peer's that are its own affair.
func TestPeersOddities(t *testing.T) {
	matrix(t, 1500, func(t *testing.T, l *lab) {
		var options []string
		switch l.there.(type) {
		case *ovs:
			options = []string{"options:ttl=inherit", "options:tos=inherit", "options:ttl=1", "options:df_default=false"}
		case *gretap:
			if l.ipv6 {
				options = []string{"encaplimit none hoplimit inherit", "encaplimit none tclass inherit", "encaplimit none flowlabel 0x12345"}
			} else {
				options = []string{"", "ttl 64 tos inherit", "ttl 64 nopmtudisc ignore-df"}
			}
		default:
			t.Skip("Trellis has no such options")
		}
		for _, o := range options {
			switch there := l.there.(type) {
			case *ovs:
				there.options = o
			case *gretap:
				there.options = o
			}
			near, far := l.pair(t)
			// As OSPF's: to a group, with a TTL of 1.
			hello := join([]byte{1, 0, 0x5e, 0, 0, 5}, rawMAC[:], []byte{8, 0},
				edit(packet4(89, []byte{10, 0, 0, 9}, []byte{224, 0, 0, 5}, 0, make([]byte, 44)), 8, 1))
			a, b := near.Tap(t, "eth1"), far.Tap(t, "eth1")
			pass(t, o+", to the peer", [2]*nstest.Tap{a, b}, hello)
			pass(t, o+", from the peer", [2]*nstest.Tap{b, a}, hello)
			transfer(t, far, near, "10.0.0.1", bulk()/2)
			seen := l.wire.settled(t)
			t.Logf("%q: outer TTLs %v, classes %v, DF %v, %d different IDs", o, seen[1].ttls, seen[1].toss, seen[1].df, len(seen[1].ids))
		}
	})
}

// A peer that fragments the outer packet loses what it sends so, and Trellis
// counts it.
func TestFragments(t *testing.T) {
	needGretap(t)
	l := newLab(t, underlay{mtu: 1500})
	peer := newGretap(t, l.far, l.own, l.underlay)
	peer.options = "ttl 64 nopmtudisc ignore-df"
	near, far := newNode(t), newNode(t)
	l.here.port(t, near, "eth1", 7, 1458)
	peer.link(t, far, "eth1", 7, 1500)
	in, out := far.Tap(t, "eth1"), near.Tap(t, "eth1")
	must(t, in.Send(opaque(1400)))
	if out.Receive(patience, func(got []byte) bool { return bytes.Equal(got, opaque(1400)) }) == nil {
		t.Error("a frame that fits did not arrive")
	}
	before := l.here.drops(t)[dataplane.DropFragment]
	must(t, in.Send(opaque(1500)))
	if out.Receive(quiet, func(got []byte) bool { return bytes.HasPrefix(got, opaque(1500)[:14]) }) != nil {
		t.Error("a frame in fragments arrived")
	}
	if !soon(func() bool { return l.here.drops(t)[dataplane.DropFragment]-before == 2 }) {
		t.Errorf("counted %d fragments, want 2", l.here.drops(t)[dataplane.DropFragment]-before)
	}
}

// Super-packets beyond 64 KiB (BIG TCP, Linux 5.19) become frames of the
// underlay like all others.
func TestBigTCP(t *testing.T) {
	matrix(t, 1500, func(t *testing.T, l *lab) {
		near, far := l.pair(t)
		if out, err := near.Exec(t, "ip link set eth1 gso_max_size 180000 gro_max_size 180000"); err != nil {
			t.Skipf("needs a kernel and an ip with BIG TCP: %s", out)
		}
		transfer(t, near, far, "fd00::2", 3*bulk())
		transfer(t, near, far, "10.0.0.2", 3*bulk())
		l.wire.sound(t)
	})
}

// An uplink without native XDP carries everything, too.
func TestGenericUplink(t *testing.T) {
	for name, ipv6 := range map[string]bool{"over IPv4": false, "over IPv6": true} {
		t.Run(name, func(t *testing.T) {
			u := underlay{ipv6: ipv6, mtu: 1500, xdp: dataplane.Generic}
			l := newLab(t, u)
			u.xdp = dataplane.Native
			l.there = newTrellis(t, l.far, l.own, u)
			l.wire.trust(true, true)
			set(t, l.own.Node, "up0", map[string]bool{gro: true}) // as a network card has it
			near, far := l.pair(t)
			cross(t, l, near, far, 61)
			transfer(t, near, far, "10.0.0.2", bulk())
			transfer(t, far, near, "10.0.0.1", bulk())
			transfer(t, far, near, "fd00::1", bulk())
			l.wire.sound(t)
			r := newRouter(t, l)
			r.setFast(t, true) // it may have to leave all to the stack, but nothing undone
			transfer(t, r.ends[0], r.ends[1], "10.2.0.2", bulk())
			transfer(t, r.ends[1], r.ends[0], "fd01::2", bulk())
			l.wire.sound(t)
		})
	}
}
