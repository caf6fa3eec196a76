package pip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"trellis/internal/embed"
	"trellis/internal/keylock"
	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// DefaultInstance is the tag of the service with the default directories.
const DefaultInstance = "trellis"

// Errors that callers tell apart, besides those of the store.
var (
	// ErrExhausted is returned when the substrate has nothing left to grant.
	ErrExhausted = errors.New("the machine is full")
	// ErrRemoving is returned for a change of a VNet that is being taken down.
	ErrRemoving = errors.New("is being removed")
	// ErrSuperseded is returned where a later request has changed the VNet.
	ErrSuperseded = errors.New("another request has changed it")
)

// Refused is the error of a description that the substrate cannot hold as it is
// now: its [Check], or its placement, has refused it.
type Refused struct{ Err error }

// Error is the refusal itself.
func (r Refused) Error() string { return r.Err.Error() }

// Unwrap gives the refusal.
func (r Refused) Unwrap() error { return r.Err }

// Options say what a Provider provides.
type Options struct {
	Store *store.Store
	// Instance is the owner tag of this service; user ids come from another
	// place for each.
	Instance string
	// Host is the substrate node whose agent runs in this process, which is thus
	// alive whatever the store thinks of it; empty: none does.
	Host string
	// FirstID is the first user id of the first range, a multiple of
	// plan.IDsPerVNet; 0: the
	// default.
	FirstID uint32
	// SubIDFiles hold id ranges that are others'. Nil: /etc/subuid and /etc/subgid.
	SubIDFiles []string
	// KeptIDs is a file in the same form, of networks that run without being in the
	// store; "": there is none.
	KeptIDs  string
	Embedder Embedder     // nil: embed.FirstFit
	Log      *slog.Logger // nil: [slog.Default]
}

// Provider admits VNets to the substrate nodes of a store. Several may run side
// by side, one on each machine.
type Provider struct {
	store    *store.Store
	host     string
	embedder Embedder
	ids      *idSpace
	names    keylock.Locks[string]
	log      *slog.Logger
}

// New makes a provider. Its [Provider.Run] must run, for VNets to be forgotten
// once they are removed, and to follow the substrate.
func New(o Options) (*Provider, error) {
	if o.SubIDFiles == nil {
		o.SubIDFiles = []string{"/etc/subuid", "/etc/subgid"}
	}
	if o.KeptIDs != "" {
		o.SubIDFiles = append(o.SubIDFiles[:len(o.SubIDFiles):len(o.SubIDFiles)], o.KeptIDs)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Embedder == nil {
		o.Embedder = embed.FirstFit{}
	}
	ids, err := newIDSpace(o.FirstID, o.Instance, DefaultInstance, o.SubIDFiles)
	if err != nil {
		return nil, err
	}
	restores, err := o.Store.Restores(context.Background())
	if err != nil {
		return nil, err
	}
	ids.skip(restores)
	return &Provider{store: o.Store, host: o.Host, embedder: o.Embedder, ids: ids, log: o.Log}, nil
}

// Check looks at the plan for one substrate node before it is committed, and
// refuses it by an error. Those of several substrate nodes are looked at side by
// side; those that have vanished cannot be asked.
type Check func(context.Context, *plan.Plan) error

// Grant is what became of a request.
type Grant struct {
	Record *store.VNetRecord
	// Plans are those of all substrate nodes of Record.Hosts, by name; empty ones
	// for those that hold nothing any more.
	Plans map[string]*plan.Plan
	// Changed tells whether the request wrote a new generation, New whether that
	// was the VNet's first.
	Changed, New bool
}

// maxAttempts bounds how often a request is tried again after another one has
// changed the same record, or got the same ids. Requests of one process queue
// up by name, so that one conflict is already rare.
const maxAttempts = 10

// Preview gives the completed description and the plans that Admit would commit
// now. Nothing is written.
func (p *Provider) Preview(ctx context.Context, v *vnet.VNet) (*vnet.VNet, map[string]*plan.Plan, error) {
	v, err := complete(v)
	if err != nil {
		return nil, nil, err
	}
	d, err := p.draft(ctx, v)
	if err != nil {
		return nil, nil, err
	}
	defer d.release()
	plans, err := p.plan(ctx, d.rec, d.hosts, p.store.PeekKeys)
	return d.rec.Spec, plans, err
}

// Admission says how a description is admitted. The zero value does without
// checks.
type Admission struct {
	Check Check
	// Superseded says by an error that a later request has changed the VNet, so
	// that this one is to be given up. It is asked when the stored record turns out
	// to have changed while this request was served. Nil: never.
	Superseded func() error
	// Renew says whether a VNet that would not change gets a new generation all the
	// same, which has the agents converge and report again. Nil: it does not.
	Renew func(context.Context, *store.VNetRecord) (bool, error)
}

// Admit commits the description: completed, validated, placed, compiled, checked.
// When the stored description and plans are the same already, nothing is written,
// unless the VNet is to be renewed.
//
// Nothing is locked while the check runs, which may fetch images. Where another
// request has changed the VNet meanwhile, the description is drafted anew.
func (p *Provider) Admit(ctx context.Context, v *vnet.VNet, a Admission) (Grant, error) {
	v, err := complete(v)
	if err != nil {
		return Grant{}, err
	}
	again := false
	return retry(func() (Grant, error) {
		g, err := p.admit(ctx, v, a, again)
		again = true
		if errors.Is(err, store.ErrConflict) {
			p.ids.scatter()
		}
		return g, err
	})
}

func (p *Provider) admit(ctx context.Context, v *vnet.VNet, a Admission, again bool) (Grant, error) {
	d, plans, err := p.propose(ctx, v)
	if err != nil {
		return Grant{}, err
	}
	defer d.release()
	if d.was != nil {
		same, err := p.unchanged(ctx, d.was, d.rec, plans)
		if same && a.Renew != nil {
			var renew bool
			renew, err = a.Renew(ctx, d.was)
			same = !renew
		}
		if err != nil {
			return Grant{}, err
		}
		if same {
			for _, p := range plans {
				p.Generation = d.was.Generation
			}
			return Grant{Record: d.was, Plans: plans}, nil
		}
	}
	if again && a.Superseded != nil {
		if err := a.Superseded(); err != nil {
			return Grant{}, err
		}
	}
	return p.commit(ctx, d.rec, plans, d.hosts, a.Check)
}

// propose drafts the VNet's next generation and its plans. Requests for one VNet
// do so one after the other.
func (p *Provider) propose(ctx context.Context, v *vnet.VNet) (*draft, map[string]*plan.Plan, error) {
	unlock, err := p.names.Lock(ctx, v.Name)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	d, err := p.draft(ctx, v)
	if err != nil {
		return nil, nil, err
	}
	plans, err := p.plan(ctx, d.rec, d.hosts, p.store.DrawKeys)
	if err != nil {
		d.release()
		return nil, nil, err
	}
	return d, plans, nil
}

// commit checks and stores plans.
func (p *Provider) commit(ctx context.Context, rec *store.VNetRecord, plans map[string]*plan.Plan, there hosts, check Check) (Grant, error) {
	if check != nil {
		g, ctx := errgroup.WithContext(ctx)
		for host, next := range plans {
			unchanged := next.Scope != nil && len(next.Scope) == 0
			if next.Empty() || unchanged || !there[host].Alive {
				continue
			}
			g.Go(func() error {
				err := check(ctx, next)
				if where := "on " + host + ": "; err != nil && len(plans) > 1 && !strings.HasPrefix(err.Error(), where) {
					err = fmt.Errorf("%s%w", where, err)
				}
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return Grant{}, Refused{err}
		}
	}
	isNew := rec.IsNew()
	// The plans hold addresses and MTUs of the hosts, which the checks have taken
	// minutes to look at, perhaps.
	var read []store.HostState
	for host, next := range plans {
		if h, known := there[host]; known && !next.Empty() {
			read = append(read, h)
		}
	}
	if err := p.store.Put(ctx, rec, plans, read...); err != nil {
		return Grant{}, err
	}
	p.log.Info("admitted", "vnet", rec.Name(), "generation", rec.Generation, "nodes", len(rec.Spec.Nodes), "hosts", rec.Hosts)
	return Grant{Record: rec, Plans: plans, Changed: true, New: isNew}, nil
}

// draft is the record of a VNet's next generation, placed, before its plans.
type draft struct {
	rec   *store.VNetRecord
	was   *store.VNetRecord // what is stored; nil: nothing
	hosts hosts
	// release gives back what the record holds and the store does not.
	release func()
}

// draft drafts the record of the VNet's next generation.
func (p *Provider) draft(ctx context.Context, v *vnet.VNet) (*draft, error) {
	there, err := p.hosts(ctx)
	if err != nil {
		return nil, err
	}
	d := &draft{hosts: there, release: func() {}}
	d.was, err = p.store.VNet(ctx, v.Name)
	switch {
	case err == nil:
		next := *d.was // and with it the revision
		d.rec = &next
		if next.State == store.Present {
			v.KeepInterfaceNames(next.Spec)
		}
		next.Spec, next.State = v, store.Present
		next.Hosts = slices.Clone(next.Hosts)
		next.Generation++
		was := placementOf(d.was)
		if next.Placement, err = p.place(ctx, v, was, there); err != nil {
			return nil, err
		}
		there.remember(next.Placement, was)
		return d, nil
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	}
	d.was = nil
	placement, err := p.place(ctx, v, nil, there)
	if err != nil {
		return nil, err
	}
	revision, err := p.store.Revision(ctx)
	if err != nil {
		return nil, err
	}
	owned, err := p.store.IDRanges(ctx)
	if err != nil {
		return nil, err
	}
	base, err := p.ids.reserve(owned)
	if err != nil {
		return nil, fmt.Errorf("admit VNet %s: %w", v.Name, err)
	}
	d.release = func() { p.ids.release(base) }
	d.rec = &store.VNetRecord{
		Spec: v, State: store.Present, IDBase: base, Created: time.Now(), Generation: revision + 1, Placement: placement,
	}
	return d, nil
}

// keySource gives so many EGRE keys that no span has.
type keySource func(context.Context, int) ([]uint32, error)

// plan makes the plans of a placed record: for the substrate nodes that hold a
// node of it, and empty ones for those that held one. It sets the automatic MTUs
// and the record's keys: spans that stay keep theirs.
func (p *Provider) plan(ctx context.Context, rec *store.VNetRecord, there hosts, draw keySource) (map[string]*plan.Plan, error) {
	a := plan.Allocation{
		IDBase: rec.IDBase, Generation: rec.Generation, Placement: rec.Placement, Hosts: map[string]plan.Host{},
	}
	for _, name := range rec.Placement {
		if h, ok := there[name]; ok {
			a.Hosts[name] = plan.Host{Instance: h.Instance, Addrs: h.Addrs, MTU: h.MTU, Cores: h.CPU}
		}
	}
	if err := plan.FitLinks(rec.Spec, rec.Placement, a.Hosts); err != nil {
		return nil, Refused{fmt.Errorf("VNet %s: %w", rec.Name(), err)}
	}
	var err error
	if a.Keys, err = keysFor(ctx, plan.Spans(rec.Spec, rec.Placement), rec.Keys, draw); err != nil {
		return nil, err
	}
	rec.Keys = a.Keys
	plans, err := plan.Compile(rec.Spec, a)
	if err != nil {
		return nil, fmt.Errorf("plan VNet %s: %w", rec.Name(), err)
	}
	for _, host := range rec.Hosts {
		if plans[host] == nil {
			plans[host] = emptyPlan(rec, host, there)
		}
	}
	return plans, nil
}

// keysFor gives each span its key: the one that it has, or a new one.
func keysFor(ctx context.Context, spans []string, have map[string]uint32, draw keySource) (map[string]uint32, error) {
	if len(spans) == 0 {
		return nil, nil
	}
	keys := make(map[string]uint32, len(spans))
	var fresh []string
	for _, s := range spans {
		if k := have[s]; k != 0 {
			keys[s] = k
		} else {
			fresh = append(fresh, s)
		}
	}
	drawn, err := draw(ctx, len(fresh))
	if err != nil {
		return nil, err
	}
	for i, s := range fresh {
		keys[s] = drawn[i]
	}
	return keys, nil
}

// emptyPlan is the plan that asks a substrate node for removal.
func emptyPlan(rec *store.VNetRecord, host string, there hosts) *plan.Plan {
	return &plan.Plan{
		VNet:       rec.Name(),
		Generation: rec.Generation,
		IDBase:     rec.IDBase,
		Host:       host,
		Group:      plan.Group(there[host].Instance, rec.Name()),
	}
}

// unchanged reports whether what is stored says the same as the next record and
// its plans. Plans are compared
// too: another version of Trellis may make others of the same description.
func (p *Provider) unchanged(ctx context.Context, was, next *store.VNetRecord, plans map[string]*plan.Plan) (bool, error) {
	if was.State != store.Present || !maps.Equal(was.Placement, next.Placement) || !maps.Equal(was.Keys, next.Keys) {
		return false, nil
	}
	if same, err := equal(was.Spec, next.Spec); err != nil || !same {
		return false, err
	}
	for host, want := range plans {
		have, err := p.store.Plan(ctx, host, was.Name())
		if errors.Is(err, store.ErrNotFound) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		if have.Empty() && want.Empty() {
			continue
		}
		have.Generation, have.Scope = want.Generation, nil
		if same, err := equal(have, want); err != nil || !same {
			return false, err
		}
	}
	return true, nil
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
