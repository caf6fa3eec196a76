package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
)

// faultyStore delivers plans late, twice and out of order.
type faultyStore struct {
	statusStore
	r      *rand.Rand
	events []store.PlanEvent // as they are delivered
}

func (s *faultyStore) WatchPlans(ctx context.Context, _ string) <-chan store.PlanEvent {
	out := make(chan store.PlanEvent)
	go func() {
		defer close(out)
		for _, e := range s.events {
			time.Sleep(time.Duration(s.r.IntN(40)) * time.Millisecond)
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
		<-ctx.Done()
	}()
	return out
}

func (s *faultyStore) PutStatuses(ctx context.Context, _ string, statuses map[string]*store.Status) error {
	return s.put(ctx, statuses)
}

func (s *faultyStore) Plan(context.Context, string, string) (*plan.Plan, error) {
	return nil, store.ErrNotFound
}

// history makes what becomes of some VNets in a store, in order.
func history(r *rand.Rand) (events []store.PlanEvent) {
	generation := map[string]int64{}
	for revision := int64(1); revision < 60; revision += 1 + r.Int64N(3) {
		e := store.PlanEvent{VNet: fmt.Sprintf("v%d", r.IntN(4)), Revision: revision}
		if generation[e.VNet] > 0 && r.IntN(5) == 0 {
			events = append(events, e) // forgotten
			continue
		}
		generation[e.VNet] = max(revision, generation[e.VNet]+1)
		e.Plan = &plan.Plan{VNet: e.VNet, Generation: generation[e.VNet]}
		if r.IntN(6) > 0 { // else all of it is to be removed
			e.Plan.Nodes = []plan.Node{{Name: "a"}}
		}
		events = append(events, e)
	}
	return events
}

// deliver makes the order in which a watch tells of a history: each event at least
// once, some again later, all moved about.
func deliver(r *rand.Rand, events []store.PlanEvent) []store.PlanEvent {
	type delivery struct {
		at int
		e  store.PlanEvent
	}
	var all []delivery
	for i, e := range events {
		for again := true; again; again = r.IntN(3) == 0 {
			all = append(all, delivery{i + r.IntN(12), e})
		}
	}
	slices.SortStableFunc(all, func(a, b delivery) int { return a.at - b.at })
	out := []store.PlanEvent{}
	for _, d := range all {
		out = append(out, d.e)
	}
	return slices.Insert(out, r.IntN(len(out)), store.PlanEvent{Synced: true})
}

// passes counts and orders the passes of workers in place of the kernel.
type passes struct {
	mu   sync.Mutex
	r    *rand.Rand
	last map[string]int64 // the generation of the last pass that ended well; -1: all was removed
	errs []error
}

func (ps *passes) converge(w *worker, p *pass) error {
	w.report.begin(p.want, p.forgotten)
	ps.mu.Lock()
	took, fails := time.Duration(ps.r.IntN(60))*time.Millisecond, ps.r.IntN(8) == 0
	if last := ps.last[w.vnet]; !p.forgotten && p.want.Generation < last {
		ps.errs = append(ps.errs, fmt.Errorf("%s goes back from generation %d to %d", w.vnet, last, p.want.Generation))
	}
	ps.mu.Unlock()
	select {
	case <-time.After(took):
	case <-p.waits.Done():
	}
	switch {
	case w.superseded(p):
		return errSuperseded
	case p.waits.Err() != nil:
		return p.waits.Err()
	case fails:
		return errors.New("the kernel is busy")
	}
	phase := store.PhaseCreated
	if p.want.Empty() {
		phase = store.PhaseRemoved
	}
	w.report.phase(phase)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.last[w.vnet] = p.want.Generation; p.forgotten {
		ps.last[w.vnet] = -1
	}
	return nil
}

// Whatever a watch does to the order of events, each VNet ends as its last one says,
// and never goes back on the way.
func TestPlansThatComeLateTwiceAndOutOfOrder(t *testing.T) {
	for n := range 200 {
		seed := uint64(n)
		if n >= 100 {
			seed = rand.Uint64()
		}
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			events := history(r)
			s := &faultyStore{r: rand.New(rand.NewPCG(seed, 1)), events: deliver(r, events)}
			ps := &passes{r: rand.New(rand.NewPCG(seed, 2)), last: map[string]int64{}}
			a := &Agent{
				cfg: Config{Host: "h", Store: s}, log: silent, workers: map[string]*worker{},
				services: newChangedServices(), swept: make(chan struct{}), statuses: newStatusWriter(s, "h", silent), converge: ps.converge,
			}
			ctx, cancel := context.WithCancel(t.Context())
			var tasks sync.WaitGroup
			tasks.Go(func() { a.statuses.run(ctx) })
			tasks.Go(func() {
				if err := a.followPlans(ctx, func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(5 * time.Minute) // of the test's clock: all is still by then
			want := map[string]store.PlanEvent{}
			for _, e := range events {
				want[e.VNet] = e
			}
			ps.mu.Lock()
			for vnet, e := range want {
				a.mu.Lock()
				w, last := a.workers[vnet], ps.last[vnet]
				a.mu.Unlock()
				s.mu.Lock()
				st := s.have[vnet]
				s.mu.Unlock()
				switch {
				case e.Plan == nil && (w != nil || last > 0):
					t.Errorf("%s is forgotten, and at generation %d, with a worker: %v", vnet, last, w != nil)
				case e.Plan == nil:
				case last != e.Plan.Generation || w == nil:
					t.Errorf("%s is at generation %d, want %d", vnet, last, e.Plan.Generation)
				case st.Generation != e.Plan.Generation || e.Plan.Empty() != (st.Phase == store.PhaseRemoved):
					t.Errorf("%s is reported %s at generation %d, want generation %d", vnet, st.Phase, st.Generation, e.Plan.Generation)
				}
			}
			for _, err := range ps.errs {
				t.Error(err)
			}
			ps.mu.Unlock()
			cancel()
			tasks.Wait()
			a.running.Wait()
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A store that does not say its revisions, and one that was put back behind the
// agent's back.
func TestPlanOrder(t *testing.T) {
	put := func(revision, generation int64) store.PlanEvent {
		return store.PlanEvent{VNet: "v", Revision: revision, Plan: &plan.Plan{VNet: "v", Generation: generation}}
	}
	gone := func(revision int64) store.PlanEvent { return store.PlanEvent{VNet: "v", Revision: revision} }
	o := planOrder{}
	for i, c := range []struct {
		e    store.PlanEvent
		news bool
	}{
		{put(0, 3), true}, {put(0, 2), false}, {put(0, 3), true}, {gone(0), true}, {put(0, 2), false},
		{put(10, 5), true}, {put(10, 5), false}, {put(9, 4), false}, {gone(8), false}, {gone(12), true}, {put(10, 5), false},
		{put(13, 4), false}, {put(14, 13), true}, {store.PlanEvent{VNet: "v", Revision: 15, Err: errors.New("damaged")}, true}, {put(14, 13), false},
		{gone(2), false}, {put(16, 13), true},
	} {
		if news := o.next(c.e); news != c.news {
			t.Errorf("event %d: news %v", i, news)
		}
	}
}
