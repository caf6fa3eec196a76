package dataplane_test

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/shaper"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
	"trellis/test/testenv"
)

// TestPathIsReadBack, whatever it is, and is changed in place.
func TestPathIsReadBack(t *testing.T) {
	b := newBench(t)
	narrow := path4(b.uplink)
	narrow.Route.MTU, narrow.Key = 900, 0xfffffffe
	for _, want := range []tunnel.Path{path4(b.uplink), path6(b.uplink), narrow} {
		must(t, b.Connect(b.port, b.port, want))
		a := must2(b.Read("net"))[0]
		if a.Path == nil || *a.Path != want || a.Peer != 0 || !a.TakesXDP || a.Fast {
			t.Errorf("%+v with %+v, want %+v", a, a.Path, want)
		}
		if n := contents(t, b.dir); n["tunnel_index"] != 1 {
			t.Errorf("%d keys let frames in", n["tunnel_index"])
		}
	}
	must(t, b.Unjoin(b.port))
	if a := must2(b.Read("net"))[0]; a.Path != nil || a.Mode != dataplane.Unjoined {
		t.Errorf("parted: %+v", a)
	}
	if n := contents(t, b.dir); n["tunnel_index"]+n["egress_index"] != 0 {
		t.Errorf("parted: %v", n)
	}
}

// TestNarrowPathDropsWhatIsLong: a path that turns out narrower than its link
// carries what fits, and counts the rest, super-packets' segments too.
func TestNarrowPathDropsWhatIsLong(t *testing.T) {
	a, b := machines(t)
	na, nb, pa, pb := wireOf(t, a, b, false)
	path := a.pathTo(b, false, 77, 1400)
	path.Route.MTU = 800
	must(t, a.Connect(pa, 0, path))
	na.Must(t, "ping -c 2 -i 0.01 -W 2 -s 700 10.0.0.2")
	if out, err := na.Exec(t, "ping -c 2 -i 0.01 -W 0.3 -s 900 10.0.0.2"); err == nil {
		t.Errorf("a packet passed that does not fit: %s", out)
	}
	if n := a.counters(t, pa).Drops[dataplane.DropLong]; n != 2 {
		t.Errorf("%d of 2 long frames are counted", n)
	}
	// Segments of 1,348 bytes in super-packets: none passes.
	before := b.counters(t, pb).ToNodeBytes
	send(t, na, nb)
	if after := b.counters(t, pb).ToNodeBytes; after-before > 4000 {
		t.Errorf("%d bytes passed", after-before)
	}
	if n := a.counters(t, pa).Drops[dataplane.DropLong]; n < 5 {
		t.Errorf("%d long frames are counted", n)
	}
	must(t, a.Connect(pa, 0, a.pathTo(b, false, 77, 1400)))
	na.Must(t, "ping -c 2 -i 0.01 -W 2 -s 900 10.0.0.2")
}

// TestStartKeepsWhatArrives as it is: a value that is replaced, were it by its
// like, may be another's while a program reads it.
func TestStartKeepsWhatArrives(t *testing.T) {
	testenv.Measures(t)
	b := newBench(t)
	must(t, b.Connect(b.port, b.port, path4(b.uplink)))
	must(t, b.Close())
	m, err := ebpf.LoadPinnedMap(filepath.Join(b.dir, "@", dataplane.Layout, "tunnel_index"), nil)
	must(t, err)
	defer m.Close()
	must(t, m.Freeze()) // whoever writes to it is refused
	d := mustOpen(t, b.dir)
	if a := must2(d.Read("net"))[0]; a.Path == nil || *a.Path != path4(b.uplink) {
		t.Errorf("%+v", a)
	}
}

// send writes a burst over TCP that its receiver never sees whole.
func send(t testing.TB, from, to *nstest.Node) {
	t.Helper()
	var l net.Listener
	must(t, to.Do(func() (err error) { l, err = net.Listen("tcp", "10.0.0.2:0"); return err }))
	defer l.Close()
	var c net.Conn
	must(t, from.Do(func() (err error) { c, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second); return err }))
	defer c.Close()
	must(t, c.SetWriteDeadline(time.Now().Add(500*time.Millisecond)))
	c.Write(make([]byte, 64<<10)) // into the socket's buffer, at least
	time.Sleep(300 * time.Millisecond)
}

// TestShapedPath has what a node sends pass a qdisc on its path to another
// machine, and what arrives come straight to it.
func TestShapedPath(t *testing.T) {
	a, b := machines(t)
	na, nb, pa, _ := wireOf(t, a, b, false)
	nstest.Sh(t, "ip link add ts0 type veth peer name tm0")
	for _, device := range []string{"ts0", "tm0"} {
		must(t, a.Attach("net", device, index(t, device), dataplane.Port))
	}
	const rate = 8_000_000
	must(t, shaper.SetAll(map[string]vnet.Shape{"ts0": {Rate: rate}}))
	tm := index(t, "tm0")
	if err := a.Connect(tm, 0, a.pathTo(b, false, 78, 1400)); err == nil {
		t.Error("a path was given to a port that can take nothing of it")
	}
	must(t, a.Unjoin(pa))
	must(t, a.Join(dataplane.End{Index: pa}, dataplane.End{Index: index(t, "ts0"), Shaped: true}))
	must(t, a.Connect(tm, pa, a.pathTo(b, false, 77, 1400)))
	must(t, port.SetUp(map[string]bool{"ts0": true, "tm0": true}))
	before := a.counters(t, pa).Drops // of what the node's stack sent between two joins
	na.Must(t, "ping -c 3 -i 0.01 -W 2 10.0.0.2")
	for _, at := range must2(a.Read("net")) {
		if at.Device == "tm0" && (at.Peer != pa || at.Path == nil) {
			t.Errorf("%+v", at)
		}
	}
	if got := throughput(t, na, nb, "10.0.0.2"); got > 1.1*rate {
		t.Errorf("%.1f Mbit/s pass a link of 8", got/1e6)
	}
	if got := atLeast(t, nb, na, "10.0.0.1", 2*rate); got < 2*rate {
		t.Errorf("the other direction, which is not shaped, carries %.1f Mbit/s", got/1e6)
	}
	// A shaped link is no path for the fast path.
	if n := contents(t, a.dir); n["egress_index"]+n["egress_overflow"] != 0 {
		t.Errorf("the fast path knows ends of shaped links: %v", n)
	}
	if c := a.counters(t, pa); c.FastToNodePackets == 0 || !maps.Equal(c.Drops, before) {
		t.Errorf("counted %+v, drops %v before", c, before)
	}
}

// TestManyInterfaces gives a node so many that its block grows, and interface
// indices beyond any block.
func TestManyInterfaces(t *testing.T) {
	r := newRouter(t)
	must(t, r.Connect(r.port2, 0, path4(r.uplink)))
	frame := r.ipv4("10.0.9.5", 100)
	forwards := func(what string) {
		t.Helper()
		r.meta = r.metadata(r.port)
		if verdict, _ := r.forward(frame); verdict != xdpRedirect {
			t.Errorf("%s: verdict %d", what, verdict)
		}
	}
	forwards("two interfaces")
	before := r.Block(r.port)
	for i := range 12 {
		r.attach(t, r.n, fmt.Sprintf("more%d", i), 1458)
	}
	if r.Block(r.port) == before {
		t.Error("the block did not grow")
	}
	forwards("fourteen interfaces")
	if verdict, out := r.run(metadata(before, r.Slot(r.port)), frame); verdict != xdpPass || !bytes.Equal(out, frame) {
		t.Errorf("with a hint to where the node was: verdict %d", verdict)
	}
	// Its interface moves beyond: a new one of that index takes its place.
	must(t, r.Remove("net", r.device(t, r.port2)))
	nstest.Sh(t, fmt.Sprintf("ip link add name far0 index 70000 type veth peer name trfar; ip link set far0 netns %d", r.n.Pid))
	far := index(t, "trfar")
	must(t, r.Attach("net", "trfar", far, dataplane.Port))
	must(t, r.AttachFarEnd("net", "trfar", dataplane.FarEnd{NS: r.n.NS, Index: 70000}))
	must(t, port.SetUp(map[string]bool{"trfar": true}))
	r.n.Must(t, "ip link set far0 up; ip link set eth2 down; ip addr add 10.0.22.1/24 dev far0; ip neigh replace 10.0.22.2 lladdr 02:00:00:00:bb:01 dev far0; ip route replace 10.0.9.0/24 via 10.0.22.2 dev far0")
	must(t, r.Connect(far, 0, path4(r.uplink)))
	if n := contents(t, r.dir)["egress_overflow"]; n != 1 {
		t.Errorf("%d ends are beyond the block, want 1", n)
	}
	forwards("an index beyond every block")
	within := func(block, place uint32) bool {
		first := block & 0xffffff
		return place >= first && place < first+1<<(block>>24)
	}
	for _, place := range r.filled(t, "policy_cache") {
		if !within(before, place) && !within(r.Block(r.port), place) {
			t.Errorf("something of the node is cached at %d, outside its blocks %#x and %#x", place, before, r.Block(r.port))
		}
	}
	must(t, r.Close())
	r.Dataplane = mustOpen(t, r.dir)
	forwards("after a restart")
	must(t, r.Remove("net"))
	if n := contents(t, r.dir); n["egress_index"]+n["egress_overflow"]+n["port_index"] != 0 {
		t.Errorf("left: %v", n)
	}
}

// TestWithoutFastPath is a kernel before 6.2: everything works but that.
func TestWithoutFastPath(t *testing.T) {
	r, load := newThoroughfare(t)
	must(t, r.Close())
	d, err := dataplane.OpenWithoutFastPath(r.dir)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	r.Dataplane = d
	if err := r.FastPathSupported(); err == nil || !strings.Contains(err.Error(), "6.2") {
		t.Errorf("the fast path is said to be there: %v", err)
	}
	for _, a := range must2(r.Read("net")) {
		if !a.TakesXDP || a.Fast {
			t.Errorf("%+v", a)
		}
		if err := r.SetFast("net", a.Device, true); err == nil {
			t.Error("the fast path was turned on")
		}
		must(t, r.SetFast("net", a.Device, false))
	}
	r.connect(t)
	load.start(t)
	load.progress(t, 1000)
	if sent, received := load.finish(t); sent != received {
		t.Errorf("%d of %d frames arrived", received, sent)
	}
	if c := r.counters(t, r.port2); c.FastFromNodePackets != 0 || c.FromNodePackets < 1000 {
		t.Errorf("counted %+v", c)
	}
}
