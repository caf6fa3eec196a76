package vnp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/store"
)

// pingProgress is the least time between two progress messages of a Ping.
const pingProgress = 200 * time.Millisecond

// Ping sends echo requests between the nodes' loopbacks.
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
	p, err := s.store.Plan(ctx, s.host, m.Vnet)
	if err != nil {
		return s.fail(err)
	}
	// Sending stays within one goroutine's turn, and ends before the result.
	var mu sync.Mutex
	var last time.Time
	var broken error
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	progress := func(done, total int) {
		mu.Lock()
		defer mu.Unlock()
		if broken != nil || time.Since(last) < pingProgress {
			return
		}
		last = time.Now()
		broken = stream.Send(&trellisv1.PingResponse{Event: &trellisv1.PingResponse_Progress{
			Progress: &trellisv1.Progress{Phase: "pinging", Done: int32(done), Total: int32(total)},
		}})
		if broken != nil {
			cancel(broken)
		}
	}
	r, err := s.substrate.Ping(ctx, p, PingOptions{Sample: int(m.Sample), Timeout: time.Duration(m.TimeoutNs), Seed: m.Seed}, progress)
	mu.Lock()
	defer mu.Unlock()
	if err := errors.Join(broken, err); err != nil {
		return s.fail(fmt.Errorf("ping VNet %s: %w", m.Vnet, err))
	}
	out := &trellisv1.PingResult{
		Pairs: int32(r.Pairs), Reachable: int32(r.Reachable), Seed: r.Seed,
		RttMin: r.Min.Seconds(), RttMedian: r.Median.Seconds(), RttMax: r.Max.Seconds(),
	}
	for _, f := range r.Failed {
		out.Failed = append(out.Failed, &trellisv1.PingFailure{From: f.From, To: f.To, Family: f.Family, Reason: f.Reason})
	}
	return stream.Send(&trellisv1.PingResponse{Event: &trellisv1.PingResponse_Result{Result: out}})
}
