package fleet

import (
	"fmt"
	"net/netip"
	"time"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/agentapi"
)

// The families of echoes as numbers.
const (
	family4 = 4
	family6 = 6
)

func echoesToProto(r agentapi.PingRequest) *trellisv1.SendEchoesRequest {
	out := &trellisv1.SendEchoesRequest{
		Vnet: r.VNet, TimeoutNs: int64(r.Timeout),
		From: make([]uint32, len(r.Pairs)), To: make([]uint32, len(r.Pairs)), Family: make([]uint32, len(r.Pairs)),
	}
	for _, n := range r.Nodes {
		e := &trellisv1.Endpoint{Name: n.Name}
		for _, a := range n.Addrs {
			e.Addresses = append(e.Addresses, a.String())
		}
		out.Nodes = append(out.Nodes, e)
	}
	for i, p := range r.Pairs {
		out.From[i], out.To[i], out.Family[i] = uint32(p.From), uint32(p.To), family4
		if p.Family == agentapi.IPv6 {
			out.Family[i] = family6
		}
	}
	return out
}

func echoesFromProto(m *trellisv1.SendEchoesRequest) (agentapi.PingRequest, error) {
	r := agentapi.PingRequest{VNet: m.Vnet, Timeout: time.Duration(m.TimeoutNs)}
	if len(m.From) != len(m.To) || len(m.From) != len(m.Family) {
		return r, fmt.Errorf("%d sources, %d destinations and %d families are not pairs", len(m.From), len(m.To), len(m.Family))
	}
	for _, e := range m.Nodes {
		n := agentapi.PingNode{Name: e.Name}
		for _, text := range e.Addresses {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return r, fmt.Errorf("address of %s: %w", e.Name, err)
			}
			n.Addrs = append(n.Addrs, a)
		}
		r.Nodes = append(r.Nodes, n)
	}
	r.Pairs = make([]agentapi.PingPair, len(m.From))
	for i := range m.From {
		p := agentapi.PingPair{From: int(m.From[i]), To: int(m.To[i])}
		if p.From >= len(r.Nodes) || p.To >= len(r.Nodes) {
			return r, fmt.Errorf("pair %d, %d to %d, does not index the %d nodes", i, p.From, p.To, len(r.Nodes))
		}
		switch m.Family[i] {
		case family4:
			p.Family = agentapi.IPv4
		case family6:
			p.Family = agentapi.IPv6
		default:
			return r, fmt.Errorf("pair %d: family %d is neither 4 nor 6", i, m.Family[i])
		}
		r.Pairs[i] = p
	}
	return r, nil
}

func echoResultToProto(r *agentapi.PingResult) *trellisv1.EchoResult {
	out := &trellisv1.EchoResult{RttNs: make([]int64, len(r.RTT))}
	for i, t := range r.RTT {
		out.RttNs[i] = int64(t)
	}
	for _, f := range r.Failed {
		out.Failed = append(out.Failed, &trellisv1.EchoFailure{Pair: uint32(f.Pair), Reason: f.Reason})
	}
	return out
}

// echoResult reads the outcome of a number of pairs.
func echoResult(m *trellisv1.EchoResult, pairs int) (*agentapi.PingResult, error) {
	if len(m.RttNs)+len(m.Failed) != pairs {
		return nil, fmt.Errorf("the agent reports %d answers and %d failures of %d pairs", len(m.RttNs), len(m.Failed), pairs)
	}
	out := &agentapi.PingResult{RTT: make([]time.Duration, len(m.RttNs))}
	for i, t := range m.RttNs {
		out.RTT[i] = time.Duration(t)
	}
	for _, f := range m.Failed {
		if int(f.Pair) >= pairs {
			return nil, fmt.Errorf("the agent reports pair %d, and there are %d", f.Pair, pairs)
		}
		out.Failed = append(out.Failed, agentapi.PingFailure{Pair: int(f.Pair), Reason: f.Reason})
	}
	return out, nil
}

func nodeStatsToProto(name string, s agentapi.NodeStats) *trellisv1.NodeStatus {
	out := &trellisv1.NodeStatus{Name: name, Memory: s.Memory, CpuSeconds: s.CPU, Fastpath: s.FastPath,
		State: s.State, Pid: int32(s.Pid), Message: s.Message, Restarts: int32(s.Restarts), Repairs: int32(s.Repairs)}
	for _, v := range s.Services {
		out.Services = append(out.Services, &trellisv1.ServiceStatus{
			Name: v.Name, State: v.State, Pid: int32(v.Pid), Restarts: int32(v.Restarts), Exit: int32(v.Exit),
		})
	}
	return out
}

func nodeStats(m *trellisv1.NodeStatus) agentapi.NodeStats {
	s := agentapi.NodeStats{Memory: m.Memory, CPU: m.CpuSeconds, FastPath: m.Fastpath,
		State: m.State, Pid: int(m.Pid), Message: m.Message, Restarts: int(m.Restarts), Repairs: int(m.Repairs)}
	for _, v := range m.Services {
		s.Services = append(s.Services, agentapi.ServiceStats{Name: v.Name, State: v.State, Pid: int(v.Pid), Restarts: int(v.Restarts), Exit: int(v.Exit)})
	}
	return s
}

func portStatsToProto(node, iface string, s agentapi.PortStats) *trellisv1.PortStatus {
	out := &trellisv1.PortStatus{
		Node: node, Interface: iface, Device: s.Device,
		RxPackets: s.RxPackets, RxBytes: s.RxBytes, TxPackets: s.TxPackets, TxBytes: s.TxBytes,
		RxFastPackets: s.RxFastPackets, RxFastBytes: s.RxFastBytes, TxFastPackets: s.TxFastPackets, TxFastBytes: s.TxFastBytes,
		Drops: s.Drops, DropsByReason: s.DropsBy, StackByReason: s.StackBy, Fault: s.Fault,
	}
	for _, p := range s.Paths {
		out.Paths = append(out.Paths, p.Proto())
	}
	return out
}

func portStats(m *trellisv1.PortStatus) (agentapi.PortStats, error) {
	s := agentapi.PortStats{
		Device:    m.Device,
		RxPackets: m.RxPackets, RxBytes: m.RxBytes, TxPackets: m.TxPackets, TxBytes: m.TxBytes,
		RxFastPackets: m.RxFastPackets, RxFastBytes: m.RxFastBytes, TxFastPackets: m.TxFastPackets, TxFastBytes: m.TxFastBytes,
		Drops: m.Drops, DropsBy: m.DropsByReason, StackBy: m.StackByReason, Fault: m.Fault,
	}
	for _, p := range m.Paths {
		path := agentapi.PathStats{Peer: p.Peer, Key: p.Key, MTU: int(p.Mtu), State: p.State, Message: p.Message}
		var err error
		if path.Remote, err = netip.ParseAddr(p.Remote); err != nil {
			return s, fmt.Errorf("path of %s:%s to %s: %w", m.Node, m.Interface, p.Peer, err)
		}
		s.Paths = append(s.Paths, path)
	}
	return s, nil
}
