package vnp

import (
	"context"
	"maps"
	"slices"
	"sync"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/agentapi"
	"trellis/internal/store"
)

// States of a substrate node.
const (
	hostAlive    = "alive"
	hostVanished = "vanished"
)

// Hosts tells of the substrate nodes, sorted by name.
func (s *Service) Hosts(ctx context.Context, _ *connect.Request[trellisv1.HostsRequest]) (*connect.Response[trellisv1.HostsResponse], error) {
	hosts, err := s.store.Hosts(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	summaries, err := s.store.Summaries(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	uplinks, missing := s.uplinks(ctx, alive(hosts))
	shares := allocated(summaries)
	out := &trellisv1.HostsResponse{}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		status := hostStatus(hosts[name], shares[name])
		for _, u := range hosts[name].Uplinks {
			status.Uplinks = append(status.Uplinks, uplinkStatus(u, uplinks[name]))
		}
		if err := missing[name]; err != nil && status.Message == "" {
			status.Message = err.Error()
		}
		out.Hosts = append(out.Hosts, status)
	}
	return connect.NewResponse(out), nil
}

// ForgetHost removes a substrate node that is gone for good.
func (s *Service) ForgetHost(ctx context.Context, req *connect.Request[trellisv1.ForgetHostRequest]) (*connect.Response[trellisv1.ForgetHostResponse], error) {
	if req.Msg.Name == "" {
		return nil, invalid("the request names no substrate node")
	}
	hosts, err := s.store.Hosts(ctx)
	if err != nil {
		return nil, s.fail(err)
	}
	if _, known := hosts[req.Msg.Name]; known {
		if err := s.store.ForgetHost(ctx, req.Msg.Name); err != nil {
			return nil, connect.NewError(connect.CodeFailedPrecondition, err)
		}
		return connect.NewResponse(&trellisv1.ForgetHostResponse{}), nil
	}
	return nil, s.fail(store.UnknownHost(req.Msg.Name, slices.Collect(maps.Keys(hosts))))
}

// alive gives the names of the hosts that are, sorted.
func alive(hosts map[string]store.HostState) []string {
	var names []string
	for name, h := range hosts {
		if h.Alive {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// allocated adds up the limits of all nodes by substrate node.
func allocated(summaries []store.Summary) map[string]store.Share {
	out := map[string]store.Share{}
	for _, sum := range summaries {
		if sum.State != store.Present {
			continue
		}
		for host, share := range sum.Shares {
			all := out[host]
			all.Nodes += share.Nodes
			all.Memory += share.Memory
			all.CPU += share.CPU
			out[host] = all
		}
	}
	return out
}

// uplinks asks the hosts for their uplinks' counters, by host and interface.
func (s *Service) uplinks(ctx context.Context, hosts []string) (map[string]map[string]agentapi.UplinkStats, map[string]error) {
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	var mu sync.Mutex
	all := map[string]map[string]agentapi.UplinkStats{}
	missing := s.each(ctx, hosts, func(host string, sub agentapi.Agent) error {
		stats, err := sub.UplinkStats(ctx)
		if err != nil {
			return describe("read the uplinks' counters", err)
		}
		mu.Lock()
		defer mu.Unlock()
		all[host] = map[string]agentapi.UplinkStats{}
		for _, u := range stats {
			all[host][u.Interface] = u
		}
		return nil
	})
	return all, missing
}

func hostStatus(h store.HostState, share store.Share) *trellisv1.HostStatus {
	out := &trellisv1.HostStatus{
		Name: h.Name, State: hostVanished, SeenUnix: h.Seen.Unix(), Version: h.Version, Mtu: int32(h.MTU),
		Memory: h.Memory, MemoryUsed: share.Memory, Cpu: h.CPU, CpuUsed: share.CPU, Nodes: int32(share.Nodes), Message: h.Message,
	}
	if h.Alive {
		out.State = hostAlive
	}
	for _, a := range h.Addrs {
		out.Addresses = append(out.Addresses, a.String())
	}
	return out
}

// uplinkStatus joins what a host has written about an uplink with what it counts.
func uplinkStatus(u store.HostUplink, live map[string]agentapi.UplinkStats) *trellisv1.UplinkStatus {
	out := &trellisv1.UplinkStatus{Interface: u.Interface, Xdp: u.XDP, Message: u.Message}
	if l, ok := live[u.Interface]; ok {
		out.Xdp, out.Drops, out.Mtu = l.XDP, l.Drops, int32(l.MTU)
		if l.Message != "" {
			out.Message = l.Message
		}
	}
	return out
}
