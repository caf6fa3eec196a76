package vnp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
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
	g, err := s.admit(ctx, v)
	if err != nil {
		return s.fail(err)
	}
	progress := func(p *trellisv1.Progress) error {
		return stream.Send(&trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Progress{Progress: p}})
	}
	if err := progress(&trellisv1.Progress{Phase: "admitted"}); err != nil {
		return err
	}
	w := wait{
		s: s, rec: g.Record, began: began, hosts: s.holders(g.Record),
		until: store.PhaseCreated, progress: progress,
	}
	if req.Msg.Wait {
		w.until = store.PhaseConverged
	}
	out, err := w.run(ctx)
	if err != nil {
		if errors.As(err, new(failure)) && g.New {
			err = s.rollBack(ctx, v.Name, err)
		}
		return s.fail(err)
	}
	result := &trellisv1.ApplyResult{
		Vnet:           v.Name,
		Nodes:          int32(len(v.Nodes)),
		Links:          int32(len(v.Links)),
		CreatedSeconds: since(began, out.created),
	}
	if req.Msg.Wait {
		result.ConvergedSeconds = since(began, out.converged)
	}
	if g.Changed {
		result.Changes = int32(out.changes)
	}
	return stream.Send(&trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Result{Result: result}})
}

// since is the time in seconds from began to at; zero when at came before.
func since(began, at time.Time) float64 { return max(0, at.Sub(began).Seconds()) }

// rollBackTime bounds the removal of what could not be made.
const rollBackTime = 30 * time.Second

// rollBack removes a new VNet that could not be made: all or nothing.
func (s *Service) rollBack(ctx context.Context, name string, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollBackTime)
	defer cancel()
	err := s.delete(ctx, name, nil)
	also := "what was made of it has been removed"
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		also = fmt.Sprintf("removing what was made of it failed too (%v): try `trellis down %s`", err, name)
	}
	text := cause.Error()
	var known *connect.Error
	if errors.As(cause, &known) {
		text = known.Message()
	}
	return connect.NewError(connect.CodeOf(cause), fmt.Errorf("%s; %s", text, also))
}

// admit commits the description. One that has not changed is committed anew, as
// soon as the agents are done with it: they then look at everything again, repair
// what differs, and report truly whether the routes are there.
func (s *Service) admit(ctx context.Context, v *vnet.VNet) (pip.Grant, error) {
	g, err := s.provider.Admit(ctx, v, s.prepare, false)
	if err != nil || g.Changed {
		return g, err
	}
	statuses, err := s.store.Statuses(ctx, g.Record.Name())
	if err != nil {
		return pip.Grant{}, err
	}
	absent := s.absent(ctx, g.Record.Hosts, nil)
	for _, host := range s.holders(g.Record) {
		if _, gone := absent[host]; gone {
			continue // it looks at everything when it is back
		}
		st := statuses[host]
		if st == nil || st.Generation != g.Record.Generation {
			return g, nil // it has yet to look at it
		}
		switch st.Phase {
		case store.PhaseCreated, store.PhaseConverged, store.PhaseFailed:
		default:
			return g, nil // under way
		}
	}
	return s.provider.Admit(ctx, v, s.prepare, true)
}

// dryRun sends the steps that applying the description would take.
func (s *Service) dryRun(ctx context.Context, v *vnet.VNet, stream *connect.ServerStream[trellisv1.ApplyResponse]) error {
	plans, err := s.provider.Preview(ctx, v)
	if err != nil {
		return err
	}
	hosts := slices.Sorted(maps.Keys(plans))
	absent := s.absent(ctx, hosts, nil)
	out := &trellisv1.Steps{}
	for _, host := range hosts {
		if h, ok := absent[host]; ok {
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
func (s *Service) dryRunOn(ctx context.Context, host string, p *plan.Plan) ([]Step, error) {
	sub, err := s.substrates(ctx, host)
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
