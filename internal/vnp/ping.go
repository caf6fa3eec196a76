package vnp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/store"
)

// pingProgress is the least time between two progress messages of a Ping.
const pingProgress = 200 * time.Millisecond

// Ping sends echo requests between the nodes' loopbacks. Each substrate node
// sends those of its nodes.
func (s *Service) Ping(ctx context.Context, req *connect.Request[trellisv1.PingRequest], stream *connect.ServerStream[trellisv1.PingResponse]) error {
	m := req.Msg
	if m.Sample < 0 || m.TimeoutNs < 0 {
		return invalid("a sample of %d pairs with a timeout of %v makes no sense; both must be 0 (for the default) or more", m.Sample, time.Duration(m.TimeoutNs))
	}
	rec, err := s.store.VNet(ctx, m.Vnet)
	if err != nil {
		return s.fail(err)
	}
	if rec.State != store.Present {
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("VNet %s is being removed", m.Vnet))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := newPinging(s, rec, m, func(done, total int) {
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
	nodes  []PingNode
	shares map[string]*pingShare // by substrate node

	mu    sync.Mutex
	total int
	last  time.Time // of the last progress
	tell  func(done, total int)
}

// pingShare is what one substrate node sends.
type pingShare struct {
	request PingRequest
	at      []int // index of each pair among all
	done    int
	result  *PingResult
}

func newPinging(s *Service, rec *store.VNetRecord, m *trellisv1.PingRequest, tell func(done, total int)) *pinging {
	p := &pinging{s: s, seed: m.Seed, shares: map[string]*pingShare{}, tell: tell, last: time.Now()}
	hosts := make([]string, len(rec.Spec.Nodes))
	for i := range rec.Spec.Nodes {
		n := &rec.Spec.Nodes[i]
		p.nodes = append(p.nodes, PingNode{Name: n.Name, Loopbacks: n.Loopbacks})
		hosts[i] = s.hostOf(rec, n.Name)
	}
	pairs := allPairs(p.nodes)
	if m.Sample > 0 {
		pairs = samplePairs(p.nodes, int(m.Sample), m.Seed)
	}
	p.total = len(pairs)
	for i, pair := range pairs {
		host := hosts[pair.From]
		share := p.shares[host]
		if share == nil {
			share = &pingShare{request: PingRequest{VNet: rec.Name(), Nodes: p.nodes, Timeout: time.Duration(m.TimeoutNs)}}
			p.shares[host] = share
		}
		share.request.Pairs = append(share.request.Pairs, pair)
		share.at = append(share.at, i)
	}
	return p
}

// run has every substrate node send its share. The pairs of one that cannot have
// failed for its reason, unless none can.
func (p *pinging) run(ctx context.Context) (*trellisv1.PingResult, error) {
	hosts := slices.Sorted(maps.Keys(p.shares))
	failed := p.s.each(ctx, hosts, func(host string, sub Substrate) error {
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
	p.tell(all, p.total)
}

// merge puts the shares' outcomes together.
func (p *pinging) merge(hosts []string, failed map[string]error) *trellisv1.PingResult {
	out := &trellisv1.PingResult{Pairs: int32(p.total), Seed: p.seed}
	type lost struct {
		at     int // among all pairs
		pair   PingPair
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
