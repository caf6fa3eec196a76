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
	"trellis/internal/store"
)

// removals is the wait for VNets to be gone, of one or of many: one watch and one
// ticker for all of them.
type removals struct {
	s        *Service
	stall    time.Duration // the longest time without progress; 0: any
	progress func(*trellisv1.Progress) error

	waiting map[string]*removal
	gone    []string
	nodes   int // of all VNets

	began  time.Time
	moved  time.Time            // the last progress
	missed map[string]time.Time // since when a substrate node is known to have vanished
}

// removal is the wait for one VNet to be gone.
type removal struct {
	rec  *store.VNetRecord
	last map[string]*store.Status // on the removal, by substrate node
}

func newRemovals(s *Service, stall time.Duration, progress func(*trellisv1.Progress) error) *removals {
	now := time.Now()
	return &removals{
		s: s, stall: stall, progress: progress, waiting: map[string]*removal{},
		began: now, moved: now, missed: map[string]time.Time{},
	}
}

// add has the wait include a VNet whose removal is asked for.
func (w *removals) add(rec *store.VNetRecord) {
	w.waiting[rec.Name()] = &removal{rec: rec, last: map[string]*store.Status{}}
	w.nodes += len(rec.Spec.Nodes)
}

// awaitGone returns when the store has forgotten the VNet, or when only substrate
// nodes that have vanished keep it from being forgotten.
func (s *Service) awaitGone(ctx context.Context, rec *store.VNetRecord, progress func(*trellisv1.Progress) error, stall time.Duration) error {
	w := newRemovals(s, stall, progress)
	w.add(rec)
	return errors.Join(w.await(ctx)...)
}

// await returns when no VNet is waited for any more, with why some are not gone.
func (w *removals) await(ctx context.Context) (failed []error) {
	if len(w.waiting) == 0 {
		return nil
	}
	name := ""
	if len(w.waiting) == 1 {
		name = slices.Collect(maps.Keys(w.waiting))[0]
	}
	waiting, cancel := leaveTimeToReply(ctx)
	defer cancel()
	tick := time.NewTicker(livenessInterval)
	defer tick.Stop()
	reports := w.s.store.WatchStatus(waiting, name)
	fail := func(name string, err error) {
		failed = append(failed, err)
		delete(w.waiting, name)
	}
	if err := w.report(name); err != nil {
		return []error{err}
	}
	for len(w.waiting) > 0 {
		select {
		case e, ok := <-reports:
			switch {
			case !ok:
				return append(failed, w.timeout(ctx))
			case e.Synced:
				if err := w.checkForgotten(waiting, fail); err != nil {
					return append(failed, err)
				}
			default:
				w.record(waiting, e, fail)
			}
		case <-tick.C:
			if err := w.checkOffline(waiting, fail); err != nil {
				return append(failed, err)
			}
			if w.stall > 0 && time.Since(w.moved) > w.stall {
				return append(failed, w.timeoutError())
			}
		}
		if err := w.report(name); err != nil {
			return append(failed, err)
		}
	}
	return failed
}

// record takes in one agent's report.
func (w *removals) record(ctx context.Context, e store.StatusEvent, fail func(string, error)) {
	r := w.waiting[e.VNet]
	switch {
	case r == nil:
	case e.Err != nil:
		fail(e.VNet, e.Err)
	case e.Status == nil || e.Status.Generation != r.rec.Generation:
		// A deletion, or another generation: is it still ours?
		w.checkOne(ctx, e.VNet, fail)
	default:
		w.moved = time.Now()
		r.last[e.Host] = e.Status
		if e.Status.Phase == store.PhaseFailed {
			fail(e.VNet, connect.NewError(connect.CodeFailedPrecondition,
				fmt.Errorf("remove VNet %s%s: %s", e.VNet, w.s.on(r.rec, e.Host), e.Status.Error)))
		}
	}
}

// checkForgotten looks which VNets the store has forgotten.
func (w *removals) checkForgotten(ctx context.Context, fail func(string, error)) error {
	names, err := w.s.store.Names(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // timeout says it
		}
		return err
	}
	for name := range w.waiting {
		if _, there := slices.BinarySearch(names, name); !there {
			w.checkOne(ctx, name, fail)
		}
	}
	return nil
}

// checkOne looks whether the store has forgotten a VNet. It is an error when
// somebody has brought it up again.
func (w *removals) checkOne(ctx context.Context, name string, fail func(string, error)) {
	now, err := w.s.store.VNet(ctx, name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		w.moved = time.Now()
		w.gone = append(w.gone, name)
		delete(w.waiting, name)
	case ctx.Err() != nil: // timeout says it
	case err != nil:
		fail(name, err)
	case now.State != store.Removing:
		fail(name, connect.NewError(connect.CodeAborted,
			fmt.Errorf("VNet %s was brought up again by another request while it was being removed", name)))
	}
}

// report sums the progress up: of one VNet in steps, of several in VNets.
func (w *removals) report(only string) error {
	if w.progress == nil {
		return nil
	}
	p := &trellisv1.Progress{Phase: string(store.PhaseRemoving)}
	left := 0.0 // nodes
	for name, r := range w.waiting {
		done, total := 0, 0
		for _, st := range r.last {
			done += st.Done
			total += st.Total
			if st.Attempt > 0 {
				p.Detail = fmt.Sprintf("retrying %s: %s (attempt %d)", name, st.Error, st.Attempt+1)
			}
		}
		nodes := float64(len(r.rec.Spec.Nodes))
		if total > 0 {
			nodes *= 1 - float64(done)/float64(total)
		}
		left += nodes
		p.Done, p.Total = int32(done), int32(total)
	}
	if only == "" {
		p.Done, p.Total = int32(len(w.gone)), int32(len(w.gone)+len(w.waiting))
		if p.Detail == "" {
			p.Detail = fmt.Sprintf("%d of %d nodes", w.nodes-int(left), w.nodes)
		}
	}
	return w.progress(p)
}

// offlineGrace is how long a substrate node may be silent before a removal no
// longer waits for it: its agent may be starting again.
const offlineGrace = 5 * time.Second

// checkOffline ends the wait for VNets of which nothing is left but what only
// substrate nodes that have vanished can remove.
func (w *removals) checkOffline(ctx context.Context, fail func(string, error)) error {
	hosts, err := w.s.store.Hosts(ctx)
	if err != nil {
		return nil // that of before holds
	}
	for host, h := range hosts {
		if h.Alive || host == w.s.host {
			delete(w.missed, host)
		} else if at, noted := w.missed[host]; !noted || h.Seen.Before(at) {
			w.missed[host] = h.Seen
			if now := time.Now(); h.Seen.After(now) { // by a clock that is ahead
				w.missed[host] = now
			}
		}
	}
	for name, r := range w.waiting {
		if err := w.unreachable(r, hosts); err != nil {
			fail(name, err)
		}
	}
	return nil
}

// unreachable is the error about a VNet that only vanished substrate nodes hold.
func (w *removals) unreachable(r *removal, hosts map[string]store.HostState) error {
	var waits []string
	missing := ""
	for _, host := range r.rec.Hosts {
		if st := r.last[host]; st != nil && st.Phase == store.PhaseRemoved {
			continue
		}
		at, missed := w.missed[host]
		if !missed || time.Since(at) < offlineGrace {
			return nil // it is at it, or may soon be
		}
		missing = host
		waits = append(waits, fmt.Sprintf("%s; its %s", hosts[host].Silence(), nodesWait(w.s.nodesOn(r.rec, host))))
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

// timeout says why the watch has ended.
func (w *removals) timeout(ctx context.Context) error {
	if err := w.s.store.Err(); err != nil {
		return err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	return w.timeoutError()
}

// timeoutError says what is left.
func (w *removals) timeoutError() error {
	after := time.Since(w.began).Round(100 * time.Millisecond)
	if len(w.waiting) > 1 {
		names := slices.Sorted(maps.Keys(w.waiting))
		return connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("%d of %d VNets are not gone after %v (%s), and nothing has moved for %v; the removal goes on: look at `trellis ls`",
			len(names), len(names)+len(w.gone), after, some(names), time.Since(w.moved).Round(time.Second)))
	}
	var left []string
	name := ""
	for vnet, r := range w.waiting {
		name = vnet
		for _, host := range r.rec.Hosts {
			st := r.last[host]
			switch {
			case st == nil:
				left = append(left, "the agent"+w.s.on(r.rec, host)+" has not begun")
			case st.Phase != store.PhaseRemoved:
				left = append(left, fmt.Sprintf("%d of %d steps done%s", st.Done, st.Total, w.s.on(r.rec, host)))
			}
		}
	}
	return connect.NewError(connect.CodeDeadlineExceeded,
		fmt.Errorf("VNet %s is not gone after %v: %s; it goes on: look at `trellis ls`", name, after, strings.Join(left, ", ")))
}
