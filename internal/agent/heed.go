package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/substrate/netns"
)

// The fast path looks at each packet for what the node's stack would heed
// (bpf/policy.h). What it cannot see is watched from here: while a node has such
// a thing, its packets are left to its stack.

// routeMTU is why a node with such a route is off the fast path.
const routeMTU = "a route of the node's has an MTU of its own"

// rewatch is when a watch that has failed is begun again.
const rewatch = time.Second

// heeding is the watch in one node.
type heeding struct {
	pid  int
	stop func() // ends it and waits for that: its sockets keep the namespace

	mu      sync.Mutex
	devices []string // the node's ports that forward, or may
	why     string   // what keeps the node off the fast path; "": nothing
}

// heed has a node watched, whose ports are given, and returns when it is known
// whether anything keeps it off the fast path.
func (w *worker) heed(ctx context.Context, node string, pid int, devices []string) error {
	w.mu.Lock()
	h := w.heeded[node]
	w.mu.Unlock()
	if h != nil && h.pid == pid {
		h.mu.Lock()
		h.devices = devices
		h.mu.Unlock()
		return nil
	}
	w.ignore(node)
	ns, err := netns.OfPid(pid)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended, known := make(chan struct{}), make(chan struct{})
	h = &heeding{pid: pid, devices: devices, stop: func() { cancel(); <-ended }}
	var once sync.Once
	go func() {
		defer close(ended)
		defer ns.Close()
		defer once.Do(func() { close(known) })
		watchRouteMTU(ctx, ns.WatchRouteMTU, func(why string) {
			first := false
			once.Do(func() { first = true })
			w.verdict(node, h, why, !first)
			if first {
				close(known)
			}
		})
	}()
	w.mu.Lock()
	w.heeded[node] = h
	w.mu.Unlock()
	<-known
	return nil
}

// watchRouteMTU tells verdict what the routes of a node have against the fast path,
// at first and whenever that changes, until ctx ends. A watch that fails is begun
// again; until then, nothing is known of the routes, which is against it too.
func watchRouteMTU(ctx context.Context, watch func(context.Context, func(has bool)) error, verdict func(why string)) {
	for {
		err := watch(ctx, func(has bool) {
			why := ""
			if has {
				why = routeMTU
			}
			verdict(why)
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		verdict("its routes cannot be watched: " + err.Error())
		select {
		case <-ctx.Done():
			return
		case <-time.After(rewatch):
		}
	}
}

// verdict takes a node off the fast path at once, or lets the next pass put it
// back.
func (w *worker) verdict(node string, h *heeding, why string, wake bool) {
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
		w.poke()
	}
}

// ignore ends the watch in nodes.
func (w *worker) ignore(nodes ...string) {
	var stops []func()
	w.mu.Lock()
	for _, n := range nodes {
		if h := w.heeded[n]; h != nil {
			stops = append(stops, h.stop)
			delete(w.heeded, n)
		}
	}
	w.mu.Unlock()
	for _, stop := range stops { // not under the lock: it waits for verdict
		stop()
	}
}

// unfast gives what keeps nodes of the VNet off the fast path, by node.
func (w *worker) unfast() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	why := map[string]string{}
	for n, h := range w.heeded {
		h.mu.Lock()
		if h.why != "" {
			why[n] = h.why
		}
		h.mu.Unlock()
	}
	return why
}

// unfast is [worker.unfast] of a VNet that may have no worker.
func (a *Agent) unfast(vnet string) map[string]string {
	a.mu.Lock()
	w := a.workers[vnet]
	a.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.unfast()
}

// setFast turns forwarding at a port on or off; on only if nothing has come up
// against it since it was decided.
func (r *runner) setFast(s reconcile.Step) error {
	r.w.mu.Lock()
	h := r.w.heeded[s.Node]
	r.w.mu.Unlock()
	if h == nil {
		return r.a.paths.SetFast(r.want.VNet, s.Device, s.On)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.a.paths.SetFast(r.want.VNet, s.Device, s.On && h.why == "")
}

// heedAll watches the nodes whose packets are, or may be, forwarded on their
// behalf, and no others.
func (r *runner) heedAll(ctx context.Context, nodes map[string]*plan.Node) error {
	for name := range r.nodes {
		if nodes[name] == nil {
			r.w.ignore(name)
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
			if err := r.w.heed(ctx, name, pid, devices); err != nil && !gone(err) {
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
