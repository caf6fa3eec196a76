package agent

import (
	"sync"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
)

// reporter holds the status of one VNet. No method waits for the store: a changed
// status is marked dirty, and the agent's [statusWriter] writes the latest one.
type reporter struct {
	writer *statusWriter
	vnet   string

	mu     sync.Mutex
	status store.Status // Nodes is replaced, never changed in place
	silent bool         // nobody wants to know: the VNet is forgotten
}

func newReporter(writer *statusWriter, vnet string) *reporter {
	return &reporter{writer: writer, vnet: vnet}
}

// begin starts a pass over a plan.
func (r *reporter) begin(p *plan.Plan, silent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = silent
	if r.status.Generation != p.Generation {
		r.status = store.Status{Generation: p.Generation, Nodes: r.status.Nodes}
	}
}

// update changes the status and has it written soon, or with urgent at once.
func (r *reporter) update(urgent bool, change func(*store.Status)) {
	r.mu.Lock()
	change(&r.status)
	silent := r.silent
	r.mu.Unlock()
	if !silent {
		r.writer.enqueue(r, urgent)
	}
}

// snapshot gives the status as it is now; false if nobody wants to know it.
func (r *reporter) snapshot() (store.Status, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status, !r.silent
}

// phase enters a phase, together with what else is known by then: nobody reads the
// one without the other.
func (r *reporter) phase(p store.Phase, with ...func(*store.Status)) {
	r.update(true, func(s *store.Status) {
		s.Phase, s.Error, s.Attempt, s.RetryAt, s.Doing = p, "", 0, time.Time{}, ""
		switch now := time.Now(); p {
		case store.PhaseCreated:
			s.CreatedAt = now
		case store.PhaseConverged:
			s.ConvergedAt = now
			s.Missing, s.MissingNodes = nil, 0
		}
		for _, change := range with {
			change(s)
		}
	})
}

// paths enters the paths of the VNet that are down or too narrow.
func (r *reporter) paths(named []store.PathFault, count int) {
	r.update(false, func(s *store.Status) { s.Paths, s.FaultyPaths = named, count })
}

// givenUpAfter is how many passes fail in a row before the VNet counts as failed.
// The agent tries on, at its longest pause.
const givenUpAfter = 6

// retry ends a pass that has failed and will be repeated.
func (r *reporter) retry(err error, attempt int, at time.Time) {
	r.update(true, func(s *store.Status) {
		s.Error, s.Attempt, s.RetryAt, s.Doing = err.Error(), attempt, at, ""
		if attempt >= givenUpAfter {
			s.Phase = store.PhaseFailed
		}
	})
}

// doing enters what the agent waits for that may take long; "": nothing.
func (r *reporter) doing(what string) {
	r.update(false, func(s *store.Status) { s.Doing = what })
}
