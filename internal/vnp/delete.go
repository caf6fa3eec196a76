package vnp

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/store"
)

// Delete takes a VNet down, or all of them, and returns when nothing is left.
func (s *Service) Delete(ctx context.Context, req *connect.Request[trellisv1.DeleteRequest], stream *connect.ServerStream[trellisv1.DeleteResponse]) error {
	began := time.Now()
	progress := func(p *trellisv1.Progress) error {
		return stream.Send(&trellisv1.DeleteResponse{Event: &trellisv1.DeleteResponse_Progress{Progress: p}})
	}
	stall := time.Duration(max(0, req.Msg.StallNs))
	var gone []string
	var err error
	switch {
	case req.Msg.All && req.Msg.Name != "":
		return invalid("the request names VNet %q and asks for all; choose one of the two", req.Msg.Name)
	case req.Msg.All:
		gone, err = s.deleteAll(ctx, progress, stall)
	case req.Msg.Name == "":
		return invalid("the request names no VNet")
	default:
		gone = []string{req.Msg.Name}
		err = s.suggest(ctx, req.Msg.Name, s.delete(ctx, req.Msg.Name, progress, stall))
	}
	if err != nil {
		return s.fail(err)
	}
	return stream.Send(&trellisv1.DeleteResponse{Event: &trellisv1.DeleteResponse_Result{
		Result: &trellisv1.DeleteResult{Vnets: gone, Seconds: time.Since(began).Seconds()},
	}})
}

// cancelTimeout bounds the wait for requests to end that a removal has cancelled.
const cancelTimeout = 2 * time.Second

// cancelRequests ends what others are doing to a VNet, or to all when the name is
// empty, and tells how many requests that were.
func (s *Service) cancelRequests(ctx context.Context, name string) int {
	ctx, cancel := context.WithTimeout(ctx, cancelTimeout)
	defer cancel()
	return s.requests.cancel(ctx, name)
}

// removers is how many removals are asked of the store side by side.
const removers = 16

// deleteAll removes every VNet, and then whatever else there is. One that waits
// for a substrate node that has vanished does not hold up the others.
func (s *Service) deleteAll(ctx context.Context, progress func(*trellisv1.Progress) error, stall time.Duration) ([]string, error) {
	s.cancelRequests(ctx, "")
	names, err := s.store.Names(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var failed []error
	w := newRemovals(s, stall, progress)
	var g errgroup.Group
	g.SetLimit(removers)
	for _, name := range names {
		g.Go(func() error {
			rec, err := s.remove(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, store.ErrNotFound):
			case err != nil:
				failed = append(failed, err)
			default:
				w.add(rec)
			}
			return nil
		})
	}
	g.Wait()
	failed = append(failed, w.await(ctx)...)
	if err := s.sweep(ctx); err != nil {
		failed = append(failed, err)
	}
	slices.Sort(w.gone)
	return w.gone, errors.Join(failed...)
}

func (s *Service) delete(ctx context.Context, name string, progress func(*trellisv1.Progress) error, stall time.Duration) error {
	cancelled := s.cancelRequests(ctx, name)
	rec, err := s.remove(ctx, name)
	if errors.Is(err, store.ErrNotFound) && cancelled > 0 {
		return nil // it was about to come
	}
	if err != nil {
		return err
	}
	return s.awaitGone(ctx, rec, progress, stall)
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
