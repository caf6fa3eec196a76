package pip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// DefaultInstance is the tag of the service with the default directories.
const DefaultInstance = "trellis"

// Errors that callers tell apart, besides those of the store.
var (
	// ErrExhausted is returned when the machine has nothing left to grant.
	ErrExhausted = errors.New("the machine is full")
	// ErrRemoving is returned for a change of a VNet that is being taken down.
	ErrRemoving = errors.New("is being removed")
)

// Refused is the error of a [Check] that has refused a plan.
type Refused struct{ Err error }

// Error is the refusal itself.
func (r Refused) Error() string { return r.Err.Error() }

// Unwrap gives the refusal.
func (r Refused) Unwrap() error { return r.Err }

// unknown is an error about something that is not there; it is a
// store.ErrNotFound.
type unknown string

func (u unknown) Error() string   { return string(u) }
func (u unknown) Is(e error) bool { return e == store.ErrNotFound }

// Options say what a Provider provides.
type Options struct {
	Store    *store.Store
	Instance string // owner tag of the service
	Host     string // this substrate node
	// FirstID is the first user id to give out, a multiple of IDsPerVNet; 0: the
	// default.
	FirstID uint32
	// SubIDFiles hold id ranges that are others'. Nil: /etc/subuid and /etc/subgid.
	SubIDFiles []string
	Log        *slog.Logger // nil: [slog.Default]
}

// Provider admits VNets to one machine.
type Provider struct {
	store          *store.Store
	instance, host string
	ids            *idSpace
	names          nameLocks
	log            *slog.Logger
}

// New makes a provider. Its [Provider.Run] must run, for VNets to be forgotten
// once they are removed.
func New(o Options) (*Provider, error) {
	if o.SubIDFiles == nil {
		o.SubIDFiles = []string{"/etc/subuid", "/etc/subgid"}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	ids, err := newIDSpace(o.FirstID, o.Instance, DefaultInstance, o.SubIDFiles)
	if err != nil {
		return nil, err
	}
	return &Provider{store: o.Store, instance: o.Instance, host: o.Host, ids: ids, log: o.Log}, nil
}

// Check looks at a plan before it is committed, and refuses it by an error.
type Check func(context.Context, *plan.Plan) error

// Grant is what became of a request.
type Grant struct {
	Record *store.VNetRecord
	Plan   *plan.Plan
	// Changed tells whether the request wrote a new generation, New whether that
	// was the VNet's first.
	Changed, New bool
}

// maxAttempts bounds how often a request is tried again after another one has
// changed the same record. Requests of one process queue up by name, so that one
// conflict is already rare.
const maxAttempts = 10

// Preview compiles the plan that Admit would commit now. Nothing is written.
func (p *Provider) Preview(ctx context.Context, v *vnet.VNet) (*plan.Plan, error) {
	v, err := complete(v)
	if err != nil {
		return nil, err
	}
	rec, release, err := p.next(ctx, v)
	if err != nil {
		return nil, err
	}
	defer release()
	return p.compile(rec)
}

// Admit commits the description: completed, validated, compiled, checked. When
// the stored description and plan are the same already, nothing is written,
// unless renew asks for a new generation all the same, which has the agent
// converge and report again.
func (p *Provider) Admit(ctx context.Context, v *vnet.VNet, check Check, renew bool) (Grant, error) {
	v, err := complete(v)
	if err != nil {
		return Grant{}, err
	}
	defer p.names.lock(v.Name)()
	return retry(func() (Grant, error) { return p.admit(ctx, v, check, renew) })
}

func (p *Provider) admit(ctx context.Context, v *vnet.VNet, check Check, renew bool) (Grant, error) {
	rec, release, err := p.next(ctx, v)
	if err != nil {
		return Grant{}, err
	}
	defer release()
	next, err := p.compile(rec)
	if err != nil {
		return Grant{}, err
	}
	if !renew {
		same, err := p.unchanged(ctx, v, next)
		if err != nil {
			return Grant{}, err
		}
		if same != nil {
			next.Generation = same.Generation
			return Grant{Record: same, Plan: next}, nil
		}
	}
	return p.commit(ctx, rec, next, check)
}

// commit checks and stores a plan.
func (p *Provider) commit(ctx context.Context, rec *store.VNetRecord, next *plan.Plan, check Check) (Grant, error) {
	if check != nil {
		if err := check(ctx, next); err != nil {
			return Grant{}, Refused{err}
		}
	}
	isNew := rec.IsNew()
	if err := p.store.Put(ctx, rec, map[string]*plan.Plan{p.host: next}); err != nil {
		return Grant{}, err
	}
	p.log.Info("admitted", "vnet", rec.Name(), "generation", rec.Generation, "nodes", len(next.Nodes))
	return Grant{Record: rec, Plan: next, Changed: true, New: isNew}, nil
}

// next drafts the record of the VNet's next generation. The release gives back
// what the record holds and the store does not.
func (p *Provider) next(ctx context.Context, v *vnet.VNet) (rec *store.VNetRecord, release func(), err error) {
	rec, err = p.store.VNet(ctx, v.Name)
	if err == nil {
		if rec.State == store.Present {
			v.KeepInterfaceNames(rec.Spec)
		}
		rec.Spec, rec.State = v, store.Present
		rec.Generation++
		return rec, func() {}, nil
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, nil, err
	}
	revision, err := p.store.Revision(ctx)
	if err != nil {
		return nil, nil, err
	}
	owned, err := p.store.IDRanges(ctx)
	if err != nil {
		return nil, nil, err
	}
	base, err := p.ids.take(owned)
	if err != nil {
		return nil, nil, fmt.Errorf("admit VNet %s: %w", v.Name, err)
	}
	rec = &store.VNetRecord{Spec: v, State: store.Present, IDBase: base, Created: time.Now(), Generation: revision + 1}
	return rec, func() { p.ids.give(base) }, nil
}

// compile makes the plan of a record.
func (p *Provider) compile(rec *store.VNetRecord) (*plan.Plan, error) {
	for _, n := range rec.Spec.Nodes {
		if n.On != "" && n.On != p.host {
			return nil, Refused{fmt.Errorf("node %s asks for the substrate node %q, and there is only %q; leave `on` out, or name that one", n.Name, n.On, p.host)}
		}
	}
	next, err := plan.Compile(rec.Spec, plan.Allocation{
		Instance: p.instance, Host: p.host, IDBase: rec.IDBase, Generation: rec.Generation,
	})
	if err != nil {
		return nil, fmt.Errorf("plan VNet %s: %w", rec.Name(), err)
	}
	return next, nil
}

// unchanged gives the stored record when it already says the same, and nil
// when it does not. Plans are compared too: another version of Trellis may make
// another plan of the same description.
func (p *Provider) unchanged(ctx context.Context, v *vnet.VNet, next *plan.Plan) (*store.VNetRecord, error) {
	rec, err := p.store.VNet(ctx, v.Name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if rec.State != store.Present {
		return nil, nil
	}
	if same, err := equal(rec.Spec, v); err != nil || !same {
		return nil, err
	}
	have, err := p.store.Plan(ctx, p.host, v.Name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	have.Generation = next.Generation
	if same, err := equal(have, next); err != nil || !same {
		return nil, err
	}
	return rec, nil
}

// equal compares two values as they are stored.
func equal(a, b any) (bool, error) {
	x, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	y, err := json.Marshal(b)
	if err != nil {
		return false, err
	}
	return bytes.Equal(x, y), nil
}

// complete gives the completed, valid copy of a description.
func complete(v *vnet.VNet) (*vnet.VNet, error) {
	c, err := clone(v)
	if err != nil {
		return nil, err
	}
	if err := c.Complete(); err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return c, nil
}

func clone(v *vnet.VNet) (*vnet.VNet, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("copy the description of %s: %w", v.Name, err)
	}
	c := &vnet.VNet{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("copy the description of %s: %w", v.Name, err)
	}
	return c, nil
}

// retry repeats a request whose record was changed in between.
func retry(request func() (Grant, error)) (Grant, error) {
	for i := 1; ; i++ {
		g, err := request()
		if !errors.Is(err, store.ErrConflict) || i == maxAttempts {
			return g, err
		}
	}
}
