package pip

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// LinkChange changes a running link; nil fields stay as they are. It applies to
// every direction of the link, or, with a node, to those of that node's end.
type LinkChange struct {
	Node, Interface string  // the interface only where the node has several ends
	Rate            *uint64 // bit/s; 0 lifts the limit
	Delay, Jitter   *time.Duration
	Loss            *float64 // probability, 0 to 1
	Down            *bool
}

// apply changes l. Each frame passes one shape of the link with delay and loss:
// that of its sender.
func (c LinkChange) apply(l *vnet.Link) error {
	first, end := 0, len(l.Endpoints) // the ends that the change is about
	if c.Node != "" {
		at, err := c.end(l)
		if err != nil {
			return err
		}
		first, end = at, at+1
	}
	switch {
	case c.Down == nil:
	case c.Node == "":
		l.Down = *c.Down
		for i := range l.Endpoints {
			l.Endpoints[i].Down = false // a cable that is pulled or plugged in whole forgets which end was
		}
	case l.Type != vnet.LAN:
		return Refused{fmt.Errorf("link %s is a point-to-point link: without a carrier at one end it has none at the other; leave %s out", l.Name, c.Node)}
	default:
		if l.Down && !*c.Down { // one end comes back to a LAN without any
			for i := range l.Endpoints {
				l.Endpoints[i].Down = true
			}
			l.Down = false
		}
		l.Endpoints[first].Down = *c.Down
	}
	for i := first; i < end; i++ {
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
	return nil
}

// end finds the end of l that the change is about.
func (c LinkChange) end(l *vnet.Link) (int, error) {
	found, names := -1, []string{} // of the node's interfaces on the link
	for i := range l.Endpoints {
		if e := &l.Endpoints[i]; e.Node == c.Node {
			names = append(names, c.Node+":"+e.Name)
			if c.Interface == "" || c.Interface == e.Name {
				found = i
			}
		}
	}
	switch {
	case len(names) == 0:
		return 0, store.NotFound("node %s is not on link %s; `trellis show` lists the ends of links", c.Node, l.Name)
	case found < 0:
		return 0, store.NotFound("interface %s:%s is not on link %s, but %s is", c.Node, c.Interface, l.Name, strings.Join(names, " and "))
	case c.Interface == "" && len(names) > 1:
		return 0, Refused{fmt.Errorf("node %s is on link %s by %s: say which", c.Node, l.Name, strings.Join(names, " and "))}
	}
	return found, nil
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
		if err := c.apply(l); err != nil {
			return Grant{}, err
		}
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
