package reconcile

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"trellis/internal/plan"
	"trellis/internal/vnet"
)

// pairOf is a plan of two nodes with a link, and a kernel that holds it.
func pairOf() (*plan.Plan, Kernel) {
	p := &plan.Plan{VNet: "v", Nodes: []plan.Node{
		{Name: "a", Loopbacks: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}, Ports: []plan.Port{
			{Name: "eth1", Device: "d1", MTU: 1500, MAC: vnet.MAC{2, 0, 0, 0, 0, 1}, Link: "l", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/24")}}}},
		{Name: "b", Ports: []plan.Port{
			{Name: "eth1", Device: "d2", MTU: 1500, MAC: vnet.MAC{2, 0, 0, 0, 0, 2}, Link: "l", Addrs: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/24")}}}},
	}, Joints: []plan.Joint{{Link: "l", A: "d1", B: "d2"}}}
	k := Kernel{Nodes: map[string]Node{}, Devices: map[string]Device{}}
	marks := MarksOf(p)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		is := Node{Running: true, Marks: marks(n), Daemons: n.Daemons.With(n.Files), Loopbacks: n.Loopbacks, Interfaces: map[string]Interface{}}
		for _, port := range n.Ports {
			is.Interfaces[port.Name] = Interface{MAC: port.MAC, MTU: port.MTU, Up: true, Addrs: port.Addrs}
		}
		k.Nodes[n.Name] = is
	}
	k.Devices["d1"] = Device{Owner: "a:eth1", Up: true, MTU: 1500, Attached: true, Peer: "d2", PeerMAC: p.Nodes[1].Ports[0].MAC}
	k.Devices["d2"] = Device{Owner: "b:eth1", Up: true, MTU: 1500, Attached: true, Peer: "d1", PeerMAC: p.Nodes[0].Ports[0].MAC}
	return p, k
}

// What a node's root has done is told, repaired by the comparison with the whole
// plan, and left alone by the one with what Leave gives.
func TestFaults(t *testing.T) {
	set := func(change func(*Interface)) func(Kernel) {
		return func(k Kernel) {
			i := k.Nodes["a"].Interfaces["eth1"]
			change(&i)
			k.Nodes["a"].Interfaces["eth1"] = i
		}
	}
	gone := func(k Kernel) { delete(k.Nodes["a"].Interfaces, "eth1"); delete(k.Devices, "d1") }
	for name, c := range map[string]struct {
		harm   func(Kernel)
		want   string // of the first fault; "": none
		repair string // the first step of a pass that repairs
		down   bool
	}{
		"nothing":                {func(Kernel) {}, "", "", false},
		"deleted":                {gone, "eth1 was removed from inside", "add-port a:eth1", false},
		"replaced":               {func(k Kernel) { gone(k); k.Nodes["a"].Interfaces["eth1"] = Interface{} }, "another made in its place", "add-port a:eth1", false},
		"renamed":                {func(k Kernel) { delete(k.Nodes["a"].Interfaces, "eth1") }, "eth1 was renamed from inside", "remove-port a:eth1", false},
		"down":                   {set(func(i *Interface) { i.Up = false }), "eth1 is down (set from inside)", "address a: eth1 is down inside", true},
		"another MTU":            {set(func(i *Interface) { i.MTU = 9000 }), "eth1 was given the MTU 9000 from inside, in place of 1500", "address a: eth1: MTU 9000 instead of 1500", false},
		"another MAC":            {set(func(i *Interface) { i.MAC = vnet.MAC{2, 9} }), "eth1 was given the MAC address 02:09:00:00:00:00 from inside", "address a: eth1: MAC", false},
		"an address less":        {set(func(i *Interface) { i.Addrs = nil }), "eth1 has lost 10.1.0.1/24 from inside", "address a: eth1: addresses", false},
		"in a bridge of its own": {set(func(i *Interface) { i.Addrs, i.MTU, i.Enslaved = nil, 1400, true }), "", "address a: eth1: MTU", false},
		"its loopback": {func(k Kernel) {
			n := k.Nodes["a"]
			n.Loopbacks = nil
			k.Nodes["a"] = n
		}, "lo has lost 10.0.0.1/32 from inside", "address a: lo: addresses", false},
	} {
		t.Run(name, func(t *testing.T) {
			p, k := pairOf()
			if steps := Diff(p, k, nil); len(steps) > 0 {
				t.Fatalf("what is in place differs from the plan: %v", steps)
			}
			c.harm(k)
			// The other end is told first, whatever the repair.
			steps := slices.DeleteFunc(Diff(p, k, nil), func(s Step) bool { return s.Op == CarrierLoss })
			if c.repair != "" && (len(steps) == 0 || !strings.HasPrefix(steps[0].String(), c.repair)) {
				t.Errorf("repaired by %v, want first %s", steps, c.repair)
			}
			faults := Faults(&p.Nodes[0], k.Nodes["a"], func(d string) bool { _, ok := k.Devices[d]; return ok })
			if c.want == "" {
				if len(faults) > 0 {
					t.Errorf("faults: %v", faults)
				}
				return
			}
			if len(faults) != 1 || !strings.Contains(faults[0].Text, c.want) || faults[0].Down != c.down {
				t.Fatalf("faults: %+v, want %q", faults, c.want)
			}
			if others := Faults(&p.Nodes[1], k.Nodes["b"], func(d string) bool { _, ok := k.Devices[d]; return ok }); len(others) > 0 {
				t.Errorf("its neighbour has %v", others)
			}
			left := Leave(p, &k, map[string][]Fault{"a": faults})
			if steps := Diff(left, k, nil); len(steps) > 0 {
				t.Errorf("what is to be left alone is changed: %v", steps)
			}
			if !slices.EqualFunc(p.Nodes, left.Nodes, func(a, b plan.Node) bool { return a.Name == b.Name }) || len(p.Nodes[0].Ports) != 1 || len(p.Joints) != 1 {
				t.Error("the plan itself was changed")
			}
		})
	}
}
