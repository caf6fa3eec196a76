package agent

import (
	"testing"
	"time"
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
