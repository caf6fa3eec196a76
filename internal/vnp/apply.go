package vnp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/agentapi"
	"trellis/internal/pip"
	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/vnet"
	"trellis/internal/wire"
)

// Apply creates a VNet, or converges a running one to the description.
func (s *Service) Apply(ctx context.Context, req *connect.Request[trellisv1.ApplyRequest], stream *connect.ServerStream[trellisv1.ApplyResponse]) error {
	began := time.Now()
	if req.Msg.Vnet == nil {
		return invalid("the request holds no VNet")
	}
	v, err := wire.FromProto(req.Msg.Vnet)
	if err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	if req.Msg.DryRun {
		return s.fail(s.dryRun(ctx, v, stream))
	}
	ctx, request := s.requests.begin(ctx, v.Name)
	defer request.end()
	err = s.apply(ctx, request, v, req.Msg.Wait, began, stream.Send)
	if cause := context.Cause(ctx); err != nil && cause != nil && connect.CodeOf(cause) == connect.CodeAborted {
		err = cause // the VNet was taken down
	}
	return s.fail(err)
}

// apply admits the description and follows it until it is in place, or until it
// has converged.
func (s *Service) apply(ctx context.Context, request *request, v *vnet.VNet, converge bool, began time.Time, send func(*trellisv1.ApplyResponse) error) error {
	progress := func(p *trellisv1.Progress) error {
		return send(&trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Progress{Progress: p}})
	}
	preparing, stop := tellPreparing(ctx, progress)
	g, err := s.admit(preparing, v, request)
	stop()
	if err != nil {
		return err
	}
	request.markAdmitted()
	if g.Changed {
		if err := s.sendEstimate(ctx, g.Record.Spec, g.Plans, send); err != nil {
			return err
		}
	}
	if err := progress(&trellisv1.Progress{Phase: "admitted"}); err != nil {
		return err
	}
	w := wait{
		s: s, rec: g.Record, began: began, hosts: s.holders(g.Record),
		until: store.PhaseCreated, progress: progress,
	}
	if converge {
		w.until = store.PhaseConverged
	}
	out, err := w.run(ctx)
	if err != nil {
		var gaveUp givenUp
		if errors.As(err, &gaveUp) {
			err = s.afterGivingUp(ctx, g, gaveUp)
		}
		return err
	}
	result := &trellisv1.ApplyResult{
		Vnet:           v.Name,
		Nodes:          int32(len(v.Nodes)),
		Links:          int32(len(v.Links)),
		CreatedSeconds: since(began, out.created),
	}
	if converge {
		result.Checked, result.Complete, result.Message = int32(out.checked), int32(out.complete), out.message
		if out.checked > 0 && out.complete == out.checked {
			result.ConvergedSeconds = since(began, out.converged)
		}
	}
	if g.Changed {
		result.Changes = int32(out.changes)
	}
	return send(&trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Result{Result: result}})
}

// tellPreparing has agents' progress before admission, such as with an image that is
// large, sent to the client until stop is called.
func tellPreparing(ctx context.Context, progress func(*trellisv1.Progress) error) (_ context.Context, stop func()) {
	var mu sync.Mutex
	stopped := false
	tell := func(text string) {
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			// A client that has gone is noticed by what follows.
			_ = progress(&trellisv1.Progress{Phase: "preparing", Detail: text})
		}
	}
	return agentapi.WithProgress(ctx, tell), func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
	}
}

// since is the time in seconds from began to at; zero when at came before.
func since(began, at time.Time) float64 { return max(0, at.Sub(began).Seconds()) }

// rollBackTimeout bounds the removal of what could not be made.
const rollBackTimeout = 30 * time.Second

// afterGivingUp removes a new VNet of which nothing was ever in place: all or
// nothing. What was in place once, or what another request has changed since,
// stays.
func (s *Service) afterGivingUp(ctx context.Context, g pip.Grant, cause givenUp) error {
	name := g.Record.Name()
	because := func(format string, args ...any) error {
		text := cause.Error()
		var known *connect.Error
		if errors.As(cause.error, &known) {
			text = known.Message()
		}
		return connect.NewError(connect.CodeOf(cause.error), fmt.Errorf("%s; %s", text, fmt.Sprintf(format, args...)))
	}
	if !g.New || cause.inPlace {
		return because("what is in place stays: `trellis show %s`; correct it and bring it up again, or take it down with `trellis down %s`", name, name)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollBackTimeout)
	defer cancel()
	rec, err := s.provider.RollBack(ctx, name, g.Record.Generation)
	if err == nil {
		err = s.awaitGone(ctx, rec, nil, 0)
	}
	switch {
	case err == nil, errors.Is(err, store.ErrNotFound):
		return because("what was made of it has been removed")
	case errors.Is(err, pip.ErrSuperseded), connect.CodeOf(err) == connect.CodeAborted:
		return because("a later request has changed it, so nothing was removed: `trellis show %s`", name)
	}
	return because("removing what was made of it failed too (%v): try `trellis down %s`", err, name)
}

// admit commits the description. One that has not changed is committed anew, as
// soon as the agents are done with it: they then look at everything again, repair
// what differs, and report truly whether the routes are there.
func (s *Service) admit(ctx context.Context, v *vnet.VNet, request *request) (pip.Grant, error) {
	return s.provider.Admit(ctx, v, pip.Admission{Check: s.prepare, Superseded: request.superseded, Renew: s.agentsDone})
}

// agentsDone reports whether the agents are done with what is stored of a VNet, so
// that they may be asked to look at it again.
func (s *Service) agentsDone(ctx context.Context, rec *store.VNetRecord) (bool, error) {
	statuses, err := s.store.Statuses(ctx, rec.Name())
	if err != nil {
		return false, err
	}
	offline := s.offline(ctx, rec.Hosts, nil)
	for _, host := range s.holders(rec) {
		if _, gone := offline[host]; gone {
			continue // it looks at everything when it is back
		}
		st := statuses[host]
		if st == nil || st.Generation != rec.Generation {
			return false, nil // it has yet to look at it
		}
		switch {
		case st.Phase == store.PhaseCreated, st.Phase == store.PhaseConverged, st.Phase == store.PhaseFailed, st.Attempt > 0:
		default:
			return false, nil // under way
		}
	}
	return true, nil
}

// dryRun sends the steps that applying the description would take.
func (s *Service) dryRun(ctx context.Context, v *vnet.VNet, stream *connect.ServerStream[trellisv1.ApplyResponse]) error {
	spec, plans, err := s.provider.Preview(ctx, v)
	if err != nil {
		return err
	}
	if err := s.sendEstimate(ctx, spec, plans, stream.Send); err != nil {
		return err
	}
	hosts := slices.Sorted(maps.Keys(plans))
	offline := s.offline(ctx, hosts, nil)
	out := &trellisv1.Steps{}
	for _, host := range hosts {
		if h, ok := offline[host]; ok {
			out.Steps = append(out.Steps, &trellisv1.Step{Op: "wait", Object: "host " + host, Detail: h.Silence()})
			continue
		}
		steps, err := s.dryRunOn(ctx, host, plans[host])
		if where := "on " + host + ": "; err != nil && len(plans) > 1 && !strings.HasPrefix(err.Error(), where) {
			err = fmt.Errorf("%s%w", where, err)
		}
		if err != nil {
			return err
		}
		for _, st := range steps {
			if len(plans) > 1 {
				st.Detail = strings.TrimSuffix("on "+host+": "+st.Detail, ": ")
			}
			out.Steps = append(out.Steps, &trellisv1.Step{Op: st.Op, Object: st.Object, Detail: st.Detail})
		}
	}
	return stream.Send(&trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Steps{Steps: out}})
}

// dryRunOn gives the steps of one substrate node.
func (s *Service) dryRunOn(ctx context.Context, host string, p *plan.Plan) ([]agentapi.Step, error) {
	sub, err := s.agents(ctx, host)
	if err != nil {
		return nil, err
	}
	if !p.Empty() {
		if err := sub.Prepare(ctx, p); err != nil {
			return nil, pip.Refused{Err: err}
		}
	}
	return sub.DryRun(ctx, p)
}
