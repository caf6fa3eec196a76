package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
)

const (
	// reportEvery bounds how often a VNet's status is written while it changes.
	reportEvery = 200 * time.Millisecond
	// reportAgain is when a status is written again that the store did not take
	// because it was away.
	reportAgain = time.Second
)

// reporter writes the status of one VNet to the store: at once when the phase
// changes, otherwise at most once in reportEvery.
type reporter struct {
	a    *Agent
	vnet string

	mu     sync.Mutex
	status store.Status
	silent bool // nobody wants to know: the VNet is forgotten
	last   time.Time
	timer  *time.Timer
	closed bool

	writing sync.Mutex // keeps writes in order
}

func newReporter(a *Agent, vnet string) *reporter { return &reporter{a: a, vnet: vnet} }

// begin starts a pass over a plan.
func (r *reporter) begin(p *plan.Plan, silent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = silent
	if r.status.Generation != p.Generation {
		r.status = store.Status{Generation: p.Generation, Nodes: r.status.Nodes}
	}
}

// update changes the status and has it written soon, or at once.
func (r *reporter) update(now bool, change func(*store.Status)) {
	r.mu.Lock()
	change(&r.status)
	if r.silent || r.closed {
		r.mu.Unlock()
		return
	}
	if !now {
		if wait := reportEvery - time.Since(r.last); wait > 0 {
			if r.timer == nil {
				r.timer = time.AfterFunc(wait, r.flush)
			}
			r.mu.Unlock()
			return
		}
	}
	r.mu.Unlock()
	r.flush()
}

// flush writes the status as it is.
func (r *reporter) flush() {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.mu.Lock()
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	if r.silent || r.closed {
		r.mu.Unlock()
		return
	}
	r.last = time.Now()
	st := r.status
	nodes := make(map[string]store.NodeState, len(st.Nodes))
	for k, v := range st.Nodes {
		nodes[k] = v
	}
	st.Nodes = nodes
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := r.a.cfg.Store.PutStatus(ctx, r.a.cfg.Host, r.vnet, &st)
	switch {
	case err == nil, errors.Is(err, store.ErrNotFound):
	case errors.Is(err, store.ErrAway): // the store has said so
		r.a.log.Debug("the status of a VNet waits for the store", "vnet", r.vnet)
		r.mu.Lock()
		if r.timer == nil && !r.closed {
			r.timer = time.AfterFunc(reportAgain, r.flush)
		}
		r.mu.Unlock()
	default:
		r.a.log.Error("the status of a VNet could not be written", "vnet", r.vnet, "err", err)
	}
}

func (r *reporter) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// phase enters a phase.
func (r *reporter) phase(p store.Phase) {
	r.update(true, func(s *store.Status) {
		s.Phase, s.Error = p, ""
		switch now := time.Now(); p {
		case store.PhaseCreated:
			s.CreatedAt = now
		case store.PhaseConverged:
			s.ConvergedAt = now
			s.Missing, s.MissingNodes = nil, 0
		}
	})
}

// paths enters the paths of the VNet that are in trouble.
func (r *reporter) paths(named []store.PathTrouble, count int) {
	r.update(false, func(s *store.Status) { s.Paths, s.PathsInTrouble = named, count })
}

// fail ends a pass with an error.
func (r *reporter) fail(err error) {
	r.update(true, func(s *store.Status) { s.Phase, s.Error = store.PhaseFailed, err.Error() })
}
