package vnp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	// One that waits for a substrate node that has vanished is not to hold up the
	// others.
	var mu sync.Mutex
	var all sync.WaitGroup
	tell := func(name string) {
		p := &trellisv1.Progress{Phase: "removing", Done: int32(len(gone)), Total: int32(len(begun)), Detail: name}
		if err := progress(p); err != nil {
			failed = append(failed, err)
		}
	}
	if len(begun) > 0 {
		tell(begun[0].Name())
	}
	for _, rec := range begun {
		all.Go(func() {
			err := s.awaitGone(ctx, rec, nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err)
				return
			}
			gone = append(gone, rec.Name())
			tell(rec.Name())
		})
	}
	all.Wait()
	slices.Sort(gone)
	if err := s.sweep(ctx); err != nil {
		failed = append(failed, err)
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

// awaitGone returns when the store has forgotten the VNet, or when only substrate
// nodes that have vanished keep it from being forgotten.
func (s *Service) awaitGone(ctx context.Context, rec *store.VNetRecord, progress func(*trellisv1.Progress) error) error {
	waiting, cancel := patience(ctx)
	defer cancel()
	r := removal{s: s, rec: rec, began: time.Now(), last: map[string]*store.Status{}, missed: map[string]time.Time{}}
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	reports := s.store.WatchStatus(waiting, rec.Name())
	for {
		select {
		case e, ok := <-reports:
			if !ok {
				return r.over(ctx)
			}
			if e.Err != nil {
				return e.Err
			}
			if e.Status == nil || e.Status.Generation != rec.Generation {
				// Synced, a deletion, or another generation: is it still ours?
				if gone, err := r.forgotten(waiting); gone || err != nil {
					return err
				}
				continue
			}
			r.last[e.Host] = e.Status
			if e.Status.Phase == store.PhaseFailed {
				return connect.NewError(connect.CodeFailedPrecondition,
					fmt.Errorf("remove VNet %s%s: %s", rec.Name(), s.on(rec, e.Host), e.Status.Error))
			}
			if err := r.tell(progress); err != nil {
				return err
			}
		case <-tick.C:
			if err := r.stuck(waiting); err != nil {
				return err
			}
		}
	}
}

// removal is the wait for a VNet to be gone.
type removal struct {
	s      *Service
	rec    *store.VNetRecord
	began  time.Time
	last   map[string]*store.Status // on the removal, by substrate node
	missed map[string]time.Time     // since when a substrate node is known to have vanished
}

// forgotten reports whether the store has forgotten the VNet. It is an error when
// somebody has brought it up again.
func (r *removal) forgotten(ctx context.Context) (bool, error) {
	now, err := r.s.store.VNet(ctx, r.rec.Name())
	switch {
	case errors.Is(err, store.ErrNotFound):
		return true, nil
	case ctx.Err() != nil:
		return false, nil // over says it
	case err != nil:
		return false, err
	case now.State != store.Removing:
		return false, connect.NewError(connect.CodeAborted,
			fmt.Errorf("VNet %s was brought up again by another request while it was being removed", r.rec.Name()))
	}
	return false, nil
}

// tell sums the progress up.
func (r *removal) tell(progress func(*trellisv1.Progress) error) error {
	if progress == nil {
		return nil
	}
	p := &trellisv1.Progress{Phase: string(store.PhaseRemoving)}
	for _, st := range r.last {
		p.Done += int32(st.Done)
		p.Total += int32(st.Total)
	}
	return progress(p)
}

// grace is how long a substrate node may be silent before a removal no longer
// waits for it: its agent may be starting again.
const grace = 5 * time.Second

// stuck fails when nothing is left but what only substrate nodes that have
// vanished can remove.
func (r *removal) stuck(ctx context.Context) error {
	absent := r.s.absent(ctx, r.rec.Hosts, nil)
	for host := range r.missed {
		if _, still := absent[host]; !still {
			delete(r.missed, host)
		}
	}
	for host, h := range absent {
		if at, noted := r.missed[host]; !noted || h.Seen.Before(at) {
			r.missed[host] = h.Seen
			if now := time.Now(); h.Seen.After(now) { // by a clock that is ahead
				r.missed[host] = now
			}
		}
	}
	var waits []string
	missing := ""
	for _, host := range r.rec.Hosts {
		if st := r.last[host]; st != nil && st.Phase == store.PhaseRemoved {
			continue
		}
		at, missed := r.missed[host]
		if !missed || time.Since(at) < grace {
			return nil // it is at it, or may soon be
		}
		missing = host
		waits = append(waits, fmt.Sprintf("%s; its %s", absent[host].Silence(), nodesWait(r.s.nodesOn(r.rec, host))))
	}
	if len(waits) == 0 {
		return nil
	}
	if len(waits) > 1 {
		missing = "HOST"
	}
	return connect.NewError(connect.CodeFailedPrecondition,
		fmt.Errorf("VNet %s is gone but for what is out of reach: %s to be removed when trellis serve runs there again; until then `trellis ls` shows it as removing. Of a machine that is gone for good, `trellis substrate forget %s` ends the wait",
			r.rec.Name(), strings.Join(waits, ", "), missing))
}

// over says why the watch has ended.
func (r *removal) over(ctx context.Context) error {
	if err := r.s.store.Err(); err != nil {
		return err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	var left []string
	for _, host := range r.rec.Hosts {
		st := r.last[host]
		switch {
		case st == nil:
			left = append(left, "the agent"+r.s.on(r.rec, host)+" has not begun")
		case st.Phase != store.PhaseRemoved:
			left = append(left, fmt.Sprintf("%d of %d steps done%s", st.Done, st.Total, r.s.on(r.rec, host)))
		}
	}
	return connect.NewError(connect.CodeDeadlineExceeded,
		fmt.Errorf("VNet %s is not gone after %v: %s; it goes on: look at `trellis ls`",
			r.rec.Name(), time.Since(r.began).Round(100*time.Millisecond), strings.Join(left, ", ")))
}
