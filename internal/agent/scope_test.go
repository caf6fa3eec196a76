package agent

import (
	"testing"

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
