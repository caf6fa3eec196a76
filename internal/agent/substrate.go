package agent

import (
	"context"
	"errors"
	"fmt"
	"os"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/shaper"
	"trellis/internal/vnp"
)

// hostImage is the image whose programs are this machine's own.
const hostImage = "host"

var _ vnp.Substrate = (*Agent)(nil)

// Prepare implements [vnp.Substrate].
func (a *Agent) Prepare(ctx context.Context, p *plan.Plan) error {
	if err := a.checkShapes(p); err != nil {
		return err
	}
	images := map[string]string{} // to a node that wants it
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if _, ok := images[n.Image]; !ok {
			images[n.Image] = n.Name
		}
		if n.Image != hostImage {
			continue
		}
		for _, s := range n.Daemons.Services {
			if _, err := os.Stat(s.Argv[0]); errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("node %s needs %s, which this machine lacks: install it (Debian: apt-get install %s)",
					n.Name, s.Argv[0], map[bool]string{true: "bird2", false: "frr"}[n.Daemons.Kind == "bird"])
			} else if err != nil {
				return err
			}
		}
	}
	for image, node := range images {
		if err := a.containers.Prepare(ctx, image); err != nil {
			return fmt.Errorf("image of node %s: %w", node, err)
		}
	}
	return nil
}

// checkShapes refuses what the kernel cannot do to a link.
func (a *Agent) checkShapes(p *plan.Plan) error {
	for i := range p.Nodes {
		for _, port := range p.Nodes[i].Ports {
			if !port.Egress.NeedsNetem() && !port.Ingress.NeedsNetem() {
				continue
			}
			netem, err := shaper.Supported()
			if err != nil {
				return err
			}
			if netem {
				return nil
			}
			return fmt.Errorf("link %s asks for delay, jitter or loss, which needs the netem qdisc (CONFIG_NET_SCH_NETEM), and this kernel has none: load sch_netem, or leave those keys out", port.Link)
		}
	}
	return nil
}

// DryRun implements [vnp.Substrate].
func (a *Agent) DryRun(ctx context.Context, p *plan.Plan) ([]vnp.Step, error) {
	seen, err := a.observe(ctx, p)
	if err != nil {
		return nil, err
	}
	defer seen.close()
	r := newRunner(newWorker(a, p.VNet), p, seen)
	r.roundShapes()
	seen.assumeWays(p)
	var steps []vnp.Step
	for _, s := range reconcile.Diff(p, seen.kernel, nil) {
		steps = append(steps, vnp.Step{Op: string(s.Op), Object: s.Name, Detail: s.Detail})
	}
	return steps, nil
}

// assumeWays takes it that there is a way to wherever no tunnel leads yet: ways
// are looked for when they are needed.
func (o *observed) assumeWays(p *plan.Plan) {
	known := map[reconcile.Ends]bool{}
	for _, d := range o.kernel.Devices {
		known[d.Path.Ends] = true
	}
	for _, t := range p.Tunnels {
		ends := reconcile.Ends{Local: t.Local, Remote: t.Remote}
		if _, ok := o.kernel.Ways[ends]; !ok && !known[ends] {
			o.kernel.Ways[ends] = reconcile.Way{}
		}
	}
}

// state finds a running node's container.
func (a *Agent) state(ctx context.Context, vnet, node string) (container.State, error) {
	states, err := a.containers.List(ctx)
	if err != nil {
		return container.State{}, err
	}
	for _, s := range states {
		if s.VNet != vnet || s.Node != node {
			continue
		}
		if !s.Running || !s.Released {
			return s, fmt.Errorf("node %s/%s is not running now: see `trellis show %s`", vnet, node, vnet)
		}
		return s, nil
	}
	return container.State{}, fmt.Errorf("no node %s/%s is running here: %w", vnet, node, store.ErrNotFound)
}

// Exec implements [vnp.Substrate].
func (a *Agent) Exec(ctx context.Context, vnet, node string, e vnp.ExecSpec) (vnp.Process, error) {
	s, err := a.state(ctx, vnet, node)
	if err != nil {
		return nil, err
	}
	p, err := a.containers.Exec(ctx, s.ID, container.ExecSpec(e))
	if err != nil {
		return nil, err
	}
	return p, nil
}

// SweepAll implements [vnp.Substrate]: it waits until what no plan mentioned at
// the start is gone, and removes what has turned up since.
func (a *Agent) SweepAll(ctx context.Context) error {
	select {
	case <-a.swept:
	case <-ctx.Done():
		return ctx.Err()
	}
	owners, err := a.owners(ctx)
	if err != nil {
		return err
	}
	for vnet := range owners {
		p, err := a.cfg.Store.Plan(ctx, a.cfg.Host, vnet)
		if err == nil && !p.Empty() {
			continue
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if err := a.remove(ctx, vnet); err != nil {
			return err
		}
	}
	return a.containers.Sweep(ctx)
}

// remove takes away all that is left of a VNet without a plan.
func (a *Agent) remove(ctx context.Context, vnet string) error {
	a.mu.Lock()
	w := a.workers[vnet]
	a.mu.Unlock()
	if w != nil {
		return w.idle(ctx) // it is at it
	}
	w = newWorker(a, vnet)
	defer w.report.stop()
	return w.converge(ctx, w.nothing(), true, func() bool { return false })
}
