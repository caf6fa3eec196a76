package agent

import (
	"context"
	"fmt"

	"trellis/internal/store"
)

// planOrder keeps what is the newest that was heard of each VNet's plan. A watch that is
// broken off and set up anew, perhaps at a store that was put back, must not take a VNet to what it was before, nor
// remove one that was made since. What is gone from the store stays in it: its
// generations go on when it comes back.
type planOrder map[string]planPlace

// planPlace is where an event is among those of its VNet.
type planPlace struct {
	revision   int64 // of the store; 0: not known
	generation int64 // the largest of all plans so far
}

// next reports whether an event is news, and keeps it then. Deletions have no
// generation, so the store's revision decides; the generation does for plans
// wherever that is not known.
func (o planOrder) next(e store.PlanEvent) bool {
	last, seen := o[e.VNet]
	place := planPlace{revision: max(e.Revision, last.revision), generation: last.generation}
	if e.Plan != nil {
		place.generation = e.Plan.Generation
	}
	if seen && (e.Revision > 0 && e.Revision <= last.revision || place.generation < last.generation) {
		return false
	}
	o[e.VNet] = place
	return true
}

// followPlans gives the workers their plans, until ctx ends. With the end of what
// there was at first it calls synced.
func (a *Agent) followPlans(ctx context.Context, synced func(context.Context) error) error {
	order := planOrder{}
	swept := false
	for e := range a.cfg.Store.WatchPlans(ctx, a.cfg.Host) {
		if e.Synced {
			if !swept {
				swept = true
				if err := synced(ctx); err != nil {
					return fmt.Errorf("look for what no plan mentions: %w", err)
				}
				close(a.swept)
			}
			continue
		}
		if !order.next(e) {
			a.log.Info("ignoring what is known of a plan, or is older than that", "vnet", e.VNet, "revision", e.Revision)
			continue
		}
		switch {
		case e.Err != nil:
			a.log.Error("a plan cannot be read; what runs of it is left alone", "vnet", e.VNet, "err", e.Err)
		case e.Plan == nil:
			a.mu.Lock()
			w := a.workers[e.VNet]
			a.mu.Unlock()
			if w != nil { // else there is nothing of it, or it was never known
				w.forget()
			}
		default:
			a.assign(ctx, e.VNet, e.Plan)
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("the watch of this machine's plans has ended: the store is gone")
	}
	return nil
}
