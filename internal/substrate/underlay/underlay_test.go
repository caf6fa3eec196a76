package underlay

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"trellis/internal/tunnel"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/nstest"
)

// lab is a root context with an uplink to a router, and a far machine behind it:
//
//	root up0 192.0.2.1, 2001:db8:1::1 ── router ── 198.51.100.1, 2001:db8:2::1 far
type lab struct {
	router, far *nstest.Node
	*Underlay
}

var (
	way4 = Tunnel{Endpoints: tunnel.Endpoints{Local: netip.MustParseAddr("192.0.2.1"), Remote: netip.MustParseAddr("198.51.100.1")}, Key: 0xdeadbeef}
	way6 = Tunnel{Endpoints: tunnel.Endpoints{Local: netip.MustParseAddr("2001:db8:1::1"), Remote: netip.MustParseAddr("2001:db8:2::1")}, Key: 7}
)

func newLab(t *testing.T) *lab {
	t.Parallel()
	nstest.Root(t)
	l := &lab{router: nstest.NewNode(t), far: nstest.NewNode(t)}
	nstest.Sh(t, fmt.Sprintf(`ip link set lo up
		ip link add up0 type veth peer name r0 netns %d
		ip addr add 192.0.2.1/24 dev up0 && ip addr add 2001:db8:1::1/64 dev up0 nodad && ip link set up0 up
		ip route add default via 192.0.2.254 && ip -6 route add default via 2001:db8:1::fe`, l.router.Pid))
	l.router.Must(t, fmt.Sprintf(`sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
		ip link set lo up
		ip link add r1 type veth peer name f0 netns %d
		ip link set r0 address 02:00:00:00:00:fe
		ip addr add 192.0.2.254/24 dev r0 && ip addr add 2001:db8:1::fe/64 dev r0 nodad && ip link set r0 up
		ip addr add 198.51.100.254/24 dev r1 && ip addr add 2001:db8:2::fe/64 dev r1 nodad && ip link set r1 up`, l.far.Pid))
	l.far.Must(t, `ip addr add 198.51.100.1/24 dev f0 && ip addr add 2001:db8:2::1/64 dev f0 nodad && ip link set f0 up
		ip route add default via 198.51.100.254 && ip -6 route add default via 2001:db8:2::fe`)
	return l
}

// open opens the underlay and uses both tunnels.
func (l *lab) open(t *testing.T) {
	t.Helper()
	u, err := Open([]string{"up0"})
	if err != nil {
		t.Fatal(err)
	}
	l.Underlay = u
	t.Cleanup(func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	})
	u.Use("v", []Tunnel{way4, way6})
}

// await waits until the state of the ends is as wanted.
func (l *lab) await(t *testing.T, e tunnel.Endpoints, what string, good func(State) bool) State {
	t.Helper()
	var s State
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if s = l.States()[e]; good(s) {
			return s
		}
	}
	t.Fatalf("%s: the route to %v is %+v, %v", what, e.Remote, s.Route, s.Err)
	return s
}

func (l *lab) resolve(t *testing.T) map[tunnel.Endpoints]State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return l.Resolve(ctx, []tunnel.Endpoints{way4.Endpoints, way6.Endpoints})
}

func TestRoutesFollowTheUnderlay(t *testing.T) {
	l := newLab(t)
	l.open(t)
	for e, s := range l.resolve(t) {
		if s.Err != nil {
			t.Fatalf("%v: %v", e.Remote, s.Err)
		}
		if s.Route.NextHop.String() != "02:00:00:00:00:fe" || s.Route.MTU != 1500 || s.Route.Uplink == 0 || s.Route.Source.IsZero() {
			t.Errorf("route to %v: %+v", e.Remote, s.Route)
		}
	}
	if out := nstest.Sh(t, "ip neigh show to 192.0.2.254"); !strings.Contains(out, "managed") || !strings.Contains(out, "116") {
		t.Errorf("the kernel is not asked to keep the next hop: %q", out)
	}
	select {
	case <-l.Changes():
	case <-time.After(time.Second):
		t.Error("nobody is told of the first routes")
	}

	i := l.Interfaces()["up0"]
	if i.Index == 0 || !i.Up || !i.Carrier || !i.Ethernet || i.MTU != 1500 || fmt.Sprint(i.Addrs) != "[192.0.2.1 2001:db8:1::1]" {
		t.Errorf("the uplink is %+v", i)
	}
	if !l.IsLocal(way6.Local) || l.IsLocal(way4.Remote) {
		t.Error("which addresses are the machine's is not known")
	}

	// The router is replaced; its neighbours hear of it, as gratuitous ARP tells.
	l.router.Must(t, `ip link set r0 down && ip link set r0 address 02:00:00:00:00:fd && ip link set r0 up && ip addr add 2001:db8:1::fe/64 dev r0 nodad`)
	nstest.Sh(t, `ip neigh flush dev up0; ping -c1 -W2 192.0.2.254 >/dev/null; ping -c1 -W2 2001:db8:1::fe > /dev/null`)
	for _, w := range []Tunnel{way4, way6} {
		l.await(t, w.Endpoints, "another router", func(s State) bool { return s.Err == nil && s.Route.NextHop[5] == 0xfd })
	}

	nstest.Sh(t, `ip route replace default via 192.0.2.254 mtu 1400`)
	l.await(t, way4.Endpoints, "a route with an MTU", func(s State) bool { return s.Err == nil && s.Route.MTU == 1400 && !s.Route.Narrow })

	for _, c := range []struct{ command, mend, says string }{
		{"ip route del default", "ip route add default via 192.0.2.254", "no route"},
		{"ip addr del 192.0.2.1/24 dev up0", "ip addr add 192.0.2.1/24 dev up0; ip route replace default via 192.0.2.254", "no address of this machine"},
		{"ip link set up0 down", "ip link set up0 up; ip route replace default via 192.0.2.254", "no route to 198.51.100.1"},
		{"ip route add blackhole 198.51.100.1", "ip route del blackhole 198.51.100.1", "discards packets"},
		{"ip route add prohibit 198.51.100.1", "ip route del prohibit 198.51.100.1", "prohibits"},
		{"ip link add other type veth peer name otherpeer; ip link set other up; ip link set otherpeer up; ip addr add 203.0.113.1/24 dev other; ip route add 198.51.100.1 via 203.0.113.2",
			"ip link del other", "other, which is no uplink"},
	} {
		nstest.Sh(t, c.command)
		l.await(t, way4.Endpoints, c.command, func(s State) bool { return s.Err != nil && strings.Contains(s.Err.Error(), c.says) })
		nstest.Sh(t, c.mend)
		l.await(t, way4.Endpoints, c.mend, func(s State) bool { return s.Err == nil })
	}

	nstest.Sh(t, "ip link set up0 mtu 1400; ip link add other type dummy || true")
	for deadline := time.Now().Add(2 * time.Second); l.Interfaces()["up0"].MTU != 1400; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the uplink's MTU has changed unnoticed")
		}
	}

	l.Use("v", nil)
	for deadline := time.Now().Add(2 * time.Second); strings.Contains(nstest.Sh(t, "ip neigh"), "managed"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("neighbours that no route needs are kept:", nstest.Sh(t, "ip neigh"))
		}
	}
}

// TestSilentNextHop has a next hop that comes late.
func TestSilentNextHop(t *testing.T) {
	l := newLab(t)
	l.router.Must(t, "ip addr del 192.0.2.254/24 dev r0")
	l.open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	s := l.Resolve(ctx, []tunnel.Endpoints{way4.Endpoints})[way4.Endpoints]
	if s.Err == nil || time.Since(began) > time.Second {
		t.Fatalf("a next hop that is not there: %+v after %v", s, time.Since(began))
	}
	l.await(t, way4.Endpoints, "silence", func(s State) bool { return s.Err != nil && strings.Contains(s.Err.Error(), "does not answer") })
	l.router.Must(t, "ip addr add 192.0.2.254/24 dev r0")
	l.await(t, way4.Endpoints, "the next hop has come", func(s State) bool { return s.Err == nil })
}

// TestPredecessor leaves its neighbours to the next one, which lets go of what
// it does not need.
func TestPredecessor(t *testing.T) {
	l := newLab(t)
	first, err := Open([]string{"up0"})
	if err != nil {
		t.Fatal(err)
	}
	l.Underlay = first
	first.Use("v", []Tunnel{way4})
	l.resolve(t)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(nstest.Sh(t, "ip neigh show to 192.0.2.254"), "managed") {
		t.Fatal("the next hop is not kept without a service")
	}
	l.open(t)
	l.Use("v", []Tunnel{way6})
	for deadline := time.Now().Add(2 * time.Second); strings.Contains(nstest.Sh(t, "ip neigh show to 192.0.2.254"), "managed"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("what the predecessor kept and nobody needs is kept still")
		}
	}
}

// TestPathMTU narrows the path behind the router and sends what does not fit.
func TestPathMTU(t *testing.T) {
	l := newLab(t)
	l.open(t)
	l.resolve(t)
	l.router.Must(t, "ip link set r1 mtu 1400")
	for _, w := range []Tunnel{way4, way6} {
		l.send(t, w, 1500)
		l.await(t, w.Endpoints, "too large", func(s State) bool { return s.Err == nil && s.Route.MTU == 1400 && s.Route.Narrow })
	}
	// It is forgotten in time, and learned anew.
	l.mu.Lock()
	for e, n := range l.narrow {
		n.until = time.Now().Add(100 * time.Millisecond)
		l.narrow[e] = n
	}
	l.mu.Unlock()
	l.wake()
	for _, w := range []Tunnel{way4, way6} {
		l.await(t, w.Endpoints, "later", func(s State) bool { return s.Err == nil && s.Route.MTU == 1500 && !s.Route.Narrow })
	}
}

// TestStrangersCannotNarrow has messages about packets that no tunnel has sent.
func TestStrangersCannotNarrow(t *testing.T) {
	l := newLab(t)
	l.open(t)
	l.resolve(t)
	l.router.Must(t, "ip link set r1 mtu 1400")
	for name, w := range map[string]Tunnel{
		"another key":  {Endpoints: way4.Endpoints, Key: way4.Key + 1},
		"another key6": {Endpoints: way6.Endpoints, Key: way6.Key + 1},
	} {
		l.send(t, w, 1500)
		time.Sleep(100 * time.Millisecond)
		if s := l.States()[w.Endpoints]; s.Err != nil || s.Route.MTU != 1500 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	// The kernel itself believes a message about an echo of anybody's.
	nstest.Sh(t, "ping -c1 -W1 -M do -s 1472 198.51.100.1 >/dev/null || true")
	if !strings.Contains(nstest.Sh(t, "ip route get 198.51.100.1"), "mtu 1400") {
		t.Fatal("the kernel did not learn; this test shows nothing")
	}
	nstest.Sh(t, "ip route add 203.0.113.0/24 via 192.0.2.254") // has the routes looked up
	time.Sleep(100 * time.Millisecond)
	if s := l.States()[way4.Endpoints]; s.Err != nil || s.Route.MTU != 1500 {
		t.Errorf("what the kernel has learned for others: %+v", s)
	}
}

// send sends an EGRE packet of a size from the root context, from a raw socket.
func (l *lab) send(t *testing.T, w Tunnel, size int) {
	t.Helper()
	domain, over := unix.AF_INET6, 40
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: w.Remote.As16()}
	if w.Local.Is4() {
		domain, over = unix.AF_INET, 20
		to = &unix.SockaddrInet4{Addr: w.Remote.As4()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_GRE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if w.Local.Is4() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	} else {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size-over)
	binary.BigEndian.PutUint32(b, 0x20006558)
	binary.BigEndian.PutUint32(b[4:], w.Key)
	if err := unix.Sendto(fd, b, 0, to); err != nil {
		t.Fatal(err)
	}
}

// TestTooBigMessages reads messages that are not as they should be.
func TestTooBigMessages(t *testing.T) {
	good := tooBig4(way4, 1500, 1400)
	if got, size, mtu, ok := parseTooBig(good, true); !ok || got != way4 || size != 1500 || mtu != 1400 {
		t.Fatalf("a good message: %+v, %d, %d, %v", got, size, mtu, ok)
	}
	for n := range good {
		if _, _, _, ok := parseTooBig(good[:n], true); ok {
			t.Errorf("the first %d bytes are taken for a message", n)
		}
	}
	for _, at := range []int{20, 21, 22, 28, 37, 48, 50} { // type, code, checksum; version, protocol, GRE's flags and protocol
		bad := append([]byte(nil), good...)
		bad[at] ^= 0x81
		if at != 22 {
			bad[22], bad[23] = 0, 0
			binary.BigEndian.PutUint16(bad[22:], checksum(bad[20:]))
		}
		if _, _, _, ok := parseTooBig(bad, true); ok {
			t.Errorf("byte %d may be anything", at)
		}
	}
}

// TestLower checks what of a router's word is heard.
func TestLower(t *testing.T) {
	for _, c := range []struct{ size, mtu, want int }{
		{1500, 1400, 1400},
		{1500, 0, 1492}, // it does not tell
		{1500, 575, 0},  // less than any link
		{1400, 1400, 0}, // it would have fitted
		{9000, 8000, 0}, // no news
		{1500, 1500, 0},
	} {
		u := &Underlay{
			dirty: make(chan struct{}, 1), used: map[string][]Tunnel{"v": {way4}}, narrow: map[tunnel.Endpoints]narrow{},
			states: map[tunnel.Endpoints]State{way4.Endpoints: {Route: tunnel.Route{MTU: 1500}}},
		}
		if got, ok := u.claimOf(way4, c.size, c.mtu); got.mtu != c.want || ok != (c.want != 0) {
			t.Errorf("a packet of %d, %d fit: %+v, want %d", c.size, c.mtu, got, c.want)
		}
	}
}

// tooBig4 is a message about a tunnel's packet, with its IPv4 header.
func tooBig4(w Tunnel, size, mtu int) []byte {
	q := make([]byte, 28)
	q[0], q[9] = 0x45, unix.IPPROTO_GRE
	binary.BigEndian.PutUint16(q[2:], uint16(size))
	copy(q[12:], w.Local.AsSlice())
	copy(q[16:], w.Remote.AsSlice())
	binary.BigEndian.PutUint32(q[20:], 0x20006558)
	binary.BigEndian.PutUint32(q[24:], w.Key)
	m := append([]byte{icmpUnreachable, icmpNeedsFragment, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, q...)
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	h := make([]byte, 20)
	h[0] = 0x45
	return append(h, m...)
}
