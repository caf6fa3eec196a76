package agent

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"trellis/internal/agentapi"
	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/shaper"
)

// NodeStats implements [agentapi.Agent].
func (a *Agent) NodeStats(ctx context.Context, vnet string) (map[string]agentapi.NodeStats, error) {
	if err := a.lookAt(ctx, vnet); err != nil {
		a.log.Warn("the nodes of a network could not be looked at", "vnet", vnet, "err", err)
	}
	all, err := a.nodeStats(ctx, vnet)
	return all[vnet], err
}

// AllNodeStats tells what all nodes that run here use now, by VNet and name.
func (a *Agent) AllNodeStats(ctx context.Context) (map[string]map[string]agentapi.NodeStats, error) {
	return a.nodeStats(ctx)
}

// nodeStats is of the VNets that are named, or of all.
func (a *Agent) nodeStats(ctx context.Context, vnets ...string) (map[string]map[string]agentapi.NodeStats, error) {
	states, err := a.containers.List(ctx, vnets...)
	if err != nil {
		return nil, err
	}
	var running []container.State
	for _, s := range states {
		if s.Running && s.Released {
			running = append(running, s)
		}
	}
	fast, err := a.fastPaths(a.plans(vnets...))
	if err != nil {
		return nil, fmt.Errorf("which nodes are on the fast path: %w", err)
	}
	stats := make([]*agentapi.NodeStats, len(running)) // nil: gone meanwhile
	var g errgroup.Group
	g.SetLimit(parallel())
	for i, s := range running {
		g.Go(func() error {
			st, err := a.containers.Stat(s.ID)
			if err != nil {
				if gone(err) {
					return nil
				}
				return fmt.Errorf("what %s uses: %w", s.ID, err)
			}
			stats[i] = &agentapi.NodeStats{Memory: st.Memory, CPU: st.CPU}
			if stats[i].FastPath, err = policed(s, fast[s.VNet][s.Node]); err != nil {
				if gone(err) {
					return nil
				}
				return fmt.Errorf("%s: %w", s.ID, err)
			}
			for _, v := range st.Services {
				stats[i].Services = append(stats[i].Services, agentapi.ServiceStats{
					Name: v.Name, State: serviceState(v), Pid: v.Pid, Restarts: v.Restarts, Exit: v.Exit,
				})
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	all := map[string]map[string]agentapi.NodeStats{}
	known := a.nodeStates(states)
	for i, s := range running {
		if stats[i] == nil {
			continue
		}
		if n, ok := known[s.VNet][s.Node]; ok {
			stats[i].State, stats[i].Pid, stats[i].Message, stats[i].Restarts, stats[i].Repairs = n.State, n.Pid, n.Message, n.Restarts, n.Repairs
		}
		if all[s.VNet] == nil {
			all[s.VNet] = map[string]agentapi.NodeStats{}
		}
		all[s.VNet][s.Node] = *stats[i]
	}
	return all, nil
}

// nodeStates gives what is known of the nodes of the containers' VNets.
func (a *Agent) nodeStates(of []container.State) map[string]map[string]store.NodeState {
	all := map[string]map[string]store.NodeState{}
	for _, s := range of {
		if all[s.VNet] != nil {
			continue
		}
		a.mu.Lock()
		w := a.workers[s.VNet]
		a.mu.Unlock()
		all[s.VNet] = map[string]store.NodeState{}
		if w != nil {
			if status, wanted := w.report.snapshot(); wanted && status.Nodes != nil {
				all[s.VNet] = status.Nodes
			}
		}
	}
	return all
}

// policed completes what is known of a node's fast path by what of the tenant's
// own keeps its packets on its stack.
func policed(s container.State, fast string) (string, error) {
	if fast != agentapi.FastPathOn {
		return fast, nil
	}
	ns, err := netns.OfPid(s.Pid)
	if err != nil {
		return "", err
	}
	defer ns.Close()
	why, err := ns.Policy()
	if err != nil || why == "" {
		return fast, err
	}
	return "off: " + why, nil
}

// serviceState gives a service's state in the API's words.
func serviceState(s container.ServiceStatus) string {
	switch s.State {
	case container.ServiceRunning, container.ServiceWaiting, container.ServiceLoading, container.ServiceStopping, container.ServiceStopped:
		return string(s.State)
	case container.ServiceBackoff:
		if s.Restarts == 0 {
			return "waiting" // it is about to start
		}
		return "failing"
	}
	if s.Exit != 0 {
		return "failed"
	}
	return "exited"
}

// PortStats implements [agentapi.Agent].
func (a *Agent) PortStats(ctx context.Context, vnet string) (map[string]agentapi.PortStats, error) {
	all, err := a.portStats(vnet)
	return all[vnet], err
}

// AllPortStats tells the counters of all interfaces of this machine, by VNet and
// name as in PortStats.
func (a *Agent) AllPortStats(ctx context.Context) (map[string]map[string]agentapi.PortStats, error) {
	return a.portStats()
}

// portStats is of the VNets that are named, or of all.
func (a *Agent) portStats(vnets ...string) (map[string]map[string]agentapi.PortStats, error) {
	plans := a.plans(vnets...)
	if len(vnets) == 0 {
		var err error
		if vnets, err = a.devices.VNets(); err != nil {
			return nil, err
		}
	}
	counters, err := a.paths.Counters()
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[string]agentapi.PortStats, len(vnets))
	for _, name := range vnets {
		if all[name], err = a.portStatsOf(name, plans[name], counters); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (a *Agent) portStatsOf(vnet string, p *plan.Plan, counters map[int]dataplane.PortCounters) (map[string]agentapi.PortStats, error) {
	list, err := a.devices.Of(vnet)
	if err != nil {
		return nil, err
	}
	devices := make(map[string]int, len(list)) // interface indexes
	var shaped []int
	for _, d := range list {
		devices[d.Device] = d.Index
		if !d.Shape.IsZero() {
			shaped = append(shaped, d.Index)
		}
	}
	queues, err := shaper.ReadOf(shaped...)
	if err != nil {
		return nil, err
	}
	paths := a.pathsOf(p)
	cut := a.cutPorts(vnet)
	stats := make(map[string]agentapi.PortStats, len(list))
	for _, d := range list {
		if d.Kind != port.KindPort && d.Kind != port.KindTunnel {
			continue
		}
		s := portCounters(d.Device, devices, counters, queues)
		if d.Kind == port.KindPort {
			s.Paths, s.Fault = paths[d.Device], cut[d.Object]
		}
		stats[d.Object] = s
	}
	for object, why := range cut {
		if _, there := stats[object]; !there {
			stats[object] = agentapi.PortStats{Fault: why}
		}
	}
	return stats, nil
}

// portCounters puts together what is counted about a port: at the device itself,
// and at the pair that shapes what its node sends, where there is one; or of a
// LAN's tunnel, at both its ends.
func portCounters(device string, devices map[string]int, counters map[int]dataplane.PortCounters, queues map[int]shaper.Queue) agentapi.PortStats {
	c := counters[devices[device]]
	s := agentapi.PortStats{
		Device:    device,
		RxPackets: c.ToNodePackets, RxBytes: c.ToNodeBytes,
		TxPackets: c.FromNodePackets, TxBytes: c.FromNodeBytes,
		RxFastPackets: c.FastToNodePackets, RxFastBytes: c.FastToNodeBytes,
		TxFastPackets: c.FastFromNodePackets, TxFastBytes: c.FastFromNodeBytes,
		DropsBy: map[string]uint64{}, StackBy: map[string]uint64{},
	}
	for reason, n := range c.Stack {
		s.StackBy[string(reason)] = n
	}
	drop := func(reason string, packets uint64) {
		if packets > 0 {
			s.Drops += packets
			s.DropsBy[reason] += packets
		}
	}
	shaped, behind := port.HelperNames(device)
	for _, name := range []string{device, shaped, behind, port.TunnelMember(device)} {
		index, there := devices[name]
		if !there {
			continue
		}
		drop(dropQueue, queues[index].Drops)
		for reason, n := range counters[index].Drops {
			drop(string(reason), n)
		}
	}
	return s
}

// dropQueue is the reason of what a link's own rate, or its loss, has dropped.
const dropQueue = "queue"

// plans gives the plans that the workers converge to, by VNet; of the VNets that
// are named, or of all.
func (a *Agent) plans(vnets ...string) map[string]*plan.Plan {
	a.mu.Lock()
	defer a.mu.Unlock()
	plans := make(map[string]*plan.Plan, len(vnets))
	add := func(w *worker) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.want != nil {
			plans[w.vnet] = w.want
		}
	}
	if len(vnets) == 0 {
		for _, w := range a.workers {
			add(w)
		}
	}
	for _, name := range vnets {
		if w := a.workers[name]; w != nil {
			add(w)
		}
	}
	return plans
}

// fastPaths tells of the nodes of plans whether the fast path carries their
// packets, or why not, by VNet and node. It has nothing to say of a network that
// this machine holds whole: no frame ever comes there that could take it.
func (a *Agent) fastPaths(plans map[string]*plan.Plan) (map[string]map[string]string, error) {
	var crossing []string
	for name, p := range plans {
		if len(p.Tunnels) > 0 {
			crossing = append(crossing, name)
		}
	}
	if len(crossing) == 0 {
		return nil, nil
	}
	unsupported := a.paths.FastPathSupported()
	attached, err := a.paths.Read(crossing...)
	if err != nil {
		return nil, err
	}
	at := make(map[string]dataplane.Attachment, len(attached)) // by device
	for _, d := range attached {
		at[d.Device] = d
	}
	out := map[string]map[string]string{}
	for _, name := range crossing {
		out[name] = map[string]string{}
		fastPathBlockers := a.fastPathBlockers(name)
		for i := range plans[name].Nodes {
			n := &plans[name].Nodes[i]
			switch on, takes := fastEnds(n, at); {
			case on:
				out[name][n.Name] = agentapi.FastPathOn
			case n.NoFastPath:
				out[name][n.Name] = "off: the node's description says so"
			case unsupported != nil:
				out[name][n.Name] = "off: " + unsupported.Error()
			case fastPathBlockers[n.Name] != "":
				out[name][n.Name] = "off: " + fastPathBlockers[n.Name]
			case takes:
				out[name][n.Name] = "off: it is not turned on yet"
			default:
				out[name][n.Name] = "off: none of its links is point-to-point and without a rate, delay or loss towards it"
			}
		}
	}
	return out, nil
}

// fastEnds reports whether any end of the node forwards on its behalf, and
// whether any takes such frames at all.
func fastEnds(n *plan.Node, at map[string]dataplane.Attachment) (on, takes bool) {
	for _, p := range n.Ports {
		on = on || at[p.Device].Fast
		takes = takes || at[p.Device].TakesXDP
	}
	return on, takes
}

// UplinkStats implements [agentapi.Agent].
func (a *Agent) UplinkStats(context.Context) ([]agentapi.UplinkStats, error) {
	if a.uplinks == nil {
		return nil, nil
	}
	return a.uplinks.stats()
}
