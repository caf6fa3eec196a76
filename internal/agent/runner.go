package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"trellis/internal/agent/reconcile"
	"trellis/internal/fault"
	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/rcu"
	"trellis/internal/substrate/shaper"
)

// parallel is how many nodes are worked on side by side. More than the cores,
// because much of starting a container is waiting for the kernel.
func parallel() int { return 2*runtime.GOMAXPROCS(0) + 2 }

// runner carries out the steps of one pass.
type runner struct {
	w     *worker
	a     *Agent
	want  *plan.Plan
	seen  *observed
	marks func(*plan.Node) reconcile.Marks
	wait  map[string]bool

	nodes map[string]*plan.Node // of the plan, by name
	ports map[string]*plan.Port // by device
	lans  map[string]*plan.LAN  // by device
	// tunnels are those of the plan, by device: a port, or the outer end of what
	// stands on a LAN's bridge.
	tunnels map[string]*plan.Tunnel
	owners  map[string]string // the nodes of the ports, by device
	rates   map[string]uint64 // that the fast path has to know, by device

	// keepDown are the interfaces that a node has set down and that stay so, by node.
	keepDown map[string]map[string]bool
	lost     map[string]bool // ports whose carrier was taken, to be given back, by device

	confined bool // the pass does not look at all nodes; see scope.go
	done     atomic.Int64

	mu   sync.Mutex
	held map[string]*container.Held // started and not yet released
}

func newRunner(w *worker, want *plan.Plan, seen *observed) *runner {
	r := &runner{
		w: w, a: w.a, want: want, seen: seen, marks: reconcile.MarksOf(want), wait: w.hold(),
		nodes: map[string]*plan.Node{}, ports: map[string]*plan.Port{}, lans: map[string]*plan.LAN{},
		tunnels: map[string]*plan.Tunnel{}, owners: map[string]string{}, rates: reconcile.Rates(want),
		held: map[string]*container.Held{}, keepDown: map[string]map[string]bool{}, lost: map[string]bool{},
	}
	for i := range want.Nodes {
		n := &want.Nodes[i]
		r.nodes[n.Name] = n
		for j := range n.Ports {
			r.ports[n.Ports[j].Device] = &n.Ports[j]
			r.owners[n.Ports[j].Device] = n.Name
		}
	}
	for i := range want.LANs {
		r.lans[want.LANs[i].Device] = &want.LANs[i]
	}
	for i := range want.Tunnels {
		r.tunnels[want.Tunnels[i].Device] = &want.Tunnels[i]
	}
	return r
}

// handlers say how the steps of one kind are carried out: all together where
// the kernel does many at the price of few, else node by node.
var handlers = map[reconcile.Op]func(*runner, context.Context, []reconcile.Step) error{
	reconcile.Stop:         (*runner).stop,
	reconcile.CarrierLoss:  (*runner).carrier,
	reconcile.RemovePort:   (*runner).removeDevices,
	reconcile.RemoveHelper: (*runner).removeHelpers,
	reconcile.RemoveBridge: (*runner).removeDevices,
	reconcile.Start:        each((*runner).start),
	reconcile.AddBridge:    (*runner).addBridges,
	reconcile.AddPort:      (*runner).addPorts,
	reconcile.AddTunnel:    (*runner).addTunnels,
	reconcile.AddHelper:    (*runner).addHelpers,
	reconcile.Receive:      (*runner).receive,
	reconcile.Unplug:       (*runner).unplug,
	reconcile.Join:         (*runner).join,
	reconcile.Enslave:      (*runner).enslave,
	reconcile.Connect:      (*runner).connect,
	reconcile.Shape:        (*runner).shape,
	reconcile.Resize:       each((*runner).resize),
	reconcile.Address:      each((*runner).address),
	reconcile.Route:        each((*runner).route),
	reconcile.Carrier:      (*runner).carrier,
	reconcile.Limit:        each((*runner).limit),
	reconcile.Reload:       each((*runner).reload),
	reconcile.FastPath:     (*runner).fastPath,
	reconcile.Release:      each((*runner).release),
	reconcile.Exec:         each((*runner).exec),
}

// each carries out steps side by side; the first error ends it.
func each(f func(*runner, context.Context, reconcile.Step) error) func(*runner, context.Context, []reconcile.Step) error {
	return func(r *runner, ctx context.Context, steps []reconcile.Step) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(parallel())
		for _, s := range steps {
			g.Go(func() error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				r.point(s.Op)
				if err := f(r, ctx, s); err != nil {
					return fmt.Errorf("%s %s/%s: %w", s.Op, r.want.VNet, s.Name, err)
				}
				r.advance(1)
				return nil
			})
		}
		return g.Wait()
	}
}

// point is where a test can end the service: before a step of a kind.
func (r *runner) point(op reconcile.Op) { fault.Point("agent." + string(op)) }

// advance counts steps that are done.
func (r *runner) advance(n int) {
	done := int(r.done.Add(int64(n)))
	r.w.report.update(false, func(s *store.Status) { s.Done = done })
}

// run carries out all steps, kind by kind, in turns of the lane.
func (r *runner) run(p *pass, l lane) (err error) {
	ctx := p.steps
	r.roundShapes()
	r.leave(p)
	steps := reconcile.Diff(r.want, r.seen.kernel, r.wait)
	phase := store.PhaseCreating
	if r.want.Empty() {
		phase = store.PhaseRemoving
	}
	r.w.report.update(len(steps) > 0, func(s *store.Status) {
		if !p.confined { // a repair of some nodes is none of the network's phases
			s.Phase, s.Done, s.Total = phase, 0, len(steps)
		}
		s.Nodes = r.states(s.Nodes, steps)
	})
	if len(steps) > 0 {
		// Making and removing devices waits for RCU under the lock of all
		// network configuration, the kernel's own cleaning up included.
		hurry, err := rcu.Expedite()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, hurry()) }()
	}
	if len(r.want.Hosts) > 0 {
		if err := r.a.containers.SetHosts(r.want.VNet, r.want.Hosts); err != nil {
			return err
		}
	}
	for len(steps) > 0 {
		op, n := steps[0].Op, 1
		for n < len(steps) && steps[n].Op == op {
			n++
		}
		handle, ok := handlers[op]
		switch {
		case !ok:
			return fmt.Errorf("no handler for the step %q", op)
		case op == reconcile.Exec: // takes as long as the tenant likes, and no turn
			if err := handle(r, p.waits, steps[:n]); err != nil {
				return err
			}
			steps = steps[n:]
			continue
		}
		waves := r.waves(steps[:n])
		if n = min(n, turnSize(op)); waves {
			n = waveSize()
		}
		if err := l.turn(ctx, func() error { return handle(r, ctx, steps[:n]) }); err != nil {
			return err
		}
		steps = steps[n:]
		if waves {
			if err := catchUp(ctx); err != nil {
				return err
			}
		}
	}
	fault.Point("agent.done")
	if err := r.watchForwarding(r.forwarding()); err != nil {
		return fmt.Errorf("watch the nodes of %s: %w", r.want.VNet, err)
	}
	for _, s := range r.seen.states {
		if s.Running && s.Released && r.nodes[s.Node] != nil {
			r.w.recordStart(s)
			r.w.watch(s)
		}
	}
	return nil
}

// turnSize is how many steps of a kind are carried out in one turn: as many as
// take some tenths of a second.
func turnSize(op reconcile.Op) int {
	switch op {
	case reconcile.Start, reconcile.Route:
		return 32
	case reconcile.Stop: // killed together, swept together
		return 1 << 20
	}
	return 512
}

// finish ends a pass: what was started and not released is taken away again,
// and the states of the nodes are reported.
func (r *runner) finish(err error) {
	r.mu.Lock()
	held := r.held
	r.held = map[string]*container.Held{}
	r.mu.Unlock()
	for n := range held {
		r.w.unwatchRoutes(n)
	}
	r.a.containers.Abort(slices.Collect(maps.Values(held))...)
	changes := int(r.done.Load())
	r.w.report.update(false, func(s *store.Status) {
		s.Changes += changes
		if err == nil {
			s.Nodes = r.states(s.Nodes, nil)
		}
	})
}

// states gives the nodes' states: as they are, and with steps still to come. Nodes
// that the pass does not look at are as they were.
func (r *runner) states(before map[string]store.NodeState, steps []reconcile.Step) map[string]store.NodeState {
	starting := map[string]bool{}
	for _, s := range steps {
		if s.Op == reconcile.Start {
			starting[s.Node] = true
		}
	}
	states := map[string]store.NodeState{}
	if r.confined {
		states = maps.Clone(before)
	}
	for name := range r.nodes {
		st := store.NodeState{State: store.NodeRunning}
		if h := r.w.nodes[name]; h != nil {
			st.Restarts, st.Message = h.count, h.why
		}
		r.w.setBase(name, st.Message)
		switch s, ok := r.seen.states[name]; {
		case r.wait[name]:
			st.State = store.NodeRestarting
		case starting[name]:
			st.State = store.NodeStarting
		case ok:
			st.Pid = s.Pid
			st = r.w.withFault(name, st)
		}
		states[name] = st
	}
	return states
}

// roundShapes takes shapes that the kernel holds as it can for those that are
// wanted: it keeps rates and delays in units of its own.
func (r *runner) roundShapes() {
	for device, p := range r.ports {
		d, ok := r.seen.kernel.Devices[device]
		if !ok {
			continue
		}
		if shaper.Same(d.Egress, p.Egress) {
			d.Egress = p.Egress
		}
		if shaper.Same(d.Ingress, p.Ingress) {
			d.Ingress = p.Ingress
		}
		r.seen.kernel.Devices[device] = d
	}
}

// space opens the node's network namespace, which the caller closes: a pass over
// thousands of nodes must not hold a descriptor for each.
func (r *runner) space(node string) (*netns.NS, error) {
	pid := r.pid(node)
	if pid == 0 {
		return nil, fmt.Errorf("node %s is not running", node)
	}
	ns, err := netns.OfPid(pid)
	if err != nil && !gone(err) {
		return nil, err
	}
	// Alive after the open: the number was the node's.
	if err != nil || !r.a.containers.Alive(r.id(node), pid) {
		if ns != nil {
			err = ns.Close()
		}
		return nil, errors.Join(fmt.Errorf("node %s does not run any more", node), err)
	}
	return ns, nil
}
