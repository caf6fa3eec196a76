package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
	"trellis/internal/vnet"
)

// Restarting what dies, and trying again what failed: the first time at once,
// then after a pause that doubles up to the longest; a node that has run for
// long enough begins anew.
const (
	minBackoff  = 250 * time.Millisecond
	maxBackoff  = 30 * time.Second
	stableAfter = time.Minute
)

// worker converges one VNet.
type worker struct {
	a    *Agent
	vnet string
	wake chan struct{}

	mu   sync.Mutex
	pass *pass      // the one that is under way; nil: none
	done *plan.Plan // the last that was in place; nil: none
	// disturbed tells that the worker was woken by something else than a plan.
	disturbed    bool
	want         *plan.Plan                   // nil until the first assignment, or once forgotten
	forgotten    bool                         // the store knows nothing of the VNet any more
	fresh        bool                         // the plan has not been looked at yet
	running      map[string]int               // by node
	routeWatches map[string]*routeWatch       // by node; see route_mtu.go
	expected     map[string]bool              // nodes whose end was asked for
	reread       map[string]int               // init's pid by node, whose daemons' logs are read again; see reportServices
	faults       map[string]serviceFault      // by node
	placed       *plan.Plan                   // the last that was once in place; nil: none
	harm         map[string][]reconcile.Fault // what nodes have done to their own interfaces
	repairs      *repairs
	broken       map[string]bool   // nodes whose last repair has failed in the middle
	base         map[string]string // a node's message when nothing is wrong with it
	harmed       chan struct{}     // tells that there is something to repair
	guarded      map[string]string // by node, what was done to it; see softirq.go
	killed       map[string]string // by node, why it was killed; until its end is recorded

	ended  chan struct{} // closed when run returns
	report *reporter
	// Of run's goroutine alone:
	nodes  map[string]*restart
	routes *routeCheck     // nil: none are looked at
	held   map[string]bool // the nodes that the last pass has not started, since they wait
	until  time.Time       // when the first of those may start; zero: none waits
}

// restart is the history of a node's deaths.
type restart struct {
	count  int
	pause  time.Duration
	before time.Time // no start earlier than this
	up     time.Time // when its container was started last
	why    string
}

func newWorker(a *Agent, vnet string) *worker {
	return &worker{
		a: a, vnet: vnet, wake: make(chan struct{}, 1), running: map[string]int{}, routeWatches: map[string]*routeWatch{},
		expected: map[string]bool{}, faults: map[string]serviceFault{}, guarded: map[string]string{}, killed: map[string]string{}, reread: map[string]int{},
		harm: map[string][]reconcile.Fault{}, repairs: newRepairs(), broken: map[string]bool{}, base: map[string]string{}, harmed: make(chan struct{}, 1),
		nodes: map[string]*restart{}, ended: make(chan struct{}), report: newReporter(a.statuses, vnet),
	}
}

func (w *worker) notify() {
	w.mu.Lock()
	w.disturbed = true
	w.mu.Unlock()
	w.wakeUp()
}

func (w *worker) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// assign sets the plan to converge to. A pass over an older one goes on with its
// steps, since most of what it makes is wanted still, but waits for nothing any
// more; the order to remove everything ends it.
func (w *worker) assign(p *plan.Plan) {
	w.mu.Lock()
	w.want, w.forgotten, w.fresh = p, false, true
	w.pass.supersede(p.Empty())
	w.mu.Unlock()
	w.wakeUp()
}

// forget makes the worker remove everything and end.
func (w *worker) forget() {
	w.mu.Lock()
	w.want, w.forgotten = nil, true
	w.pass.supersede(true)
	w.mu.Unlock()
	w.notify()
}

// pass is one comparison of a plan with the kernel, and what follows from it.
type pass struct {
	want      *plan.Plan
	forgotten bool // the store knows nothing of the VNet any more
	fresh     bool // nobody has looked at the plan yet
	asked     bool // the plan was never in place: all is brought to it, whoever has changed it
	// repair are the nodes whose interfaces are brought back to the plan all the same.
	repair map[string]bool
	// confined: nothing but these nodes, and what is joined with them, is looked at.
	confined bool
	looked   []plan.Node // those that the pass was about
	over     bool        // all is done but to wait for routes
	// steps ends when the pass is to be given up; waits, which is part of it,
	// already when a newer plan comes: for what may take as long as it likes, a
	// tenant's commands and routing.
	steps, waits        context.Context
	giveUp, stopWaiting context.CancelFunc
}

// supersede tells the pass that there is a newer plan, or none; nil: there is no
// pass. The caller holds the worker's mu.
func (p *pass) supersede(remove bool) {
	if p == nil {
		return
	}
	p.stopWaiting()
	if remove && !p.want.Empty() {
		p.giveUp()
	}
}

// begin begins a pass over the plan as it is now.
func (w *worker) begin(ctx context.Context) *pass { return w.beginPass(ctx, false) }

// beginPass begins a pass, or one that does nothing but wait for routes.
func (w *worker) beginPass(ctx context.Context, waits bool) *pass {
	p := &pass{}
	p.steps, p.giveUp = context.WithCancel(ctx)
	p.waits, p.stopWaiting = context.WithCancel(p.steps)
	w.mu.Lock()
	defer w.mu.Unlock()
	p.want, p.forgotten, p.fresh = w.want, w.forgotten, w.fresh
	w.fresh = false
	if p.want == nil {
		p.want = w.emptyPlan()
	}
	p.asked, p.over = p.want != w.placed, waits
	if !waits {
		p.repair = w.chooseRepairs()
	}
	w.pass = p
	return p
}

// end ends a pass.
func (w *worker) end(p *pass) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pass = nil
	p.giveUp()
}

// superseded reports whether the plan of the pass is out of date.
func (w *worker) superseded(p *pass) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.forgotten != w.forgotten {
		return true
	}
	return !p.forgotten && w.want != p.want
}

// waitRemoved returns when a worker that was told to forget its VNet has ended. Others
// are about their own business.
func (w *worker) waitRemoved(ctx context.Context) error {
	w.mu.Lock()
	forgotten := w.forgotten
	w.mu.Unlock()
	if !forgotten {
		return nil
	}
	select {
	case <-w.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("removing what is left of %s is not done: %w", w.vnet, ctx.Err())
	}
}

// run is the worker's loop.
func (w *worker) run(ctx context.Context) {
	defer close(w.ended)
	defer w.unwatch()
	defer w.stopRoutes()
	select { // not before it is known what to do: no plan would be taken for none
	case <-ctx.Done():
		return
	case <-w.wake:
	}
	attempt := 0 // passes that have failed in a row
	for {
		p := w.begin(ctx)
		if p.want.Empty() {
			w.stopRoutes()
		}
		if p.fresh { // somebody asked: what died, or failed, is tried anew
			attempt = 0
			for _, r := range w.nodes {
				r.pause, r.before = 0, time.Time{}
			}
		}
		err := w.a.converge(w, p)
		if err != nil && w.repairFailed(p, err) {
			err = nil
		}
		w.end(p)
		var again <-chan time.Time
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && p.forgotten && w.a.retire(w):
			return
		case errors.Is(err, errSuperseded):
			continue
		case err != nil:
			attempt++
			pause := backoff(attempt)
			w.a.log.Error("converging failed", "vnet", w.vnet, "err", err, "attempt", attempt, "again in", pause)
			w.report.retry(err, attempt, time.Now().Add(pause))
			again = time.After(pause)
		default:
			attempt = 0
			again = w.restartDue()
		}
		if !w.sleep(ctx, again) {
			return
		}
	}
}

// sleep returns when another pass is due; false: ctx has ended. Meanwhile it looks
// at what becomes of the routes.
func (w *worker) sleep(ctx context.Context, again <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.wake:
			return true
		case <-again:
			return true
		case <-w.harmed: // when it is to be repaired is decided anew
		case <-w.repairDue():
			return true
		case <-w.routesChanged():
			if err := w.followRoutes(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, errSuperseded) && !errors.Is(err, context.Canceled) {
				w.a.log.Error("routes cannot be read", "vnet", w.vnet, "err", err)
				return true
			}
		}
	}
}

// backoff is how long a worker waits after so many failures in a row.
func backoff(attempt int) time.Duration {
	return min(minBackoff<<min(attempt-1, 16), maxBackoff)
}

// emptyPlan is the plan of a VNet that nobody wants.
func (w *worker) emptyPlan() *plan.Plan {
	return &plan.Plan{VNet: w.vnet, Group: plan.Group(w.a.cfg.Instance, w.vnet)}
}

// hold decides which nodes a pass does not start, because their restart is held
// back, and keeps that, with when the first of them may: the next pass is due
// then, however long this one takes.
func (w *worker) hold() map[string]bool {
	w.held, w.until = map[string]bool{}, time.Time{}
	now := time.Now()
	for name, r := range w.nodes {
		if !r.before.After(now) {
			continue
		}
		w.held[name] = true
		if w.until.IsZero() || r.before.Before(w.until) {
			w.until = r.before
		}
	}
	return w.held
}

// restartDue gives a channel that tells when a node that the last pass has held
// back may start; nil: there is none.
func (w *worker) restartDue() <-chan time.Time {
	if w.until.IsZero() {
		return nil
	}
	return time.After(time.Until(w.until))
}

// recordDeath keeps a node's end, and says when it may start again.
func (w *worker) recordDeath(name, why string) {
	r := w.nodes[name]
	if r == nil {
		r = &restart{}
		w.nodes[name] = r
	}
	if !r.up.IsZero() && time.Since(r.up) > stableAfter {
		r.pause = 0
	}
	r.count++
	r.why = why
	r.before = time.Now().Add(r.pause)
	r.pause = min(max(2*r.pause, minBackoff), maxBackoff)
}

// recordStart keeps since when a node runs that has died before.
func (w *worker) recordStart(s container.State) {
	if r := w.nodes[s.Node]; r != nil {
		r.up = s.Started
	}
}

// watch has the worker woken when the container ends.
func (w *worker) watch(s container.State) {
	w.mu.Lock()
	w.running[s.Node] = s.Pid
	w.mu.Unlock()
	if now, ok := w.a.containers.Get(s.ID); !ok || now.Pid != s.Pid { // it has ended just before
		w.notify()
	}
}

// wasRunning reports whether the node's container ran when last seen.
func (w *worker) wasRunning(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.running[node]
	return ok
}

// unwatch ends the wait for the containers' ends, and the watch inside; of all
// of them if none is named.
func (w *worker) unwatch(nodes ...string) {
	w.mu.Lock()
	if nodes == nil {
		for n := range w.running {
			nodes = append(nodes, n)
		}
		for n := range w.routeWatches {
			nodes = append(nodes, n)
		}
	}
	for _, n := range nodes {
		delete(w.running, n)
	}
	w.mu.Unlock()
	w.unwatchRoutes(nodes...)
}

// errSuperseded says that a newer plan has arrived.
var errSuperseded = errors.New("a newer plan has arrived")

// converge makes one pass: observe, compare, carry out, wait for the routes.
func (w *worker) converge(p *pass) error {
	w.report.begin(p.want, p.forgotten)
	err := w.carryOut(p)
	if err == nil && !p.want.Empty() {
		if err = w.startRoutes(p.waits, p.want); err == nil {
			err = w.awaitRoutes(p.waits, p.want, func() bool { return w.superseded(p) })
		}
	}
	if err != nil && w.superseded(p) {
		return errSuperseded
	}
	return err
}

// carryOut brings the kernel to the plan.
func (w *worker) carryOut(p *pass) error {
	w.a.useTunnels(p.steps, p.want)
	var err error
	if want := w.confine(p); want != nil {
		p.looked = want.Nodes
		err = w.reconcile(p, want)
	}
	var settled map[string]bool
	w.mu.Lock()
	if w.done = p.want; err != nil {
		w.done = nil
	} else {
		w.placed = p.want
		settled = w.settle(p)
	}
	p.over = true
	w.mu.Unlock()
	w.reportNodes(settled)
	switch {
	case err != nil:
		return err
	case p.want.Empty():
		// What was being made when a pass failed; and with no device left, the pins'
		// directory.
		err := errors.Join(w.a.removePending(w.vnet), w.a.paths.Remove(w.vnet))
		if err = errors.Join(err, w.a.containers.SetHosts(w.vnet, nil), w.a.containers.ForgetSaved(w.vnet)); err != nil {
			return err
		}
		w.report.phase(store.PhaseRemoved)
		return nil
	}
	w.report.paths(w.a.degradedPaths(p.want))
	w.report.phase(store.PhaseCreated)
	return nil
}

// reconcile compares the kernel with the plan, or the part of it that the pass has
// to look at, and carries out the steps.
func (w *worker) reconcile(p *pass, want *plan.Plan) error {
	l := w.a.lane(want)
	if want.Empty() {
		// Of many VNets that go, all nodes go first, and whatever takes turns finds a
		// machine that is the emptier: among others, the removal of a control group
		// looks at each file system there is (memcg_reparent_list_lrus in mm/list_lru.c).
		w.a.containers.Kill(w.vnet)
	}
	var seen *observed
	err := l.turn(p.steps, func() (err error) {
		seen, err = w.a.observe(p.steps, want, want != p.want)
		return err
	})
	if err != nil {
		return err
	}
	w.recordDeaths(want, seen)
	r := newRunner(w, want, seen)
	r.confined = want != p.want
	err = r.run(p, l)
	r.finish(err)
	return err
}

// recordDeaths finds the nodes that ran and no longer do.
func (w *worker) recordDeaths(want *plan.Plan, seen *observed) {
	for _, n := range want.Nodes {
		s, ok := seen.states[n.Name]
		if w.wasRunning(n.Name) && (!ok || !s.Running) {
			w.unwatch(n.Name)
			if w.wasExpected(n.Name) {
				w.a.log.Info("a node restarts, as was asked for", "vnet", w.vnet, "node", n.Name)
				continue
			}
			why := "its init ended"
			if s.KilledForMemory {
				why = fmt.Sprintf("its init was killed for memory: the node's limit is %s", vnet.FormatSize(s.Limits.Memory))
			}
			why = cmp.Or(w.takeKilled(n.Name), why)
			w.recordDeath(n.Name, why)
			w.a.log.Warn("a node has died", "vnet", w.vnet, "node", n.Name, "why", why, "restarts", w.nodes[n.Name].count)
		}
	}
}
