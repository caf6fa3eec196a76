package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/underlay"
	"trellis/internal/vnp"
)

// patience is how long a pass waits for the ways to machines that it has not
// asked after before. A way that comes later wakes the worker.
const patience = time.Second

// errNoUplink is why a machine without uplinks has no way.
var errNoUplink = errors.New("this machine has no uplink; name one under uplinks in its configuration")

func endsOf(t *plan.Tunnel) underlay.Ends {
	return underlay.Ends{Local: t.Local.Unmap(), Remote: t.Remote.Unmap()}
}

// use has the ways of the plan's tunnels watched, and waits a moment for those
// that are new.
func (a *Agent) use(ctx context.Context, p *plan.Plan) {
	if a.uplinks == nil {
		return
	}
	tunnels := make([]underlay.Tunnel, len(p.Tunnels))
	ends := make([]underlay.Ends, 0, len(p.Tunnels))
	known := a.uplinks.underlay.States()
	for i := range p.Tunnels {
		t := &p.Tunnels[i]
		tunnels[i] = underlay.Tunnel{Ends: endsOf(t), Key: t.Key}
		if _, ok := known[tunnels[i].Ends]; !ok {
			ends = append(ends, tunnels[i].Ends)
		}
	}
	a.uplinks.underlay.Use(p.VNet, tunnels)
	if len(ends) > 0 {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		a.uplinks.underlay.Resolve(ctx, ends)
	}
}

// way gives a tunnel's way as it is now.
func (a *Agent) way(t *plan.Tunnel) (underlay.Way, error) {
	if a.uplinks == nil {
		return underlay.Way{}, errNoUplink
	}
	s, ok := a.uplinks.underlay.States()[endsOf(t)]
	switch {
	case !ok:
		return underlay.Way{}, fmt.Errorf("the way to %v is not looked up yet", t.Remote)
	case s.Err != nil:
		return underlay.Way{}, s.Err
	case !a.uplinks.attached(s.Way.Uplink):
		return underlay.Way{}, fmt.Errorf("the uplink to %v is not in service", t.Remote)
	}
	return s.Way, nil
}

// ways gives those of the plan's tunnels that are known.
func (a *Agent) ways(p *plan.Plan) map[reconcile.Ends]reconcile.Way {
	ways := map[reconcile.Ends]reconcile.Way{}
	for i := range p.Tunnels {
		t := &p.Tunnels[i]
		if w, err := a.way(t); err == nil {
			ways[reconcile.Ends{Local: t.Local, Remote: t.Remote}] = reconcile.Way{Uplink: w.Uplink, Source: w.Source, NextHop: w.NextHop, MTU: w.MTU}
		}
	}
	return ways
}

// pathStats tells of a tunnel's path.
func (a *Agent) pathStats(t *plan.Tunnel) vnp.PathStats {
	s := vnp.PathStats{Peer: t.Peer, Remote: t.Remote, Key: t.Key, State: vnp.PathUp}
	w, err := a.way(t)
	if err != nil {
		s.State, s.Message = vnp.PathDown, err.Error()
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
	if t.Remote.Is4() {
		return t.MTU + leastMTU4 - 1280
	}
	return t.MTU + leastMTU6 - 1280
}

// troubles gives the paths of a plan that are down or too narrow, as many as a
// status names.
func (a *Agent) troubles(p *plan.Plan) (named []store.PathTrouble, count int) {
	for i := range p.Tunnels {
		t := &p.Tunnels[i]
		s := a.pathStats(t)
		if s.State == vnp.PathUp && s.Message == "" {
			continue
		}
		if count++; len(named) < store.MaxMissing {
			named = append(named, store.PathTrouble{Link: t.Link, Peer: t.Peer, Down: s.State == vnp.PathDown, Message: s.Message})
		}
	}
	return named, count
}

// pathsOf gives the paths of a VNet's ports, by device, as the plan has them. A
// LAN's are those of all its ports.
func (a *Agent) pathsOf(p *plan.Plan) map[string][]vnp.PathStats {
	if p == nil || len(p.Tunnels) == 0 {
		return nil
	}
	members := map[string][]string{}
	for _, l := range p.LANs {
		members[l.Device] = l.Ports
	}
	paths := map[string][]vnp.PathStats{}
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
		slices.SortFunc(list, func(a, b vnp.PathStats) int { return cmp.Compare(a.Peer, b.Peer) })
	}
	return paths
}

// follow wakes whoever must act when the underlay changes, until ctx ends.
func (a *Agent) follow(ctx context.Context) {
	if a.uplinks == nil {
		return
	}
	for {
		var retry <-chan time.Time
		failing := a.uplinks.failing()
		if failing > 0 {
			retry = time.After(retryUplinks)
		}
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
		}
		select {
		case a.changed <- struct{}{}:
		default:
		}
		a.mu.Lock()
		for _, w := range a.workers {
			w.underlayChanged()
		}
		a.mu.Unlock()
	}
}

// underlayChanged has the worker look, if its VNet goes on at other machines.
func (w *worker) underlayChanged() {
	w.mu.Lock()
	crosses := w.want != nil && len(w.want.Tunnels) > 0
	w.mu.Unlock()
	if crosses {
		w.poke()
	}
}
