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
	"trellis/internal/store"
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

// lookAround is how often a wait looks which substrate nodes are alive.
const lookAround = time.Second

// wait follows the agents' reports on a generation of a VNet.
type wait struct {
	s     *Service
	rec   *store.VNetRecord
	began time.Time
	// hosts are the substrate nodes that are waited for, sorted.
	hosts []string
	// until is PhaseCreated or PhaseConverged.
	until store.Phase
	// progress is told every report; nil: nobody. An error ends the wait.
	progress func(*trellisv1.Progress) error

	parts  map[string]*part // by substrate node
	absent map[string]store.HostState
}

// part is what one substrate node has reported on the generation.
type part struct {
	status *store.Status
	totals map[store.Phase]int // steps of the phases it has been in
	// When the phases were reached, by the clock of this machine: another's may
	// differ.
	created, converged time.Time
}

// outcome is what a wait has waited for.
type outcome struct {
	created, converged time.Time
	changes            int
}

// failure is the error of a substrate node that has given up.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// run returns when the phase is reached on all substrate nodes. It is a failure
// when one of them has given up.
func (w *wait) run(ctx context.Context) (outcome, error) {
	waiting, cancel := patience(ctx)
	defer cancel()
	w.parts = make(map[string]*part, len(w.hosts))
	for _, host := range w.hosts {
		w.parts[host] = &part{totals: map[store.Phase]int{}}
	}
	w.absent = w.s.absent(waiting, w.hosts, nil)
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	reports := w.s.store.WatchStatus(waiting, w.rec.Name())
	synced := false
	for {
		var e store.StatusEvent
		ok := true
		select {
		case e, ok = <-reports:
		case <-tick.C:
			w.absent = w.s.absent(waiting, w.hosts, w.absent)
			if err := w.tell(); err != nil {
				return outcome{}, err
			}
			continue
		}
		switch {
		case !ok:
			return outcome{}, w.over(ctx)
		case e.Synced:
			synced = true
			continue
		case w.parts[e.Host] == nil:
			continue
		case e.Err != nil:
			return outcome{}, e.Err
		case e.Status == nil:
			if synced {
				return outcome{}, w.overtaken()
			}
			continue
		case e.Status.Generation < w.rec.Generation:
			continue
		}
		w.take(e.Host, e.Status)
		if err := w.judge(e.Host, e.Status); err != nil {
			return outcome{}, err
		}
		if w.done() {
			return w.outcome(), nil
		}
		if err := w.tell(); err != nil {
			return outcome{}, err
		}
	}
}

// over says why the watch has ended.
func (w *wait) over(ctx context.Context) error {
	if err := w.s.store.Err(); err != nil {
		return err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	text := w.late()
	if ways := w.ways(); ways != "" {
		text += "; " + ways
	} else {
		text += w.troubled(ctx)
	}
	return connect.NewError(connect.CodeDeadlineExceeded, errors.New(text))
}

// take notes a report.
func (w *wait) take(host string, st *store.Status) {
	p := w.parts[host]
	p.status = st
	p.totals[st.Phase] = max(p.totals[st.Phase], st.Total)
	now := time.Now()
	created, converged := now, now
	if host == w.s.host { // whose agent knows better
		created, converged = st.CreatedAt, st.ConvergedAt
	}
	if reached(st, store.PhaseCreated) && (p.created.IsZero() || host == w.s.host) {
		p.created = created
	}
	if reached(st, store.PhaseConverged) && (p.converged.IsZero() || host == w.s.host) {
		p.converged = converged
	}
}

// reached reports whether an agent is at least as far as a phase, PhaseCreated or
// PhaseConverged.
func reached(st *store.Status, phase store.Phase) bool {
	return st != nil && (st.Phase == phase || st.Phase == store.PhaseConverged)
}

// judge looks for the reports that end a wait.
func (w *wait) judge(host string, st *store.Status) error {
	switch st.Phase {
	case store.PhaseFailed:
		return failure{connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("VNet %s%s: %s", w.rec.Name(), w.s.on(w.rec, host), st.Error))}
	case store.PhaseRemoved:
		return w.overtaken()
	}
	return nil
}

// on names a substrate node where it is news: " on beta".
func (s *Service) on(rec *store.VNetRecord, host string) string {
	if host == s.host && len(rec.Hosts) < 2 {
		return ""
	}
	return " on " + host
}

func (w *wait) done() bool {
	for _, p := range w.parts {
		if !reached(p.status, w.until) {
			return false
		}
	}
	return true
}

func (w *wait) outcome() outcome {
	var out outcome
	latest := func(at *time.Time, t time.Time) {
		if t.After(*at) {
			*at = t
		}
	}
	for _, p := range w.parts {
		latest(&out.created, p.created)
		latest(&out.converged, p.converged)
		out.changes += p.status.Changes
	}
	return out
}

func (w *wait) overtaken() error {
	return connect.NewError(connect.CodeAborted,
		fmt.Errorf("VNet %s is being removed by another request; bring it up again when that is done", w.rec.Name()))
}

// tell tells the progress, if there is any.
func (w *wait) tell() error {
	if w.progress == nil {
		return nil
	}
	if p := w.describe(); p != nil {
		return w.progress(p)
	}
	return nil
}

// describe sums the reports up in the API's words; nil before the first.
func (w *wait) describe() *trellisv1.Progress {
	phase, any := w.phase()
	absent := w.waiting()
	if !any && len(absent) == 0 {
		return nil
	}
	p := &trellisv1.Progress{Phase: string(phase)}
	if phase == store.PhaseCreated {
		p.Phase = "converging"
	}
	for _, host := range w.hosts {
		part := w.parts[host]
		st := part.status
		switch {
		case st == nil:
		case phase == store.PhaseCreated:
			p.Done += int32(st.Converged)
			p.Total += int32(st.Routers)
			if len(st.Missing) > 0 && p.Detail == "" {
				p.Detail = w.misses(st.Missing[0])
			}
		case st.Phase == phase:
			p.Done += int32(st.Done)
			p.Total += int32(st.Total)
		default: // further on
			p.Done += int32(part.totals[phase])
			p.Total += int32(part.totals[phase])
		}
	}
	if ways := w.ways(); ways != "" && phase == store.PhaseCreated {
		p.Detail = ways
	}
	if len(absent) > 0 {
		p.Detail = strings.Join(absent, "; ")
	}
	return p
}

// ways says which ways between the substrate nodes are in trouble, which is why
// routes are missing then.
func (w *wait) ways() string {
	statuses := make(map[string]*store.Status, len(w.parts))
	for host, p := range w.parts {
		statuses[host] = p.status
	}
	return troubles(w.hosts, statuses)
}

// phase is the one that the last substrate node is in, of those that have
// reported; any tells whether one has.
func (w *wait) phase() (phase store.Phase, any bool) {
	order := []store.Phase{store.PhaseRemoving, store.PhaseCreating, store.PhaseCreated, store.PhaseConverged}
	least, silent := len(order)-1, false
	for _, p := range w.parts {
		if p.status == nil {
			silent = true
			continue
		}
		any = true
		least = min(least, max(0, slices.Index(order, p.status.Phase)))
	}
	if silent { // nothing is in place before all have begun
		least = min(least, slices.Index(order, store.PhaseCreating))
	}
	return order[min(least, slices.Index(order, store.PhaseCreated))], any
}

// waiting says what waits for substrate nodes that have vanished.
func (w *wait) waiting() []string {
	var out []string
	for _, host := range w.hosts {
		if h, ok := w.absent[host]; ok && !reached(w.parts[host].status, w.until) {
			out = append(out, fmt.Sprintf("%s; its %s", h.Silence(), nodesWait(w.s.nodesOn(w.rec, host))))
		}
	}
	return out
}

// late says what is missing when the time is over.
func (w *wait) late() string {
	after := time.Since(w.began).Round(100 * time.Millisecond)
	name := w.rec.Name()
	show := fmt.Sprintf("look at `trellis show %s`", name)
	if absent := w.waiting(); len(absent) > 0 {
		return fmt.Sprintf("VNet %s is not in place after %v: %s; it goes on when trellis serve runs there again: %s",
			name, after, strings.Join(absent, ", "), show)
	}
	var silent, busy []string
	missing, more, converged, routers := w.missing()
	for _, host := range w.hosts {
		switch st := w.parts[host].status; {
		case st == nil:
			silent = append(silent, host)
		case !reached(st, store.PhaseCreated):
			busy = append(busy, fmt.Sprintf("%s%s, %d of %d steps done", st.Phase, w.s.on(w.rec, host), st.Done, st.Total))
		}
	}
	switch {
	case len(silent) > 0:
		agent := "the agent"
		if len(w.hosts) > 1 || silent[0] != w.s.host {
			agent = "the agent of " + strings.Join(silent, ", of ")
		}
		return fmt.Sprintf("VNet %s is admitted, but %s has not begun after %v; it goes on: %s and at the log of trellis serve there", name, agent, after, show)
	case len(busy) > 0:
		return fmt.Sprintf("VNet %s is not in place after %v: %s; it goes on: %s, or give it more time with --timeout", name, after, strings.Join(busy, ", "), show)
	}
	var parts []string
	for _, m := range missing {
		parts = append(parts, w.misses(m))
	}
	if more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more nodes", more))
	}
	if len(parts) == 0 {
		parts = append(parts, fmt.Sprintf("%d of %d nodes have all routes", converged, routers))
	}
	remedy := show
	if len(missing) > 0 {
		remedy = fmt.Sprintf("look at `trellis exec %s/%s -- ip route`", name, missing[0].Node)
	}
	return fmt.Sprintf("VNet %s has not converged after %v: %s; %s", name, after, strings.Join(parts, ", "), remedy)
}

// missing gives the nodes without all routes, as many as one status may name, and
// counts the others; and how many of how many nodes have all.
func (w *wait) missing() (named []store.Missing, more, converged, routers int) {
	all := 0
	for _, host := range w.hosts {
		if st := w.parts[host].status; st != nil {
			named = append(named, st.Missing...)
			all += st.MissingNodes
			converged += st.Converged
			routers += st.Routers
		}
	}
	named = named[:min(len(named), store.MaxMissing)]
	return named, all - len(named), converged, routers
}

// troubled tells which services do not run in the nodes that miss routes: the
// likeliest reason.
func (w *wait) troubled(ctx context.Context) string {
	missing, _, _, _ := w.missing()
	if len(missing) == 0 {
		return ""
	}
	hosts := map[string]bool{}
	for _, m := range missing {
		hosts[w.s.hostOf(w.rec, m.Node)] = true
	}
	// Who does not answer in time is left out: the routes that are missing are the
	// news.
	ctx, cancel := context.WithTimeout(ctx, early/2)
	defer cancel()
	var mu sync.Mutex
	stats := map[string]NodeStats{}
	w.s.each(ctx, slices.Collect(maps.Keys(hosts)), func(_ string, sub Substrate) error {
		nodes, err := sub.NodeStats(ctx, w.rec.Name())
		mu.Lock()
		defer mu.Unlock()
		maps.Copy(stats, nodes)
		return err
	})
	var text strings.Builder
	for _, m := range missing {
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
	for _, n := range w.rec.Spec.Nodes {
		for _, l := range n.Loopbacks {
			if l.String() == addr {
				return n.Name
			}
		}
	}
	return ""
}
