package vnet

import (
	"reflect"
	"testing"
)

// star gives a hub links to the named nodes, in order.
func star(t *testing.T, ends ...string) *VNet {
	t.Helper()
	v := &VNet{Name: "star", Nodes: []Node{{Name: "hub"}}}
	for _, n := range ends {
		v.Nodes = append(v.Nodes, Node{Name: n})
		v.Links = append(v.Links, Link{Endpoints: []Interface{{Node: "hub"}, {Node: n}}})
	}
	if err := v.Complete(); err != nil {
		t.Fatal(err)
	}
	return v
}

// hubNames gives the hub's interface towards each other node.
func hubNames(v *VNet) map[string]string {
	names := map[string]string{}
	for _, l := range v.Links {
		names[l.Endpoints[1].Node] = l.Endpoints[0].Name
	}
	return names
}

func TestKeepInterfaceNames(t *testing.T) {
	running := star(t, "a", "b", "c")
	next := star(t, "a", "c", "d")
	next.KeepInterfaceNames(running)
	if got, want := hubNames(next), map[string]string{"a": "eth1", "c": "eth3", "d": "eth2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("the hub's interfaces: %v, want %v", got, want)
	}
	if next.Links[1].Endpoints[0].MAC != running.Links[2].Endpoints[0].MAC {
		t.Error("an interface that stays has another MAC address")
	}
	if err := next.Validate(); err != nil {
		t.Error(err)
	}

	// The same again changes nothing more.
	again := star(t, "a", "c", "d")
	again.KeepInterfaceNames(next)
	if !reflect.DeepEqual(again, next) {
		t.Errorf("a second time: %v, want %v", hubNames(again), hubNames(next))
	}

	// What the user names, now or before, is the user's.
	chosen := star(t, "a", "b", "c")
	chosen.Links[2].Endpoints[0].Name, chosen.Links[2].Endpoints[0].Auto = "eth2", false
	chosen.KeepInterfaceNames(running)
	if got, want := hubNames(chosen), map[string]string{"a": "eth1", "b": "eth3", "c": "eth2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("with a name of the user's: %v, want %v", got, want)
	}

	// A MAC address of the user's stays.
	own := star(t, "b", "a")
	own.Links[0].Endpoints[0].MAC = MAC{2, 1, 2, 3, 4, 5}
	own.KeepInterfaceNames(running)
	if e := own.Links[0].Endpoints[0]; e.Name != "eth2" || e.MAC != (MAC{2, 1, 2, 3, 4, 5}) {
		t.Errorf("the interface with an own MAC address is now %+v", e)
	}
}

// The ends that a node has on one LAN keep their names one by one.
func TestKeepNamesOfSeveralEnds(t *testing.T) {
	running := mustComplete(t, describe("a b", "x=a b", "seg=a a b"))
	next := mustComplete(t, describe("a b", "seg=a a b"))
	next.KeepInterfaceNames(running)
	if e := next.Links[0].Endpoints; e[0].Name != "eth2" || e[1].Name != "eth3" || e[2].Name != "eth2" {
		t.Errorf("ends %+v", e)
	}
	more := mustComplete(t, describe("a b", "seg=a a a b"))
	more.KeepInterfaceNames(next)
	if e := more.Links[0].Endpoints; e[0].Name != "eth2" || e[1].Name != "eth3" || e[2].Name != "eth1" {
		t.Errorf("with another one: %+v", e)
	}
}
