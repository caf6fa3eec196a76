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
	"trellis/internal/store"
)

// replyMargin is how long before the client's deadline a wait ends, so that the
// sentence that says what is missing gets there in time: this, or a tenth of the
// time there is.
const replyMargin = 500 * time.Millisecond

// leaveTimeToReply bounds a wait by the client's deadline, less the time to say so.
func leaveTimeToReply(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(replyMargin, time.Until(deadline)/10)))
}

// livenessInterval is how often a wait looks which substrate nodes are alive.
const livenessInterval = time.Second

// wait follows the agents' reports on a generation of a VNet.
type wait struct {
	s     *Service
	rec   *store.VNetRecord
	began time.Time
	// hosts are the substrate nodes that are waited for, sorted.
	hosts []string
	// until is PhaseCreated or PhaseConverged.
	until store.Phase
	// progress gets every report; nil: nobody does. An error ends the wait.
	progress func(*trellisv1.Progress) error

	hostReports map[string]*hostReport // by substrate node
	offline     map[string]store.HostState
	full        error // of the store, which takes no reports then; nil: there is room
}

// hostReport is what one agent has reported on the generation.
type hostReport struct {
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
	// The nodes whose routes were looked at, and those of them that have all; the
	// message says what the others miss, and what is wrong with nodes otherwise.
	checked, complete int
	message           string
}

// givenUp is the error of a substrate node whose agent has.
type givenUp struct {
	error
	inPlace bool // all of the generation was in place before
}

func (g givenUp) Unwrap() error { return g.error }

// run returns when the phase is reached on all substrate nodes. It is a givenUp
// when one of them will not reach it.
func (w *wait) run(ctx context.Context) (outcome, error) {
	waiting, cancel := leaveTimeToReply(ctx)
	defer cancel()
	w.hostReports = make(map[string]*hostReport, len(w.hosts))
	for _, host := range w.hosts {
		w.hostReports[host] = &hostReport{totals: map[store.Phase]int{}}
	}
	w.offline = w.s.offline(waiting, w.hosts, nil)
	tick := time.NewTicker(livenessInterval)
	defer tick.Stop()
	reports := w.s.store.WatchStatus(waiting, w.rec.Name())
	synced := false
	for {
		var e store.StatusEvent
		ok := true
		select {
		case e, ok = <-reports:
		case <-tick.C:
			w.offline = w.s.offline(waiting, w.hosts, w.offline)
			w.full = w.s.full(waiting)
			if err := w.report(); err != nil {
				return outcome{}, err
			}
			continue
		}
		switch {
		case !ok:
			return outcome{}, w.timeout(ctx)
		case e.Synced:
			synced = true
			continue
		case w.hostReports[e.Host] == nil:
			continue
		case e.Err != nil:
			return outcome{}, e.Err
		case e.Status == nil:
			if synced {
				return outcome{}, w.removed()
			}
			continue
		case e.Status.Generation < w.rec.Generation:
			continue
		}
		w.record(e.Host, e.Status)
		if err := w.check(e.Host, e.Status); err != nil {
			return outcome{}, err
		}
		if w.done() {
			return w.outcome(), nil
		}
		if err := w.report(); err != nil {
			return outcome{}, err
		}
	}
}

// timeout says why the watch has ended.
func (w *wait) timeout(ctx context.Context) error {
	if err := w.s.store.Err(); err != nil {
		return err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	text := w.timeoutText()
	if full := w.s.full(ctx); full != nil {
		text += "; it goes on once agents can report: " + full.Error()
	}
	if paths := w.degradedPaths(); paths != "" {
		text += "; " + paths
	} else {
		text += w.failedServices(ctx)
	}
	if nodes := w.degradedNodes(); nodes != "" {
		text += "; " + nodes
	}
	return connect.NewError(connect.CodeDeadlineExceeded, errors.New(text))
}

// record keeps a report.
func (w *wait) record(host string, st *store.Status) {
	p := w.hostReports[host]
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

// check looks for the reports that end a wait.
func (w *wait) check(host string, st *store.Status) error {
	switch {
	case st.Phase == store.PhaseFailed && st.Generation > w.rec.Generation:
		return connect.NewError(connect.CodeAborted, fmt.Errorf("VNet %s was changed by a later request, which has failed%s: %s",
			w.rec.Name(), w.s.on(w.rec, host), st.Error))
	case st.Phase == store.PhaseFailed:
		tries := ""
		if st.Attempt > 1 {
			tries = fmt.Sprintf(" (given up after %d attempts)", st.Attempt)
		}
		return givenUp{
			error: connect.NewError(connect.CodeFailedPrecondition,
				fmt.Errorf("VNet %s%s: %s%s", w.rec.Name(), w.s.on(w.rec, host), st.Error, tries)),
			inPlace: w.allInPlace(),
		}
	case st.Phase == store.PhaseRemoved, st.Phase == store.PhaseRemoving && st.Generation > w.rec.Generation && w.beingRemoved():
		return w.removed()
	}
	return nil
}

// allInPlace reports whether the VNet as a whole has been in place: a part on one
// machine is nothing yet.
func (w *wait) allInPlace() bool {
	for _, r := range w.hostReports {
		if r.created.IsZero() && (r.status == nil || r.status.CreatedAt.IsZero()) {
			return false
		}
	}
	return true
}

// beingRemoved reports whether the VNet as such is, and not only something of it.
func (w *wait) beingRemoved() bool {
	ctx, cancel := context.WithTimeout(context.Background(), livenessInterval)
	defer cancel()
	rec, err := w.s.store.VNet(ctx, w.rec.Name())
	return errors.Is(err, store.ErrNotFound) || err == nil && rec.State == store.Removing
}

// on names a substrate node where it is news: " on beta".
func (s *Service) on(rec *store.VNetRecord, host string) string { return s.onOf(rec.Hosts, host) }

// onOf is on of a VNet that the substrate nodes hold.
func (s *Service) onOf(hosts []string, host string) string {
	if host == s.host && len(hosts) < 2 {
		return ""
	}
	return " on " + host
}

func (w *wait) done() bool {
	for _, p := range w.hostReports {
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
	for _, p := range w.hostReports {
		latest(&out.created, p.created)
		latest(&out.converged, p.converged)
		out.changes += p.status.Changes
		out.checked += p.status.Routers
		out.complete += p.status.Converged
	}
	if out.complete < out.checked {
		out.message = w.missingRoutes()
	}
	if nodes := w.degradedNodes(); nodes != "" {
		out.message = strings.TrimPrefix(out.message+"; "+nodes, "; ")
	}
	return out
}

func (w *wait) removed() error {
	return connect.NewError(connect.CodeAborted,
		fmt.Errorf("VNet %s is being removed by another request; bring it up again when that is done", w.rec.Name()))
}

// report sends the progress, if there is any.
func (w *wait) report() error {
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
	offline := w.offlineText()
	if !any && len(offline) == 0 {
		return nil
	}
	p := &trellisv1.Progress{Phase: string(phase)}
	if phase == store.PhaseCreated {
		p.Phase = "converging"
	}
	for _, host := range w.hosts {
		reported := w.hostReports[host]
		st := reported.status
		switch {
		case st == nil:
		case phase == store.PhaseCreated:
			p.Done += int32(st.Converged)
			p.Total += int32(st.Routers)
			if len(st.Missing) > 0 && p.Detail == "" {
				p.Detail = w.missingText(st.Missing[0])
			}
		case st.Phase == phase:
			p.Done += int32(st.Done)
			p.Total += int32(st.Total)
		default: // further on
			p.Done += int32(reported.totals[phase])
			p.Total += int32(reported.totals[phase])
		}
	}
	if nodes := w.degradedNodes(); nodes != "" && phase == store.PhaseCreated {
		p.Detail = nodes // which is the likeliest reason for what is missing
	}
	if paths := w.degradedPaths(); paths != "" && phase == store.PhaseCreated {
		p.Detail = paths
	}
	if text := w.pending(); text != "" {
		p.Detail = text
	}
	if len(offline) > 0 {
		p.Detail = strings.Join(offline, "; ")
	}
	if w.full != nil {
		p.Detail = w.full.Error()
	}
	return p
}

// pending says what the agents wait for, or try again and why.
func (w *wait) pending() string {
	var out []string
	for _, host := range w.hosts {
		st := w.hostReports[host].status
		switch {
		case st == nil:
		case st.Attempt > 0:
			out = append(out, fmt.Sprintf("retrying%s: %s (attempt %d)", w.s.on(w.rec, host), st.Error, st.Attempt+1))
		case st.Doing != "":
			out = append(out, st.Doing)
		}
	}
	return strings.Join(out, "; ")
}

// degradedPaths says which paths between the substrate nodes are, which is why
// routes are missing then.
func (w *wait) degradedPaths() string {
	statuses := make(map[string]*store.Status, len(w.hostReports))
	for host, p := range w.hostReports {
		statuses[host] = p.status
	}
	return degradedPaths(w.hosts, statuses)
}

// phase is the one that the last substrate node is in, of those that have
// reported; any tells whether one has.
func (w *wait) phase() (phase store.Phase, any bool) {
	order := []store.Phase{store.PhaseRemoving, store.PhaseCreating, store.PhaseCreated, store.PhaseConverged}
	least, silent := len(order)-1, false
	for _, p := range w.hostReports {
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

// offlineText says what waits for substrate nodes that have vanished.
func (w *wait) offlineText() []string {
	var out []string
	for _, host := range w.hosts {
		if h, ok := w.offline[host]; ok && !reached(w.hostReports[host].status, w.until) {
			out = append(out, fmt.Sprintf("%s; its %s", h.Silence(), nodesWait(w.s.nodesOn(w.rec, host))))
		}
	}
	return out
}

// timeoutText says what is missing when the time is over.
func (w *wait) timeoutText() string {
	after := time.Since(w.began).Round(100 * time.Millisecond)
	name := w.rec.Name()
	show := fmt.Sprintf("look at `trellis show %s`", name)
	if offline := w.offlineText(); len(offline) > 0 {
		return fmt.Sprintf("VNet %s is not in place after %v: %s; it goes on when trellis serve runs there again: %s",
			name, after, strings.Join(offline, ", "), show)
	}
	var silent, busy []string
	missing, _, converged, routers := w.missing()
	for _, host := range w.hosts {
		switch st := w.hostReports[host].status; {
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
		if text := w.pending(); text != "" {
			busy = append(busy, text)
		}
		return fmt.Sprintf("VNet %s is not in place after %v: %s; it goes on: %s, or give it more time with --timeout", name, after, strings.Join(busy, ", "), show)
	}
	text := w.missingRoutes()
	if text == "" {
		text = fmt.Sprintf("%d of %d nodes have all routes", converged, routers)
	}
	remedy := show
	if len(missing) > 0 {
		remedy = fmt.Sprintf("look at `trellis exec %s/%s -- ip route`", name, missing[0].Node)
	}
	return fmt.Sprintf("VNet %s has not converged after %v: %s; %s", name, after, text, remedy)
}

// missingRoutes says which nodes miss which routes.
func (w *wait) missingRoutes() string {
	missing, more, _, _ := w.missing()
	var out []string
	for _, m := range missing {
		out = append(out, w.missingText(m))
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more nodes", more))
	}
	return strings.Join(out, ", ")
}

// missing gives the nodes without all routes, as many as one status may name, and
// counts the others; and how many of how many nodes have all.
func (w *wait) missing() (named []store.Missing, more, converged, routers int) {
	all := 0
	for _, host := range w.hosts {
		if st := w.hostReports[host].status; st != nil {
			named = append(named, st.Missing...)
			all += st.MissingNodes
			converged += st.Converged
			routers += st.Routers
		}
	}
	named = named[:min(len(named), store.MaxMissing)]
	return named, all - len(named), converged, routers
}

// maxDegraded bounds the nodes whose messages a sentence has.
const maxDegraded = 3

// degradedNodes gives what the agents say is wrong with nodes.
func (w *wait) degradedNodes() string {
	var out []string
	for _, r := range w.hostReports {
		if r.status == nil {
			continue
		}
		for name, n := range r.status.Nodes {
			if (n.State == store.NodeDegraded || n.State == store.NodeFailed) && n.Message != "" {
				out = append(out, name+": "+n.Message)
			}
		}
	}
	slices.Sort(out)
	if more := len(out) - maxDegraded; more > 0 {
		out = append(out[:maxDegraded], fmt.Sprintf("and %d more nodes", more))
	}
	return strings.Join(out, "; ")
}

// failedServices names the services that do not run in the nodes that miss routes:
// the likeliest reason.
func (w *wait) failedServices(ctx context.Context) string {
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
	ctx, cancel := context.WithTimeout(ctx, replyMargin/2)
	defer cancel()
	var mu sync.Mutex
	stats := map[string]agentapi.NodeStats{}
	w.s.each(ctx, slices.Collect(maps.Keys(hosts)), func(_ string, sub agentapi.Agent) error {
		nodes, err := sub.NodeStats(ctx, w.rec.Name())
		mu.Lock()
		defer mu.Unlock()
		maps.Copy(stats, nodes)
		return err
	})
	var text strings.Builder
	for _, m := range missing {
		for _, service := range stats[m.Node].Services {
			switch {
			case service.State == "running" && service.Restarts == 0, service.State == "exited" && service.Exit == 0:
				continue
			case service.State == "stopped":
				fmt.Fprintf(&text, "; %s in %s is stopped: `trellis start %s/%s %s`", service.Name, m.Node, w.rec.Name(), m.Node, service.Name)
				continue
			}
			fmt.Fprintf(&text, "; %s in %s is %s after %d restarts: see /run/trellis/%s.log there",
				service.Name, m.Node, service.State, service.Restarts, service.Name)
		}
	}
	return text.String()
}

// missingText says which prefixes a node has no route to, and whose they are.
func (w *wait) missingText(m store.Missing) string {
	if len(m.Prefixes) == 0 {
		return m.Node + "'s daemons are not ready"
	}
	owners := make([]string, len(m.Prefixes))
	for i, p := range m.Prefixes {
		owners[i] = p
		if owner := w.owner(p); owner != "" {
			owners[i] += " (" + owner + ")"
		}
	}
	text := m.Node + " has no route to " + strings.Join(owners, ", ")
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
