package vnp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/agentapi"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// statsTimeout bounds the wait for one agent's statistics: those of the
// others are not to wait for one that hangs.
const statsTimeout = 5 * time.Second

// vnetStats is what the agents say about a VNet, as it is now.
type vnetStats struct {
	nodes map[string]agentapi.NodeStats
	ports map[string]agentapi.PortStats // by "node:interface"
	// tunnels are those of LANs, by link, sorted by host and peer.
	tunnels map[string][]*trellisv1.Tunnel
	missing map[string]error // why an agent's are, by substrate node
}

// stats asks the agents of the substrate nodes that hold nodes of the VNet.
func (s *Service) stats(ctx context.Context, rec *store.VNetRecord) vnetStats {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	f := vnetStats{nodes: map[string]agentapi.NodeStats{}, ports: map[string]agentapi.PortStats{}, tunnels: map[string][]*trellisv1.Tunnel{}}
	var mu sync.Mutex
	f.missing = s.each(ctx, s.hostsOf(rec), func(host string, sub agentapi.Agent) error {
		nodes, err := sub.NodeStats(ctx, rec.Name())
		if err != nil {
			return describe("read the nodes' statistics", err)
		}
		ports, err := sub.PortStats(ctx, rec.Name())
		if err != nil {
			return describe("read the interfaces' counters", err)
		}
		mu.Lock()
		defer mu.Unlock()
		maps.Copy(f.nodes, nodes)
		for object, p := range ports {
			if link, peer, ok := agentapi.SplitTunnel(object); ok {
				f.tunnels[link] = append(f.tunnels[link], tunnel(host, peer, p))
			} else {
				f.ports[object] = p
			}
		}
		return nil
	})
	for _, list := range f.tunnels {
		slices.SortFunc(list, func(a, b *trellisv1.Tunnel) int {
			return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Peer, b.Peer))
		})
	}
	return f
}

func tunnel(host, peer string, p agentapi.PortStats) *trellisv1.Tunnel {
	return &trellisv1.Tunnel{
		Host: host, Peer: peer, RxPackets: p.RxPackets, RxBytes: p.RxBytes, TxPackets: p.TxPackets, TxBytes: p.TxBytes,
		Drops: p.Drops, DropsByReason: p.DropsBy,
	}
}

// describe says what failed, where the error is not that nothing can be done there.
func describe(what string, err error) error {
	var unreachable *agentapi.Unreachable
	if errors.As(err, &unreachable) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// live puts what the agents know of the nodes at this moment in place of what the store
// knows: a report may be on its way there.
func (f vnetStats) live(hostOf func(node string) string, statuses map[string]*store.Status) {
	copied := map[string]bool{}
	for name, n := range f.nodes {
		host := hostOf(name)
		st := statuses[host]
		if st == nil || n.State == "" {
			continue
		}
		was, known := st.Nodes[name]
		now := store.NodeState{State: n.State, Pid: n.Pid, Message: n.Message, Restarts: n.Restarts, Repairs: n.Repairs}
		if !known || was == now {
			continue
		}
		if !copied[host] {
			own := *st
			own.Nodes = maps.Clone(st.Nodes)
			st, copied[host] = &own, true
			statuses[host] = st
		}
		st.Nodes[name] = now
	}
}

// messages say for people which statistics are missing, and why.
func (f vnetStats) messages() []string {
	var out []string
	for _, host := range slices.Sorted(maps.Keys(f.missing)) {
		out = append(out, fmt.Sprintf("no statistics from %s: %v", host, f.missing[host]))
	}
	return out
}

// fill adds what the node uses to its status.
func (f vnetStats) fill(out *trellisv1.NodeStatus) {
	stats := f.nodes[out.Name]
	out.Memory, out.CpuSeconds, out.Fastpath = stats.Memory, stats.CPU, stats.FastPath
	for _, v := range stats.Services {
		out.Services = append(out.Services, &trellisv1.ServiceStatus{
			Name: v.Name, State: v.State, Pid: int32(v.Pid), Restarts: int32(v.Restarts), Exit: int32(v.Exit),
		})
	}
}

// link gives a link's state, with its ends' counters and paths.
func (f vnetStats) link(l *vnet.Link, host func(node string) string, offline map[string]store.HostState) *trellisv1.LinkStatus {
	out := &trellisv1.LinkStatus{Name: l.Name, Type: string(l.Type), State: linkUp, Tunnels: f.tunnels[l.Name]}
	cut := ""
	var pulled []string // ends without carrier, on a LAN that has one
	for _, e := range l.Endpoints {
		if e.Down {
			pulled = append(pulled, e.Node+":"+e.Name)
		}
		p := f.ports[e.Node+":"+e.Name]
		status := &trellisv1.PortStatus{
			Node: e.Node, Interface: e.Name, Device: p.Device, Host: host(e.Node),
			RxPackets: p.RxPackets, RxBytes: p.RxBytes, TxPackets: p.TxPackets, TxBytes: p.TxBytes,
			RxFastPackets: p.RxFastPackets, RxFastBytes: p.RxFastBytes, TxFastPackets: p.TxFastPackets, TxFastBytes: p.TxFastBytes,
			Drops: p.Drops, DropsByReason: p.DropsBy, StackByReason: p.StackBy, Fault: p.Fault,
		}
		if p.Fault != "" && cut == "" {
			cut = e.Node + ": " + p.Fault
		}
		for _, path := range p.Paths {
			status.Paths = append(status.Paths, path.Proto())
			switch {
			case path.State == agentapi.PathDown:
				out.State = linkBroken
				out.Message = fmt.Sprintf("no path from %s to %s: %s", status.Host, path.Peer, path.Message)
			case path.Message != "" && out.Message == "":
				out.Message = fmt.Sprintf("the path from %s to %s: %s", status.Host, path.Peer, path.Message)
			}
		}
		if h, gone := offline[status.Host]; gone && out.State == linkUp {
			out.State, out.Message = linkUnknown, h.Silence()
		}
		out.Ports = append(out.Ports, status)
	}
	switch {
	case l.Down:
		out.State = linkDown
	case len(pulled) > 0 && out.State == linkUp:
		out.Message = "pulled: " + some(pulled)
		if cut != "" {
			out.Message += "; " + cut
		}
		if len(l.Endpoints)-len(pulled) < 2 { // nobody has anybody left
			out.State = linkDown
		}
	case cut != "" && out.State == linkUp:
		// The other ends of a LAN still have each other.
		if out.Message = cut; len(l.Endpoints) <= 2 {
			out.State = linkDown
		}
	}
	return out
}

// States of a link.
const (
	linkUp     = "up"
	linkDown   = "down"   // as its owner has set it, or has set an end of it in a node
	linkBroken = "broken" // as the underlay has it
	// linkUnknown is a link with an end on a substrate node that has vanished.
	linkUnknown = "unknown"
)
