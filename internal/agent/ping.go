package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"trellis/internal/agentapi"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/probe"
)

// Ping implements [agentapi.Agent].
func (a *Agent) Ping(ctx context.Context, r agentapi.PingRequest, progress func(done, total int)) (*agentapi.PingResult, error) {
	states, err := a.containers.List(ctx, r.VNet)
	if err != nil {
		return nil, err
	}
	running := map[string]container.State{}
	for _, s := range states {
		if s.Running && s.Released {
			running[s.Node] = s
		}
	}
	nodes := make([]probe.Node, len(r.Nodes))
	for i, n := range r.Nodes {
		nodes[i] = probe.Node{Name: n.Name, NS: probe.Elsewhere, Addrs: n.Addrs}
	}
	out := &agentapi.PingResult{}
	var pairs []probe.Pair
	var at []int // index of each in the request's pairs
	for i, p := range r.Pairs {
		if p.From >= 0 && p.From < len(nodes) && nodes[p.From].NS == probe.Elsewhere {
			n := &nodes[p.From]
			ns, err := spaceOf(running, n.Name)
			if err != nil {
				return nil, fmt.Errorf("node %s/%s: %w", r.VNet, n.Name, err)
			}
			if ns == nil {
				out.Failed = append(out.Failed, agentapi.PingFailure{Pair: i, Reason: n.Name + " is not running now"})
				continue
			}
			defer ns.Close()
			n.NS = ns.FD()
		}
		pairs, at = append(pairs, probe.Pair(p)), append(at, i)
	}
	unsent := len(out.Failed)
	res, err := probe.Ping(ctx, nodes, pairs, probe.Options{Timeout: r.Timeout}, func(done, _ int) {
		progress(done+unsent, len(r.Pairs))
	})
	if err != nil {
		return nil, err
	}
	out.RTT = res.RTT
	for _, f := range res.Failed {
		out.Failed = append(out.Failed, agentapi.PingFailure{Pair: at[f.Pair], Reason: f.Reason})
	}
	slices.SortFunc(out.Failed, func(a, b agentapi.PingFailure) int { return a.Pair - b.Pair })
	return out, nil
}

// spaceOf opens the network namespace of a node; nil when it does not run.
func spaceOf(running map[string]container.State, node string) (*netns.NS, error) {
	s, ok := running[node]
	if !ok {
		return nil, nil
	}
	ns, err := netns.OfPid(s.Pid)
	if gone(err) {
		return nil, nil
	}
	return ns, err
}

// Addresses implements [agentapi.Agent].
func (a *Agent) Addresses(ctx context.Context, vnet string, nodes []string) (map[string][]netip.Addr, error) {
	states, err := a.containers.List(ctx, vnet)
	if err != nil {
		return nil, err
	}
	out := map[string][]netip.Addr{}
	for _, s := range states {
		if !s.Running || !s.Released || len(nodes) > 0 && !slices.Contains(nodes, s.Node) {
			continue
		}
		addrs, err := addressesOf(s)
		if err != nil {
			return nil, fmt.Errorf("read the addresses of %s/%s: %w", vnet, s.Node, err)
		}
		out[s.Node] = addrs
	}
	return out, nil
}

// addressesOf gives the global addresses of a running node, whoever has set them;
// none where it has just ended.
func addressesOf(s container.State) ([]netip.Addr, error) {
	ns, err := netns.OfPid(s.Pid)
	if gone(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer ns.Close()
	return ns.Addresses()
}
