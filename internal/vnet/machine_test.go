package vnet

import (
	"fmt"
	"io/fs"
	"strings"
	"syscall"
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

// TestSysctlsAreTried: once for each set of them, and each mistake has its place.
func TestSysctlsAreTried(t *testing.T) {
	v := &VNet{Name: "x", Nodes: []Node{
		{Name: "a", Sysctls: map[string]string{"net.ipv4.good": "1", "net.ipv4.typo": "1", "net.mpls.conf.eth1.input": "1"}},
		{Name: "b", Sysctls: map[string]string{"net.ipv4.good": "x"}},
		{Name: "c", Sysctls: map[string]string{"net.ipv4.good": "x"}},
		{Name: "d"},
	}}
	calls := 0
	errs := v.Unsupported(Machine{Sysctls: func(set map[string]string) map[string]error {
		calls++
		if len(set) == 1 {
			return map[string]error{"net.ipv4.good": fmt.Errorf("write: %w", syscall.EINVAL)}
		}
		return map[string]error{"net.ipv4.typo": fs.ErrNotExist, "net.mpls.conf.eth1.input": fs.ErrNotExist}
	}, Netem: true, Programs: map[string]bool{}})
	var got []string
	for _, e := range errs {
		got = append(got, e.Path+": "+e.What+"; "+e.Remedy)
	}
	want := []string{
		`nodes[0].sysctls.net.ipv4.typo: node "a": this machine has no sysctl net.ipv4.typo for a network of a node's; check how it is written (sysctl -a in a node lists all), or load the kernel module that brings it`,
		`nodes[0].sysctls.net.mpls.conf.eth1.input: node "a": sysctl net.mpls.conf.eth1.input needs MPLS, which this machine's kernel has not loaded; load it: modprobe mpls_router`,
		`nodes[1].sysctls.net.ipv4.good: node "b": the kernel does not take "x" for sysctl net.ipv4.good; give a value that it takes`,
		`nodes[2].sysctls.net.ipv4.good: node "c": the kernel does not take "x" for sysctl net.ipv4.good; give a value that it takes`,
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if calls != 2 {
		t.Errorf("tried %d times", calls)
	}
}
