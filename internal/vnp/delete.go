package vnp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/store"
)

// Delete takes a VNet down, or all of them, and returns when nothing is left.
func (s *Service) Delete(ctx context.Context, req *connect.Request[trellisv1.DeleteRequest], stream *connect.ServerStream[trellisv1.DeleteResponse]) error {
	began := time.Now()
	progress := func(p *trellisv1.Progress) error {
		return stream.Send(&trellisv1.DeleteResponse{Event: &trellisv1.DeleteResponse_Progress{Progress: p}})
	}
	var gone []string
	var err error
	switch {
	case req.Msg.All && req.Msg.Name != "":
		return invalid("the request names VNet %q and asks for all; choose one of the two", req.Msg.Name)
	case req.Msg.All:
		gone, err = s.deleteAll(ctx, progress)
	case req.Msg.Name == "":
		return invalid("the request names no VNet")
	default:
		gone = []string{req.Msg.Name}
		err = s.delete(ctx, req.Msg.Name, progress)
	}
	if err != nil {
		return s.fail(err)
	}
	return stream.Send(&trellisv1.DeleteResponse{Event: &trellisv1.DeleteResponse_Result{
		Result: &trellisv1.DeleteResult{Vnets: gone, Seconds: time.Since(began).Seconds()},
	}})
}

// deleteAll removes every VNet, and then whatever else there is.
func (s *Service) deleteAll(ctx context.Context, progress func(*trellisv1.Progress) error) ([]string, error) {
	records, err := s.store.VNets(ctx)
	if err != nil {
		return nil, err
	}
	var gone []string
	var failed []error
	var begun []*store.VNetRecord
	for _, rec := range records {
		rec, err := s.remove(ctx, rec.Name())
		if errors.Is(err, store.ErrNotFound) {
			continue
		} else if err != nil {
			failed = append(failed, err)
			continue
		}
		begun = append(begun, rec)
	}
	for i, rec := range begun {
		name := rec.Name()
		if err := progress(&trellisv1.Progress{Phase: "removing", Done: int32(i), Total: int32(len(begun)), Detail: name}); err != nil {
			return nil, err
		}
		if err := s.awaitGone(ctx, rec, nil); err != nil {
			failed = append(failed, err)
			continue
		}
		gone = append(gone, name)
	}
	if err := s.substrate.SweepAll(ctx); err != nil {
		failed = append(failed, fmt.Errorf("remove what no VNet owns: %w", err))
	}
	return gone, errors.Join(failed...)
}

func (s *Service) delete(ctx context.Context, name string, progress func(*trellisv1.Progress) error) error {
	rec, err := s.remove(ctx, name)
	if err != nil {
		return err
	}
	return s.awaitGone(ctx, rec, progress)
}

// remove asks for the removal; once more, if the agent has given up on it.
func (s *Service) remove(ctx context.Context, name string) (*store.VNetRecord, error) {
	rec, err := s.provider.Remove(ctx, name, false)
	if err != nil {
		return nil, err
	}
	statuses, err := s.store.Statuses(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, st := range statuses {
		if st.Phase == store.PhaseFailed && st.Generation == rec.Generation {
			return s.provider.Remove(ctx, name, true)
		}
	}
	return rec, nil
}

// awaitGone returns when the store has forgotten the VNet.
func (s *Service) awaitGone(ctx context.Context, rec *store.VNetRecord, progress func(*trellisv1.Progress) error) error {
	name := rec.Name()
	began := time.Now()
	waiting, cancel := patience(ctx)
	defer cancel()
	var last *store.Status
	for e := range s.store.WatchStatus(waiting, name) {
		if e.Err != nil {
			return e.Err
		}
		if e.Status != nil && e.Status.Generation == rec.Generation {
			last = e.Status
			if last.Phase == store.PhaseFailed {
				return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("remove VNet %s: %s", name, last.Error))
			}
			if progress != nil && last.Phase == store.PhaseRemoving {
				if err := progress(&trellisv1.Progress{Phase: string(last.Phase), Done: int32(last.Done), Total: int32(last.Total)}); err != nil {
					return err
				}
			}
			continue
		}
		// Synced, a deletion, or another generation: is it still ours?
		now, err := s.store.VNet(waiting, name)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		if now.State != store.Removing {
			return connect.NewError(connect.CodeAborted, fmt.Errorf("VNet %s was brought up again by another request while it was being removed", name))
		}
	}
	if err := s.store.Err(); err != nil {
		return err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	text := "the agent has not begun"
	if last != nil {
		text = fmt.Sprintf("%d of %d steps done", last.Done, last.Total)
	}
	return connect.NewError(connect.CodeDeadlineExceeded,
		fmt.Errorf("VNet %s is not gone after %v: %s; it goes on: look at `trellis ls`", name, time.Since(began).Round(100*time.Millisecond), text))
}
