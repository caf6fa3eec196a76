package vnp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/pip"
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
		s: s, spec: g.Record.Spec, generation: g.Record.Generation, began: began,
		until: store.PhaseCreated, progress: progress,
	}
	if req.Msg.Wait {
		w.until = store.PhaseConverged
	}
	st, err := w.run(ctx)
	if err != nil {
		if st != nil && st.Phase == store.PhaseFailed && g.New {
			err = s.rollBack(ctx, v.Name, err)
		}
		return s.fail(err)
	}
	result := &trellisv1.ApplyResult{
		Vnet:           v.Name,
		Nodes:          int32(len(v.Nodes)),
		Links:          int32(len(v.Links)),
		CreatedSeconds: since(began, st.CreatedAt),
	}
	if req.Msg.Wait {
		result.ConvergedSeconds = since(began, st.ConvergedAt)
	}
	if g.Changed {
		result.Changes = int32(st.Changes)
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
// soon as the agent is done with it: the agent then looks at everything again,
// repairs what differs, and reports truly whether the routes are there.
func (s *Service) admit(ctx context.Context, v *vnet.VNet) (pip.Grant, error) {
	g, err := s.provider.Admit(ctx, v, s.substrate.Prepare, false)
	if err != nil || g.Changed {
		return g, err
	}
	statuses, err := s.store.Statuses(ctx, g.Record.Name())
	if err != nil {
		return pip.Grant{}, err
	}
	st := statuses[s.host]
	if st == nil || st.Generation != g.Record.Generation {
		return g, nil // it has yet to look at it
	}
	switch st.Phase {
	case store.PhaseCreated, store.PhaseConverged, store.PhaseFailed:
		return s.provider.Admit(ctx, v, s.substrate.Prepare, true)
	}
	return g, nil // under way
}

// dryRun sends the steps that applying the description would take.
func (s *Service) dryRun(ctx context.Context, v *vnet.VNet, stream *connect.ServerStream[trellisv1.ApplyResponse]) error {
	p, err := s.provider.Preview(ctx, v)
	if err != nil {
		return err
	}
	if err := s.substrate.Prepare(ctx, p); err != nil {
		return pip.Refused{Err: err}
	}
	steps, err := s.substrate.DryRun(ctx, p)
	if err != nil {
		return err
	}
	out := &trellisv1.Steps{}
	for _, st := range steps {
		out.Steps = append(out.Steps, &trellisv1.Step{Op: st.Op, Object: st.Object, Detail: st.Detail})
	}
	return stream.Send(&trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Steps{Steps: out}})
}
