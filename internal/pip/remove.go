package pip

import (
	"context"
	"errors"
	"fmt"

	"trellis/internal/plan"
	"trellis/internal/store"
)

// Remove asks for a VNet to be taken down: its plan becomes empty. The record
// stays until the agent has removed everything. store.ErrNotFound when there is
// no such VNet. A removal under way is left alone unless renew is set, which
// has the agent try and report again.
func (p *Provider) Remove(ctx context.Context, name string, renew bool) (*store.VNetRecord, error) {
	defer p.names.lock(name)()
	g, err := retry(func() (Grant, error) {
		rec, err := p.store.VNet(ctx, name)
		if err != nil {
			return Grant{}, err
		}
		if rec.State == store.Removing && !renew {
			return Grant{Record: rec}, nil
		}
		rec.State = store.Removing
		rec.Generation++
		plans := map[string]*plan.Plan{}
		for _, host := range rec.Hosts {
			plans[host] = p.empty(rec)
		}
		if err := p.store.Put(ctx, rec, plans); err != nil {
			return Grant{}, err
		}
		p.log.Info("removing", "vnet", name, "generation", rec.Generation)
		return Grant{Record: rec, Changed: true}, nil
	})
	return g.Record, err
}

// empty is the plan that asks for removal.
func (p *Provider) empty(rec *store.VNetRecord) *plan.Plan {
	return &plan.Plan{
		VNet:       rec.Name(),
		Generation: rec.Generation,
		IDBase:     rec.IDBase,
		Group:      plan.Group(p.instance, rec.Name()),
	}
}

// Run forgets VNets when all their agents have reported that nothing is left,
// until ctx ends.
func (p *Provider) Run(ctx context.Context) error {
	for e := range p.store.WatchStatus(ctx, "") {
		if e.Err != nil {
			p.log.Error("unreadable status", "vnet", e.VNet, "error", e.Err)
			continue
		}
		if e.Status == nil || e.Status.Phase != store.PhaseRemoved {
			continue
		}
		if err := p.forget(ctx, e.VNet); err != nil && ctx.Err() == nil {
			p.log.Error("removed VNet stays in the store until the next start", "vnet", e.VNet, "error", err)
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("wait for removals: %w", p.store.Err())
	}
	return nil
}

// forget drops the record of a VNet that is gone from all substrate nodes.
func (p *Provider) forget(ctx context.Context, name string) error {
	defer p.names.lock(name)()
	rec, err := p.store.VNet(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	if rec.State != store.Removing {
		return nil
	}
	statuses, err := p.store.Statuses(ctx, name)
	if err != nil {
		return err
	}
	for _, host := range rec.Hosts {
		st := statuses[host]
		if st == nil || st.Phase != store.PhaseRemoved || st.Generation != rec.Generation {
			return nil
		}
	}
	if err := p.store.Forget(ctx, rec); err != nil {
		return err
	}
	p.log.Info("removed", "vnet", name)
	return nil
}
