package dataplane_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
)

// TestEntriesKeepTenantsApart writes the entries of two networks' ports without a pause
// while one of them sends, and looks for its frames in the other: a program that has found an
// entry must not read another's in its place.
func TestEntriesKeepTenantsApart(t *testing.T) {
	l := newLab(t)
	n := nodes(t, 4)
	var ends [4]dataplane.End
	for link := range 2 {
		ports := l.wire(t, n[2*link], "eth1", n[2*link+1], "eth1")
		for i, port := range ports {
			ends[2*link+i] = dataplane.End{Index: nstest.Index(t, port)}
			n[2*link+i].Must(t, "ip link set eth1 up")
		}
	}
	const mine = 0x88b5
	taps := []*nstest.Tap{n[2].Tap(t, "eth1"), n[3].Tap(t, "eth1")}
	sender := n[1].Tap(t, "eth1")
	sent := frame("02:00:00:00:00:01", mine, 60)

	// Written as they are, over and over: the memory of one key's value becomes the other's.
	m, err := ebpf.LoadPinnedMap(filepath.Join(l.dir, "@", dataplane.Layout, "port_index"), nil)
	must(t, err)
	defer m.Close()
	var keys, values [512]uint32
	for i := range keys {
		keys[i] = uint32(ends[1+2*(i%2)].Index)
		must(t, m.Lookup(keys[i], &values[i]))
	}

	var (
		wait    sync.WaitGroup
		stop    atomic.Bool
		frames  uint64
		changes int
		failed  error
	)
	wait.Go(func() {
		for ; !stop.Load() && sender.Send(sent) == nil; frames++ {
		}
	})
	wait.Go(func() {
		for !stop.Load() && failed == nil {
			var n int
			n, failed = m.BatchUpdate(keys[:], values[:], nil)
			changes += n
		}
	})
	time.Sleep(1500 * time.Millisecond) // how long it is tried
	stop.Store(true)
	wait.Wait()
	must(t, failed)
	t.Logf("%d frames, %d changes", frames, changes)
	if c := l.counters(t, ends[1].Index); c.FromNodePackets == 0 || len(c.Drops) != 0 {
		t.Errorf("of %d frames, %+v", frames, c)
	}
	for i, tap := range taps {
		strange := 0
		for tap.Receive(20*time.Millisecond, func(f []byte) bool { return len(f) >= 14 && f[12] == mine>>8 && f[13] == mine&0xff }) != nil {
			strange++
		}
		if strange != 0 {
			t.Errorf("%d frames of another network reached node %d", strange, i+2)
		}
	}
}

// earlierLayout has the maps be as builds of the layout before left them: ports and tunnels
// in hashes, by the programs that run now.
func earlierLayout(t testing.TB, dir string) {
	t.Helper()
	from, to := filepath.Join(dir, "@", dataplane.Layout), filepath.Join(dir, "@", dataplane.CarriedLayout)
	must(t, os.Mkdir(to, 0o700))
	for _, name := range dataplane.Carried {
		must(t, os.Rename(filepath.Join(from, name), filepath.Join(to, name)))
	}
	for _, m := range []struct {
		name, index string
		size        int // of a value then: what names its owner came to stand behind it
	}{{"ports", "port_index", 48}, {"tunnels", "tunnel_index", 48}} {
		index, err := ebpf.LoadPinnedMap(filepath.Join(from, m.index), nil)
		must(t, err)
		entries, err := ebpf.LoadPinnedMap(filepath.Join(from, m.name), nil)
		must(t, err)
		hash, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: uint32(m.size), MaxEntries: 65536, Flags: unix.BPF_F_NO_PREALLOC})
		must(t, err)
		var key, number uint32
		for it := index.Iterate(); it.Next(&key, &number); {
			value := make([]byte, entries.ValueSize())
			must(t, entries.Lookup(number, &value))
			must(t, hash.Put(key, value[:m.size]))
		}
		must(t, hash.Pin(filepath.Join(to, m.name)))
		must(t, errors.Join(hash.Close(), index.Close(), entries.Close()))
	}
	must(t, os.RemoveAll(from))
}

// TestCarriesOver opens what a build of the layout before has left, at full load: no frame is
// lost, and nothing is forgotten.
func TestCarriesOver(t *testing.T) {
	r, load := newThoroughfare(t)
	must(t, r.Close())
	must(t, otherBuild(t, r.dir).Close()) // whose programs run from here on
	r.Dataplane = otherBuild(t, r.dir)
	want, entries := r.state(t), contents(t, r.dir)
	must(t, r.Close())
	load.start(t)
	load.progress(t, 1000)
	earlierLayout(t, r.dir)
	load.progress(t, 1000)
	r.Dataplane = mustOpen(t, r.dir)
	load.progress(t, 1000)
	if sent, received := load.finish(t); sent != received {
		t.Errorf("%d of %d frames arrived", received, sent)
	}
	if got := r.state(t); got != want {
		t.Errorf("carried over:\n%s\nwant\n%s", got, want)
	}
	if got := contents(t, r.dir); !maps.Equal(got, entries) {
		t.Errorf("the maps hold %v, want %v", got, entries)
	}
	if c := r.counters(t, r.port2); c.FromNodePackets < 2000 {
		t.Errorf("of what was counted before, %d packets are left", c.FromNodePackets)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "@", dataplane.CarriedLayout)); !os.IsNotExist(err) {
		t.Errorf("the maps of the layout before are left: %v", err)
	}
}
