package pip

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	defer p.names.lock(name)()
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
			return Grant{}, unknown(fmt.Sprintf("VNet %s has no link %q; `trellis show %s` lists its links", name, link, name))
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
		plans, err := p.plan(ctx, rec, there, p.store.DrawKeys)
		if err != nil {
			return Grant{}, err
		}
		changed = rec.Spec.Link(link)
		return p.commit(ctx, rec, plans, there, check)
	})
	return g, changed, err
}
