package pip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"trellis/internal/store"
)

// Run follows the substrate until ctx ends. VNets are forgotten when all their
// agents have reported that nothing is left, or have been forgotten themselves, and
// planned anew when a substrate node that has a part comes with other addresses or
// another MTU.
func (p *Provider) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.followStatuses(ctx) })
	g.Go(func() error { return p.followHosts(ctx) })
	return g.Wait()
}

func (p *Provider) followStatuses(ctx context.Context) error {
	for e := range p.store.WatchStatus(ctx, "") {
		if e.Err != nil {
			p.log.Error("unreadable status", "vnet", e.VNet, "error", e.Err)
			continue
		}
		if e.Status == nil || e.Status.Phase != store.PhaseRemoved {
			continue
		}
		if err := p.persist(ctx, func() error { return p.removed(ctx, e.VNet) }); err != nil && ctx.Err() == nil {
			p.log.Error("removed VNet stays in the store until the next start", "vnet", e.VNet, "error", err)
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("wait for removals: %w", p.store.Err())
	}
	return nil
}

func (p *Provider) followHosts(ctx context.Context) error {
	known := map[string]store.Host{}
	synced := false
	for e := range p.store.WatchHosts(ctx) {
		switch {
		case e.Synced:
			synced = true
			// What changed while no provider looked. On one machine nothing depends on it.
			p.replanAll(ctx, func(rec *store.VNetRecord) bool { return len(rec.Hosts) > 1 })
			p.leaveForgotten(ctx)
		case e.Err != nil:
			p.log.Error("unreadable host", "host", e.Name, "error", e.Err)
		case e.Host == nil:
			delete(known, e.Name)
			if synced {
				p.leaveForgotten(ctx)
			}
		default:
			was, seen := known[e.Name]
			known[e.Name] = e.Host.Host
			if synced && seen && differ(was, e.Host.Host) {
				p.log.Info("host has changed", "host", e.Name, "instance", e.Host.Instance, "addresses", e.Host.Addrs, "mtu", e.Host.MTU)
				p.replanAll(ctx, func(rec *store.VNetRecord) bool { return slices.Contains(rec.Hosts, e.Name) })
			}
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("follow the substrate nodes: %w", p.store.Err())
	}
	return nil
}

// retryLater is the pause before something is tried again because the store was
// away, or had no room.
const retryLater = time.Second

// persist repeats what fails because the store is away, or has no room: nobody else
// would do it once that is over.
func (p *Provider) persist(ctx context.Context, do func() error) error {
	for told := false; ; {
		err := do()
		switch {
		case errors.Is(err, store.ErrAway): // that is told once for all
		case errors.Is(err, store.ErrNoSpace):
			if !told {
				p.log.Warn("waiting for room in the store", "error", err)
				told = true
			}
		default:
			return err
		}
		select {
		case <-time.After(retryLater):
		case <-ctx.Done():
			return err
		}
	}
}

// leaveForgotten takes VNets off substrate nodes that have been forgotten, which
// will never report that nothing is left.
func (p *Provider) leaveForgotten(ctx context.Context) {
	var there hosts
	var records []*store.VNetRecord
	err := p.persist(ctx, func() (err error) {
		if there, err = p.hosts(ctx); err == nil {
			records, err = p.store.VNets(ctx)
		}
		return err
	})
	for _, rec := range records {
		if !slices.ContainsFunc(rec.Hosts, func(h string) bool { return p.forgotten(there, h) }) {
			continue
		}
		err = errors.Join(err, p.persist(ctx, func() error { return p.removed(ctx, rec.Name()) }))
	}
	if err != nil && ctx.Err() == nil {
		p.log.Error("VNets keep parts on hosts that have been forgotten", "error", err)
	}
}

// differ reports whether plans depend on the difference.
func differ(a, b store.Host) bool {
	return a.Instance != b.Instance || a.MTU != b.MTU || !slices.Equal(a.Addrs, b.Addrs)
}

// replanAll plans the chosen VNets anew.
func (p *Provider) replanAll(ctx context.Context, choose func(*store.VNetRecord) bool) {
	var records []*store.VNetRecord
	err := p.persist(ctx, func() (err error) {
		records, err = p.store.VNets(ctx)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			p.log.Error("VNets keep plans of before the substrate changed", "error", err)
		}
		return
	}
	for _, rec := range records {
		if rec.State != store.Present || !choose(rec) {
			continue
		}
		err := p.persist(ctx, func() error { return p.replan(ctx, rec.Name()) })
		var refused Refused
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, store.ErrNotFound):
		case errors.As(err, &refused):
			p.log.Warn("VNet keeps its plans, which do not fit the substrate any more", "vnet", rec.Name(), "error", err)
		default:
			p.log.Error("VNet keeps its plans of before the substrate changed", "vnet", rec.Name(), "error", err)
		}
	}
}

// replan commits the plans of a VNet as they would be now, if they differ from
// those that are stored.
func (p *Provider) replan(ctx context.Context, name string) error {
	defer p.names.lock(name)()
	_, err := retry(func() (Grant, error) {
		was, err := p.store.VNet(ctx, name)
		if err != nil || was.State != store.Present {
			return Grant{}, err
		}
		there, err := p.hosts(ctx)
		if err != nil {
			return Grant{}, err
		}
		next := *was
		if next.Spec, err = clone(was.Spec); err != nil {
			return Grant{}, err
		}
		next.Placement, next.Hosts = placementOf(was), slices.Clone(was.Hosts)
		next.Generation++
		plans, err := p.plan(ctx, &next, there, p.store.DrawKeys)
		if err != nil {
			return Grant{}, err
		}
		if same, err := p.unchanged(ctx, was, &next, plans); err != nil || same {
			return Grant{}, err
		}
		return p.commit(ctx, &next, plans, there, nil)
	})
	return err
}
