package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"trellis/internal/agent/reconcile"
	"trellis/internal/agentapi"
	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/image"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/shaper"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
)

// hostImage is the image whose programs are this machine's own.
const hostImage = "host"

var _ agentapi.Agent = (*Agent)(nil)

// Prepare implements [agentapi.Agent].
func (a *Agent) Prepare(ctx context.Context, p *plan.Plan) error {
	if err := a.checkShapes(p); err != nil {
		return err
	}
	if err := checkSysctls(p); err != nil {
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
			if _, err := os.Stat(s.Program()); errors.Is(err, os.ErrNotExist) {
				if s.Optional {
					continue
				}
				return fmt.Errorf("node %s needs %s, which this machine lacks: %s", n.Name, s.Program(), installDaemon(n.Daemons.Kind, filepath.Dir(s.Program())))
			} else if err != nil {
				return err
			}
		}
	}
	if tell := agentapi.ProgressOf(ctx); tell != nil {
		ctx = image.WithProgress(ctx, tell)
	}
	for ref, node := range images {
		if err := a.containers.Prepare(ctx, ref); err != nil {
			return fmt.Errorf("image of node %s: %w", node, err)
		}
	}
	return nil
}

// installDaemon says how routing software comes onto the machine.
func installDaemon(d vnet.Daemon, dir string) string {
	k := d.Kind()
	if k == nil {
		return "install it"
	}
	if _, err := os.Stat(filepath.Join(dir, k.Programs[0])); err == nil {
		return fmt.Sprintf("the installed %s goes without; give the node an image that has it, or leave out what needs it", k.Title)
	}
	return "install it (Debian: apt-get install " + k.Package + ")"
}

// checkSysctls refuses what this machine has no sysctl for, or no such value.
func checkSysctls(p *plan.Plan) error {
	tried := map[string]bool{} // by their names and values
	for i := range p.Nodes {
		n := &p.Nodes[i]
		set := fmt.Sprint(n.Sysctls) // sorted by key
		if len(n.Sysctls) == 0 || tried[set] {
			continue
		}
		tried[set] = true
		bad := netns.TrySysctls(n.Sysctls)
		for _, name := range slices.Sorted(maps.Keys(bad)) {
			what, remedy := vnet.SysctlTrouble(name, n.Sysctls[name], bad[name])
			return fmt.Errorf("node %s: %s; %s", n.Name, what, remedy)
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

// DryRun implements [agentapi.Agent].
func (a *Agent) DryRun(ctx context.Context, p *plan.Plan) ([]agentapi.Step, error) {
	seen, err := a.observe(ctx, p, false)
	if err != nil {
		return nil, err
	}
	r := newRunner(newWorker(a, p.VNet), p, seen)
	r.roundShapes()
	seen.assumeRoutes(p)
	var steps []agentapi.Step
	for _, s := range reconcile.Diff(p, seen.kernel, nil) {
		steps = append(steps, agentapi.Step{Op: string(s.Op), Object: s.Name, Detail: s.Detail})
	}
	return steps, nil
}

// assumeRoutes supposes a route to wherever no tunnel leads yet: routes are looked
// up when they are needed.
func (o *observed) assumeRoutes(p *plan.Plan) {
	known := map[tunnel.Endpoints]bool{}
	for _, d := range o.kernel.Devices {
		known[d.Path.Endpoints] = true
	}
	for _, t := range p.Tunnels {
		ends := tunnel.Endpoints{Local: t.Local, Remote: t.Remote}
		if _, ok := o.kernel.Routes[ends]; !ok && !known[ends] {
			o.kernel.Routes[ends] = tunnel.Route{}
		}
	}
}

// state finds a running node's container.
func (a *Agent) state(vnet, node string) (container.State, error) {
	s, ok := a.containers.Get(container.ID{VNet: vnet, Node: node})
	if !ok {
		return s, fmt.Errorf("no node %s/%s is running here: %w", vnet, node, store.ErrNotFound)
	}
	if !s.Running || !s.Released {
		return s, fmt.Errorf("node %s/%s is not running now: see `trellis show %s`", vnet, node, vnet)
	}
	return s, nil
}

// Exec implements [agentapi.Agent].
func (a *Agent) Exec(ctx context.Context, vnet, node string, e agentapi.ExecSpec) (agentapi.Process, error) {
	s, err := a.state(vnet, node)
	if err != nil {
		return nil, err
	}
	p, err := a.containers.Exec(ctx, s.ID, container.ExecSpec(e))
	if err != nil {
		return nil, err
	}
	return p, nil
}

// SweepAll implements [agentapi.Agent]: it waits until what no plan mentioned at
// the start is gone, and removes what has turned up since.
func (a *Agent) SweepAll(ctx context.Context) error {
	select {
	case <-a.swept:
	case <-ctx.Done():
		return ctx.Err()
	}
	owners, err := a.owners()
	if err != nil {
		return err
	}
	a.mu.Lock()
	for vnet := range a.workers { // one may hold nothing but files any more
		owners[vnet] = true
	}
	a.mu.Unlock()
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
	if err := a.clearKept(); err != nil {
		return err
	}
	return a.containers.Sweep(ctx)
}

// remove takes away all that is left of a VNet without a plan.
func (a *Agent) remove(ctx context.Context, vnet string) error {
	a.mu.Lock()
	w := a.workers[vnet]
	if w == nil { // else it is at it
		if a.ctx == nil {
			a.mu.Unlock()
			return errors.New("the agent does not run")
		}
		w = a.worker(a.ctx, vnet)
		w.forget()
	}
	a.mu.Unlock()
	return w.waitRemoved(ctx)
}
