package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"trellis/internal/agentapi"
	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/underlay"
	"trellis/internal/tunnel"
)

// resolveTimeout is how long a pass waits for the routes to machines that it has
// not asked after before. A route that comes later wakes the worker.
const resolveTimeout = time.Second

// errNoUplink is why a machine without uplinks has no route.
var errNoUplink = errors.New("this machine has no uplink; name one under uplinks in its configuration")

func endpointsOf(t *plan.Tunnel) tunnel.Endpoints {
	return tunnel.Endpoints{Local: t.Local.Unmap(), Remote: t.Remote.Unmap()}
}

// useTunnels has the routes of the plan's tunnels watched, and waits a moment for those
// that are new.
func (a *Agent) useTunnels(ctx context.Context, p *plan.Plan) {
	if a.uplinks == nil {
		return
	}
	tunnels := make([]underlay.Tunnel, len(p.Tunnels))
	ends := make([]tunnel.Endpoints, 0, len(p.Tunnels))
	for i := range p.Tunnels {
		t := &p.Tunnels[i]
		tunnels[i] = underlay.Tunnel{Endpoints: endpointsOf(t), Key: t.Key}
		if _, ok := a.uplinks.underlay.State(tunnels[i].Endpoints); !ok {
			ends = append(ends, tunnels[i].Endpoints)
		}
	}
	a.uplinks.underlay.Use(p.VNet, tunnels)
	if len(ends) > 0 {
		ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
		defer cancel()
		a.uplinks.underlay.Resolve(ctx, ends)
	}
}

// underlayRoute gives the route of a tunnel as it is now.
func (a *Agent) underlayRoute(t *plan.Tunnel) (tunnel.Route, error) {
	if a.uplinks == nil {
		return tunnel.Route{}, errNoUplink
	}
	s, ok := a.uplinks.underlay.State(endpointsOf(t))
	switch {
	case !ok:
		return tunnel.Route{}, fmt.Errorf("the route to %v is not looked up yet", t.Remote)
	case s.Err != nil:
		return tunnel.Route{}, s.Err
	case !a.uplinks.attached(s.Route.Uplink):
		return tunnel.Route{}, fmt.Errorf("the uplink to %v is not in service", t.Remote)
	}
	return s.Route, nil
}

// underlayRoutes gives those of the plan's tunnels that are known.
func (a *Agent) underlayRoutes(p *plan.Plan) map[tunnel.Endpoints]tunnel.Route {
	routes := map[tunnel.Endpoints]tunnel.Route{}
	for i := range p.Tunnels {
		t := &p.Tunnels[i]
		if r, err := a.underlayRoute(t); err == nil {
			r.Narrow = false // how the MTU was learned makes no other path
			routes[tunnel.Endpoints{Local: t.Local, Remote: t.Remote}] = r
		}
	}
	return routes
}

// pathStats tells of a tunnel's path.
func (a *Agent) pathStats(t *plan.Tunnel) agentapi.PathStats {
	s := agentapi.PathStats{Peer: t.Peer, Remote: t.Remote, Key: t.Key, State: agentapi.PathUp}
	w, err := a.underlayRoute(t)
	if err != nil {
		s.State, s.Message = agentapi.PathDown, err.Error()
		return s
	}
	s.MTU = w.MTU
	if need := needs(t); w.MTU < need {
		s.Message = fmt.Sprintf("carries packets of %d bytes, and the link's largest need %d, so longer ones are dropped; lower the link's mtu to %d, or raise the underlay's", w.MTU, need, t.MTU-(need-w.MTU))
	}
	return s
}

// needs gives the MTU of the underlay that a tunnel's largest packets need.
func needs(t *plan.Tunnel) int {
	return t.MTU + tunnel.Overhead(t.Remote)
}

// degradedPaths gives the paths of a plan that are down or too narrow, as many as a
// status names.
func (a *Agent) degradedPaths(p *plan.Plan) (named []store.PathFault, count int) {
	for i := range p.Tunnels {
		t := &p.Tunnels[i]
		s := a.pathStats(t)
		if s.State == agentapi.PathUp && s.Message == "" {
			continue
		}
		if count++; len(named) < store.MaxMissing {
			named = append(named, store.PathFault{Link: t.Link, Peer: t.Peer, Down: s.State == agentapi.PathDown, Message: s.Message})
		}
	}
	return named, count
}

// pathsOf gives the paths of a VNet's ports, by device, as the plan has them. A
// LAN's are those of all its ports.
func (a *Agent) pathsOf(p *plan.Plan) map[string][]agentapi.PathStats {
	if p == nil || len(p.Tunnels) == 0 {
		return nil
	}
	members := map[string][]string{}
	for _, l := range p.LANs {
		members[l.Device] = l.Ports
	}
	paths := map[string][]agentapi.PathStats{}
	for i := range p.Tunnels {
		t := &p.Tunnels[i]
		devices := []string{t.Device}
		if t.LAN != "" {
			devices = members[t.LAN]
		}
		s := a.pathStats(t)
		for _, d := range devices {
			paths[d] = append(paths[d], s)
		}
	}
	for _, list := range paths {
		slices.SortFunc(list, func(a, b agentapi.PathStats) int { return cmp.Compare(a.Peer, b.Peer) })
	}
	return paths
}

// followUnderlay wakes whoever must act when the underlay changes, until ctx ends.
func (a *Agent) followUnderlay(ctx context.Context) {
	if a.uplinks == nil {
		return
	}
	for {
		var retry <-chan time.Time
		failing := a.uplinks.failing()
		if failing > 0 {
			retry = time.After(retryUplinks)
		}
		retried := false
		select {
		case <-ctx.Done():
			return
		case <-a.uplinks.underlay.Changes():
			a.uplinks.refresh(a.log)
		case <-retry:
			a.uplinks.refresh(a.log)
			if a.uplinks.failing() >= failing {
				continue
			}
			retried = true
		}
		select {
		case a.changed <- struct{}{}:
		default:
		}
		ends, everything := a.uplinks.underlay.Changed()
		a.mu.Lock()
		for _, w := range a.workers {
			w.underlayChanged(ends, everything || retried)
		}
		a.mu.Unlock()
	}
}

// underlayChanged has the worker look, if its VNet has tunnels between any of the
// endpoints, or, with everything, any tunnels.
func (w *worker) underlayChanged(ends map[tunnel.Endpoints]bool, everything bool) {
	w.mu.Lock()
	concerned := false
	if w.want != nil {
		for i := range w.want.Tunnels {
			if concerned = everything || ends[endpointsOf(&w.want.Tunnels[i])]; concerned {
				break
			}
		}
	}
	w.mu.Unlock()
	if concerned {
		w.notify()
	}
}
