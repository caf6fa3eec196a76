package dataplane_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
)

// build does all that makes the router of a thoroughfare, whatever of it is
// there.
func (r *thoroughfare) build(t testing.TB, devices []string) {
	t.Helper()
	for name, u := range map[string]dataplane.Uplink{"up0": {Index: r.uplink, Addrs: addrs("192.0.2.1", "2001:db8::1")}, "up1": {Index: r.uplink2, Addrs: addrs("198.51.100.1")}} {
		u.Name = name
		_, err := r.AttachUplink(u)
		must(t, err)
	}
	for i, device := range devices {
		must(t, r.Attach("net", device, []int{r.port, r.port2}[i], dataplane.Port))
		must(t, r.AttachFarEnd("net", device, dataplane.FarEnd{NS: r.n.NS, Index: indexIn(t, r.n, fmt.Sprintf("eth%d", i+1))}))
		if r.FastPathSupported() == nil {
			must(t, r.SetFast("net", device, true))
		}
	}
	r.connect(t)
	must(t, port.SetUp(map[string]bool{devices[0]: true, devices[1]: true}))
}

// state is what can be seen of a data plane.
func (r *thoroughfare) state(t testing.TB) string {
	t.Helper()
	var lines []string
	for _, a := range must2(r.Read()) {
		path := a.Path
		a.Path = nil
		lines = append(lines, fmt.Sprintf("%+v %+v", a, path))
	}
	for _, u := range must2(r.Uplinks()) {
		u.Drops = nil
		lines = append(lines, fmt.Sprintf("%+v", u))
	}
	return strings.Join(lines, "\n")
}

// contents gives how many entries each of the maps has that grow and shrink.
func contents(t testing.TB, dir string) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, name := range []string{"port_index", "tunnel_index", "egress_overflow", "tunnel_addrs", "uplinks", "egress_index", "devices", "taps"} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, "@", dataplane.Layout, name), nil)
		must(t, err)
		key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
		it := m.Iterate()
		for it.Next(&key, &value) {
			if m.Type() == ebpf.Hash || slices.ContainsFunc(value, func(b byte) bool { return b != 0 }) {
				n[name]++
			}
		}
		must(t, it.Err())
		must(t, m.Close())
	}
	return n
}

// damage takes some of the pins and entries away, as if the process had been
// killed before it made them, or while it removed them.
func damage(t testing.TB, dir string, random *rand.Rand) (what []string) {
	t.Helper()
	for _, pattern := range []string{"net/*", "@/uplink/*"} {
		pins, err := filepath.Glob(filepath.Join(dir, pattern))
		must(t, err)
		for _, pin := range pins {
			if random.IntN(3) == 0 {
				if l, err := link.LoadPinnedLink(pin, nil); err == nil { // else the record of a filter
					must(t, l.Detach())
					must(t, l.Close())
				}
				must(t, os.Remove(pin))
				what = append(what, strings.TrimPrefix(pin, dir))
			}
		}
	}
	for _, name := range []string{"port_index", "tunnel_index", "tunnel_addrs", "uplinks"} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, "@", dataplane.Layout, name), nil)
		must(t, err)
		var keys [][]byte
		key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
		it := m.Iterate()
		for it.Next(&key, &value) {
			keys = append(keys, slices.Clone(key))
		}
		for _, key := range keys {
			if random.IntN(3) == 0 {
				must(t, m.Delete(key))
				what = append(what, fmt.Sprintf("%s[%x]", name, key))
			}
		}
		must(t, m.Close())
	}
	return what
}

// TestMends does everything again after whatever a crash may have left, and
// finds what there was before, and nothing besides.
func TestMends(t *testing.T) {
	r, load := newThoroughfare(t)
	devices := []string{r.device(t, r.port), r.device(t, r.port2)}
	r.build(t, devices)
	want, entries := r.state(t), contents(t, r.dir)
	load.start(t)
	load.progress(t, 100)
	for seed := range uint64(8) {
		must(t, r.Close())
		lost := damage(t, r.dir, rand.New(rand.NewPCG(seed, 0)))
		r.Dataplane = mustOpen(t, r.dir)
		r.build(t, devices)
		if got := r.state(t); got != want {
			t.Fatalf("seed %d, without %v:\n%s\nwant\n%s", seed, lost, got, want)
		}
		if got := contents(t, r.dir); fmt.Sprint(got) != fmt.Sprint(entries) {
			t.Fatalf("seed %d, without %v: the maps hold %v, want %v", seed, lost, got, entries)
		}
		// Frames on their way meanwhile are lost by right: the window opens again.
		must(t, load.counts.Put(uint32(0), loadCounts{}))
		load.progress(t, 100)
	}
	load.finish(t)
	must(t, r.Remove("net"))
	for _, u := range must2(r.Uplinks()) {
		must(t, r.DetachUplink(u.Name))
	}
	if left := contents(t, r.dir); len(left) != 0 {
		t.Errorf("left in the maps: %v", left)
	}
	if left := r.state(t); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestNodeDies takes a node away between two others, with its namespace and its
// ports, and finds nothing of it left, and its neighbours unjoined.
func TestNodeDies(t *testing.T) {
	r, _ := newThoroughfare(t)
	neighbour, _ := r.attach(t, nstest.NewNode(t), "eth1", 1458)
	eth3, _ := r.attach(t, r.n, "eth3", 1458)
	must(t, r.Join(dataplane.End{Index: eth3}, dataplane.End{Index: neighbour}))
	must(t, syscall.Kill(r.n.Pid, syscall.SIGKILL))
	must(t, r.n.Close())
	for deadline := time.Now().Add(10 * time.Second); strings.Contains(nstest.Sh(t, "ip -o link"), fmt.Sprintf("%d: ", r.port)); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the node's ports did not go with it")
		}
	}
	if changed := must2(r.Resync()); len(changed) != 1 || changed[0] != "net" {
		t.Errorf("the networks that lost something are said to be %v", changed)
	}
	if changed := must2(r.Resync()); len(changed) != 0 {
		t.Errorf("and again %v", changed)
	}
	var gone []string
	for _, a := range must2(r.Read("net")) {
		if a.Index == 0 {
			gone = append(gone, a.Device)
		}
	}
	if len(gone) != 3 {
		t.Errorf("%d ports are said to be gone, want 3", len(gone))
	}
	must(t, r.Remove("net", gone...))
	left := must2(r.Read("net"))
	if len(left) != 1 || left[0].Index != neighbour || left[0].Mode != dataplane.Unjoined {
		t.Errorf("left: %+v", left)
	}
	if n := contents(t, r.dir); n["port_index"] != 1 || n["tunnel_index"] != 0 || n["egress_index"] != 0 || n["devices"] != 3 {
		t.Errorf("the maps hold %v", n)
	}
	if err := r.SetFast("net", gone[0], true); err == nil {
		t.Error("the fast path of a node that is gone was turned on")
	}
}
