package pip

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// LinkChange changes a running link; nil fields stay as they are. It applies to
// every direction of the link.
type LinkChange struct {
	Rate          *uint64 // bit/s; 0 lifts the limit
	Delay, Jitter *time.Duration
	Loss          *float64 // probability, 0 to 1
	Down          *bool
}

// apply changes l. Each frame passes one shape of the link with delay and loss:
// that of its sender.
func (c LinkChange) apply(l *vnet.Link) {
	if c.Down != nil {
		l.Down = *c.Down
	}
	for i := range l.Endpoints {
		tx := &l.Endpoints[i].Tx
		if c.Rate != nil {
			tx.Rate = *c.Rate
			if l.Type == vnet.LAN {
				l.Endpoints[i].Rx.Rate = *c.Rate
			}
		}
		if c.Delay != nil {
			tx.Delay = *c.Delay
		}
		if c.Jitter != nil {
			tx.Jitter = *c.Jitter
		}
		if c.Loss != nil {
			tx.Loss = *c.Loss
		}
	}
}

// SetLink changes a link of a running VNet in place, and returns it as it is
// then. The next Admit decides again.
func (p *Provider) SetLink(ctx context.Context, name, link string, c LinkChange, check Check) (Grant, *vnet.Link, error) {
	unlock, err := p.names.Lock(ctx, name)
	if err != nil {
		return Grant{}, nil, err
	}
	defer unlock()
	var changed *vnet.Link
	g, err := retry(func() (Grant, error) {
		rec, err := p.store.VNet(ctx, name)
		if err != nil {
			return Grant{}, err
		}
		if rec.State != store.Present {
			return Grant{}, fmt.Errorf("VNet %s %w; bring it up again first", name, ErrRemoving)
		}
		l := rec.Spec.Link(link)
		if l == nil {
			return Grant{}, store.NotFound("VNet %s has no link %q; `trellis show %s` lists its links", name, link, name)
		}
		c.apply(l)
		// What an older version has stored lacks what has come since.
		if err := errors.Join(rec.Spec.Complete(), rec.Spec.Validate()); err != nil {
			return Grant{}, err
		}
		there, err := p.hosts(ctx)
		if err != nil {
			return Grant{}, err
		}
		rec.Placement = placementOf(rec)
		rec.Generation++
		changed = rec.Spec.Link(link)
		plans, err := p.reshaped(ctx, rec, link)
		if plans == nil && err == nil {
			plans, err = p.plan(ctx, rec, there, p.store.DrawKeys)
		}
		if err != nil {
			return Grant{}, err
		}
		return p.commit(ctx, rec, plans, there, check)
	})
	return g, changed, err
}

// reshaped gives the stored plans with a link as it is in the record, which is all
// that the record's new generation changes; nil where that does not do, so that
// they have to be compiled: they are not those of the generation before, or routes
// are computed from the link.
func (p *Provider) reshaped(ctx context.Context, rec *store.VNetRecord, link string) (map[string]*plan.Plan, error) {
	plans := make(map[string]*plan.Plan, len(rec.Hosts))
	for _, host := range rec.Hosts {
		pl, err := p.store.Plan(ctx, host, rec.Name())
		if errors.Is(err, store.ErrNotFound) || err == nil && pl.Generation != rec.Generation-1 {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		pl.Generation = rec.Generation
		plans[host] = pl
	}
	if !plan.Reshape(plans, rec.Spec, link, rec.Placement) {
		return nil, nil
	}
	return plans, nil
}
