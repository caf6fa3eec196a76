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
// planned anew when a substrate node that holds nodes of it comes with other
// addresses or another MTU.
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
		if err := p.retryAway(ctx, func() error { return p.removed(ctx, e.VNet) }); err != nil && ctx.Err() == nil {
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
			p.replanAll(ctx, func(v *store.Summary) bool { return len(v.Hosts) > 1 })
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
				p.replanAll(ctx, func(v *store.Summary) bool { return slices.Contains(v.Hosts, e.Name) })
			}
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("follow the substrate nodes: %w", p.store.Err())
	}
	return nil
}

// retryPause is the time between two attempts while the store cannot be used.
const retryPause = time.Second

// retryAway repeats what fails because the store cannot be used just now: it is away,
// full or busy. Nobody else would do it once it can. A store that has ended is
// not waited for.
func (p *Provider) retryAway(ctx context.Context, do func() error) error {
	for logged := ""; ; {
		err := do()
		if !store.IsTransient(err) || p.store.Err() != nil {
			return err
		}
		// Of one that is away, the store itself logs it, once.
		if text := err.Error(); text != logged && !errors.Is(err, store.ErrUnavailable) {
			p.log.Warn("waiting for the store", "error", err)
			logged = text
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return err
		}
	}
}

// leaveForgotten removes VNets from substrate nodes that have been forgotten, which
// will never report that nothing is left.
func (p *Provider) leaveForgotten(ctx context.Context) {
	var there hosts
	var vnets []store.Summary
	err := p.retryAway(ctx, func() (err error) {
		if there, err = p.hosts(ctx); err == nil {
			vnets, err = p.store.Summaries(ctx)
		}
		return err
	})
	for _, v := range vnets {
		if !slices.ContainsFunc(v.Hosts, func(h string) bool { return p.forgotten(there, h) }) {
			continue
		}
		err = errors.Join(err, p.retryAway(ctx, func() error { return p.removed(ctx, v.Name) }))
	}
	if err != nil && ctx.Err() == nil {
		p.log.Error("VNets stay on hosts that have been forgotten", "error", err)
	}
}

// differ reports whether plans depend on the difference.
func differ(a, b store.Host) bool {
	return a.Instance != b.Instance || a.MTU != b.MTU || !slices.Equal(a.Addrs, b.Addrs)
}

// replanAll plans the chosen VNets anew.
func (p *Provider) replanAll(ctx context.Context, choose func(*store.Summary) bool) {
	var vnets []store.Summary
	err := p.retryAway(ctx, func() (err error) {
		vnets, err = p.store.Summaries(ctx)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			p.log.Error("VNets keep plans of before the substrate changed", "error", err)
		}
		return
	}
	for _, v := range vnets {
		if v.State != store.Present || !choose(&v) {
			continue
		}
		err := p.retryAway(ctx, func() error { return p.replan(ctx, v.Name) })
		var refused Refused
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, store.ErrNotFound):
		case errors.As(err, &refused):
			p.log.Warn("VNet keeps its plans, which do not fit the substrate any more", "vnet", v.Name, "error", err)
		default:
			p.log.Error("VNet keeps its plans of before the substrate changed", "vnet", v.Name, "error", err)
		}
	}
}

// replan commits the plans of a VNet as they would be now, if they differ from
// those that are stored.
func (p *Provider) replan(ctx context.Context, name string) error {
	unlock, err := p.names.Lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	_, err = retry(func() (Grant, error) {
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
