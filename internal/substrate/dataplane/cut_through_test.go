package dataplane_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/tunnel"
	"trellis/test/testenv"
)

// crossing is a router between two paths across the underlay: frames arrive by the one at eth1, and leave
// by the other of eth2.
type crossing struct {
	*router
	uplinkIn *ebpf.Program
	from, to tunnel.Path
	cpus     []int // that there are; the process is on the first
}

func newCrossing(t testing.TB) *crossing {
	t.Helper()
	r := newRouter(t)
	must(t, r.CutThroughSupported())
	c := &crossing{router: r, cpus: onOneCPU(t), uplinkIn: r.program(t, "uplink_in")}
	c.connect(false, false)
	return c
}

// onOneCPU keeps the process on the first of the CPUs that it gives: what one has found out, another does
// not know.
func onOneCPU(t testing.TB) (cpus []int) {
	t.Helper()
	var before unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &before))
	for cpu := range 1024 {
		if before.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	t.Cleanup(func() { moveTo(t, cpus...) })
	moveTo(t, cpus[0])
	return cpus
}

// moveTo has the process run on these CPUs only.
func moveTo(t testing.TB, cpus ...int) {
	t.Helper()
	var to unix.CPUSet
	for _, cpu := range cpus {
		to.Set(cpu)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	must(t, err)
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		must(t, err)
		if err := unix.SchedSetaffinity(id, &to); err != nil && err != unix.ESRCH {
			t.Fatal(err)
		}
	}
}

// connect has frames arrive and leave over IPv4 or IPv6.
func (c *crossing) connect(in6, out6 bool) {
	c.t.Helper()
	path := func(ipv6 bool, key uint32) tunnel.Path {
		p := path4(c.uplink)
		if ipv6 {
			p = path6(c.uplink)
		}
		p.Key = key
		return p
	}
	c.from, c.to = path(in6, 0x11), path(out6, 0x22)
	must(c.t, c.Connect(c.port, 0, c.from))
	must(c.t, c.Connect(c.port2, 0, c.to))
}

// wrap puts on a frame the outer headers that it has on its way by a path, from the peer or to it.
func wrap(p tunnel.Path, fromPeer bool, frame []byte) []byte {
	gre := binary.BigEndian.AppendUint32([]byte{0x20, 0, 0x65, 0x58}, p.Key)
	from, to, src, dst := ownMAC, peerMAC, p.Local, p.Remote
	if fromPeer {
		from, to, src, dst = to, from, dst, src
	}
	if src.Is6() {
		return egre6(from, to, src, dst, gre, frame)
	}
	return egre4(from, to, src, dst, gre, frame)
}

// arrive runs the uplink's program on what arrives there.
func (c *crossing) arrive(outer []byte) (verdict uint32, out []byte) {
	c.t.Helper()
	return runXDP(c.t, c.uplinkIn, outer, 0, c.uplink)
}

// byNode tells whether the uplink's program has sent a frame on to the node, and runs the node's
// program on it.
func (c *crossing) byNode(verdict uint32, out []byte) bool {
	c.t.Helper()
	if verdict != xdpRedirect || len(out) < metadataSize || binary.NativeEndian.Uint32(out) != 0x74726c66 {
		return false
	}
	c.run(out[:metadataSize], out[metadataSize:])
	return true
}

// ready brings it about that the frames of a flow are cut through in this tick, and gives the first that was.
func (c *crossing) ready(frame []byte) (out []byte) {
	c.t.Helper()
	for range 20 {
		nextTick(c.t)
		for range 3 { // a frame that was lost takes another
			if verdict, out := c.arrive(wrap(c.from, true, frame)); verdict == xdpRedirect && !c.byNode(verdict, out) {
				return out
			}
		}
	}
	c.t.Fatalf("nothing is cut through of the flow of %x", frame[:34])
	return nil
}

// cut tells whether what arrives is cut through. Otherwise, it goes by the node.
func (c *crossing) cut(outer []byte) bool {
	c.t.Helper()
	verdict, out := c.arrive(outer)
	return !c.byNode(verdict, out) && verdict == xdpRedirect
}

// What is cut through leaves byte for byte as it would by the node, and counts as it would there.
func TestCutsThroughByteForByte(t *testing.T) {
	c := newCrossing(t)
	for _, families := range [][2]bool{{false, false}, {true, true}, {false, true}, {true, false}} {
		c.connect(families[0], families[1])
		for _, length := range []int{62, 63, 1000, 1452} {
			for _, frame := range [][]byte{c.ipv4("10.0.9.5", length), c.ipv4("10.0.2.2", length), c.ipv6("fd00:9::5", length), c.ipv6("fd00:2::2", length)} {
				if out, want := c.ready(frame), wrap(c.to, false, c.hop(frame)); !bytes.Equal(out, want) {
					t.Errorf("from %v to %v, %x:\n%x, want\n%x", c.from.Remote, c.to.Remote, frame[:34], out, want)
				}
			}
		}
	}
	// Each frame counts once, whichever way it goes.
	frame := c.ipv4("10.0.9.5", 100)
	in, out := c.counters(t, c.port), c.counters(t, c.port2)
	const n = 10
	for range n {
		c.byNode(c.arrive(wrap(c.from, true, frame)))
	}
	in.ToNodePackets, in.FastToNodePackets = in.ToNodePackets+n, in.FastToNodePackets+n
	in.ToNodeBytes, in.FastToNodeBytes = in.ToNodeBytes+n*100, in.FastToNodeBytes+n*100
	out.FromNodePackets, out.FastFromNodePackets = out.FromNodePackets+n, out.FastFromNodePackets+n
	out.FromNodeBytes, out.FastFromNodeBytes = out.FromNodeBytes+n*100, out.FastFromNodeBytes+n*100
	for port, want := range map[int]dataplane.PortCounters{c.port: in, c.port2: out} {
		if got := c.counters(t, port); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	}
}

// What a packet, or anything that its flow hangs on, has of its own goes by the node.
func TestGoesByTheNode(t *testing.T) {
	c := newCrossing(t)
	four, six := c.ipv4("10.0.9.5", 100), c.ipv6("fd00:9::5", 100)
	edited := func(frame []byte, at int, value ...byte) []byte {
		f := bytes.Clone(frame)
		copy(f[at:], value)
		if f[12] == 8 {
			sum4(f[14:34])
		}
		return f
	}
	for name, frames := range map[string][2][]byte{
		"another flow":            {four, c.ipv4("10.0.9.6", 100)},
		"another source":          {six, edited(six, 22, 0x20)},
		"IPv4, TTL 1":             {four, edited(four, 22, 1)},
		"IPv6, hop limit 1":       {six, edited(six, 21, 1)},
		"a first fragment":        {four, edited(four, 20, 0x20)},
		"a wrong checksum":        {four, append(bytes.Clone(four[:24]), append([]byte{four[24] ^ 1}, four[25:]...)...)},
		"another MAC address":     {four, edited(four, 5, four[5]^1)},
		"a group's MAC address":   {four, edited(four, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)},
		"a tag":                   {four, join(four[:12], []byte{0x81, 0, 0, 1}, four[12:])},
		"no IP":                   {four, edited(four, 12, 0x88, 0xb5)},
		"cut in its IP header":    {four, four[:30]},
		"cut before its ports":    {four, four[:36]},
		"a route's MTU":           {c.ipv4("10.0.13.5", 614), c.ipv4("10.0.13.5", 615)},
		"no neighbour":            {four, c.ipv4("10.0.14.5", 100)},
		"a blackhole":             {four, c.ipv4("10.0.10.5", 100)},
		"back where it came from": {four, c.ipv4("10.0.15.5", 100)},
		"the node's own":          {four, c.ipv4("10.0.2.1", 100)},
		"the node's own address":  {four, edited(four, 26, 10, 0, 2, 1)},
	} {
		for range 3 { // a tick may pass in between
			c.ready(frames[0])
			if c.cut(wrap(c.from, true, frames[1])) {
				t.Errorf("%s: it was cut through", name)
			}
		}
	}
	for name, outer := range map[string]func() []byte{
		"padding": func() []byte { return join(wrap(c.from, true, four), make([]byte, 8)) },
		"marked by the underlay": func() []byte {
			f := wrap(c.from, true, four)
			f[15] |= 3
			sum4(f[14:34])
			return f
		},
	} {
		for range 3 {
			c.ready(four)
			if c.cut(outer()) {
				t.Errorf("%s: it was cut through", name)
			}
		}
	}
}

// A frame waits for those before it: while one is on its way by the node, or was lost there, none is cut
// through.
func TestCutThroughKeepsTheOrder(t *testing.T) {
	testenv.Measures(t)
	c := newCrossing(t)
	frame := c.ipv4("10.0.9.5", 100)
	outer := wrap(c.from, true, frame)
	waiting := func(outer []byte) []byte { // a frame in the queue of the pair
		t.Helper()
		verdict, out := c.arrive(outer)
		if verdict != xdpRedirect || len(out) < metadataSize || binary.NativeEndian.Uint32(out) != 0x74726c66 {
			t.Fatal("a frame was cut through while another of the port was on its way by the node")
		}
		return out
	}
	node := func(out []byte) { c.run(out[:metadataSize], out[metadataSize:]) }
	for round := range 20 {
		c.ready(frame)
		other := waiting(wrap(c.from, true, c.ipv4("10.0.9.6", 100)))
		second := waiting(outer)
		node(other)
		third := waiting(outer)
		if round%2 == 0 { // else the second is lost
			node(second)
		}
		waiting(outer) // and so is this one
		node(third)
		node(waiting(outer))
		c.ready(frame)
	}
	// What went to the stack may still be there.
	ended := bytes.Clone(frame)
	ended[22] = 1
	sum4(ended[14:34])
	c.ready(frame)
	node(waiting(wrap(c.from, true, ended)))
	waiting(outer)
	// What another CPU has sent on may not have left yet.
	for range 20 {
		if len(c.cpus) < 2 {
			break
		}
		c.ready(frame)
		moveTo(t, c.cpus[1])
		node(waiting(outer))
		moveTo(t, c.cpus[0])
		if c.cut(outer) {
			t.Error("a frame was cut through right behind one that another CPU had sent on")
		}
	}
	// What another uplink brings has not been seen to get there.
	nstest.Sh(t, "ip link add up1 type veth peer name wire1; ip link set up1 up; ip link set wire1 up")
	c.ready(frame)
	if verdict, out := runXDP(t, c.uplinkIn, outer, 0, index(t, "up1")); !c.byNode(verdict, out) {
		t.Error("a frame of another uplink was cut through")
	}
}

// What ends a flow's way, or leads it elsewhere, does so between two frames.
func TestCutThroughEndsAtOnce(t *testing.T) {
	c := newCrossing(t)
	device := c.device(t, c.port)
	inside := func(f func(eth1 netlink.Link) error) func() {
		return func() {
			t.Helper()
			must(t, c.n.Do(func() error {
				eth1, err := netlink.LinkByName("eth1")
				if err != nil {
					return err
				}
				return f(eth1)
			}))
		}
	}
	outside := func(f func(netlink.Link) error) func() {
		return func() {
			t.Helper()
			l, err := netlink.LinkByName(device)
			must(t, err)
			must(t, f(l))
		}
	}
	_, host, err := net.ParseCIDR("10.0.9.5/32")
	must(t, err)
	blackhole := &netlink.Route{Dst: host, Type: unix.RTN_BLACKHOLE, Priority: 1}
	mac := func(last byte) func() {
		return inside(func(eth1 netlink.Link) error {
			to := bytes.Clone(c.mac)
			to[5] ^= last
			return netlink.LinkSetHardwareAddr(eth1, to)
		})
	}
	mtu := func(n int) func() {
		return inside(func(eth1 netlink.Link) error { return netlink.LinkSetMTU(eth1, n) })
	}
	ended, end := make(chan error), context.CancelFunc(func() {})
	tap := func(port int) func() {
		return func() {
			t.Helper()
			var ctx context.Context
			ctx, end = context.WithCancel(context.Background())
			go func() { ended <- c.Tap(ctx, port, 0, func(dataplane.Frame) {}) }()
			for deadline := time.Now().Add(10 * time.Second); !c.Tapped(); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the tap does not begin")
				}
			}
		}
	}
	untap := func() { end(); must(t, <-ended) }
	four, six := c.ipv4("10.0.9.5", 614), c.ipv6("fd00:9::5", 614)
	for _, change := range []struct {
		name     string
		do, undo func()
	}{
		{"the fast path", func() { must(t, c.SetFast("net", device, false)) }, func() { must(t, c.SetFast("net", device, true)) }},
		{"an IPv4 route", inside(func(netlink.Link) error { return netlink.RouteAdd(blackhole) }), inside(func(netlink.Link) error { return netlink.RouteDel(blackhole) })},
		{"the node's end", inside(netlink.LinkSetDown), inside(netlink.LinkSetUp)},
		{"the node's MTU", mtu(599), mtu(1458)},
		{"the node's MAC address", mac(8), mac(0)},
		{"the port", outside(netlink.LinkSetDown), outside(netlink.LinkSetUp)},
		{"the way out", func() { must(t, c.Unjoin(c.port2)) }, func() { must(t, c.Connect(c.port2, 0, c.to)) }},
		{"the way in", func() { must(t, c.Unjoin(c.port)) }, func() { must(t, c.Connect(c.port, 0, c.from)) }},
		{"a tap at the way in", tap(c.port), untap},
		{"a tap at the way out", tap(c.port2), untap},
	} {
		for round := range 10 {
			frame := four
			if round%2 == 1 && change.name != "an IPv4 route" {
				frame = six
			}
			c.ready(frame)
			change.do()
			if c.cut(wrap(c.from, true, frame)) {
				t.Errorf("%s: a frame was cut through right after the change: %x", change.name, frame[:34])
			}
			change.undo()
		}
	}
}

// The frames of a flow leave in the order in which they came, by whichever way each of them goes: with each
// tick, some go by the node, and those behind them do not. Others of the port, which go to the stack or
// miss the FIB cache, make the flow change its way more often.
func TestFlowsKeepTheirOrder(t *testing.T) {
	testenv.Measures(t)
	r, load := newThoroughfare(t)
	r.needFastPath(t)
	r.fast(t, r.port, true)
	received := func() (n uint64) {
		must(t, r.n.Do(func() error {
			l, err := netlink.LinkByName("eth1")
			if err == nil {
				n = l.Attrs().Statistics.RxPackets
			}
			return err
		}))
		return n
	}
	load.start(t)
	load.progress(t, 1000)
	byNode, before := received(), r.counters(t, r.port)
	stop, stopped := make(chan struct{}), make(chan error)
	expired := r.ipv4("10.0.9.5", 62)
	expired[22] = 1
	sum4(expired[14:34])
	others := [][]byte{expired}
	for i := range 20 {
		others = append(others, r.ipv4(fmt.Sprintf("10.0.9.%d", 10+i), 62))
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	wire := index(t, "wire0")
	go func() { stopped <- r.disturb(fd, wire, others, stop) }()
	load.progress(t, 300000)
	close(stop)
	must(t, <-stopped)
	after := r.counters(t, r.port)
	byNode = received() - byNode
	sent, arrived := load.finish(t)
	if late := load.read(t).Late; sent != arrived || late != 0 {
		t.Errorf("of %d frames %d arrived, %d of them behind one that was sent later", sent, arrived, late)
	}
	all := after.ToNodePackets - before.ToNodePackets
	t.Logf("%d frames, %d of them by the node", all, byNode)
	if byNode < 100 || all-byNode < 1000 {
		t.Errorf("of %d frames %d went by the node: one of the ways was not tried", all, byNode)
	}
}

// disturb sends others' frames in by the uplink, at its other end, until stopped.
func (r *thoroughfare) disturb(fd, wire int, inside [][]byte, stop chan struct{}) error {
	for k := 0; ; k++ {
		select {
		case <-stop:
			return nil
		case <-time.After(200 * time.Microsecond):
		}
		err := unix.Sendto(fd, wrap(r.in, true, inside[k%len(inside)]), 0, &unix.SockaddrLinklayer{Ifindex: wire, Halen: 6})
		if err != nil && err != unix.ENOBUFS {
			return err
		}
	}
}

// A place that a port has left tells the next one's frames nothing of its node.
func TestCutThroughMindsWhoseAPlaceIs(t *testing.T) {
	c := newCrossing(t)
	frame := c.ipv4("10.0.9.5", 100)
	c.ready(frame)
	if !c.Cuts(c.port) {
		t.Fatal("the port is not one to cut through from")
	}
	slot := c.Slot(c.port)
	must(t, c.Remove("net", c.device(t, c.port)))
	if places := c.filled(t, "cut_ends"); slices.Contains(places, slot) {
		t.Errorf("a place that no port has leads to a node")
	}
	// Of another build: what it has changed, this one cannot know from the map.
	must(t, c.SetFast("net", c.device(t, c.port2), true))
	if !c.Cuts(c.port2) {
		t.Error("the other port is not one to cut through from")
	}
	must(t, c.Close())
	c.Dataplane = mustOpen(t, c.dir)
	if !c.Cuts(c.port2) || len(c.filled(t, "cut_ends")) != 1 {
		t.Error("a service that starts again does not go on with cut-through")
	}
}

// A kernel without the fast path has the uplinks' program without cut-through, by the same name.
func TestPlainUplink(t *testing.T) {
	r := newRouter(t)
	must(t, r.Connect(r.port, 0, path4(r.uplink)))
	must(t, r.Close())
	d, err := dataplane.OpenWithoutFastPath(r.dir)
	must(t, err)
	r.Dataplane = d
	if d.CutThroughSupported() == nil {
		t.Error("cut-through counts as supported")
	}
	f := inner(60)
	outer := wrap(path4(r.uplink), true, f)
	verdict, out := runXDP(t, r.program(t, "uplink_in"), outer, 0, r.uplink)
	if want := join(r.metadata(r.port), f); verdict != xdpRedirect || !bytes.Equal(unticketed(out), want) {
		t.Errorf("verdict %d, %x, want %x", verdict, out, want)
	}
	if r.Cuts(r.port) {
		t.Error("the port is one to cut through from")
	}
	must(t, r.Close())
	r.Dataplane = mustOpen(t, r.dir)
	must(t, r.CutThroughSupported())
}
