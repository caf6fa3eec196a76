package agent

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"trellis/internal/plan"
)

// Turns are taken by so many at once, in the order of asking, and by nobody whose
// context has ended.
func TestTurnsAreTakenInOrder(t *testing.T) {
	l := make(lane, 1)
	begun, proceed := make(chan struct{}), make(chan struct{})
	var order []int
	var done sync.WaitGroup
	take := func(ctx context.Context, f func() error) {
		done.Go(func() {
			if err := l.turn(ctx, f); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	take(t.Context(), func() error { close(begun); <-proceed; return nil })
	<-begun
	ended, cancel := context.WithCancel(t.Context())
	for i := 1; i <= 5; i++ {
		ctx := t.Context()
		if i == 3 {
			ctx = ended
		}
		take(ctx, func() error { order = append(order, i); return nil })
		time.Sleep(20 * time.Millisecond) // so that they ask one after the other
	}
	cancel()
	time.Sleep(20 * time.Millisecond)
	close(proceed)
	done.Wait()
	if len(order) != 4 || order[0] != 1 || order[1] != 2 || order[2] != 4 || order[3] != 5 {
		t.Errorf("turns were taken by %v", order)
	}
}

// A newer plan ends what a pass waits for, and the order to remove ends its steps.
func TestAPassIsSuperseded(t *testing.T) {
	w := newWorker(&Agent{log: silent}, "v")
	some := func() *plan.Plan { return &plan.Plan{VNet: "v", Nodes: []plan.Node{{Name: "a"}}} }
	w.assign(some())
	p := w.begin(t.Context())
	if w.superseded(p) || p.waits.Err() != nil {
		t.Fatal("superseded by nothing")
	}
	w.assign(some())
	if !w.superseded(p) || p.waits.Err() == nil || p.steps.Err() != nil {
		t.Errorf("after a newer plan: superseded %v, waits %v, steps %v", w.superseded(p), p.waits.Err(), p.steps.Err())
	}
	w.end(p)
	p = w.begin(t.Context())
	w.forget()
	if !w.superseded(p) || p.steps.Err() == nil {
		t.Errorf("after the order to remove: superseded %v, steps %v", w.superseded(p), p.steps.Err())
	}
	w.end(p)
	p = w.begin(t.Context())
	w.forget() // again
	if p.steps.Err() != nil {
		t.Error("a removal was ended by the order to remove")
	}
	w.end(p)
}

// Pauses grow, to a bound.
func TestBackoff(t *testing.T) {
	for attempt, want := range map[int]time.Duration{1: minBackoff, 2: 2 * minBackoff, 5: 16 * minBackoff, 8: maxBackoff, 1000: maxBackoff} {
		if got := backoff(attempt); got != want {
			t.Errorf("after %d failures %v, want %v", attempt, got, want)
		}
	}
}
