package vnet

import (
	"strings"
	"testing"
	"time"
)

func TestWhatAMachineLacksIsNamedAndLeftOut(t *testing.T) {
	v := &VNet{Name: "x", Routing: Routing{Protocol: OSPF},
		Nodes: []Node{{Name: "a"}, {Name: "b", Routing: Routing{Daemon: BIRD}}, {Name: "c", Image: "docker.io/library/alpine:3"}},
		Links: []Link{
			{Endpoints: []Interface{{Node: "a", Tx: Shape{Rate: 1e6, Delay: time.Millisecond}}, {Node: "b", Tx: Shape{Loss: 0.1}}}},
			{Endpoints: []Interface{{Node: "b", Tx: Shape{Rate: 1e6}}, {Node: "c"}}},
		}}
	if err := v.Complete(); err != nil {
		t.Fatal(err)
	}
	all := Machine{Netem: true, Programs: map[string]bool{"zebra": true, "ospfd": true, "ospf6d": true, "bird": true}}
	if errs := v.Unsupported(all); len(errs) > 0 {
		t.Errorf("a machine that has all lacks %v", errs)
	}
	errs := v.Unsupported(Machine{Programs: map[string]bool{"zebra": true, "ospfd": true}})
	want := []string{
		`nodes[0].routing: node "a" needs ospf6d, which this machine does not have`,
		`nodes[1].routing: node "b" needs bird, which this machine does not have`,
		`links[0].endpoints[0].delay: link "a-b" asks for delay, loss, which needs netem, and the kernel of this machine has none`,
	}
	if len(errs) != len(want) {
		t.Fatalf("got %v", errs)
	}
	for i, e := range errs {
		if got := e.Path + ": " + e.What; got != want[i] || e.Remedy == "" {
			t.Errorf("got  %s; %s\nwant %s", got, e.Remedy, want[i])
		}
	}
	if out := v.LeaveOut(all); len(out) > 0 {
		t.Errorf("a machine that has all leaves out %v", out)
	}
	if out := v.LeaveOut(Machine{}); strings.Join(out, "; ") != "delay, loss of link a-b (the kernel has no netem)" {
		t.Errorf("left out: %v", out)
	}
	for _, l := range v.Links {
		for _, e := range l.Endpoints {
			if e.Tx.NeedsNetem() {
				t.Errorf("%s:%s still has %+v", e.Node, e.Name, e.Tx)
			}
		}
	}
	if v.Links[0].Endpoints[0].Tx.Rate != 1e6 || v.Validate() != nil {
		t.Errorf("more than what is lacking is gone: %+v, %v", v.Links[0], v.Validate())
	}
}
