package agent

import (
	"context"
	"testing"
	"time"

	"trellis/internal/substrate/container"
)

// A pass that takes longer than a node's restart is held back must not make the
// restart be forgotten: the node was left out of the pass.
func TestARestartFallsDueDuringAPass(t *testing.T) {
	now := time.Now()
	w := &worker{nodes: map[string]*restart{
		"up":   {before: now.Add(-time.Second)},
		"soon": {before: now.Add(20 * time.Millisecond)},
		"late": {before: now.Add(time.Hour)},
	}}
	if held := w.hold(); len(held) != 2 || !held["soon"] || !held["late"] {
		t.Errorf("held back: %v", held)
	}
	time.Sleep(40 * time.Millisecond) // the pass
	select {
	case <-w.restartDue():
	case <-time.After(10 * time.Second):
		t.Fatal("the node that might start during the pass is not started after it")
	}
	w.nodes = nil
	if held := w.hold(); len(held) != 0 || w.restartDue() != nil {
		t.Errorf("held back without a death: %v, due %v", held, w.restartDue())
	}
}

// A worker that runs before it has been given its plan must not take the VNet for
// one that nobody wants, and remove it. Here it has nothing to observe with.
func TestAWorkerWaitsForItsPlan(t *testing.T) {
	w := newWorker(&Agent{log: silent}, "v")
	ctx, cancel := context.WithCancel(t.Context())
	go w.run(ctx)
	time.Sleep(50 * time.Millisecond)
	cancel()
	select {
	case <-w.ended:
	case <-time.After(10 * time.Second):
		t.Error("the worker does not end")
	}
}

// A node that has run for long enough is restarted at once, however often it has
// died before; one that dies soon again waits longer each time.
func TestANodeThatHasRunForLongBeginsAnew(t *testing.T) {
	w := newWorker(&Agent{log: silent}, "v")
	die := func(ran time.Duration) time.Duration {
		s := container.State{ID: container.ID{VNet: "v", Node: "a"}, Started: time.Now().Add(-ran)}
		w.recordStart(s)
		w.recordDeath("a", "its init ended")
		return time.Until(w.nodes["a"].before).Round(minBackoff)
	}
	for i, c := range []struct{ ran, pause time.Duration }{
		{time.Second, 0}, {time.Second, minBackoff}, {time.Second, 2 * minBackoff}, {2 * stableAfter, 0}, {time.Second, minBackoff},
	} {
		if pause := die(c.ran); pause != c.pause {
			t.Errorf("death %d, after %v, is followed by a pause of %v, want %v", i+1, c.ran, pause, c.pause)
		}
	}
	if n := w.nodes["a"].count; n != 5 {
		t.Errorf("%d deaths are booked", n)
	}
}
