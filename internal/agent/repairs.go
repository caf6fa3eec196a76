package agent

import "time"

// How often what nodes do to themselves is undone. A repair costs the machine some
// tens of milliseconds, much of it under the one lock of all network configuration;
// so a node that harms itself again waits for longer each time, and the nodes of a
// network wait for each other.
const (
	firstRepair = time.Second     // after the harm was seen: what is done in several steps has come to its end
	lastRepair  = 5 * time.Minute // the longest pause
	// repairStable is how long a node must be left whole for its pause to begin anew.
	repairStable = 10 * time.Minute
	// repairBurst is how many repairs of a network's nodes there may be at once, and
	// repairEvery how soon there is one more.
	repairBurst = 16
	repairEvery = 2 * time.Second
)

// repairs is the history of the repairs of one network's nodes. It takes the time
// from its callers.
type repairs struct {
	nodes  map[string]*repairHistory
	budget float64   // repairs that may be made now
	filled time.Time // when the budget was brought up to date
}

// repairHistory is that of one node.
type repairHistory struct {
	count  int
	why    string        // what was repaired last
	last   time.Time     // when
	pause  time.Duration // before the next
	seen   time.Time     // since when there is harm; zero: there is none
	failed string        // why the last has not repaired it; "": it has
}

func newRepairs() *repairs { return &repairs{nodes: map[string]*repairHistory{}, budget: repairBurst} }

// harmed keeps that a node has come to harm, from when on it may be repaired.
func (r *repairs) harmed(node string, now time.Time) {
	h := r.nodes[node]
	if h == nil {
		h = &repairHistory{pause: firstRepair}
		r.nodes[node] = h
	}
	if h.seen.IsZero() {
		h.seen = now
		if now.Sub(h.last) > repairStable {
			h.pause = firstRepair
		}
	}
}

// mended keeps that a node is whole.
func (r *repairs) mended(node string) {
	if h := r.nodes[node]; h != nil {
		h.seen, h.failed = time.Time{}, ""
	}
}

// due gives when a harmed node may be repaired, but for the budget.
func (h *repairHistory) due() time.Time { return h.seen.Add(h.pause) }

// next gives when the first of the harmed nodes may be repaired; false: there is none.
func (r *repairs) next(now time.Time) (first time.Time, any bool) {
	r.fill(now)
	for _, h := range r.nodes {
		if h.seen.IsZero() {
			continue
		}
		if due := h.due(); !any || due.Before(first) {
			first, any = due, true
		}
	}
	if any && r.budget < 1 {
		if more := now.Add(time.Duration((1 - r.budget) * float64(repairEvery))); more.After(first) {
			first = more
		}
	}
	return first, any
}

// begin takes what may be repaired now from the budget, and books it as repaired.
func (r *repairs) begin(now time.Time, why func(node string) string) map[string]bool {
	r.fill(now)
	chosen := map[string]bool{}
	for node, h := range r.nodes {
		if h.seen.IsZero() || h.due().After(now) || r.budget < 1 {
			continue
		}
		r.budget--
		chosen[node] = true
		h.why, h.last, h.seen = why(node), now, now // of what is not mended, the next pause begins now
		h.count++
		h.pause = min(2*h.pause, lastRepair)
	}
	return chosen
}

// fill brings the budget up to date.
func (r *repairs) fill(now time.Time) {
	if !r.filled.IsZero() {
		r.budget = min(repairBurst, r.budget+float64(now.Sub(r.filled))/float64(repairEvery))
	}
	r.filled = now
}

// forget forgets nodes that are no more.
func (r *repairs) forget(known map[string]bool) {
	for node := range r.nodes {
		if !known[node] {
			delete(r.nodes, node)
		}
	}
}
