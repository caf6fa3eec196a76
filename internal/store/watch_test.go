package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"trellis/internal/plan"
)

func clientv3FromKey() clientv3.OpOption { return clientv3.WithFromKey() }

// next receives one event, or fails.
func next[E any](t *testing.T, c <-chan E) E {
	t.Helper()
	select {
	case e, ok := <-c:
		if !ok {
			t.Fatal("the watch has ended")
		}
		return e
	case <-time.After(10 * time.Second):
		t.Fatal("no event within 10s")
	}
	panic("not reached")
}

func say(e PlanEvent) string {
	switch {
	case e.Synced:
		return "synced"
	case e.Err != nil:
		return e.VNet + " error"
	case e.Plan == nil:
		return e.VNet + " gone"
	}
	return fmt.Sprintf("%s %d", e.VNet, e.Plan.Generation)
}

func wantPlans(t *testing.T, c <-chan PlanEvent, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := say(next(t, c)); got != w {
			t.Fatalf("event %q, want %q", got, w)
		}
	}
}

func TestWatchPlans(t *testing.T) {
	s := open(t, t.TempDir())
	a, plans := record("a", 1, 1, 0)
	mustPut(t, s, a, plans)
	c := s.WatchPlans(t.Context(), "h")
	wantPlans(t, c, "a 1", "synced")
	elsewhere, plans := record("b", 1, 1, 0)
	mustPut(t, s, elsewhere, map[string]*plan.Plan{"h2": plans["h"]}) // another host's
	a.Generation = 2
	mustPut(t, s, a, map[string]*plan.Plan{"h": {VNet: "a", Generation: 2}})
	wantPlans(t, c, "a 2")
	if err := s.Forget(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	wantPlans(t, c, "a gone")
	if _, err := s.client.Put(t.Context(), planKey("h", "c"), "zgarbage"); err != nil {
		t.Fatal(err)
	}
	wantPlans(t, c, "c error")
}

// Each event is later than the one before, also of a store that was replaced by one with
// fewer revisions.
func TestWatchRevisionsGrow(t *testing.T) {
	s := open(t, t.TempDir())
	out := make(chan change, 100)
	w := watcher[change]{s: s, prefix: planKeys("h"), out: out, known: map[string]int64{}, read: func(c change) change { return c }}
	last := int64(0)
	grows := func(key string) {
		t.Helper()
		if c := next(t, out); c.revision <= last || !strings.HasSuffix(c.key, key) {
			t.Errorf("event of %q at revision %d, after %d", c.key, c.revision, last)
		} else {
			last = c.revision
		}
	}
	follow := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		followed := make(chan error)
		go func() { followed <- w.follow(ctx) }()
		return func() { cancel(); <-followed }
	}
	a, plans := record("a", 1, 1, 0)
	mustPut(t, s, a, plans)
	stop := follow()
	grows("a")
	if c := next(t, out); !c.synced {
		t.Fatalf("%+v", c)
	}
	b, plans := record("b", 1, 1, 65536)
	mustPut(t, s, b, plans)
	grows("b")
	if err := s.Forget(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	grows("a")
	stop()
	// The one before had come further.
	w.newest += 1000
	last = w.newest
	w.known["lost"] = 900
	c, plans := record("c", 1, 1, 131072)
	mustPut(t, s, c, plans)
	stop = follow()
	grows("c")
	last--
	grows("lost")
	stop()
}

func TestWatchSurvivesCompaction(t *testing.T) {
	s := open(t, t.TempDir())
	recs := map[string]*VNetRecord{}
	for _, name := range []string{"changed", "gone", "same"} {
		rec, plans := record(name, 1, 1, 0)
		mustPut(t, s, rec, plans)
		recs[name] = rec
	}
	out := make(chan PlanEvent, 100)
	w := watcher[PlanEvent]{s: s, prefix: planKeys("h"), out: out, known: map[string]int64{}, read: func(c change) PlanEvent {
		e := PlanEvent{Synced: c.synced}
		if !c.synced {
			e.VNet = c.key[len(planKeys("h")):]
		}
		if c.value != nil {
			e.Plan = &plan.Plan{}
			e.Err = decode(c.value, e.Plan)
		}
		return e
	}}
	watching, cancel := context.WithCancel(t.Context())
	followed := make(chan error)
	go func() { followed <- w.follow(watching) }()
	wantPlans(t, out, "changed 1", "gone 1", "same 1", "synced")
	cancel() // the watch breaks off, and misses this:
	<-followed
	rec, plans := record("new", 1, 1, 0)
	mustPut(t, s, rec, plans)
	recs["changed"].Generation = 5
	_, plans = record("changed", 1, 5, 0)
	mustPut(t, s, recs["changed"], plans)
	if err := s.Forget(t.Context(), recs["gone"]); err != nil {
		t.Fatal(err)
	}
	if err := s.compactHistory(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.changes(t.Context(), 2); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Fatalf("watch from a compacted revision: %v", err)
	}
	go w.follow(t.Context()) //nolint:errcheck // ends with the test
	wantPlans(t, out, "changed 5", "new 1", "gone gone")
	rec.Generation = 2
	_, plans = record("new", 1, 2, 0)
	mustPut(t, s, rec, plans)
	wantPlans(t, out, "new 2")
}

func TestWatchStatusOfOneVNet(t *testing.T) {
	s := open(t, t.TempDir())
	for _, name := range []string{"a", "ab"} {
		rec, plans := record(name, 1, 1, 0)
		mustPut(t, s, rec, plans)
	}
	c := s.WatchStatus(t.Context(), "a")
	if e := next(t, c); !e.Synced {
		t.Fatalf("first event %+v, want synced", e)
	}
	for _, name := range []string{"ab", "a"} {
		if err := s.PutStatus(t.Context(), "h", name, &Status{Generation: 1, Phase: PhaseCreated}); err != nil {
			t.Fatal(err)
		}
	}
	if e := next(t, c); e.VNet != "a" || e.Host != "h" || e.Status == nil || e.Status.Phase != PhaseCreated {
		t.Errorf("event %+v", e)
	}
}

func TestWatchEndsWithStoreAndContext(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	byContext, byStore := s.WatchPlans(ctx, "h"), s.WatchPlans(t.Context(), "h")
	wantPlans(t, byContext, "synced")
	wantPlans(t, byStore, "synced")
	cancel()
	if _, ok := <-byContext; ok {
		t.Error("an event after the context's end")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, ok := <-byStore; ok {
		t.Error("an event after the store's end")
	}
	if _, err := s.VNets(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("call after close: %v", err)
	}
}

// TestManyWatchesEndAtOnce ends many watches while what they watch changes. A
// watch that goes on still hears of changes then.
func TestManyWatchesEndAtOnce(t *testing.T) {
	s := open(t, t.TempDir())
	rec, plans := record("a", 1, 1, 0)
	mustPut(t, s, rec, plans)
	stays := s.WatchStatus(t.Context(), "")
	next(t, stays) // synced
	noteAnswer := make(chan int64, 1)
	go func() {
		for e := range stays {
			if e.Status == nil {
				continue
			}
			select {
			case <-noteAnswer:
			default:
			}
			noteAnswer <- e.Status.Generation
		}
	}()
	generation := int64(0)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		var watches sync.WaitGroup
		for range 100 {
			watches.Go(func() {
				for range s.WatchStatus(ctx, "a") {
				}
			})
		}
		for range 20 {
			generation++
			if err := s.PutStatus(t.Context(), "h", "a", &Status{Generation: generation}); err != nil {
				t.Fatal(err)
			}
			if generation%20 == 10 {
				cancel()
			}
		}
		cancel()
		watches.Wait()
	}
	for late := time.After(10 * time.Second); ; {
		select {
		case g := <-noteAnswer:
			if g == generation {
				return
			}
		case <-late:
			t.Fatal("a watch hears nothing any more")
		}
	}
}
