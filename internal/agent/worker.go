package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
)

// Restarting what dies, and trying again what failed: the first time at once,
// then after a pause that doubles up to the longest; a node that has run for
// long enough begins anew.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 30 * time.Second
	longEnough   = time.Minute
)

// worker converges one VNet.
type worker struct {
	a    *Agent
	vnet string
	wake chan struct{}

	mu        sync.Mutex
	want      *plan.Plan          // nil until the first assignment, or once forgotten
	forgotten bool                // the store knows nothing of the VNet any more
	fresh     bool                // the plan has not been looked at yet
	watched   map[string]watch    // by node
	heeded    map[string]*heeding // by node; see heed.go

	ended  chan struct{} // closed when run returns
	report *reporter
	// Of run's goroutine alone:
	nodes map[string]*restart
	held  map[string]bool // the nodes that the last pass has not started, since they wait
	until time.Time       // when the first of those may start; zero: none waits
}

// watch is the wait for one container's end.
type watch struct {
	pid  int
	stop func()
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
		a: a, vnet: vnet, wake: make(chan struct{}, 1), watched: map[string]watch{}, heeded: map[string]*heeding{},
		nodes: map[string]*restart{}, ended: make(chan struct{}), report: newReporter(a, vnet),
	}
}

func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// assign sets the plan to converge to.
func (w *worker) assign(p *plan.Plan) {
	w.mu.Lock()
	w.want, w.forgotten, w.fresh = p, false, true
	w.mu.Unlock()
	w.poke()
}

// forget makes the worker remove everything and end.
func (w *worker) forget() {
	w.mu.Lock()
	w.want, w.forgotten = nil, true
	w.mu.Unlock()
	w.poke()
}

// task is what run is to do next, and whether that is new.
func (w *worker) task() (want *plan.Plan, forgotten, fresh bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fresh, w.fresh = w.fresh, false
	return w.want, w.forgotten, fresh
}

// idle returns when a worker that was told to forget its VNet has ended. Others
// are about their own business.
func (w *worker) idle(ctx context.Context) error {
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
	defer w.report.stop()
	select { // not before it is known what to do: no plan would be taken for none
	case <-ctx.Done():
		return
	case <-w.wake:
	}
	pause := firstPause
	for {
		want, forgotten, fresh := w.task()
		if fresh { // somebody asked: what died may start at once
			for _, r := range w.nodes {
				r.pause, r.before = 0, time.Time{}
			}
		}
		if want == nil {
			want = w.nothing()
		}
		changed := w.changed(want, forgotten)
		err := w.converge(ctx, want, forgotten, changed)
		var again <-chan time.Time
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && forgotten && w.a.retire(w):
			return
		case errors.Is(err, errOvertaken):
			continue
		case err != nil:
			w.a.log.Error("converging failed", "vnet", w.vnet, "err", err)
			again = time.After(pause)
			pause = min(2*pause, longestPause)
		default:
			pause = firstPause
			again = w.restartDue()
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-again:
		}
	}
}

// nothing is the plan of a VNet that nobody wants.
func (w *worker) nothing() *plan.Plan {
	return &plan.Plan{VNet: w.vnet, Group: plan.Group(w.a.cfg.Instance, w.vnet)}
}

// changed returns a function that tells whether the plan in hand is out of date.
func (w *worker) changed(p *plan.Plan, forgotten bool) func() bool {
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if forgotten != w.forgotten {
			return true
		}
		return !forgotten && w.want != p
	}
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

// died books a node's end, and says when it may start again.
func (w *worker) died(name, why string) {
	r := w.nodes[name]
	if r == nil {
		r = &restart{}
		w.nodes[name] = r
	}
	if !r.up.IsZero() && time.Since(r.up) > longEnough {
		r.pause = 0
	}
	r.count++
	r.why = why
	r.before = time.Now().Add(r.pause)
	r.pause = min(max(2*r.pause, firstPause), longestPause)
}

// runs books since when a node runs that has died before.
func (w *worker) runs(s container.State) {
	if r := w.nodes[s.Node]; r != nil {
		r.up = s.Started
	}
}

// watch has the worker woken when the container ends.
func (w *worker) watch(ctx context.Context, s container.State) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	old, ok := w.watched[s.Node]
	if ok && old.pid == s.Pid {
		return nil
	}
	exited, err := w.a.containers.Exited(s)
	if err != nil {
		return err
	}
	if ok {
		old.stop()
	}
	ctx, cancel := context.WithCancel(ctx)
	w.watched[s.Node] = watch{pid: s.Pid, stop: cancel}
	go func() {
		select {
		case <-ctx.Done():
		case <-exited:
			w.poke()
		}
	}()
	return nil
}

// wasRunning reports whether the node's container ran when last seen.
func (w *worker) wasRunning(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.watched[node]
	return ok
}

// unwatch ends the wait for the containers' ends, and the watch inside; of all
// of them if none is named.
func (w *worker) unwatch(nodes ...string) {
	w.mu.Lock()
	if nodes == nil {
		for n := range w.watched {
			nodes = append(nodes, n)
		}
		for n := range w.heeded {
			nodes = append(nodes, n)
		}
	}
	for _, n := range nodes {
		if v, ok := w.watched[n]; ok {
			v.stop()
			delete(w.watched, n)
		}
	}
	w.mu.Unlock()
	w.ignore(nodes...)
}

// errOvertaken says that a newer plan has arrived.
var errOvertaken = errors.New("a newer plan has arrived")

// converge makes one pass: observe, compare, carry out, wait for the routes.
func (w *worker) converge(ctx context.Context, want *plan.Plan, forgotten bool, changed func() bool) error {
	w.report.begin(want, forgotten)
	w.a.use(ctx, want)
	seen, err := w.a.observe(ctx, want)
	if err != nil {
		w.report.fail(err)
		return err
	}
	defer seen.close()
	w.bookDeaths(want, seen)
	r := newRunner(w, want, seen)
	err = r.run(ctx)
	r.finish(err)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && changed():
		return errOvertaken
	case err != nil:
		w.report.fail(err)
		return err
	case want.Empty():
		if err := w.a.paths.Remove(w.vnet); err != nil { // with no device left, the pins' directory
			w.report.fail(err)
			return err
		}
		w.report.phase(store.PhaseRemoved)
		return nil
	}
	w.report.paths(w.a.troubles(want))
	w.report.phase(store.PhaseCreated)
	return w.awaitRoutes(ctx, want, changed)
}

// bookDeaths finds the nodes that ran and no longer do.
func (w *worker) bookDeaths(want *plan.Plan, seen *observed) {
	for _, n := range want.Nodes {
		s, ok := seen.states[n.Name]
		if w.wasRunning(n.Name) && (!ok || !s.Running) {
			w.unwatch(n.Name)
			w.died(n.Name, "its init ended")
			w.a.log.Warn("a node has died", "vnet", w.vnet, "node", n.Name, "restarts", w.nodes[n.Name].count)
		}
	}
}
