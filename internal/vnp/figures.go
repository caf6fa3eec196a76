package vnp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// figuresTime bounds the wait for one substrate node's figures: those of the
// others are not to wait for one that hangs.
const figuresTime = 5 * time.Second

// figures are what the substrate nodes tell of a VNet, as it is now.
type figures struct {
	nodes map[string]NodeStats
	ports map[string]PortStats // by "node:interface"
	// tunnels are those of LANs, by link, sorted by host and peer.
	tunnels map[string][]*trellisv1.Tunnel
	silent  map[string]error // why a substrate node's are missing, by its name
}

// figures asks the substrate nodes that have a part of the VNet.
func (s *Service) figures(ctx context.Context, rec *store.VNetRecord) figures {
	ctx, cancel := context.WithTimeout(ctx, figuresTime)
	defer cancel()
	f := figures{nodes: map[string]NodeStats{}, ports: map[string]PortStats{}, tunnels: map[string][]*trellisv1.Tunnel{}}
	var mu sync.Mutex
	f.silent = s.each(ctx, s.hostsOf(rec), func(host string, sub Substrate) error {
		nodes, err := sub.NodeStats(ctx, rec.Name())
		if err != nil {
			return doing("read the nodes' figures", err)
		}
		ports, err := sub.PortStats(ctx, rec.Name())
		if err != nil {
			return doing("read the interfaces' counters", err)
		}
		mu.Lock()
		defer mu.Unlock()
		maps.Copy(f.nodes, nodes)
		for object, p := range ports {
			if link, peer, ok := OfTunnel(object); ok {
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

// OfTunnel takes apart a name of PortStats that is a tunnel's.
func OfTunnel(object string) (link, peer string, ok bool) {
	rest, ok := strings.CutPrefix(object, "@")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, ">")
}

func tunnel(host, peer string, p PortStats) *trellisv1.Tunnel {
	return &trellisv1.Tunnel{
		Host: host, Peer: peer, RxPackets: p.RxPackets, RxBytes: p.RxBytes, TxPackets: p.TxPackets, TxBytes: p.TxBytes,
		Drops: p.Drops, DropsByReason: p.DropsBy,
	}
}

// doing says what failed, where the error is not that nothing can be done there.
func doing(what string, err error) error {
	var silent *Unreachable
	if errors.As(err, &silent) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

// messages say for people which figures are missing, and why.
func (f figures) messages() []string {
	var out []string
	for _, host := range slices.Sorted(maps.Keys(f.silent)) {
		out = append(out, fmt.Sprintf("no figures from %s: %v", host, f.silent[host]))
	}
	return out
}

// fill adds what the node uses to its status.
func (f figures) fill(out *trellisv1.NodeStatus) {
	stats := f.nodes[out.Name]
	out.Memory, out.CpuSeconds, out.Fastpath = stats.Memory, stats.CPU, stats.FastPath
	for _, v := range stats.Services {
		out.Services = append(out.Services, &trellisv1.ServiceStatus{
			Name: v.Name, State: v.State, Pid: int32(v.Pid), Restarts: int32(v.Restarts),
		})
	}
}

// link gives a link's state, with its ends' counters and paths.
func (f figures) link(l *vnet.Link, host func(node string) string) *trellisv1.LinkStatus {
	out := &trellisv1.LinkStatus{Name: l.Name, Type: string(l.Type), State: linkUp, Tunnels: f.tunnels[l.Name]}
	for _, e := range l.Endpoints {
		p := f.ports[e.Node+":"+e.Name]
		status := &trellisv1.PortStatus{
			Node: e.Node, Interface: e.Name, Device: p.Device, Host: host(e.Node),
			RxPackets: p.RxPackets, RxBytes: p.RxBytes, TxPackets: p.TxPackets, TxBytes: p.TxBytes,
			RxFastPackets: p.RxFastPackets, RxFastBytes: p.RxFastBytes, TxFastPackets: p.TxFastPackets, TxFastBytes: p.TxFastBytes,
			Drops: p.Drops, DropsByReason: p.DropsBy,
		}
		for _, way := range p.Paths {
			status.Paths = append(status.Paths, way.Proto())
			switch {
			case way.State == PathDown:
				out.State = linkBroken
				out.Message = fmt.Sprintf("no way from %s to %s: %s", status.Host, way.Peer, way.Message)
			case way.Message != "" && out.Message == "":
				out.Message = fmt.Sprintf("the way from %s to %s: %s", status.Host, way.Peer, way.Message)
			}
		}
		out.Ports = append(out.Ports, status)
	}
	if l.Down {
		out.State = linkDown
	}
	return out
}

// States of a link.
const (
	linkUp     = "up"
	linkDown   = "down"   // as its owner has set it
	linkBroken = "broken" // as the underlay has it
)

// Proto gives the path as the API tells it.
func (p PathStats) Proto() *trellisv1.Path {
	return &trellisv1.Path{
		Peer: p.Peer, Remote: p.Remote.String(), Key: p.Key, Mtu: int32(p.MTU), State: p.State, Message: p.Message,
	}
}
