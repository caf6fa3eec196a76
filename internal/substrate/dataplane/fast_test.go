package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
)

// router is a node with two interfaces: frames arrive at eth1; eth2 leads to a
// peer across the underlay, or to a neighbour on this machine.
type router struct {
	*bench
	t         testing.TB
	n         *nstest.Node
	mac, next net.HardwareAddr // of eth1; of the next hop behind eth2
	out       net.HardwareAddr // of eth2
	eth1      int
	port2     int
	nodeIn    *ebpf.Program
	meta      []byte
}

func newRouter(t testing.TB) *router {
	t.Helper()
	r := newStackRouter(t)
	r.needFastPath(t)
	return r
}

// newStackRouter is newRouter on kernels, too, where the node's stack forwards.
func newStackRouter(t testing.TB) *router {
	t.Helper()
	b := &bench{lab: newLab(t)}
	b.uplink = b.veth(t)
	r := &router{bench: b, t: t, n: nstest.NewNode(t), next: net.HardwareAddr{2, 0, 0, 0, 0xbb, 1}}
	must(t, r.n.Defaults(nil))
	b.port, r.eth1 = b.attach(t, r.n, "eth1", 1458)
	r.port2, _ = b.attach(t, r.n, "eth2", 1458)
	r.meta = b.metadata(b.port)
	if b.FastPathSupported() == nil {
		b.fast(t, b.port, true)
		r.nodeIn = b.program(t, "node_in")
	}
	r.n.Configure(t, "eth1", "10.0.1.1/24", "fd00:1::1/64")
	r.n.Configure(t, "eth2", "10.0.2.1/24", "fd00:2::1/64")
	r.n.Must(t, fmt.Sprintf(`ip neigh replace 10.0.2.2 lladdr %[1]v dev eth2; ip neigh replace fd00:2::2 lladdr %[1]v dev eth2
		ip neigh replace 10.0.1.2 lladdr %[1]v dev eth1; ip neigh replace fd00:1::2 lladdr %[1]v dev eth1
		ip route add 10.0.9.0/24 via 10.0.2.2; ip route add fd00:9::/64 via fd00:2::2
		ip route add blackhole 10.0.10.0/24; ip route add unreachable 10.0.11.0/24; ip route add prohibit 10.0.12.0/24
		ip route add 10.0.13.0/24 via 10.0.2.2 mtu lock 600; ip route add 10.0.14.0/24 via 10.0.2.3; ip route add 10.0.15.0/24 via 10.0.1.2
		ip -6 route add fd00:a::/64 via fd00:1::2; ip -6 route add blackhole fd00:b::/64`, r.next))
	mac := func(name string) (m net.HardwareAddr) {
		must(t, r.n.Do(func() error {
			i, err := net.InterfaceByName(name)
			if err == nil {
				m = i.HardwareAddr
			}
			return err
		}))
		return m
	}
	r.mac, r.out = mac("eth1"), mac("eth2")
	return r
}

// ipv4 is a packet to the router, complete in every respect.
func (r *router) ipv4(dst string, length int) []byte {
	ip := join([]byte{0x45, 0}, be16(length-14), []byte{0x12, 0x34, 0, 0, 64, 17, 0, 0, 10, 0, 1, 2}, netip.MustParseAddr(dst).AsSlice())
	return join(r.mac, []byte{2, 0, 0, 0, 0, 7, 8, 0}, sum4(ip), []byte{0x30, 0x39, 0, 9}, be16(length-34), []byte{0, 0}, bytes.Repeat([]byte{0xa5}, length-42))
}

func (r *router) ipv6(dst string, length int) []byte {
	src := netip.MustParseAddr("fd00:1::2")
	return join(r.mac, []byte{2, 0, 0, 0, 0, 7, 0x86, 0xdd, 0x60, 0, 0, 0}, be16(length-54), []byte{17, 64},
		src.AsSlice(), netip.MustParseAddr(dst).AsSlice(), []byte{0x30, 0x39, 0, 9}, be16(length-54), []byte{1, 2}, make([]byte, length-62))
}

// forward runs the fast path on a frame at eth1.
func (r *router) forward(frame []byte) (verdict uint32, out []byte) {
	r.t.Helper()
	return r.run(r.meta, frame)
}

// run does, with metadata.
func (r *router) run(meta, frame []byte) (verdict uint32, out []byte) {
	r.t.Helper()
	must(r.t, r.n.Do(func() error {
		verdict, out = runXDP(r.t, r.nodeIn, join(meta, frame), len(meta), r.eth1)
		return nil
	}))
	return verdict, out
}

// hop is what a router makes of a frame.
func (r *router) hop(frame []byte) []byte {
	f := append([]byte(nil), frame...)
	copy(f, r.next)
	copy(f[6:], r.out)
	if f[12] == 8 {
		f[22]--
		sum4(f[14:34])
	} else {
		f[21]--
	}
	return f
}

func TestForwardsByteForByte(t *testing.T) {
	r := newRouter(t)
	neighbour, _ := r.attach(t, nstest.NewNode(t), "eth1", 1458)
	for _, length := range []int{62, 64, 1000, 1472} {
		for _, frame := range [][]byte{r.ipv4("10.0.9.5", length), r.ipv4("10.0.2.2", length), r.ipv6("fd00:9::5", length), r.ipv6("fd00:2::2", length)} {
			must(t, r.Join(dataplane.End{Index: r.port2}, dataplane.End{Index: neighbour}))
			if verdict, got := r.forward(frame); verdict != xdpRedirect || !bytes.Equal(got, join(r.metadata(neighbour), r.hop(frame))) {
				t.Errorf("to a neighbour, %x: verdict %d,\n%x, want\n%x", frame[:34], verdict, got, r.hop(frame))
			}
			must(t, r.Connect(r.port2, 0, path4(r.uplink)))
			want := egre4(ownMAC, peerMAC, own4, peer4, gre, r.hop(frame))
			if verdict, got := r.forward(frame); verdict != xdpRedirect || !bytes.Equal(got, want) {
				t.Errorf("over IPv4, %x: verdict %d,\n%x, want\n%x", frame[:34], verdict, got, want)
			}
			if length > 1452 {
				continue
			}
			must(t, r.Connect(r.port2, 0, path6(r.uplink)))
			want = egre6(ownMAC, peerMAC, own6, peer6, gre, r.hop(frame))
			if verdict, got := r.forward(frame); verdict != xdpRedirect || !bytes.Equal(got, want) {
				t.Errorf("over IPv6, %x: verdict %d,\n%x, want\n%x", frame[:34], verdict, got, want)
			}
		}
	}
	c := r.counters(t, r.port2)
	if want := uint64(4*4*2 + 3*4); c.FastFromNodePackets != want || c.FromNodePackets < want {
		t.Errorf("counted %+v, want %d fast packets", c, want)
	}
}

// TestAnswersOfTheFIBGo changes what the FIB has said of a flow right after a
// packet of it: the next one must hear of it.
func TestAnswersOfTheFIBGo(t *testing.T) {
	r := newRouter(t)
	must(t, r.Connect(r.port2, 0, path4(r.uplink)))
	prefix := func(s string) *net.IPNet {
		_, n, err := net.ParseCIDR(s)
		must(t, err)
		return n
	}
	inside := func(f func() error) func() { return func() { t.Helper(); must(t, r.n.Do(f)) } }
	blackhole4 := &netlink.Route{Dst: prefix("10.0.9.5/32"), Type: unix.RTN_BLACKHOLE, Priority: 1}
	blackhole6 := &netlink.Route{Dst: prefix("fd00:9::5/128"), Type: unix.RTN_BLACKHOLE, Priority: 1}
	rule := netlink.NewRule()
	rule.Src, rule.Type, rule.Priority = prefix("10.0.1.2/32"), unix.RTN_BLACKHOLE, 100
	own := &netlink.Addr{IPNet: prefix("10.0.1.2/32")}
	eth2 := netlink.Link(nil)
	inside(func() (err error) { eth2, err = netlink.LinkByName("eth2"); return err })()
	mac := func(last byte) func() {
		return inside(func() error {
			return netlink.NeighSet(&netlink.Neigh{
				LinkIndex: eth2.Attrs().Index, IP: net.IPv4(10, 0, 2, 2), State: netlink.NUD_PERMANENT,
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0xbb, last},
			})
		})
	}
	tick := func() { t.Helper(); nextTick(t) }
	four, six := r.ipv4("10.0.9.5", 62), r.ipv6("fd00:9::5", 62)
	for _, c := range []struct {
		name     string
		frame    []byte
		set      func()
		heard    func() // when at the latest; nil: at once
		unset    func()
		unheard  func()
		forwards bool // to another neighbour
	}{
		{"an IPv4 route", four, inside(func() error { return netlink.RouteAdd(blackhole4) }), nil, inside(func() error { return netlink.RouteDel(blackhole4) }), nil, false},
		{"an IPv4 rule", four, inside(func() error { return netlink.RuleAdd(rule) }), nil, inside(func() error { return netlink.RuleDel(rule) }), nil, false},
		{"an address that is the source's", four, inside(func() error { return netlink.AddrAdd(eth2, own) }), nil, inside(func() error { return netlink.AddrDel(eth2, own) }), nil, false},
		{"an IPv6 route", six, inside(func() error { return netlink.RouteAdd(blackhole6) }), nil, inside(func() error { return netlink.RouteDel(blackhole6) }), tick, false},
		{"a neighbour's MAC", four, mac(9), tick, mac(1), tick, true},
	} {
		if c.heard == nil {
			c.heard = func() {}
		}
		if c.unheard == nil {
			c.unheard = func() {}
		}
		for round := range 20 {
			tick() // so that the entry is fresh when it goes
			for range 2 {
				if verdict, _ := r.forward(c.frame); verdict != xdpRedirect {
					t.Fatalf("%s, round %d: verdict %d before, for %v", c.name, round, verdict, r.counters(t, r.port).Stack)
				}
			}
			c.set()
			c.heard()
			verdict, out := r.forward(c.frame)
			switch {
			case c.forwards != (verdict == xdpRedirect):
				t.Fatalf("%s, round %d: verdict %d", c.name, round, verdict)
			case c.forwards && !bytes.Contains(out, []byte{2, 0, 0, 0, 0xbb, 9}):
				t.Fatalf("%s, round %d: not there: %x", c.name, round, out)
			}
			c.unset()
			c.unheard()
		}
	}
}

// nextTick waits for the kernel's next tick. The coarse clock goes with it, right
// behind the count that the fast path reads (tick_do_update_jiffies64,
// kernel/time/tick-sched.c), however late that is.
func nextTick(t testing.TB) {
	t.Helper()
	read := func() (now unix.Timespec) {
		must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now))
		return now
	}
	for before := read(); read() == before; {
		time.Sleep(200 * time.Microsecond)
	}
}

// A longer packet than its route takes asks again, and is the stack's.
func TestAnswersMindTheMTU(t *testing.T) {
	r := newRouter(t)
	must(t, r.Connect(r.port2, 0, path4(r.uplink)))
	for _, c := range []struct {
		length  int
		verdict uint32
	}{{600, xdpRedirect}, {614, xdpRedirect}, {615, xdpPass}, {614, xdpRedirect}, {1000, xdpPass}} {
		if verdict, _ := r.forward(r.ipv4("10.0.13.5", c.length)); verdict != c.verdict {
			t.Errorf("%d bytes by a route for 600: verdict %d, want %d", c.length, verdict, c.verdict)
		}
	}
}

// Checksums go round by one: every value of it, at the TTLs that border on it.
func TestChecksumFollowsTTL(t *testing.T) {
	r := newRouter(t)
	must(t, r.Connect(r.port2, 0, path4(r.uplink)))
	for id := 0; id < 1<<16; id += 97 {
		for _, ttl := range []byte{2, 64, 255} {
			frame := r.ipv4("10.0.9.5", 62)
			binary.BigEndian.PutUint16(frame[18:], uint16(id))
			frame[22] = ttl
			sum4(frame[14:34])
			if verdict, got := r.forward(frame); verdict != xdpRedirect || !bytes.Equal(got[42:], r.hop(frame)) {
				t.Fatalf("ID %d, TTL %d: verdict %d,\n%x, want\n%x", id, ttl, verdict, got[42:], r.hop(frame))
			}
		}
	}
}

// What the fast path is unsure of comes out as it went in, for the stack.
func TestLeavesTheRestToTheStack(t *testing.T) {
	r := newRouter(t)
	must(t, r.Connect(r.port2, 0, path4(r.uplink)))
	edit := func(frame []byte, at int, value ...byte) []byte {
		frame = append([]byte(nil), frame...)
		copy(frame[at:], value)
		if frame[12] == 8 && frame[13] == 0 && at != 24 {
			sum4(frame[14:34])
		}
		return frame
	}
	f4, f6 := r.ipv4("10.0.9.5", 100), r.ipv6("fd00:9::5", 100)
	options := join(f4[:34], []byte{1, 1, 1, 1}, f4[34:])
	options[14] = 0x46
	binary.BigEndian.PutUint16(options[16:], 90)
	sum4(options[14:38])
	table := map[string]struct {
		why   dataplane.StackReason
		frame []byte
	}{
		"local delivery":           {dataplane.StackLocal, r.ipv4("10.0.1.1", 100)},
		"local delivery elsewhere": {dataplane.StackLocal, r.ipv4("10.0.2.1", 100)},
		"a subnet's broadcast":     {dataplane.StackLocal, r.ipv4("10.0.2.255", 100)},
		"limited broadcast":        {dataplane.StackAddress, r.ipv4("255.255.255.255", 100)},
		"multicast":                {dataplane.StackAddress, r.ipv4("224.0.0.5", 100)},
		"class E":                  {dataplane.StackAddress, r.ipv4("240.0.0.1", 100)},
		"to loopback":              {dataplane.StackAddress, r.ipv4("127.0.0.1", 100)},
		"to nowhere":               {dataplane.StackAddress, r.ipv4("0.0.0.0", 100)},
		"no route":                 {dataplane.StackLocal, r.ipv4("198.51.100.1", 100)},
		"blackhole":                {dataplane.StackUnreachable, r.ipv4("10.0.10.1", 100)},
		"unreachable":              {dataplane.StackUnreachable, r.ipv4("10.0.11.1", 100)},
		"prohibit":                 {dataplane.StackUnreachable, r.ipv4("10.0.12.1", 100)},
		"longer than the route":    {dataplane.StackMTU, r.ipv4("10.0.13.1", 615)},
		"longer than the link":     {dataplane.StackMTU, r.ipv4("10.0.9.5", 1473)},
		"no neighbour":             {dataplane.StackNeighbour, r.ipv4("10.0.14.1", 100)},
		"back where it came from":  {dataplane.StackRedirect, r.ipv4("10.0.15.1", 100)},
		"TTL 1":                    {dataplane.StackTTL, edit(f4, 22, 1)},
		"TTL 0":                    {dataplane.StackTTL, edit(f4, 22, 0)},
		"a wrong checksum":         {dataplane.StackMalformed, edit(f4, 24, f4[24]^1)},
		"more fragments":           {dataplane.StackFragment, edit(f4, 20, 0x20)},
		"a later fragment":         {dataplane.StackFragment, edit(f4, 20, 0, 9)},
		"options":                  {dataplane.StackOptions, options},
		"version 6 in IPv4":        {dataplane.StackMalformed, edit(f4, 14, 0x65)},
		"longer than the frame":    {dataplane.StackMalformed, edit(f4, 16, 0, 87)},
		"shorter than its header":  {dataplane.StackMalformed, edit(f4, 16, 0, 19)},
		"from loopback":            {dataplane.StackAddress, edit(f4, 26, 127, 0, 0, 1)},
		"from multicast":           {dataplane.StackAddress, edit(f4, 26, 224, 0, 0, 1)},
		"from the node itself":     {dataplane.StackSource, edit(f4, 26, 10, 0, 2, 1)},
		"from nowhere":             {dataplane.StackAddress, edit(f4, 26, 0, 0, 0, 0)},
		"an ICMP error":            {dataplane.StackTransport, edit(edit(f4, 23, 1), 34, 3)},
		"for another's MAC":        {dataplane.StackMAC, edit(f4, 0, 2, 0, 0, 0, 0x99, 0x99)},
		"a group's MAC":            {dataplane.StackMAC, edit(f4, 0, 1)},
		"ARP":                      {dataplane.StackNotIP, edit(f4, 12, 8, 6)},
		"no IP":                    {dataplane.StackNotIP, edit(f4, 12, 0, 46)},
		"a VLAN tag":               {dataplane.StackNotIP, join(f4[:12], []byte{0x81, 0, 0, 5}, f4[12:])},
		"cut":                      {dataplane.StackMalformed, f4[:33]},
		"UDP cut":                  {dataplane.StackTransport, edit(r.ipv4("10.0.9.5", 42), 16, 0, 20)[:36]},
		"v6 local delivery":        {dataplane.StackLocal, r.ipv6("fd00:1::1", 100)},
		"v6 multicast":             {dataplane.StackAddress, r.ipv6("ff02::5", 100)},
		"v6 link-local":            {dataplane.StackAddress, r.ipv6("fe80::1", 100)},
		"v6 no route":              {dataplane.StackLocal, r.ipv6("2001:db8:7::1", 100)},
		"v6 blackhole":             {dataplane.StackUnreachable, r.ipv6("fd00:b::1", 100)},
		"v6 no neighbour":          {dataplane.StackNeighbour, r.ipv6("fd00:2::77", 100)},
		"v6 back":                  {dataplane.StackRedirect, r.ipv6("fd00:a::1", 100)},
		"v6 longer than the link":  {dataplane.StackMTU, r.ipv6("fd00:9::5", 1473)},
		"v6 hop limit 1":           {dataplane.StackTTL, edit(f6, 21, 1)},
		"v6 hop-by-hop":            {dataplane.StackOptions, edit(f6, 20, 0)},
		"v6 fragment":              {dataplane.StackOptions, edit(f6, 20, 44)},
		"v6 routing":               {dataplane.StackOptions, edit(f6, 20, 43)},
		"v6 destination options":   {dataplane.StackOptions, edit(f6, 20, 60)},
		"v6 authentication":        {dataplane.StackOptions, edit(f6, 20, 51)},
		"v6 jumbogram":             {dataplane.StackMalformed, edit(f6, 18, 0, 0)},
		"v6 longer than the frame": {dataplane.StackMalformed, edit(f6, 18, 0, 47)},
		"v6 from link-local":       {dataplane.StackAddress, edit(f6, 22, 0xfe, 0x80)},
		"v6 from nowhere":          {dataplane.StackAddress, edit(f6, 22, make([]byte, 16)...)},
		"v6 an ICMP error":         {dataplane.StackTransport, edit(edit(f6, 20, 58), 54, 2)},
		"v6 neighbour discovery":   {dataplane.StackTransport, edit(edit(f6, 20, 58), 54, 135)},
	}
	// left runs the fast path, and counts what left it for a reason.
	left := func(frame []byte, why dataplane.StackReason) (verdict uint32, out []byte, n uint64) {
		before := r.counters(t, r.port).Stack
		verdict, out = r.forward(frame)
		after := r.counters(t, r.port).Stack
		total := uint64(0)
		for reason, n := range after {
			total += n - before[reason]
		}
		if n = after[why] - before[why]; total != n {
			t.Errorf("want %s, counted %v after %v", why, after, before)
		}
		return verdict, out, n
	}
	for name, c := range table {
		if verdict, got, n := left(c.frame, c.why); verdict != xdpPass || !bytes.Equal(got, c.frame) || n != 1 {
			t.Errorf("%s: verdict %d, %d by %s,\n%x, want a pass and\n%x", name, verdict, n, c.why, got, c.frame)
		}
	}
	// The table's frame is forwarded but for what the table changes.
	for _, frame := range [][]byte{f4, f6} {
		if verdict, _, n := left(frame, ""); verdict != xdpRedirect || n != 0 {
			t.Error("the plain frame is not forwarded")
		}
	}
	pass := func(what string, why dataplane.StackReason) {
		t.Helper()
		time.Sleep(10 * time.Millisecond) // a policy counts to the end of its tick (bpf/policy_cache.h)
		if verdict, _, n := left(f4, why); verdict != xdpPass || n != 1 {
			t.Errorf("%s: verdict %d, %d by %s, want a pass", what, verdict, n, why)
		}
	}
	// The program takes nothing without the metadata, which no skb carries.
	must(t, r.n.Do(func() error {
		if verdict, got := runXDP(t, r.nodeIn, f4, 0, r.eth1); verdict != xdpPass || !bytes.Equal(got, f4) {
			t.Errorf("an skb's frame: verdict %d", verdict)
		}
		return nil
	}))
	r.n.Must(t, "sysctl -qw net.ipv4.conf.all.forwarding=0")
	pass("forwarding off", dataplane.StackSysctl) // redirects are accepted then, too
	r.n.Must(t, "sysctl -qw net.ipv4.conf.all.forwarding=1")
	r.n.Must(t, "ip link set eth1 address 02:00:00:00:99:01")
	pass("a MAC that the node has changed", dataplane.StackMAC)
	r.n.Must(t, "ip link set eth1 address "+r.mac.String())
	if verdict, _ := r.forward(f4); verdict != xdpRedirect {
		t.Error("the fast path did not come back")
	}
	for _, c := range []struct {
		why       dataplane.StackReason
		frame     []byte
		set, undo string
	}{
		{dataplane.StackNetfilter, f4, "nft add table ip t; nft 'add chain ip t c { type filter hook forward priority 0; }'", "nft delete table ip t"},
		{dataplane.StackTC, f4, "tc qdisc add dev eth1 clsact", "tc qdisc del dev eth1 clsact"},
		{dataplane.StackTC, f6, "tc qdisc add dev eth2 root tbf rate 1gbit burst 100k latency 10ms", "tc qdisc del dev eth2 root"},
		{dataplane.StackSysctl, f4, "sysctl -qw net.ipv4.conf.eth1.rp_filter=1", "sysctl -qw net.ipv4.conf.eth1.rp_filter=0"},
		{dataplane.StackIPsec, f4, "ip xfrm policy add src 203.0.113.0/24 dst 203.0.113.0/24 dir fwd action block", "ip xfrm policy flush"},
		{dataplane.StackRules, f6, "ip -6 rule add from all suppress_prefixlength 0 table main priority 99", "ip -6 rule del priority 99"},
	} {
		r.n.Must(t, c.set)
		nextTick(t)
		if verdict, _, n := left(c.frame, c.why); verdict != xdpPass || n != 1 {
			t.Errorf("%s: verdict %d, %d by %s, want a pass", c.set, verdict, n, c.why)
		}
		r.n.Must(t, c.undo)
	}
	// Else the route is dead as soon as the kernel's link watch has seen it.
	r.n.Must(t, "sysctl -qw net.ipv4.conf.eth2.ignore_routes_with_linkdown=0 net.ipv4.conf.all.ignore_routes_with_linkdown=0")
	must(t, port.SetUp(map[string]bool{r.device(t, r.port2): false}))
	nextTick(t)
	pass("no carrier", dataplane.StackDown)
	must(t, port.SetUp(map[string]bool{r.device(t, r.port2): true}))
	if verdict, _ := runXDP(t, r.program(t, "node_pass"), join(r.meta, f4), len(r.meta), 0); verdict != xdpPass || r.counters(t, r.port).Stack[dataplane.StackOff] != 1 {
		t.Errorf("off: verdict %d, counted %v", verdict, r.counters(t, r.port).Stack)
	}
	must(t, r.Unjoin(r.port2))
	pass("a port without a peer", dataplane.StackEgress)
	r.n.Must(t, "ip link add br0 type bridge; ip link set eth1 master br0") // last: br_netfilter's hooks stay
	nextTick(t)
	pass("a bridge", dataplane.StackMaster)
}

// A node that gives a device of its own the interface index of another node's
// end does not reach that node's link.
func TestIndexIsNoKey(t *testing.T) {
	r := newRouter(t)
	other := nstest.NewNode(t)
	other.Must(t, "ip link add name filler type ifb; ip link add name filler2 type ifb; ip link add name filler3 type ifb")
	theirs, index := r.attach(t, other, "eth1", 1458)
	must(t, r.Connect(theirs, 0, path4(r.uplink)))
	r.n.Must(t, fmt.Sprintf(`ip link add name fake index %d type ifb && ip link set fake up && ip addr add 10.0.47.1/24 dev fake
		ip neigh replace 10.0.47.2 lladdr 02:00:00:00:00:47 dev fake`, index))
	if verdict, _ := r.forward(r.ipv4("10.0.47.2", 100)); verdict != xdpPass {
		t.Errorf("verdict %d: another's link was reached", verdict)
	}
}
