package store

import (
	"errors"
	"fmt"
	"testing"

	"trellis/internal/plan"
	"trellis/internal/vnet"
)

// large is a ring of 754 nodes with 145 chords, the size of the Zoo's Kdl,
// compiled for a protocol.
func large(b *testing.B, protocol vnet.Protocol) (*VNetRecord, *plan.Plan) {
	b.Helper()
	v := &vnet.VNet{Name: "large", Routing: vnet.Routing{Protocol: protocol}}
	const nodes, links = 754, 899
	for i := range nodes {
		v.Nodes = append(v.Nodes, vnet.Node{Name: fmt.Sprintf("n%d", i)})
	}
	for i := range links {
		from, to := i%nodes, (i+1)%nodes
		if i >= nodes {
			from, to = (i-nodes)*5, ((i-nodes)*5+371)%nodes
		}
		v.Links = append(v.Links, vnet.Link{Type: vnet.PointToPoint, Endpoints: []vnet.Interface{
			{Node: v.Nodes[from].Name}, {Node: v.Nodes[to].Name},
		}})
	}
	if err := errors.Join(v.Complete(), v.Validate()); err != nil {
		b.Fatal(err)
	}
	plans, err := plan.Compile(v, plan.Allocation{
		IDBase: 65536, Generation: 1, Placement: plan.AllOn(v, "h"), Hosts: map[string]plan.Host{"h": {Instance: "trellis"}},
	})
	if err != nil {
		b.Fatal(err)
	}
	return &VNetRecord{Spec: v, State: Present, Generation: 1, IDBase: 65536}, plans["h"]
}

func BenchmarkPutLarge(b *testing.B) {
	for _, protocol := range []vnet.Protocol{vnet.Static, vnet.OSPF} {
		b.Run(string(protocol), func(b *testing.B) {
			rec, p := large(b, protocol)
			s := open(b, b.TempDir())
			value, err := encode(p)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := s.Put(b.Context(), rec, map[string]*plan.Plan{"h": p}); err != nil {
					b.Fatal(err)
				}
				rec.Generation++
			}
			b.ReportMetric(float64(len(value))/1024, "KiB/plan")
		})
	}
}

func BenchmarkReadLargePlan(b *testing.B) {
	for _, protocol := range []vnet.Protocol{vnet.Static, vnet.OSPF} {
		b.Run(string(protocol), func(b *testing.B) {
			rec, p := large(b, protocol)
			s := open(b, b.TempDir())
			if err := s.Put(b.Context(), rec, map[string]*plan.Plan{"h": p}); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := s.Plan(b.Context(), "h", "large"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// grid is a network of the largest size, side by side nodes, compiled for a
// protocol.
func grid(b *testing.B, side int, protocol vnet.Protocol) (*VNetRecord, *plan.Plan) {
	b.Helper()
	v := &vnet.VNet{Name: "grid", Routing: vnet.Routing{Protocol: protocol}}
	name := func(x, y int) string { return fmt.Sprintf("n%d-%d", x, y) }
	for x := range side {
		for y := range side {
			v.Nodes = append(v.Nodes, vnet.Node{Name: name(x, y)})
			for _, to := range [][2]int{{x + 1, y}, {x, y + 1}} {
				if to[0] < side && to[1] < side {
					v.Links = append(v.Links, vnet.Link{Type: vnet.PointToPoint, Endpoints: []vnet.Interface{
						{Node: name(x, y)}, {Node: name(to[0], to[1])},
					}})
				}
			}
		}
	}
	if err := errors.Join(v.Complete(), v.Validate()); err != nil {
		b.Fatal(err)
	}
	plans, err := plan.Compile(v, plan.Allocation{
		IDBase: 65536, Generation: 1, Placement: plan.AllOn(v, "h"), Hosts: map[string]plan.Host{"h": {Instance: "trellis"}},
	})
	if err != nil {
		b.Fatal(err)
	}
	return &VNetRecord{Spec: v, State: Present, Generation: 1, IDBase: 65536, Placement: plan.AllOn(v, "h")}, plans["h"]
}

// BenchmarkLargest stores and reads the plan of a hundred by a hundred nodes.
func BenchmarkLargest(b *testing.B) {
	for _, protocol := range []vnet.Protocol{vnet.None, vnet.OSPF} {
		rec, p := grid(b, 100, protocol)
		s := open(b, b.TempDir())
		value, err := encode(p)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(string(protocol)+"/save", func(b *testing.B) {
			for b.Loop() {
				if err := s.Put(b.Context(), rec, map[string]*plan.Plan{"h": p}); err != nil {
					b.Fatal(err)
				}
				rec.Generation++
			}
			b.ReportMetric(float64(len(value))/1024, "KiB/plan")
		})
		b.Run(string(protocol)+"/load", func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Plan(b.Context(), "h", "grid"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
