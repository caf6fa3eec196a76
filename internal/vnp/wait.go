package vnp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// early is how long before the client's deadline a wait ends, so that the
// sentence that says what is missing gets there in time: this, or a tenth of the
// time there is.
const early = 500 * time.Millisecond

// patience bounds a wait by the client's deadline, less the time to say so.
func patience(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(early, time.Until(deadline)/10)))
}

// wait follows the agent's reports on a generation of a VNet.
type wait struct {
	s          *Service
	spec       *vnet.VNet
	generation int64
	began      time.Time
	// until is PhaseCreated or PhaseConverged.
	until store.Phase
	// progress is told every report; nil: nobody. An error ends the wait.
	progress func(*trellisv1.Progress) error
}

// run returns the report that says that the phase is reached.
func (w *wait) run(ctx context.Context) (*store.Status, error) {
	waiting, cancel := patience(ctx)
	defer cancel()
	var last *store.Status
	synced := false
	for e := range w.s.store.WatchStatus(waiting, w.spec.Name) {
		switch {
		case e.Synced:
			synced = true
			continue
		case e.Err != nil:
			return nil, e.Err
		case e.Host != w.s.host:
			continue
		case e.Status == nil:
			if synced {
				return nil, w.overtaken()
			}
			continue
		case e.Status.Generation < w.generation:
			continue
		}
		last = e.Status
		done, err := w.look(last)
		if done || err != nil {
			return last, err
		}
	}
	if err := w.s.store.Err(); err != nil {
		return nil, err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, context.Cause(ctx)
	}
	return nil, connect.NewError(connect.CodeDeadlineExceeded, errors.New(w.late(last)+w.troubled(ctx, last)))
}

// troubled tells which services do not run in the nodes that miss routes: the
// likeliest reason.
func (w *wait) troubled(ctx context.Context, st *store.Status) string {
	if st == nil || len(st.Missing) == 0 {
		return ""
	}
	stats, err := w.s.substrate.NodeStats(ctx, w.spec.Name)
	if err != nil {
		return "" // the routes that are missing are the news
	}
	var text strings.Builder
	for _, m := range st.Missing {
		for _, service := range stats[m.Node].Services {
			if service.State == "running" && service.Restarts == 0 {
				continue
			}
			fmt.Fprintf(&text, "; %s in %s is %s after %d restarts: see /run/trellis/%s.log there",
				service.Name, m.Node, service.State, service.Restarts, service.Name)
		}
	}
	return text.String()
}

// look judges one report.
func (w *wait) look(st *store.Status) (done bool, err error) {
	switch st.Phase {
	case store.PhaseFailed:
		return false, connect.NewError(connect.CodeFailedPrecondition,
			fmt.Errorf("VNet %s: %s", w.spec.Name, st.Error))
	case store.PhaseRemoved:
		return false, w.overtaken()
	case store.PhaseConverged:
		return true, nil
	case store.PhaseCreated:
		if w.until == store.PhaseCreated {
			return true, nil
		}
	}
	if w.progress == nil {
		return false, nil
	}
	return false, w.progress(w.describe(st))
}

func (w *wait) overtaken() error {
	return connect.NewError(connect.CodeAborted,
		fmt.Errorf("VNet %s is being removed by another request; bring it up again when that is done", w.spec.Name))
}

// describe puts a report in the API's words.
func (w *wait) describe(st *store.Status) *trellisv1.Progress {
	p := &trellisv1.Progress{Phase: string(st.Phase), Done: int32(st.Done), Total: int32(st.Total)}
	if st.Phase == store.PhaseCreated {
		p.Phase, p.Done, p.Total = "converging", int32(st.Converged), int32(st.Routers)
		if len(st.Missing) > 0 {
			p.Detail = w.misses(st.Missing[0])
		}
	}
	return p
}

// late says what is missing when the time is over.
func (w *wait) late(st *store.Status) string {
	after := time.Since(w.began).Round(100 * time.Millisecond)
	name := w.spec.Name
	if st == nil {
		return fmt.Sprintf("VNet %s is admitted, but the agent has not begun after %v; it goes on: look at `trellis show %s` and at the log of trellis serve", name, after, name)
	}
	if st.Phase != store.PhaseCreated {
		return fmt.Sprintf("VNet %s is not in place after %v: %s, %d of %d steps done; it goes on: look at `trellis show %s`, or give it more time with --timeout", name, after, st.Phase, st.Done, st.Total, name)
	}
	var parts []string
	for _, m := range st.Missing {
		parts = append(parts, w.misses(m))
	}
	if more := st.MissingNodes - len(st.Missing); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more nodes", more))
	}
	if len(parts) == 0 {
		parts = append(parts, fmt.Sprintf("%d of %d nodes have all routes", st.Converged, st.Routers))
	}
	remedy := "look at `trellis show " + name + "`"
	if len(st.Missing) > 0 {
		remedy = fmt.Sprintf("look at `trellis exec %s/%s -- ip route`", name, st.Missing[0].Node)
	}
	return fmt.Sprintf("VNet %s has not converged after %v: %s; %s", name, after, strings.Join(parts, ", "), remedy)
}

// misses says which prefixes a node has no route to, and whose they are.
func (w *wait) misses(m store.Missing) string {
	owners := make([]string, len(m.Prefixes))
	for i, p := range m.Prefixes {
		owners[i] = p
		if owner := w.owner(p); owner != "" {
			owners[i] += " (" + owner + ")"
		}
	}
	text := m.Node + " misses " + strings.Join(owners, ", ")
	if more := m.Count - len(m.Prefixes); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// owner finds the node with the loopback.
func (w *wait) owner(prefix string) string {
	addr, _, _ := strings.Cut(prefix, "/")
	for _, n := range w.spec.Nodes {
		for _, l := range n.Loopbacks {
			if l.String() == addr {
				return n.Name
			}
		}
	}
	return ""
}
