package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/store"
)

// What a node's root has done to the node's own interfaces (see inside.go for how it
// is found) is reported, and repaired or left.

// bookFaults keeps what was found in nodes of a plan, reports it, and has the worker
// woken when something is to be repaired. settled: unless anything has been done to
// the network meanwhile.
func (w *worker) bookFaults(p *plan.Plan, found map[string][]reconcile.Fault, settled bool) {
	now := time.Now()
	changed := map[string]bool{}
	w.mu.Lock()
	if settled && (w.busy() || w.want != p) {
		w.mu.Unlock()
		return
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		faults, looked := found[n.Name]
		if !looked {
			continue
		}
		if text := faultText(faults); text != faultText(w.harm[n.Name]) {
			changed[n.Name] = true
			if text != "" {
				w.a.log.Warn("a node has changed its own interfaces", "vnet", w.vnet, "node", n.Name, "what", text)
			} else {
				w.a.log.Info("a node's interfaces are as they should be again", "vnet", w.vnet, "node", n.Name)
			}
		}
		if len(faults) == 0 {
			delete(w.harm, n.Name)
		} else {
			w.harm[n.Name] = faults
		}
		if repairable(faults) && !n.NoRepair {
			w.repairs.harmed(n.Name, now)
		} else {
			w.repairs.mended(n.Name)
		}
	}
	_, due := w.repairs.next(now)
	w.mu.Unlock()
	w.reportNodes(changed)
	if due && settled {
		select {
		case w.harmed <- struct{}{}:
		default:
		}
	}
}

// repairable reports whether any of the faults is to be repaired.
func repairable(faults []reconcile.Fault) bool {
	return slices.ContainsFunc(faults, func(f reconcile.Fault) bool { return !f.Down })
}

// faultText puts a node's faults in words.
func faultText(faults []reconcile.Fault) string {
	var text []string
	for _, f := range faults {
		if len(text) == maxFaults {
			text = append(text, fmt.Sprintf("and %d more", len(faults)-maxFaults))
			break
		}
		text = append(text, f.Text)
	}
	return strings.Join(text, "; ")
}

// reportNodes reports what has become of nodes that run.
func (w *worker) reportNodes(names map[string]bool) {
	if len(names) == 0 {
		return
	}
	w.report.update(false, func(s *store.Status) {
		nodes := maps.Clone(s.Nodes) // the old map may be on its way to the store
		for name := range names {
			if n, ok := nodes[name]; ok && (n.State == store.NodeRunning || n.State == store.NodeDegraded) {
				nodes[name] = w.withFault(name, n)
			}
		}
		s.Nodes = nodes
	})
}

// repairDue gives a channel that tells when a node may be repaired; nil: none is to be.
func (w *worker) repairDue() <-chan time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, any := w.repairs.next(time.Now())
	if !any {
		return nil
	}
	return time.After(time.Until(at))
}

// chooseRepairs gives the nodes that the pass repairs. The caller holds mu.
func (w *worker) chooseRepairs() map[string]bool {
	if w.placed != w.want || w.want == nil {
		return nil // all are
	}
	return w.repairs.begin(time.Now(), func(node string) string {
		var faults []reconcile.Fault
		for _, f := range w.harm[node] {
			if !f.Down {
				faults = append(faults, f)
			}
		}
		return faultText(faults)
	})
}

// settle books what a pass that has succeeded has brought back to the plan, and gives
// the nodes of which that is news. The caller holds mu.
func (w *worker) settle(p *pass) map[string]bool {
	news := map[string]bool{}
	for i := range p.looked {
		node := p.looked[i].Name
		delete(w.broken, node)
		if !p.asked || len(w.harm[node]) == 0 {
			continue
		}
		delete(w.harm, node)
		w.repairs.mended(node)
		news[node] = true
	}
	for node := range p.repair {
		w.harm[node] = slices.DeleteFunc(slices.Clone(w.harm[node]), func(f reconcile.Fault) bool { return !f.Down })
		if len(w.harm[node]) == 0 {
			delete(w.harm, node)
		}
		w.repairs.mended(node)
		h := w.repairs.nodes[node]
		w.a.log.Info("a node's interfaces were repaired", "vnet", w.vnet, "node", node, "what", h.why, "repairs", h.count)
		news[node] = true
	}
	known := make(map[string]bool, len(p.want.Nodes))
	for i := range p.want.Nodes {
		known[p.want.Nodes[i].Name] = true
	}
	w.repairs.forget(known)
	maps.DeleteFunc(w.harm, func(node string, _ []reconcile.Fault) bool { return !known[node] })
	maps.DeleteFunc(w.base, func(node string, _ string) bool { return !known[node] })
	return news
}

// repairFailed books that the repairs of a pass have failed. A pass that only repairs
// is no failure of the network: it is tried again when the nodes are due; false: it
// was about more.
func (w *worker) repairFailed(p *pass, err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, errSuperseded) {
		return false
	}
	w.mu.Lock()
	for node := range p.repair {
		w.broken[node] = true
		if h := w.repairs.nodes[node]; h != nil {
			h.failed = shortened(err.Error())
		}
	}
	only := p.confined && len(p.repair) > 0 && w.want == p.want
	if only {
		w.done = p.want // the rest of the network is as it was
	}
	w.mu.Unlock()
	if only {
		w.a.log.Warn("a repair has failed", "vnet", w.vnet, "err", err)
		w.reportNodes(p.repair)
	}
	return only
}

// repairNeedless books that a node is whole that was to be repaired: its root has
// undone what it did.
func (w *worker) repairNeedless(p *pass, node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.broken[node] {
		return // the last repair is yet to be completed
	}
	delete(p.repair, node)
	if h := w.repairs.nodes[node]; h != nil {
		h.count--
	}
}

// forgetBroken books that a node starts anew.
func (w *worker) forgetBroken(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.broken, node)
}

// wasBroken reports whether the last repair of a node has failed in the middle.
func (w *worker) wasBroken(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken[node]
}

// leave has a pass that nobody has asked for leave what nodes have done to their
// own interfaces, but for the nodes that it repairs: those get back what is repaired
// at all. It gives the plan without what is left.
func (r *runner) leave(p *pass) {
	if p.asked {
		return
	}
	found, left := map[string][]reconcile.Fault{}, map[string][]reconcile.Fault{}
	marks := r.marks
	for name, n := range r.nodes {
		is, ok := r.seen.kernel.Nodes[name]
		if !ok || !is.Running || is.Marks.Restarts(marks(n)) != "" {
			found[name] = nil // it starts anew, and is whole then
			r.w.forgetBroken(name)
			continue
		}
		faults := reconcile.Faults(n, is, func(device string) bool { _, ok := r.seen.kernel.Devices[device]; return ok })
		found[name] = faults
		for _, f := range faults {
			switch {
			case !f.Down && p.repair[name]:
				continue
			case f.Down && r.w.wasBroken(name):
				continue // it is the last repair's doing
			case f.Down:
				if r.keepDown[name] == nil {
					r.keepDown[name] = map[string]bool{}
				}
				r.keepDown[name][f.Port] = true
			}
			left[name] = append(left[name], f)
		}
	}
	for name := range p.repair {
		if faults, ok := found[name]; ok && !repairable(faults) {
			r.w.repairNeedless(p, name)
		}
	}
	r.w.bookFaults(r.want, found, false)
	r.want = reconcile.Leave(r.want, &r.seen.kernel, left)
}

// cutPorts tells which interfaces of a VNet nothing passes, and why: by "node:interface".
func (a *Agent) cutPorts(vnet string) map[string]string {
	a.mu.Lock()
	w := a.workers[vnet]
	a.mu.Unlock()
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	cut := map[string]string{}
	for node, faults := range w.harm {
		for _, f := range faults {
			if f.Cut {
				cut[node+":"+f.Port] = f.Text
			}
		}
	}
	return cut
}
