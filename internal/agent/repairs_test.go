package agent

import (
	"testing"
	"time"
)

// harmAndRepair harms the nodes whenever they are whole for so long, and gives the
// times of the repairs.
func harmAndRepair(r *repairs, begin time.Time, during time.Duration, nodes ...string) map[string][]time.Duration {
	made := map[string][]time.Duration{}
	for now := begin; now.Before(begin.Add(during)); now = now.Add(100 * time.Millisecond) {
		for _, n := range nodes {
			r.harmed(n, now)
		}
		for n := range r.begin(now, func(string) string { return "eth1 was removed from inside" }) {
			made[n] = append(made[n], now.Sub(begin))
			r.mended(n)
		}
	}
	return made
}

// A node that harms itself at once again waits twice as long each time, and for five
// minutes at most.
func TestRepairsOfANodeBackOff(t *testing.T) {
	r, begin := newRepairs(), time.Unix(1000, 0)
	made := harmAndRepair(r, begin, time.Hour, "a")["a"]
	// 1, 2, 4, … 256 and then 300 s.
	want := firstRepair
	last := time.Duration(0)
	for i, at := range made {
		if pause := at - last; pause < want || pause > want+time.Second {
			t.Errorf("repair %d comes %v after the one before, want %v", i+1, pause, want)
		}
		last, want = at, min(2*want, lastRepair)
	}
	if len(made) < 15 || len(made) > 25 {
		t.Errorf("%d repairs in an hour", len(made))
	}
	if h := r.nodes["a"]; h.count != len(made) || h.why != "eth1 was removed from inside" {
		t.Errorf("%d repairs are booked of %d, the last of %q", h.count, len(made), h.why)
	}
	// Left whole for long enough, it begins anew.
	later := begin.Add(time.Hour + repairStable + time.Second)
	r.mended("a")
	r.harmed("a", later)
	if at, any := r.next(later); !any || at.Sub(later) != firstRepair {
		t.Errorf("after a quiet time the next repair is due in %v, %v", at.Sub(later), any)
	}
}

// The nodes of a network share a budget, so that many cost no more than few.
func TestRepairsOfANetworkShareABudget(t *testing.T) {
	var nodes []string
	for i := range 200 {
		nodes = append(nodes, string(rune('a'+i%26))+string(rune('a'+i/26)))
	}
	all := 0
	during := time.Minute
	for _, made := range harmAndRepair(newRepairs(), time.Unix(1000, 0), during, nodes...) {
		all += len(made)
	}
	if most := repairBurst + int(during/repairEvery) + 1; all > most || all < most-3 {
		t.Errorf("%d repairs in a minute, want %d", all, most)
	}
}

// What is due is told, also when the budget is used up, and nothing when all is whole.
func TestTheNextRepair(t *testing.T) {
	r, now := newRepairs(), time.Unix(1000, 0)
	if _, any := r.next(now); any {
		t.Error("something is due without harm")
	}
	r.harmed("a", now)
	if at, any := r.next(now); !any || at != now.Add(firstRepair) {
		t.Errorf("due at %v, %v", at, any)
	}
	if chosen := r.begin(now, func(string) string { return "" }); len(chosen) > 0 {
		t.Errorf("%v are repaired before they are due", chosen)
	}
	now = now.Add(firstRepair)
	r.budget, r.filled = 0.5, now
	if at, any := r.next(now); !any || at != now.Add(repairEvery/2) {
		t.Errorf("with half of a repair in the budget: due in %v, %v", at.Sub(now), any)
	}
	r.mended("a")
	if _, any := r.next(now); any {
		t.Error("something is due after it was mended")
	}
	r.harmed("a", now)
	r.forget(map[string]bool{"b": true})
	if _, any := r.next(now); any {
		t.Error("a node that is no more is due")
	}
}
