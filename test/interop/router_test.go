package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"trellis/internal/substrate/nstest"
)

// Two guests of the peer's with a router of Trellis's between: what arrives by
// one tunnel leaves by another, by the router's stack and by the fast path.
//
//	guest ─ peer ═ EGRE ═ Trellis ─ router ─ Trellis ═ EGRE ═ peer ─ guest
func TestRouter(t *testing.T) {
	matrix(t, 1500, func(t *testing.T, l *lab) {
		r := newRouter(t, l)
		for _, fast := range []bool{false, true} {
			name := "by its stack"
			if fast {
				name = "on the fast path"
			}
			t.Run(name, func(t *testing.T) {
				if fast {
					l.here.needFast(t)
				}
				r.setFast(t, fast)
				r.sizes(t)
				for _, a := range []string{"10.2.0.2", "fd02::2"} {
					transfer(t, r.ends[0], r.ends[1], a, bulk())
				}
				transfer(t, r.ends[1], r.ends[0], "10.1.0.2", bulk())
				l.wire.sound(t)
			})
		}
	})
}

// The same with packets of 9000 bytes on the underlay.
func TestJumboRouter(t *testing.T) {
	matrix(t, 9000, func(t *testing.T, l *lab) {
		r := newRouter(t, l)
		for _, fast := range []bool{false, true} {
			if fast {
				l.here.needFast(t)
			}
			r.setFast(t, fast)
			transfer(t, r.ends[0], r.ends[1], "10.2.0.2", bulk())
			transfer(t, r.ends[1], r.ends[0], "fd01::2", bulk())
			l.wire.sound(t)
		}
	})
}

// router is a router of Trellis's and its two neighbours, guests of the peer's.
type router struct {
	*nstest.Node
	lab   *lab
	ends  [2]*nstest.Node
	ports [2]end
	mtu   int
	fast  bool
}

func newRouter(t testing.TB, l *lab) *router {
	t.Helper()
	r := &router{Node: newNode(t), lab: l, mtu: l.linkMTU()}
	for i := range r.ends {
		name, net := fmt.Sprintf("eth%d", i+1), i+1
		end := newNode(t)
		l.keys++
		key := 0xfeed0000 + l.keys
		r.ports[i] = l.here.port(t, r.Node, name, key, r.mtu)
		l.there.link(t, end, "eth1", key, r.mtu)
		r.Must(t, fmt.Sprintf("ip addr add 10.%d.0.1/24 dev %s; ip addr add fd0%[1]d::1/64 dev %[2]s nodad", net, name))
		end.Must(t, fmt.Sprintf("ip addr add 10.%[1]d.0.2/24 dev eth1; ip addr add fd0%[1]d::2/64 dev eth1 nodad; "+
			"ip route add default via 10.%[1]d.0.1; ip -6 route add default via fd0%[1]d::1", net))
		r.ends[i] = end
	}
	reachable(t, r.ends[0], "10.1.0.1", "fd01::1", "10.2.0.2", "fd02::2")
	return r
}

// setFast turns the fast path on or off on both of the router's interfaces.
func (r *router) setFast(t testing.TB, on bool) {
	t.Helper()
	for _, p := range r.ports {
		r.lab.here.setFast(t, p, on)
	}
	r.fast = on
}

// sizes sends packets of every length through the router, both ways, and of both
// families, and compares what arrives with what a router makes of them.
func (r *router) sizes(t *testing.T) {
	t.Helper()
	step := 1
	if _, slow := r.lab.there.(*ovs); slow {
		step = 5
	}
	if testing.Short() {
		step = 97
	}
	before := r.lab.here.fastPackets(t, r.ports[:]...)
	sent := 0
	for i := range r.ends {
		in, out := r.ends[i].Tap(t, "eth1"), r.ends[1-i].Tap(t, "eth1")
		gate, sender := mac(t, r.Node, fmt.Sprintf("eth%d", i+1)), mac(t, r.ends[i], "eth1")
		next, receiver := mac(t, r.Node, fmt.Sprintf("eth%d", 2-i)), mac(t, r.ends[1-i], "eth1")
		src4, dst4 := []byte{10, byte(i + 1), 0, 2}, []byte{10, byte(2 - i), 0, 2}
		src6, dst6 := []byte{0xfd, byte(i + 1), 15: 2}, []byte{0xfd, byte(2 - i), 15: 2}
		failed := 0
		for n := 0; n <= r.mtu-28; n += step {
			packets := [][]byte{join([]byte{8, 0}, packet4(protoUDP, src4, dst4, 9, opaque(n + ethSize)[ethSize:]))}
			if n <= r.mtu-48 {
				packets = append(packets, join([]byte{0x86, 0xdd}, packet6(protoUDP, src6, dst6, 9, opaque(n + ethSize)[ethSize:])))
			}
			for _, p := range packets {
				must(t, in.Send(join(gate[:], sender[:], p)))
				want := join(receiver[:], next[:], hop(p))
				// What follows the packet in a short frame is padding.
				if out.Receive(patience, func(got []byte) bool {
					return bytes.HasPrefix(got, want) && (len(got) == len(want) || len(got) <= leastEth)
				}) == nil {
					if failed++; failed < 4 {
						t.Errorf("from end %d: %d bytes of %x did not arrive as a router forwards them", i+1, n, p[:2])
					}
				}
				sent++
			}
		}
		if failed > 3 {
			t.Errorf("from end %d: %d packets in all did not arrive", i+1, failed)
		}
	}
	fast := r.lab.here.fastPackets(t, r.ports[:]...) - before
	if r.fast && int(fast) < sent || !r.fast && fast != 0 {
		t.Errorf("of %d packets the fast path forwarded %d", sent, fast)
	}
}

// hop is an Ethernet payload one hop on.
func hop(payload []byte) []byte {
	p := bytes.Clone(payload)
	if p[0] == 8 {
		ip := p[2:22]
		ip[8]--
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum(0, ip)))
	} else {
		p[2+7]--
	}
	return p
}
