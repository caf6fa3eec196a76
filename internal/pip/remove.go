package pip

import (
	"context"
	"errors"
	"maps"
	"slices"

	"trellis/internal/plan"
	"trellis/internal/store"
)

// Remove asks for a VNet to be taken down: its plans become empty. The record
// stays until the agents have removed everything. store.ErrNotFound when there
// is no such VNet. A removal under way is left alone unless renew is set, which
// has the agents try and report again.
func (p *Provider) Remove(ctx context.Context, name string, renew bool) (*store.VNetRecord, error) {
	return p.remove(ctx, name, renew, nil)
}

// RollBack is Remove for what a request has begun to make: [ErrSuperseded] when
// another one has changed the VNet since that generation.
func (p *Provider) RollBack(ctx context.Context, name string, generation int64) (*store.VNetRecord, error) {
	return p.remove(ctx, name, false, func(rec *store.VNetRecord) error {
		if rec.Generation != generation {
			return ErrSuperseded
		}
		return nil
	})
}

func (p *Provider) remove(ctx context.Context, name string, renew bool, allowed func(*store.VNetRecord) error) (*store.VNetRecord, error) {
	unlock, err := p.names.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	g, err := retry(func() (Grant, error) {
		rec, err := p.store.VNet(ctx, name)
		if err != nil {
			return Grant{}, err
		}
		if allowed != nil {
			if err := allowed(rec); err != nil {
				return Grant{}, err
			}
		}
		if rec.State == store.Removing && !renew {
			return Grant{Record: rec}, nil
		}
		there, err := p.hosts(ctx)
		if err != nil {
			return Grant{}, err
		}
		rec.Placement = placementOf(rec)
		rec.State = store.Removing
		rec.Generation++
		plans := map[string]*plan.Plan{}
		for _, host := range rec.Hosts {
			plans[host] = emptyPlan(rec, host, there)
		}
		if err := p.store.Put(ctx, rec, plans); err != nil {
			return Grant{}, err
		}
		p.log.Info("removing", "vnet", name, "generation", rec.Generation)
		if !slices.ContainsFunc(rec.Hosts, func(h string) bool { return !p.forgotten(there, h) }) {
			// Nobody will report.
			return Grant{Record: rec, Changed: true}, p.tidy(ctx, name)
		}
		return Grant{Record: rec, Changed: true}, nil
	})
	return g.Record, err
}

// removed is called when a substrate node has nothing of a VNet any more: a VNet
// that is gone from all is forgotten, and one that has only left some is
// unassigned from these.
func (p *Provider) removed(ctx context.Context, name string) error {
	unlock, err := p.names.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = retry(func() (Grant, error) { return Grant{}, p.tidy(ctx, name) })
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// forgotten reports whether a substrate node has been. That of this process may
// only not have told of itself yet.
func (p *Provider) forgotten(there hosts, host string) bool {
	_, known := there[host]
	return !known && host != p.host
}

func (p *Provider) tidy(ctx context.Context, name string) error {
	rec, err := p.store.VNet(ctx, name)
	if err != nil {
		return err
	}
	statuses, err := p.store.Statuses(ctx, name)
	if err != nil {
		return err
	}
	there, err := p.hosts(ctx)
	if err != nil {
		return err
	}
	placement := placementOf(rec)
	holds := map[string]bool{}
	if rec.State == store.Present {
		for i := range rec.Spec.Nodes {
			holds[placement[rec.Spec.Nodes[i].Name]] = true
		}
	}
	left := map[string]*plan.Plan{}
	for _, host := range rec.Hosts {
		st := statuses[host]
		reported := st != nil && st.Phase == store.PhaseRemoved && st.Generation == rec.Generation
		if !holds[host] && (reported || p.forgotten(there, host)) {
			left[host] = nil
		}
	}
	switch {
	case rec.State == store.Removing && len(left) == len(rec.Hosts):
		if err := p.store.Forget(ctx, rec); err != nil {
			return err
		}
		p.log.Info("removed", "vnet", name)
	case rec.State == store.Present && len(left) > 0:
		maps.DeleteFunc(placement, func(_, host string) bool { _, gone := left[host]; return gone })
		rec.Placement = placement
		if err := p.store.Put(ctx, rec, left); err != nil {
			return err
		}
		p.log.Info("has left hosts", "vnet", name, "hosts", slices.Sorted(maps.Keys(left)))
	}
	return nil
}
