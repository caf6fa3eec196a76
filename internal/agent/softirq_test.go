package agent

import (
	"testing"
	"time"

	"trellis/internal/substrate/container"
)

// TestHolds checks whose timer lets a node go on.
func TestHolds(t *testing.T) {
	var h holds
	start := time.Unix(1000, 0)
	first := container.State{ID: container.ID{VNet: "v", Node: "n"}, Pid: 7, Started: start}
	one := h.set(first, start.Add(10*time.Second))
	two := h.set(first, start.Add(30*time.Second)) // it has offended again meanwhile
	if h.end(first.ID, one) || !h.end(first.ID, two) || h.end(first.ID, two) {
		t.Error("a node is held until its last hold ends, once")
	}
	old := h.set(first, start.Add(time.Minute))
	again := first
	again.Started = start.Add(time.Second) // with the same number, which the kernel gives again
	late := h.set(again, start.Add(time.Minute))
	if h.end(first.ID, old) || !h.end(first.ID, late) {
		t.Error("the timer of a container that has gone ends the hold of the next one")
	}
}
