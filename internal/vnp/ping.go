package vnp

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/agentapi"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// pingProgress is the least time between two progress messages of a Ping.
const pingProgress = 200 * time.Millisecond

// Ping sends echo requests between the nodes, at the addresses that their names
// stand for, or that were found in them. Each substrate node
// sends those of its nodes.
func (s *Service) Ping(ctx context.Context, req *connect.Request[trellisv1.PingRequest], stream *connect.ServerStream[trellisv1.PingResponse]) error {
	m := req.Msg
	if m.Sample < 0 || m.TimeoutNs < 0 {
		return invalid("a sample of %d pairs with a timeout of %v makes no sense; both must be 0 (for the default) or more", m.Sample, time.Duration(m.TimeoutNs))
	}
	rec, err := s.record(ctx, m.Vnet)
	if err != nil {
		return s.fail(err)
	}
	if rec.State != store.Present {
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("VNet %s is being removed", m.Vnet))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := newPinging(s, rec, s.foundAddresses(ctx, rec), m, func(done, total int) {
		err := stream.Send(&trellisv1.PingResponse{Event: &trellisv1.PingResponse_Progress{
			Progress: &trellisv1.Progress{Phase: "pinging", Done: int32(done), Total: int32(total)},
		}})
		if err != nil {
			cancel(err)
		}
	})
	result, err := p.run(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return s.fail(fmt.Errorf("ping VNet %s: %w", m.Vnet, err))
	}
	return stream.Send(&trellisv1.PingResponse{Event: &trellisv1.PingResponse_Result{Result: result}})
}

// pinging is one check, in the shares of the substrate nodes.
type pinging struct {
	s      *Service
	seed   int64
	nodes  []agentapi.PingNode
	shares map[string]*pingShare // by substrate node

	mu    sync.Mutex
	total int
	last  time.Time // of the last progress
	send  func(done, total int)
}

// pingShare is what one substrate node sends.
type pingShare struct {
	request agentapi.PingRequest
	at      []int // index of each pair among all
	done    int
	result  *agentapi.PingResult
}

func newPinging(s *Service, rec *store.VNetRecord, found map[string][]netip.Addr, m *trellisv1.PingRequest, send func(done, total int)) *pinging {
	p := &pinging{s: s, seed: m.Seed, shares: map[string]*pingShare{}, send: send, last: time.Now()}
	book := newAddressBook(rec.Spec, found)
	var pairs []agentapi.PingPair
	if m.Sample > 0 {
		pairs = book.samplePairs(int(m.Sample), m.Seed)
	} else {
		pairs = book.allPairs()
	}
	p.nodes = book.nodes
	p.total = len(pairs)
	for i, pair := range pairs {
		host := s.hostOf(rec, p.nodes[pair.From].Name)
		share := p.shares[host]
		if share == nil {
			share = &pingShare{request: agentapi.PingRequest{VNet: rec.Name(), Nodes: p.nodes, Timeout: time.Duration(m.TimeoutNs)}}
			p.shares[host] = share
		}
		share.request.Pairs = append(share.request.Pairs, pair)
		share.at = append(share.at, i)
	}
	return p
}

// foundAddresses asks the agents for the addresses of nodes whose own software sets
// them. Those that cannot be asked are missing.
func (s *Service) foundAddresses(ctx context.Context, rec *store.VNetRecord) map[string][]netip.Addr {
	known := rec.Spec.NameAddresses()
	ask := map[string][]string{} // nodes, by substrate node
	for i := range rec.Spec.Nodes {
		n := &rec.Spec.Nodes[i]
		if len(known[n.Name]) == 0 || n.Routing.Protocol == vnet.None && n.Routing.Daemon != "" {
			host := s.hostOf(rec, n.Name)
			ask[host] = append(ask[host], n.Name)
		}
	}
	found := map[string][]netip.Addr{}
	if len(ask) == 0 {
		return found
	}
	ctx, cancel := context.WithTimeout(ctx, statsTimeout)
	defer cancel()
	var mu sync.Mutex
	failed := s.each(ctx, slices.Collect(maps.Keys(ask)), func(host string, agent agentapi.Agent) error {
		addrs, err := agent.Addresses(ctx, rec.Name(), ask[host])
		mu.Lock()
		defer mu.Unlock()
		maps.Copy(found, addrs)
		return err
	})
	for host, err := range failed {
		s.log.Warn("the addresses of nodes are not known", "vnet", rec.Name(), "host", host, "error", err)
	}
	return found
}

// run has every substrate node send its share. The pairs of one that cannot have
// failed for its reason, unless none can.
func (p *pinging) run(ctx context.Context) (*trellisv1.PingResult, error) {
	hosts := slices.Sorted(maps.Keys(p.shares))
	failed := p.s.each(ctx, hosts, func(host string, sub agentapi.Agent) error {
		share := p.shares[host]
		r, err := sub.Ping(ctx, share.request, func(done, _ int) { p.progress(share, done) })
		share.result = r
		return err
	})
	if len(failed) > 0 && len(failed) == len(hosts) {
		return nil, failed[hosts[0]]
	}
	return p.merge(hosts, failed), nil
}

// progress adds up the shares'.
func (p *pinging) progress(share *pingShare, done int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	share.done = done
	if time.Since(p.last) < pingProgress {
		return
	}
	p.last = time.Now()
	all := 0
	for _, s := range p.shares {
		all += s.done
	}
	p.send(all, p.total)
}

// merge puts the shares' outcomes together.
func (p *pinging) merge(hosts []string, failed map[string]error) *trellisv1.PingResult {
	out := &trellisv1.PingResult{Pairs: int32(p.total), Seed: p.seed}
	type lost struct {
		at     int // among all pairs
		pair   agentapi.PingPair
		reason string
	}
	var all []lost
	rtts := make([]time.Duration, 0, p.total)
	for _, host := range hosts {
		share := p.shares[host]
		if err := failed[host]; err != nil {
			for i, pair := range share.request.Pairs {
				all = append(all, lost{share.at[i], pair, "not tried: " + err.Error()})
			}
			continue
		}
		rtts = append(rtts, share.result.RTT...)
		for _, f := range share.result.Failed {
			all = append(all, lost{share.at[f.Pair], share.request.Pairs[f.Pair], f.Reason})
		}
	}
	slices.SortFunc(all, func(a, b lost) int { return a.at - b.at })
	for _, l := range all {
		out.Failed = append(out.Failed, &trellisv1.PingFailure{
			From: p.nodes[l.pair.From].Name, To: p.nodes[l.pair.To].Name, Family: l.pair.Family, Reason: l.reason,
		})
	}
	out.Reachable = int32(len(rtts))
	if len(rtts) > 0 {
		slices.Sort(rtts)
		out.RttMin, out.RttMax = rtts[0].Seconds(), rtts[len(rtts)-1].Seconds()
		out.RttMedian = rtts[len(rtts)/2].Seconds()
	}
	return out
}
