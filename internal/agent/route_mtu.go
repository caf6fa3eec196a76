package agent

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/substrate/netns"
)

// The fast path looks at each packet for what the node's stack would respect
// (bpf/policy.h). What it cannot see is watched from here: while a node has such
// a thing, its packets are left to its stack.

// routeMTU is why a node with such a route is off the fast path.
const routeMTU = "a route of the node's has an MTU of its own"

// routeWatch is the watch in one node.
type routeWatch struct {
	pid   int
	watch *netns.MTUWatch // to be closed: its socket keeps the namespace

	mu      sync.Mutex
	devices []string // the node's ports that forward, or may
	why     string   // what keeps the node off the fast path; "": nothing
}

// watchRoutes has a node watched, whose ports are given, and returns when it is known
// whether anything keeps it off the fast path.
func (w *worker) watchRoutes(node string, pid int, devices []string) error {
	w.mu.Lock()
	h := w.routeWatches[node]
	w.mu.Unlock()
	if h != nil && h.pid == pid {
		h.mu.Lock()
		h.devices = devices
		h.mu.Unlock()
		return nil
	}
	w.unwatchRoutes(node)
	ns, err := netns.OfPid(pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	h = &routeWatch{pid: pid, devices: devices}
	first := true
	if h.watch, err = w.a.routeEvents.WatchMTU(ns, func(has bool, err error) {
		why := ""
		switch {
		case err != nil: // nothing is known of the routes, which is against it too
			why = "its routes cannot be watched: " + err.Error()
		case has:
			why = routeMTU
		}
		w.setBlocker(node, h, why, !first)
		first = false
	}); err != nil {
		return err
	}
	w.mu.Lock()
	w.routeWatches[node] = h
	w.mu.Unlock()
	return nil
}

// setBlocker takes a node off the fast path at once, or lets the next pass put it
// back.
func (w *worker) setBlocker(node string, h *routeWatch, why string, wake bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.why == why {
		return
	}
	h.why = why
	if why != "" {
		w.a.log.Info("a node leaves the fast path", "vnet", w.vnet, "node", node, "why", why)
		for _, d := range h.devices {
			if err := w.a.paths.SetFast(w.vnet, d, false); err != nil && !errors.Is(err, os.ErrNotExist) {
				w.a.log.Error("a node could not be taken off the fast path", "vnet", w.vnet, "node", node, "err", err)
			}
		}
	}
	if wake {
		w.notify()
	}
}

// unwatchRoutes ends the watch in nodes.
func (w *worker) unwatchRoutes(nodes ...string) {
	var watches []*netns.MTUWatch
	w.mu.Lock()
	for _, n := range nodes {
		if h := w.routeWatches[n]; h != nil {
			watches = append(watches, h.watch)
			delete(w.routeWatches, n)
		}
	}
	w.mu.Unlock()
	for _, watch := range watches { // not under the lock: it waits for setBlocker
		watch.Close()
	}
}

// fastPathBlockers gives what keeps nodes of the VNet off the fast path, by node.
func (w *worker) fastPathBlockers() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	why := map[string]string{}
	for n, h := range w.routeWatches {
		h.mu.Lock()
		if h.why != "" {
			why[n] = h.why
		}
		h.mu.Unlock()
	}
	return why
}

// fastPathBlockers is [worker.fastPathBlockers] of a VNet that may have no worker.
func (a *Agent) fastPathBlockers(vnet string) map[string]string {
	a.mu.Lock()
	w := a.workers[vnet]
	a.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.fastPathBlockers()
}

// setFast turns forwarding at a port on or off; on only if nothing has come up
// against it since it was decided.
func (r *runner) setFast(s reconcile.Step) error {
	r.w.mu.Lock()
	h := r.w.routeWatches[s.Node]
	r.w.mu.Unlock()
	if h == nil {
		return r.a.paths.SetFast(r.want.VNet, s.Device, s.On)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.a.paths.SetFast(r.want.VNet, s.Device, s.On && h.why == "")
}

// watchForwarding watches the nodes whose packets are, or may be, forwarded on their
// behalf, and no others.
func (r *runner) watchForwarding(nodes map[string]*plan.Node) error {
	for name := range r.nodes {
		if nodes[name] == nil {
			r.w.unwatchRoutes(name)
		}
	}
	var g errgroup.Group
	g.SetLimit(parallel())
	for name, n := range nodes {
		pid := r.pid(name)
		if pid == 0 {
			continue // it waits
		}
		devices := make([]string, len(n.Ports))
		for i, p := range n.Ports {
			devices[i] = p.Device
		}
		g.Go(func() error {
			if err := r.w.watchRoutes(name, pid, devices); err != nil && !gone(err) {
				return fmt.Errorf("node %s: %w", name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// pid gives the process of a node that runs, or is held; 0: it does neither.
func (r *runner) pid(node string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h := r.held[node]; h != nil {
		return h.Pid()
	}
	if s := r.seen.states[node]; s.Running {
		return s.Pid
	}
	return 0
}

// forwarding gives the nodes of the plan that are to be on the fast path.
func (r *runner) forwarding() map[string]*plan.Node {
	nodes := map[string]*plan.Node{}
	if len(r.want.Tunnels) == 0 || r.a.paths.FastPathSupported() != nil {
		return nodes
	}
	for name, n := range r.nodes {
		if !n.NoFastPath && len(n.Ports) > 0 {
			nodes[name] = n
		}
	}
	return nodes
}
