package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/links"
	"trellis/internal/substrate/netns"
)

// What a node's root does to the node's own interfaces is found in three ways, of
// which none costs an idle node a descriptor or a wakeup. An interface that is
// deleted or set down changes its port in the root context, of which the kernel
// notifies at once (links.Table). What cannot be seen from there (names, addresses,
// MTU, MAC) is looked at in the nodes, one after another and slowly; and of one
// network, when somebody asks how it is.

const (
	// portsEvery bounds how often the ports of networks are compared with their plans
	// while ports change, and portsShare the part of a core that this may cost: so
	// many times what one round takes passes before the next.
	portsEvery = 200 * time.Millisecond
	portsShare = 20
	// auditEvery is how often each node is looked at, and auditMost bounds how many
	// in a second.
	auditEvery = time.Minute
	auditMost  = 50
	// showMost is how many nodes of a network are looked at when somebody asks.
	showMost = 1000
)

// followPorts looks at the networks whose ports have changed, until ctx ends.
func (a *Agent) followPorts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.devices.PortsChanged():
		}
		began := time.Now()
		for _, vnet := range a.devices.TakeChanged() {
			a.mu.Lock()
			w := a.workers[vnet]
			a.mu.Unlock()
			if w == nil || ctx.Err() != nil {
				continue
			}
			if err := w.checkPorts(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("the ports of a network could not be looked at", "vnet", vnet, "err", err)
			}
		}
		select { // many changes are one round
		case <-ctx.Done():
			return
		case <-time.After(max(portsEvery, portsShare*time.Since(began))):
		}
	}
}

// audit looks at all nodes, one after another, until ctx ends.
func (a *Agent) audit(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var round []container.State
	share := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if len(round) == 0 {
			var err error
			if round, err = a.containers.List(ctx); err != nil {
				return
			}
			seconds := int(auditEvery / time.Second)
			share = min((len(round)+seconds-1)/seconds, auditMost)
		}
		now := round[:min(share, len(round))]
		round = round[len(now):]
		for _, s := range now {
			a.mu.Lock()
			w := a.workers[s.VNet]
			a.mu.Unlock()
			if w == nil || ctx.Err() != nil {
				continue
			}
			if err := w.lookInside(ctx, s.Node); err != nil && ctx.Err() == nil {
				a.log.Warn("a node could not be looked at", "node", s.ID, "err", err)
			}
		}
	}
}

// lookAt looks at all nodes of a VNet that somebody asks about.
func (a *Agent) lookAt(ctx context.Context, vnet string) error {
	a.mu.Lock()
	w := a.workers[vnet]
	a.mu.Unlock()
	if w == nil {
		return nil
	}
	p := w.settled()
	if p == nil || len(p.Nodes) > showMost {
		return nil
	}
	nodes := make([]string, len(p.Nodes))
	for i := range p.Nodes {
		nodes[i] = p.Nodes[i].Name
	}
	return w.lookInside(ctx, nodes...)
}

// settled gives the plan that is in place, while no pass is under way and no newer
// one is wanted; else nil: then nothing that is found tells of a node's doing.
func (w *worker) settled() *plan.Plan {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy() || w.want == nil || w.placed != w.want || w.want.Empty() {
		return nil
	}
	return w.want
}

// busy reports whether a pass is at work. The caller holds mu.
func (w *worker) busy() bool { return w.pass != nil && !w.pass.over }

// checkPorts looks at the nodes whose ports are not as they should be, or were not.
func (w *worker) checkPorts(ctx context.Context) error {
	p := w.settled()
	if p == nil {
		return nil // the pass that is under way, or due, sees for itself
	}
	list, err := w.a.devices.Of(w.vnet)
	if err != nil {
		return err
	}
	ports := make(map[string]links.Device, len(list))
	for _, d := range list {
		ports[d.Device] = d
	}
	w.mu.Lock()
	suspects := map[string]bool{}
	for node := range w.harm {
		suspects[node] = true
	}
	w.mu.Unlock()
	for i := range p.Nodes {
		for _, port := range p.Nodes[i].Ports {
			if d, there := ports[port.Device]; !there || !port.Down && !d.Carrier {
				suspects[p.Nodes[i].Name] = true
			}
		}
	}
	return w.lookInside(ctx, slices.Collect(maps.Keys(suspects))...)
}

// lookInside looks at the insides of nodes, and books what it finds.
func (w *worker) lookInside(ctx context.Context, nodes ...string) error {
	p := w.settled()
	if p == nil || len(nodes) == 0 {
		return nil
	}
	wanted := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		wanted[n] = true
	}
	var chosen []*plan.Node
	for i := range p.Nodes {
		if wanted[p.Nodes[i].Name] {
			chosen = append(chosen, &p.Nodes[i])
		}
	}
	faults := make([][]reconcile.Fault, len(chosen))
	looked := make([]bool, len(chosen))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel())
	for i, n := range chosen {
		g.Go(func() (err error) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			faults[i], looked[i], err = w.a.faultsOf(container.ID{VNet: w.vnet, Node: n.Name}, n)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	found := map[string][]reconcile.Fault{}
	for i, n := range chosen {
		if looked[i] {
			found[n.Name] = faults[i]
		}
	}
	w.bookFaults(p, found, true)
	return nil
}

// faultsOf looks at one node; false: it does not run.
func (a *Agent) faultsOf(id container.ID, n *plan.Node) ([]reconcile.Fault, bool, error) {
	s, ok := a.containers.Get(id)
	if !ok || !s.Running || !s.Released {
		return nil, false, nil
	}
	ns, err := netns.OfPid(s.Pid)
	if err != nil {
		if gone(err) {
			return nil, false, nil
		}
		return nil, false, err
	}
	defer ns.Close()
	in, err := ns.Read()
	if err != nil {
		return nil, false, fmt.Errorf("read the inside of %s: %w", id, err)
	}
	if !a.containers.Alive(id, s.Pid) {
		return nil, false, nil
	}
	devices := make([]string, len(n.Ports))
	for i, p := range n.Ports {
		devices[i] = p.Device
	}
	indexes, err := a.devices.Indexes(devices...)
	if err != nil {
		return nil, false, err
	}
	return reconcile.Faults(n, insideOf(in), func(device string) bool { return indexes[device] != 0 }), true, nil
}
