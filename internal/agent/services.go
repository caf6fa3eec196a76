package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
)

const (
	// serviceStableAfter is how long a node's services must run before what was wrong
	// with them is forgotten: init waits as long before it forgets its pauses.
	serviceStableAfter = 10 * time.Second
	// serviceEvery bounds how often services' states are looked at while they change.
	serviceEvery = 200 * time.Millisecond
)

// changedServices are the nodes whose services have changed since they were looked at.
type changedServices struct {
	wake  chan struct{}
	mu    sync.Mutex
	nodes map[container.ID]bool
}

func newChangedServices() *changedServices {
	return &changedServices{wake: make(chan struct{}, 1), nodes: map[container.ID]bool{}}
}

func (c *changedServices) add(id container.ID) {
	c.mu.Lock()
	c.nodes[id] = true
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// take returns them by VNet, and begins anew.
func (c *changedServices) take() map[string][]container.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	byVNet := map[string][]container.ID{}
	for id := range c.nodes {
		byVNet[id.VNet] = append(byVNet[id.VNet], id)
	}
	clear(c.nodes)
	return byVNet
}

// followServices reports what is wrong with nodes' services, as their inits tell.
func (a *Agent) followServices(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.services.wake:
		}
		for vnet, ids := range a.services.take() {
			a.mu.Lock()
			w := a.workers[vnet]
			a.mu.Unlock()
			if w != nil {
				w.reportServices(ids)
			}
		}
		select { // many changes of many nodes are one round
		case <-ctx.Done():
			return
		case <-time.After(serviceEvery):
		}
	}
}

// serviceFault is what is, or was a moment ago, wrong with a node's services.
type serviceFault struct {
	why  string
	seen time.Time
	pid  int // of the node's init then
	// refused says that it is a line of the user's configuration, which the next one
	// may not have.
	refused bool
}

// reportServices looks at nodes' services and reports what has changed.
func (w *worker) reportServices(ids []container.ID) {
	changed := map[string]bool{}
	for _, id := range ids {
		state, _ := w.a.containers.Get(id)
		services, running := w.a.containers.Services(id)
		why, refused := "", false
		if running {
			if why = w.a.faultOf(id, services); why == "" {
				why = w.refusedConfiguration(id)
				refused = why != ""
			}
		}
		w.mu.Lock()
		if running && why == "" && w.reread[id.Node] != state.Pid && w.configured(id.Node) {
			// What its daemons refuse they log when they have started.
			w.reread[id.Node] = state.Pid
			time.AfterFunc(configurationReadAfter, func() { w.a.services.add(id) })
		}
		old, had := w.faults[id.Node]
		switch {
		case why != "":
			w.faults[id.Node] = serviceFault{why, time.Now(), state.Pid, refused}
			changed[id.Node] = old.why != why
			if slices.ContainsFunc(services, killedLately) { // which nothing ends but time
				time.AfterFunc(serviceStableAfter, func() { w.a.services.add(id) })
			}
		case had && !old.refused && old.pid == state.Pid && time.Since(old.seen) < serviceStableAfter:
			time.AfterFunc(serviceStableAfter-time.Since(old.seen), func() { w.a.services.add(id) })
		case had:
			delete(w.faults, id.Node)
			changed[id.Node] = true
		}
		w.mu.Unlock()
	}
	maps.DeleteFunc(changed, func(_ string, c bool) bool { return !c })
	w.reportNodes(changed)
}

// withFault gives a running node's state with what is wrong with its services and its
// interfaces, and how often these were repaired.
func (w *worker) withFault(node string, n store.NodeState) store.NodeState {
	w.mu.Lock()
	defer w.mu.Unlock()
	n.State, n.Message = store.NodeRunning, w.base[node]
	var text []string
	faults := w.harm[node]
	if len(faults) > 0 {
		text = append(text, faultText(faults))
	}
	h := w.repairs.nodes[node]
	if h != nil {
		n.Repairs = h.count
	}
	if repairable(faults) {
		n.State = store.NodeDegraded
		switch {
		case w.unrepaired(node):
			text[0] += " (repair: never)"
		case h != nil && h.failed != "":
			text = append(text, "repairing it has failed: "+h.failed)
		}
	} else if h != nil && h.count > 0 {
		text = append(text, fmt.Sprintf("repaired %s: %s", times(h.count), h.why))
	}
	if why, ok := w.guarded[node]; ok {
		n.State = store.NodeDegraded
		text = append([]string{why}, text...)
	}
	if f, ok := w.faults[node]; ok && (n.Pid == 0 || f.pid == n.Pid) {
		n.State = store.NodeDegraded
		text = append([]string{f.why}, text...)
	}
	if len(text) > 0 {
		n.Message = strings.Join(text, "; ")
	}
	return n
}

// unrepaired reports whether the node's description forbids repairs. The caller holds mu.
func (w *worker) unrepaired(node string) bool {
	return w.want != nil && slices.ContainsFunc(w.want.Nodes, func(n plan.Node) bool { return n.Name == node && n.NoRepair })
}

// configured reports whether the node's user has placed files for its daemons. The
// caller holds mu.
func (w *worker) configured(node string) bool {
	return w.want != nil && slices.ContainsFunc(w.want.Nodes, func(n plan.Node) bool {
		return n.Name == node && len(n.Files) > 0 && len(n.Daemons.Services) > 0
	})
}

// times counts in words.
func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// setBase keeps what is told of a node when nothing is wrong with it.
func (w *worker) setBase(node, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.base[node] = message; message == "" {
		delete(w.base, node)
	}
}

// configurationReadAfter is how long after their start FRR's daemons have read and
// logged what they do not understand of their configuration.
const configurationReadAfter = 2 * time.Second

// refusedConfiguration says which line of the user's own configuration the node's
// daemons have refused; empty: none.
func (w *worker) refusedConfiguration(id container.ID) string {
	w.mu.Lock()
	want := w.want
	w.mu.Unlock()
	if want == nil {
		return ""
	}
	for i := range want.Nodes {
		n := &want.Nodes[i]
		if n.Name != id.Node || len(n.Files) == 0 || len(n.Daemons.Services) == 0 {
			continue
		}
		logs := map[string]string{}
		if err := w.a.containers.Logs(context.Background(), id, container.LogQuery{}, func(service string, text []byte) error {
			logs[service] += string(text)
			return nil
		}); err != nil {
			return "" // the node has ended, which is reported otherwise
		}
		return shortened(n.Daemons.Refused(n.Files, logs))
	}
	return ""
}

// faulty reports whether something is known to be wrong with a node's services.
func (w *worker) faulty(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.faults[node]
	return ok
}

// maxFaults is how many of a node's services a message names.
const maxFaults = 3

// faultOf says what is wrong with a node's services; empty: nothing.
func (a *Agent) faultOf(id container.ID, services []container.ServiceStatus) string {
	var why []string
	for _, s := range services {
		how := serviceFailure(s)
		if how == "" {
			continue
		}
		if len(why) == maxFaults {
			return strings.Join(append(why, "and more"), "; ")
		}
		if line := a.containers.LastLine(id, s.Name); line != "" && s.ForMemory.IsZero() && s.State != container.ServiceStopped {
			how += ": " + shortened(line)
		}
		why = append(why, how)
	}
	return strings.Join(why, "; ")
}

// killedLately reports whether the kernel has killed a service for memory a moment
// ago: init starts it again so soon that nobody else would see it.
func killedLately(s container.ServiceStatus) bool {
	return !s.ForMemory.IsZero() && time.Since(s.ForMemory) < serviceStableAfter
}

// serviceFailure says how a service fails, or has just failed; empty: it does not.
func serviceFailure(s container.ServiceStatus) string {
	end := fmt.Sprintf("ends with status %d", s.Exit)
	switch {
	case !s.ForMemory.IsZero():
		end = "was killed for memory"
	case s.Exit > 128:
		end = fmt.Sprintf("is ended by signal %d", s.Exit-128)
	}
	switch {
	case s.State == container.ServiceStopped:
		return s.Name + " is stopped"
	case s.State == container.ServiceBackoff && s.Restarts == 1:
		return fmt.Sprintf("%s %s (1 restart)", s.Name, end)
	case s.State == container.ServiceBackoff && s.Restarts > 1:
		return fmt.Sprintf("%s %s (%d restarts)", s.Name, end, s.Restarts)
	case s.State == container.ServiceExited && s.Exit != 0:
		return fmt.Sprintf("%s %s and does not start again", s.Name, end)
	case killedLately(s):
		return fmt.Sprintf("%s %s, and runs again", s.Name, end)
	}
	return ""
}

// shortened bounds a line that a stranger has written.
func shortened(line string) string {
	const most = 200
	line = strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, line), "?")
	if r := []rune(line); len(r) > most {
		return string(r[:most]) + "…"
	}
	return line
}
