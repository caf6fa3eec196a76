package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"trellis/internal/plan"
	"trellis/internal/routing"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/netns"
)

// How often the routes of nodes are read. Notifications say when; these bound what
// many of them cost.
const (
	// firstPause is between two looks at a node whose routes change; it doubles
	// until the node has all, up to pausePerNode for each node of the network, but
	// at least minLongestPause and at most maxLongestPause.
	firstPause      = 25 * time.Millisecond
	pausePerNode    = 2 * time.Millisecond
	minLongestPause = 200 * time.Millisecond
	maxLongestPause = 5 * time.Second
	// A network's looks may take readBurst of processor time at once, and of each
	// second the share readShare.
	readBurst = 5 * time.Second
	readShare = 0.05
	// lookAtOnce is how many nodes are looked at before anything else gets its turn.
	lookAtOnce = 32
	// quietAfter is how long nothing may have changed in nodes whose routing only
	// their user knows, until they count as done: longer than OSPF waits for a
	// designated router (RFC 2328, section C.3: the dead interval, 40 s).
	quietAfter = 45 * time.Second
	// quietAfterReload is how long where the nodes had settled before, and go on with
	// other configuration: the sessions that stay tell each other within seconds.
	quietAfterReload = 10 * time.Second
	// servicesEvery is how often the services of such nodes are looked at.
	servicesEvery = 500 * time.Millisecond
)

// routeCheck is what is known of the routes of a VNet's nodes here.
type routeCheck struct {
	want  *plan.Plan
	nodes map[string]*routeNode
	// running are the containers of all nodes here, looked at or not, by node.
	running map[string]container.State
	event   chan struct{} // a watched node's routes have changed

	budget    time.Duration // processor time that looks may take now
	counted   time.Time     // when the budget was last added to
	lastEvent time.Time
	quiet     time.Duration // without an event, and what is own counts as done

	reported bool // that nothing is waited for any more, with so many complete
	complete int
}

// routeNode is a node whose routes are looked at.
type routeNode struct {
	plan    *plan.Node
	state   container.State
	watch   *netns.RouteWatch // nil: its routes are Trellis's own, and change with the plan
	changed atomic.Bool       // told since the last look

	// own tells that its user configures its routing: it is to have a route to
	// every other node. Else the plan says what it must have a route to.
	own        bool
	servicesUp time.Time // since when all of an own node's services run
	read       bool      // they have read their configuration, and what they refuse is known
	complete   bool
	missing    []string // the first few
	count      int      // all that are missing
	pause      time.Duration
	due        time.Time // not looked at before
}

// checked tells whether a node's routes are looked at: where Trellis knows what it
// must learn, and where daemons run that do.
func checked(n *plan.Node) bool {
	return len(n.Components) > 0 || len(n.Daemons.Services) > 0
}

// startRoutes begins to look at the nodes as they run now. What is known of nodes
// that have not changed is kept.
func (w *worker) startRoutes(ctx context.Context, want *plan.Plan) error {
	old := w.routes
	c := &routeCheck{want: want, nodes: map[string]*routeNode{}, event: make(chan struct{}, 1), budget: readBurst, counted: time.Now(), lastEvent: time.Now(), quiet: quietAfter}
	if old != nil {
		c.event, c.budget, c.counted, c.lastEvent = old.event, old.budget, old.counted, old.lastEvent
	}
	w.routes = c
	states, err := w.a.containers.List(ctx, w.vnet)
	if err != nil {
		return err
	}
	running := make(map[string]container.State, len(states))
	for _, s := range states {
		if s.Running {
			running[s.Node] = s
		}
	}
	c.running = running
	same := old != nil && slices.EqualFunc(old.want.Destinations, want.Destinations, slices.Equal[[]netip.Addr])
	unchanged := old != nil && old.want == want
	settled := old != nil && (old.reported || old.quiet == quietAfterReload)
	for i := range want.Nodes {
		n := &want.Nodes[i]
		if !checked(n) || w.held[n.Name] {
			continue
		}
		if unchanged {
			if r := old.nodes[n.Name]; r != nil && r.state.Pid == running[n.Name].Pid && r.state.Running {
				c.nodes[n.Name] = r
				delete(old.nodes, n.Name)
				continue
			}
		}
		r := &routeNode{plan: n, state: running[n.Name], own: len(n.Components) == 0, pause: firstPause}
		r.changed.Store(true)
		if old != nil {
			before := old.nodes[n.Name]
			settled = settled && before != nil && before.state.Pid == r.state.Pid
			if before != nil && before.state.Pid == r.state.Pid {
				if reflect.DeepEqual(before.plan.Daemons, n.Daemons) && reflect.DeepEqual(before.plan.Files, n.Files) {
					r.servicesUp, r.read = before.servicesUp, before.read // they have read their configuration
				}
				r.watch, before.watch = before.watch, nil
				if r.watch != nil {
					r.watch.SetNotify(c.notifier(r))
				}
				if same && !r.own && before.complete && !before.changed.Load() && slices.Equal(before.plan.Routes.Via, n.Routes.Via) {
					r.complete = true
					r.changed.Store(false)
				}
			}
		}
		c.nodes[n.Name] = r
	}
	if settled {
		c.quiet = quietAfterReload
	}
	if old != nil {
		old.close()
	}
	for _, r := range c.nodes {
		if r.watch == nil && r.state.Running && len(r.plan.Daemons.Services) > 0 {
			if err := w.subscribe(c, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *routeCheck) notifier(r *routeNode) func() {
	return func() {
		r.changed.Store(true)
		select {
		case c.event <- struct{}{}:
		default:
		}
	}
}

// subscribe has the node tell of changes of its routes.
func (w *worker) subscribe(c *routeCheck, r *routeNode) error {
	ns, err := netns.OfPid(r.state.Pid)
	if gone(err) {
		return nil
	} else if err != nil {
		return err
	}
	defer ns.Close()
	if r.watch, err = w.a.routeEvents.Watch(ns, c.notifier(r)); err != nil {
		return fmt.Errorf("node %s/%s: %w", w.vnet, r.plan.Name, err)
	}
	return nil
}

// close ends the watches.
func (c *routeCheck) close() {
	for _, r := range c.nodes {
		if r.watch != nil {
			r.watch.Close()
			r.watch = nil
		}
	}
}

// stopRoutes ends looking.
func (w *worker) stopRoutes() {
	if w.routes != nil {
		w.routes.close()
		w.routes = nil
	}
}

// routesChanged has a message when a route of a watched node has changed; nil when
// none is watched.
func (w *worker) routesChanged() <-chan struct{} {
	if w.routes == nil {
		return nil
	}
	return w.routes.event
}

// awaitRoutes returns when every node has the routes that it is to have, in the
// kernel and so whatever the protocol; where only its user knows which these are,
// when it has one to every other such node, or nothing has changed for long. It
// returns at once when ctx ends or the worker is woken.
func (w *worker) awaitRoutes(ctx context.Context, want *plan.Plan, changed func() bool) error {
	c := w.routes
	restart, repair := w.restartDue(), w.repairDue()
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if len(w.wake) > 0 { // run looks why
			return nil
		}
		looked, err := w.look(ctx, c)
		if err != nil {
			return err
		}
		done, quiet := c.done(w)
		w.reportRoutes(c, done)
		if done {
			return nil
		}
		if looked == lookAtOnce && c.wait() == 0 {
			continue
		}
		pause := c.wait()
		if !quiet.IsZero() { // the services, the others' addresses, and the time without changes
			pause = min(pause, servicesEvery)
			for _, r := range c.nodes {
				if r.own && !r.complete {
					r.changed.Store(true)
				}
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
			w.wakeUp() // the loop in run looks why
			return nil
		case <-restart: // what is missing may be the route to the node that waits
			return nil
		case <-w.harmed:
			repair = w.repairDue()
		case <-repair:
			return nil
		case <-c.event:
			c.lastEvent = time.Now()
			pauseFor(ctx, firstPause) // changes come in bursts
		case <-time.After(pause):
		}
		if changed() {
			return errSuperseded
		}
	}
}

// wait gives how long nothing is to be looked at, because no node is due, or since
// looks have taken their share of the processor.
func (c *routeCheck) wait() time.Duration {
	now := time.Now()
	c.budget = min(readBurst, c.budget+time.Duration(float64(now.Sub(c.counted))*readShare))
	c.counted = now
	if c.budget < 0 {
		return time.Duration(float64(-c.budget) / readShare)
	}
	wait := time.Hour
	for _, r := range c.nodes {
		if r.changed.Load() {
			wait = min(wait, max(0, r.due.Sub(now)))
		}
	}
	return wait
}

// look reads the routes of nodes that are due, a few at a time, and tells how many
// they were.
func (w *worker) look(ctx context.Context, c *routeCheck) (int, error) {
	if c.wait() > 0 {
		return 0, nil
	}
	now := time.Now()
	var due []*routeNode
	for _, r := range c.nodes {
		if r.changed.Load() && !r.due.After(now) {
			if due = append(due, r); len(due) == lookAtOnce {
				break
			}
		}
	}
	others, err := c.soughtAddresses()
	if err != nil {
		return 0, fmt.Errorf("read the addresses of %s: %w", w.vnet, err)
	}
	var spent atomic.Int64
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, r := range due {
		g.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			took, err := r.look(c.want, others)
			spent.Add(int64(took))
			if err != nil {
				return fmt.Errorf("read the routes of %s/%s: %w", w.vnet, r.plan.Name, err)
			}
			return nil
		})
	}
	err = g.Wait()
	c.budget -= time.Duration(spent.Load())
	longest := min(max(time.Duration(len(c.nodes))*pausePerNode, minLongestPause), maxLongestPause)
	for _, r := range due {
		r.due = time.Now().Add(r.pause)
		r.pause = min(2*r.pause, longest)
		if r.complete {
			r.pause = firstPause
		}
	}
	return len(due), err
}

// soughtAddresses gives, by name, the address of each family that stands for a
// node, as `trellis ping` tries it: of lo where there is one, and none that several
// nodes have. They are read in the nodes, since users' own configuration sets them. Where no user configures the
// routing, nobody asks for them; where one does, networks are small.
func (c *routeCheck) soughtAddresses() (map[string][]netip.Addr, error) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(c.nodes)), func(r *routeNode) bool { return r.own }) {
		return nil, nil
	}
	found := make(map[string][]netip.Addr, len(c.running))
	holders := map[netip.Addr]int{}
	for i := range c.want.Nodes {
		for _, a := range c.want.Nodes[i].Anycast {
			holders[a] = 2 // or more, elsewhere
		}
	}
	for name, state := range c.running {
		addrs, err := addressesOf(state)
		if err != nil {
			return nil, err
		}
		found[name] = addrs
		for i, a := range addrs {
			if !slices.Contains(addrs[:i], a) { // unnumbered interfaces have that of lo
				holders[a]++
			}
		}
	}
	out := make(map[string][]netip.Addr, len(found))
	for name, addrs := range found {
		for _, a := range addrs {
			if holders[a] > 1 {
				continue // it stands for no node
			}
			if !slices.ContainsFunc(out[name], sameFamily(a)) {
				out[name] = append(out[name], a)
			}
		}
	}
	return out, nil
}

// sameFamily gives a function that tells whether an address is of a's family.
func sameFamily(a netip.Addr) func(netip.Addr) bool {
	return func(b netip.Addr) bool { return a.Is4() == b.Is4() }
}

// look reads the node's routes, and tells how much processor time that took.
func (r *routeNode) look(want *plan.Plan, others map[string][]netip.Addr) (took time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	defer func() { took = threadTime() - began }()
	r.changed.Store(false)
	r.complete, r.missing, r.count = false, nil, 0
	var fib *netns.FIB
	if r.state.Running {
		if r.watch != nil {
			if err := r.watch.Arm(); err != nil {
				return 0, err
			}
		}
		ns, err := netns.OfPid(r.state.Pid)
		if err != nil && !gone(err) {
			return 0, err
		}
		if err == nil {
			defer ns.Close()
			if fib, err = ns.FIB(); err != nil {
				return 0, err
			}
		}
	}
	miss := func(a netip.Addr) {
		if r.count++; r.count <= store.MaxMissingPrefixes {
			r.missing = append(r.missing, netip.PrefixFrom(a, a.BitLen()).String())
		}
	}
	local := map[netip.Addr]bool{}
	for _, p := range r.plan.Loopbacks {
		local[p.Addr()] = true
	}
	for i := range r.plan.Ports {
		for _, p := range r.plan.Ports[i].Addrs {
			local[p.Addr()] = true
		}
	}
	for _, c := range r.plan.Components {
		for _, a := range want.Destinations[c] {
			if fib == nil || !local[a] && !fib.Covers(a) {
				miss(a)
			}
		}
	}
	if r.own {
		for name, addrs := range others {
			for _, a := range addrs {
				if name == r.plan.Name || !slices.ContainsFunc(others[r.plan.Name], sameFamily(a)) {
					continue // its own, or of a family that it does not speak
				}
				if fib == nil || !fib.Covers(a) {
					miss(a)
				}
			}
		}
	}
	slices.Sort(r.missing)
	r.complete = r.count == 0 && fib != nil
	if !r.complete && r.watch == nil {
		r.changed.Store(true) // nobody tells
	}
	return 0, nil
}

// pauseFor waits for so long, or until ctx ends.
func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// threadTime is the processor time that this thread has taken.
func threadTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// done tells whether nothing is to be waited for any more. Where only nodes miss
// routes whose users configure them, that is when nothing has changed since quiet
// for long enough; else quiet is zero.
func (c *routeCheck) done(w *worker) (done bool, quiet time.Time) {
	waiting := false
	for _, r := range c.nodes {
		switch {
		case r.own && !w.servicesRun(r):
			waiting = true
			c.lastEvent, r.servicesUp, r.read = time.Now(), time.Time{}, false
		case r.own && !w.configurationRead(r):
			waiting = true
			c.lastEvent = time.Now()
		case r.complete: // whatever else is wrong with it
		case r.own && w.faulty(r.plan.Name): // which may be why routes are missing
			waiting = true
			c.lastEvent = time.Now()
		case !r.own:
			return false, time.Time{}
		default:
			waiting = true
		}
	}
	if !waiting {
		return true, time.Time{}
	}
	return time.Since(c.lastEvent) >= c.quiet, c.lastEvent
}

// configurationRead reports whether the daemons of a node that its user configures
// have read that, and looks then at what they refuse of it. What is loaded has been
// read when they run.
func (w *worker) configurationRead(r *routeNode) bool {
	if r.servicesUp.IsZero() {
		r.servicesUp = time.Now()
	}
	if r.read {
		return true
	}
	loaded := slices.ContainsFunc(r.plan.Daemons.Services, func(s routing.Service) bool { return s.Loads })
	if !loaded && time.Since(r.servicesUp) < configurationReadAfter {
		return false
	}
	w.reportServices([]container.ID{r.state.ID})
	r.read = true
	return true
}

// servicesRun tells whether all services of a node do.
func (w *worker) servicesRun(r *routeNode) bool {
	services, ok := w.a.containers.Services(r.state.ID)
	if !ok {
		return false
	}
	states := make(map[string]container.ServiceState, len(services))
	for _, s := range services {
		states[s.Name] = s.State
	}
	if _, command := states[container.CommandName]; command && len(states) == 1 && r.plan.Daemons.Yields {
		return true
	}
	return !slices.ContainsFunc(r.plan.Daemons.Services, func(d routing.Service) bool {
		state, known := states[d.Name]
		switch {
		case d.Loads:
			return state != container.ServiceExited
		case d.Optional && !known: // the node has no such program
			return false
		}
		return state != container.ServiceRunning && state != container.ServiceStopped
	})
}

// reportRoutes writes what is known into the status.
func (w *worker) reportRoutes(c *routeCheck, done bool) {
	var missing []store.Missing
	complete := 0
	for _, r := range c.nodes {
		if r.complete && !(r.own && !done && (!w.servicesRun(r) || !w.configurationRead(r))) {
			complete++
		} else {
			missing = append(missing, store.Missing{Node: r.plan.Name, Prefixes: r.missing, Count: r.count})
		}
	}
	slices.SortFunc(missing, func(a, b store.Missing) int { return strings.Compare(a.Node, b.Node) })
	update := func(s *store.Status) {
		if !done && s.Phase == store.PhaseConverged {
			s.Phase = store.PhaseCreated // routes have been lost
		}
		s.Converged, s.Routers = complete, len(c.nodes)
		s.Missing, s.MissingNodes = missing[:min(len(missing), store.MaxMissing)], len(missing)
	}
	if !done {
		c.reported = false
		w.report.update(false, update)
		return
	}
	if c.reported && complete == c.complete {
		return // routes have changed, and all are there still
	}
	c.reported, c.complete = true, complete
	w.report.phase(store.PhaseConverged, update)
}

// followRoutes looks at what has changed after the VNet had converged.
func (w *worker) followRoutes(ctx context.Context) error {
	p := w.beginPass(ctx, true)
	defer w.end(p)
	if w.routes == nil || w.routes.want != p.want {
		return nil // a newer plan has come: the next pass looks
	}
	w.routes.lastEvent = time.Now()
	return w.awaitRoutes(p.waits, p.want, func() bool { return w.superseded(p) })
}
