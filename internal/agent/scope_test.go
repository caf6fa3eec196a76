package agent

import (
	"testing"
	"time"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
)

// chain is a plan of three nodes in a row, a, b and c.
func chain(generation int64, scope ...string) *plan.Plan {
	port := func(device, link string) plan.Port { return plan.Port{Device: device, Link: link} }
	return &plan.Plan{
		VNet: "v", Generation: generation, Scope: scope,
		Nodes: []plan.Node{
			{Name: "a", Ports: []plan.Port{port("d1", "l1")}},
			{Name: "b", Ports: []plan.Port{port("d2", "l1"), port("d3", "l2")}},
			{Name: "c", Ports: []plan.Port{port("d4", "l2")}},
		},
		Joints: []plan.Joint{{A: "d1", B: "d2"}, {A: "d3", B: "d4"}},
	}
}

// A pass is confined to the nodes of the links that were changed, and only where
// nothing else can differ.
func TestAPassIsConfinedToWhatChanged(t *testing.T) {
	down := func(p *plan.Plan) *plan.Plan {
		p.Nodes[0].Ports[0].Down, p.Nodes[1].Ports[0].Down = true, true
		return p
	}
	for _, c := range []struct {
		name      string
		done, now *plan.Plan
		disturbed bool
		nodes     int
		nowhere   bool // the scope is empty
	}{
		{"one link", chain(1), down(chain(2, "d1", "d2")), false, 2, false},
		{"a plan that says nothing", chain(1), down(chain(2)), false, 3, false},
		{"the first plan", nil, down(chain(2, "d1", "d2")), false, 3, false},
		{"a generation that was missed", chain(1), down(chain(3, "d1", "d2")), false, 3, false},
		{"the same again", chain(2, "d1", "d2"), chain(2, "d1", "d2"), false, 3, false},
		{"something has happened", chain(1), down(chain(2, "d1", "d2")), true, 3, false},
		{"another node differs", chain(1), func() *plan.Plan {
			p := down(chain(2, "d1", "d2"))
			p.Nodes[2].Ports[0].MTU = 1400
			return p
		}(), false, 3, false},
		{"a LAN differs", chain(1), func() *plan.Plan {
			p := down(chain(2, "d1", "d2"))
			p.LANs = []plan.LAN{{Device: "b"}}
			return p
		}(), false, 3, false},
		{"a link elsewhere", chain(1), chain(2), false, 0, true},
		{"a link elsewhere, and something has happened", chain(1), chain(2), true, 3, true},
		{"a link elsewhere, and another node differs", chain(1), down(chain(2)), false, 3, true},
	} {
		if c.nowhere {
			c.now.Scope = []string{}
		}
		w := newWorker(&Agent{log: silent}, "v")
		w.done, w.disturbed = c.done, c.disturbed
		part := w.confine(&pass{want: c.now})
		if part == nil {
			if c.nodes != 0 {
				t.Errorf("%s: the pass looks at nothing, want %d nodes", c.name, c.nodes)
			}
			continue
		}
		if len(part.Nodes) != c.nodes || len(part.Joints) != 2 {
			t.Errorf("%s: the pass looks at %d nodes, want %d", c.name, len(part.Nodes), c.nodes)
		}
		if w.disturbed {
			t.Errorf("%s: the next pass is taken for disturbed", c.name)
		}
	}
}

// A pass that only repairs looks at the harmed nodes and at those that their links
// lead to; one that has more to do looks at all, and repairs them too.
func TestARepairIsConfined(t *testing.T) {
	for _, c := range []struct {
		name      string
		done      bool
		disturbed bool
		nodes     int
	}{
		{"a repair", true, false, 2},
		{"something has happened", true, true, 3},
		{"after a failure", false, false, 3},
	} {
		w := newWorker(&Agent{log: silent}, "v")
		want := chain(1)
		w.want, w.placed, w.disturbed = want, want, c.disturbed
		if c.done {
			w.done = want
		}
		now := time.Now()
		w.repairs.harmed("a", now.Add(-2*firstRepair))
		w.repairs.harmed("c", now.Add(time.Hour))
		p := w.begin(t.Context())
		if p.asked || len(p.repair) != 1 || !p.repair["a"] {
			t.Errorf("%s: asked %v, repairs %v", c.name, p.asked, p.repair)
		}
		if part := w.confine(p); len(part.Nodes) != c.nodes || p.confined != (c.nodes == 2) || part.Nodes[0].Name != "a" {
			t.Errorf("%s: the pass looks at %d nodes, confined: %v", c.name, len(part.Nodes), p.confined)
		}
		w.end(p)
	}
}

// While nobody has asked for it, a plan that was never in place is brought about
// whole, and nothing that is found meanwhile is a node's doing.
func TestWhatWasNeverInPlaceIsNoHarm(t *testing.T) {
	w := newWorker(&Agent{log: silent}, "v")
	w.want = chain(1)
	w.report.begin(w.want, true) // to nobody
	if w.settled() != nil {
		t.Error("a plan that was never in place counts as in place")
	}
	w.repairs.harmed("a", time.Now().Add(-time.Hour))
	p := w.begin(t.Context())
	if !p.asked || len(p.repair) > 0 {
		t.Errorf("asked %v, repairs %v", p.asked, p.repair)
	}
	w.mu.Lock()
	w.placed, p.looked = p.want, p.want.Nodes
	w.settle(p)
	w.mu.Unlock()
	if w.settled() != nil {
		t.Error("amid a pass the plan counts as in place")
	}
	w.mu.Lock()
	p.over = true
	w.mu.Unlock()
	if w.settled() == nil {
		t.Error("a plan whose routes alone are awaited does not count as in place")
	}
	w.end(p)
	found := map[string][]reconcile.Fault{"a": {{Port: "eth1", Text: "eth1 was removed from inside", Cut: true}}, "b": {{Port: "eth1", Down: true}}}
	w.bookFaults(w.want, found, true)
	if at, any := w.repairs.next(time.Now()); !any || len(w.harm) != 2 || time.Until(at) > firstRepair || len(w.harmed) != 1 {
		t.Errorf("a repair is due: %v at %v; harm %v", any, at, w.harm)
	}
	w.bookFaults(chain(2), map[string][]reconcile.Fault{"a": nil}, true) // of a plan that is wanted no more
	if len(w.harm) != 2 {
		t.Error("what was found of an old plan was booked")
	}
	w.bookFaults(w.want, map[string][]reconcile.Fault{"a": nil, "b": nil}, true)
	if _, any := w.repairs.next(time.Now()); any || len(w.harm) != 0 {
		t.Error("nodes that are whole again are to be repaired")
	}
}
