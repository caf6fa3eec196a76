package agent

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
)

// A pass looks at a whole network, its nodes' insides included, and costs
// accordingly. A change of one link need not: where the plan names the ports that
// it differs by (plan.Plan.Scope) from the one that is in place, and nothing has
// happened since, the pass is confined to the nodes of those ports; where these are
// elsewhere, there is nothing to look at.

// confine gives the part of the plan that the pass has to look at: all of it; or
// the nodes that its scope concerns, with everything in the root context; or nil,
// where it differs in nothing from what is in place.
func (w *worker) confine(p *pass) *plan.Plan {
	w.mu.Lock()
	done, disturbed := w.done, w.disturbed
	w.disturbed = false
	w.mu.Unlock()
	want := p.want
	if len(p.repair) > 0 && !disturbed && done == want && len(w.held) == 0 {
		p.confined = true
		return partOf(want, withPeers(want, p.repair))
	}
	if want.Scope == nil || disturbed || done == nil || done.Generation != want.Generation-1 || len(w.held) > 0 {
		return want
	}
	in := nodesOf(want)
	switch {
	case !sameBut(done, want, in):
		return want
	case len(in) == 0:
		return nil
	}
	return partOf(want, in)
}

// partOf gives the plan with some of its nodes alone.
func partOf(want *plan.Plan, in map[string]bool) *plan.Plan {
	part := *want
	part.Nodes = slices.DeleteFunc(slices.Clone(want.Nodes), func(n plan.Node) bool { return !in[n.Name] })
	return &part
}

// withPeers adds to nodes those at the other ends of their shortbridges.
func withPeers(p *plan.Plan, nodes map[string]bool) map[string]bool {
	owner := map[string]string{}
	for i := range p.Nodes {
		for _, port := range p.Nodes[i].Ports {
			owner[port.Device] = p.Nodes[i].Name
		}
	}
	in := maps.Clone(nodes)
	for _, j := range p.Joints {
		if a, b := owner[j.A], owner[j.B]; nodes[a] || nodes[b] {
			in[a], in[b] = true, true
		}
	}
	return in
}

// nodesOf gives the nodes of the ports in a plan's scope.
func nodesOf(p *plan.Plan) map[string]bool {
	in := map[string]bool{}
	for i := range p.Nodes {
		for _, port := range p.Nodes[i].Ports {
			if slices.Contains(p.Scope, port.Device) {
				in[p.Nodes[i].Name] = true
			}
		}
	}
	return in
}

// sameBut reports whether two plans differ by some nodes at most, and neither has
// a node that the other has not.
func sameBut(old, now *plan.Plan, nodes map[string]bool) bool {
	a, b := *old, *now
	if len(a.Nodes) != len(b.Nodes) {
		return false
	}
	for i := range a.Nodes {
		if a.Nodes[i].Name != b.Nodes[i].Name || !nodes[a.Nodes[i].Name] && !reflect.DeepEqual(&a.Nodes[i], &b.Nodes[i]) {
			return false
		}
	}
	a.Nodes, b.Nodes, a.Scope, b.Scope, a.Generation, b.Generation = nil, nil, nil, nil, 0, 0
	return reflect.DeepEqual(&a, &b)
}

// confine forgets what was observed of nodes that are not in the part of the plan.
func (o *observed) confine(part *plan.Plan) {
	in := map[string]bool{}
	for i := range part.Nodes {
		in[part.Nodes[i].Name] = true
	}
	maps.DeleteFunc(o.kernel.Devices, func(device string, _ reconcile.Device) bool {
		return !strings.HasPrefix(o.owner[device], "@") && !in[o.owner[device]]
	})
	for node := range o.states {
		if !in[node] {
			delete(o.states, node)
		}
	}
}
