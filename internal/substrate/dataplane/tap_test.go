package dataplane_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
)

// TestTapShowsTheFastPath captures both directions at both ports of a router
// that forwards without its stack, and nothing at others.
func TestTapShowsTheFastPath(t *testing.T) {
	r, load := newThoroughfare(t)
	r.needFastPath(t)
	far, _ := r.attach(t, nstest.NewNode(t), "eth1", 1458)
	frames := make(chan dataplane.Frame, 1<<16)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 4)
	for _, p := range []struct{ port, snap int }{{r.port, 0}, {r.port2, 40}, {r.port2, 20}, {far, 0}} {
		go func() {
			ended <- r.Tap(ctx, p.port, p.snap, func(f dataplane.Frame) {
				select {
				case frames <- f:
				default:
				}
			})
		}()
	}
	load.start(t)
	inside := r.ipv4("10.0.9.5", 62)
	outside := r.hop(inside)
	inside, outside = inside[:46], outside[:46] // the load writes the last ones
	type kind struct {
		port     int
		fromNode bool
		length   int
	}
	seen := map[kind]int{}
	want := map[kind][]byte{{r.port, false, 62}: inside, {r.port2, true, 40}: outside[:40], {r.port2, true, 20}: outside[:20]}
	for deadline := time.After(10 * time.Second); ; {
		select {
		case f := <-frames:
			k := kind{f.Port, f.FromNode, len(f.Data)}
			if f.Length != 62 || want[k] == nil || !bytes.HasPrefix(f.Data, want[k][:min(len(want[k]), len(f.Data))]) {
				t.Fatalf("%+v\n%x", f, f.Data)
			}
			if age := time.Since(f.Time); age < -time.Second || age > time.Minute {
				t.Fatalf("a frame is %v old", age)
			}
			seen[k]++
		case <-deadline:
			t.Fatalf("seen: %v", seen)
		}
		if len(seen) == len(want) && seen[kind{r.port, false, 62}] > 100 {
			break
		}
	}
	cancel()
	for range 4 {
		must(t, <-ended)
	}
	// It is off again: the entries say so, and all frames got through.
	if n := contents(t, r.dir)["taps"]; n != 0 {
		t.Errorf("%d taps are left", n)
	}
	if sent, received := load.finish(t); sent != received {
		t.Errorf("%d of %d frames arrived", received, sent)
	}
	if err := r.Tap(ctx, 4711, 0, nil); err == nil {
		t.Error("a port that is not there was tapped")
	}
}

// TestTapSeesTheNeighbour has two routers hand frames on, on one machine.
func TestTapSeesTheNeighbour(t *testing.T) {
	r := newRouter(t)
	next := nstest.NewNode(t)
	neighbour, _ := r.attach(t, next, "eth1", 1458)
	must(t, r.Join(dataplane.End{Index: r.port2}, dataplane.End{Index: neighbour}))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Tap(ctx, neighbour, 0, func(dataplane.Frame) {}) }()
	frame := r.ipv4("10.0.9.5", 100)
	// The metadata tells the neighbour's end, which copies what it forwards.
	tapped := func() bool {
		verdict, out := r.forward(frame)
		if verdict != xdpRedirect || !bytes.Equal(out[metadataSize:], r.hop(frame)) {
			t.Fatalf("verdict %d, %x", verdict, out)
		}
		return out[11]&0x80 != 0 // METADATA_TAP
	}
	for deadline := time.Now().Add(5 * time.Second); !tapped(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the neighbour is not told")
		}
	}
	cancel()
	must(t, <-ended)
	if tapped() {
		t.Error("the neighbour is still told")
	}
}

// TestTapEndsWithItsPort: whatever gets the port's place in the maps is another's.
func TestTapEndsWithItsPort(t *testing.T) {
	r := newRouter(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Tap(ctx, r.port2, 0, func(dataplane.Frame) {}) }()
	for deadline := time.Now().Add(5 * time.Second); contents(t, r.dir)["taps"] != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("there is no tap")
		}
	}
	must(t, r.Remove("net", r.device(t, r.port2)))
	if n := contents(t, r.dir)["taps"]; n != 0 {
		t.Errorf("%d taps of a port that is gone", n)
	}
	if r.Tapped() {
		t.Error("the next port in its place is tapped")
	}
	cancel()
	must(t, <-ended)
}
