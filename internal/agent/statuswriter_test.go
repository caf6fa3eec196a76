package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
)

// statusStore is a store of statuses whose answers a test decides.
type statusStore struct {
	mu     sync.Mutex
	have   map[string]store.Status
	puts   int
	widest int                         // statuses of one transaction
	answer func(context.Context) error // nil: takes everything at once
}

// asked tells how often statuses were given to the store.
func (s *statusStore) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.puts
}

func (s *statusStore) put(ctx context.Context, statuses map[string]*store.Status) error {
	s.mu.Lock()
	answer := s.answer
	s.puts++
	s.widest = max(s.widest, len(statuses))
	s.mu.Unlock()
	if answer != nil {
		if err := answer(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have == nil {
		s.have = map[string]store.Status{}
	}
	for vnet, st := range statuses {
		s.have[vnet] = *st
	}
	return nil
}

func (s *statusStore) setAnswer(f func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

func (s *statusStore) done(vnet string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.have[vnet].Done
}

// startWriter runs a writer until end is called.
func startWriter(t *testing.T, s *statusStore) (w *statusWriter, end func()) {
	w = &statusWriter{put: s.put, log: slog.New(slog.NewTextHandler(io.Discard, nil)), dirty: map[string]*reporter{}, wake: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.run(ctx)
	}()
	return w, func() { cancel(); <-ended }
}

func hang(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("hung: %w", store.ErrUnavailable)
}

// No report waits, whatever the store does, and the store is not asked at each.
func TestReportsDoNotWaitForTheStore(t *testing.T) {
	answers := map[string]func(context.Context) error{
		"hung":        hang,
		"unavailable": func(context.Context) error { return store.ErrUnavailable },
		"full":        func(context.Context) error { return store.ErrNoSpace },
		"broken":      func(context.Context) error { return errors.New("input/output error") },
		"slow":        func(ctx context.Context) error { sleep(ctx, 3*time.Second); return nil },
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &statusStore{answer: answer}
				w, end := startWriter(t, s)
				const vnets, steps = 50, 1000
				var reporters []*reporter
				for i := range vnets {
					r := newReporter(w, fmt.Sprintf("v%d", i))
					r.begin(&plan.Plan{Generation: 1}, false)
					reporters = append(reporters, r)
				}
				begin := time.Now()
				for step := range steps {
					for _, r := range reporters {
						r.update(step%100 == 0, func(st *store.Status) { st.Done = step + 1 })
					}
				}
				if d := time.Since(begin); d != 0 {
					t.Errorf("%d reports took %v", vnets*steps, d)
				}
				time.Sleep(20 * time.Second)
				if n := s.asked(); n > 30 {
					t.Errorf("the store was asked %d times in 20 s", n)
				}
				s.setAnswer(nil)
				time.Sleep(statusTimeout + longestStatusRetry + time.Second)
				for i := range vnets {
					if got := s.done(fmt.Sprintf("v%d", i)); got != steps {
						t.Errorf("v%d: %d steps are written, want %d", i, got, steps)
					}
				}
				end()
			})
		})
	}
}

// Many changes are one transaction, an urgent one does not wait for the others.
func TestStatusesAreWrittenTogetherAndUrgentOnesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &statusStore{}
		w, end := startWriter(t, s)
		a, b := newReporter(w, "a"), newReporter(w, "b")
		a.update(false, func(st *store.Status) { st.Done = 1 })
		synctest.Wait()
		if s.done("a") != 1 {
			t.Error("the first change waits")
		}
		for i := range 100 {
			a.update(false, func(st *store.Status) { st.Done = 2 + i })
			b.update(false, func(st *store.Status) { st.Done = 2 + i })
			time.Sleep(time.Millisecond)
		}
		if s.puts != 1 {
			t.Errorf("%d transactions within %v", s.puts, statusInterval)
		}
		b.phase(store.PhaseCreated)
		time.Sleep(urgentInterval)
		synctest.Wait()
		if s.puts != 2 || s.widest != 2 || s.done("a") != 101 || s.have["b"].Phase != store.PhaseCreated {
			t.Errorf("after a change of the phase: %d transactions, at most %d statuses each, %+v", s.puts, s.widest, s.have)
		}
		end()
	})
}

// What is reported last is written when the agent ends; an agent does not wait for
// a store that hangs.
func TestLastStatusesAreWrittenAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &statusStore{}
		w, end := startWriter(t, s)
		r := newReporter(w, "a")
		r.update(false, func(st *store.Status) { st.Done = 1 })
		synctest.Wait()
		r.update(false, func(st *store.Status) { st.Done = 2 })
		end()
		if got := s.done("a"); got != 2 {
			t.Errorf("%d steps are written, want 2", got)
		}
		s.setAnswer(hang)
		w, end = startWriter(t, s)
		newReporter(w, "b").update(true, func(st *store.Status) { st.Done = 1 })
		synctest.Wait()
		begin := time.Now()
		end()
		if d := time.Since(begin); d > statusFlush {
			t.Errorf("the end took %v", d)
		}
	})
}

// A VNet that is forgotten is not reported on.
func TestForgottenVNetsAreNotReportedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &statusStore{}
		w, end := startWriter(t, s)
		r := newReporter(w, "a")
		r.begin(&plan.Plan{Generation: 1}, true)
		r.phase(store.PhaseRemoved)
		end()
		if s.puts != 0 {
			t.Errorf("%d transactions", s.puts)
		}
	})
}

// TestStatusesSurviveFaultyAnswers lets the store hang, fail, be slow and lose
// answers at random: what was reported last is there in the end.
func TestStatusesSurviveFaultyAnswers(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := &statusStore{}
		s.answer = func(ctx context.Context) error {
			switch random.IntN(5) {
			case 0:
				return hang(ctx)
			case 1:
				return store.ErrUnavailable
			case 2:
				return errors.New("an answer that is lost")
			case 3:
				sleep(ctx, time.Duration(random.IntN(int(statusTimeout))))
			}
			return nil
		}
		w, end := startWriter(t, s)
		reporters := []*reporter{newReporter(w, "a"), newReporter(w, "b"), newReporter(w, "c")}
		for i := range 500 {
			r := reporters[i%3]
			r.update(i%7 == 0, func(st *store.Status) { st.Done = i })
			time.Sleep(50 * time.Millisecond)
		}
		s.setAnswer(nil)
		time.Sleep(statusTimeout + longestStatusRetry + time.Second)
		for i, vnet := range []string{"b", "c", "a"} { // 499 is b's: 499 % 3 = 1
			if got, want := s.done(vnet), []int{499, 497, 498}[i]; got != want {
				t.Errorf("seed %d: %s has %d, want %d", seed, vnet, got, want)
			}
		}
		end()
	})
}
