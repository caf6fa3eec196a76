package vnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var byValue = []cmp.Option{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// describe makes a description of nodes and of links, written "a b" or "name=a b c";
// three and more ends make a LAN.
func describe(nodes string, links ...string) *VNet {
	v := &VNet{Name: "test"}
	for _, n := range strings.Fields(nodes) {
		v.Nodes = append(v.Nodes, Node{Name: n})
	}
	for _, text := range links {
		var l Link
		if name, rest, ok := strings.Cut(text, "="); ok {
			l.Name, text = name, rest
		}
		for _, end := range strings.Fields(text) {
			node, iface, _ := strings.Cut(end, ":")
			l.Endpoints = append(l.Endpoints, Interface{Node: node, Name: iface})
		}
		if len(l.Endpoints) > 2 {
			l.Type = LAN
		}
		v.Links = append(v.Links, l)
	}
	return v
}

func mustComplete(t *testing.T, v *VNet) *VNet {
	t.Helper()
	if err := v.Complete(); err != nil {
		t.Fatal(err)
	}
	if err := v.Validate(); err != nil {
		t.Fatal(err)
	}
	return v
}

// grid is a network of n rows and columns with a LAN across its first row.
func grid(n int) *VNet {
	v := &VNet{Name: "grid", Routing: Routing{Protocol: OSPF}}
	at := func(r, c int) string { return fmt.Sprintf("r%d-%d", r, c) }
	lan := Link{Type: LAN}
	for r := range n {
		for c := range n {
			v.Nodes = append(v.Nodes, Node{Name: at(r, c)})
			if r > 0 {
				v.Links = append(v.Links, Link{Endpoints: []Interface{{Node: at(r-1, c)}, {Node: at(r, c)}}})
			} else {
				lan.Endpoints = append(lan.Endpoints, Interface{Node: at(r, c)})
			}
			if c > 0 {
				v.Links = append(v.Links, Link{Endpoints: []Interface{{Node: at(r, c-1)}, {Node: at(r, c)}}})
			}
		}
	}
	v.Links = append(v.Links, lan)
	return v
}

func TestCompleteIsDeterministicAndIdempotent(t *testing.T) {
	a, b := mustComplete(t, grid(12)), mustComplete(t, grid(12))
	if diff := cmp.Diff(a, b, byValue...); diff != "" {
		t.Errorf("twice the same description:\n%s", diff)
	}
	mustComplete(t, b)
	if diff := cmp.Diff(a, b, byValue...); diff != "" {
		t.Errorf("completed twice:\n%s", diff)
	}
}

// These values are promises: a running network keeps its addresses over an
// upgrade only if they never change.
func TestDrawnValuesStayWhatTheyAre(t *testing.T) {
	v := mustComplete(t, describe("a b c", "a b", "hub=a b c"))
	got := fmt.Sprintf("%v %s %d", v.Nodes[0].Loopbacks, v.Nodes[0].RouterID, v.Nodes[0].ASN)
	for _, l := range v.Links {
		for _, e := range l.Endpoints {
			got += fmt.Sprintf("\n%s %s:%s %s %v", l.Name, e.Node, e.Name, e.MAC, e.Addrs)
		}
	}
	if want := promised; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// facts gives what hangs on each object, interface names aside.
func facts(v *VNet) map[string]string {
	out := map[string]string{}
	for _, n := range v.Nodes {
		out["node "+n.Name] = fmt.Sprint(n.Loopbacks, n.RouterID, n.ASN)
	}
	for _, l := range v.Links {
		for _, e := range l.Endpoints {
			out["end "+l.Name+" "+e.Node] = fmt.Sprint(e.Addrs)
		}
	}
	return out
}

// Adding or removing anything, anywhere, leaves the addresses of the rest alone.
func TestChangesLeaveTheRestAlone(t *testing.T) {
	before := facts(mustComplete(t, grid(8)))
	changes := map[string]func(v *VNet){
		"a node first": func(v *VNet) { v.Nodes = slices.Insert(v.Nodes, 0, Node{Name: "new"}) },
		"a link first": func(v *VNet) {
			v.Links = slices.Insert(v.Links, 0, Link{Endpoints: []Interface{{Node: "r0-0"}, {Node: "r7-7"}}})
		},
		"a link less": func(v *VNet) { v.Links = slices.Delete(v.Links, 3, 4) },
		"a node less": func(v *VNet) {
			gone := v.Nodes[20].Name
			v.Nodes = slices.Delete(v.Nodes, 20, 21)
			v.Links = slices.DeleteFunc(v.Links, func(l Link) bool {
				return slices.ContainsFunc(l.Endpoints, func(e Interface) bool { return e.Node == gone })
			})
		},
		"the LAN grows": func(v *VNet) {
			v.Nodes = append(v.Nodes, Node{Name: "new"})
			last := &v.Links[len(v.Links)-1]
			last.Endpoints = append(last.Endpoints, Interface{Node: "new"})
		},
		"everything reversed": func(v *VNet) { slices.Reverse(v.Nodes); slices.Reverse(v.Links) },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			v := grid(8)
			change(v)
			for object, fact := range facts(mustComplete(t, v)) {
				if was, existed := before[object]; existed && was != fact {
					t.Errorf("%s had %s and has %s", object, was, fact)
				}
			}
		})
	}
}

func TestNames(t *testing.T) {
	v := mustComplete(t, describe("a b c a-b", "a b", "a b:eth1", "b a", "a:eth2 c", "x=a c", "a-b c", "a b", "a b c", "a b c"))
	var got []string
	for _, l := range v.Links {
		text := l.Name
		for _, e := range l.Endpoints {
			text += " " + e.Node + ":" + e.Name
		}
		got = append(got, text)
	}
	want := []string{
		"a-b a:eth1 b:eth2", "a-b-2 a:eth3 b:eth1", "b-a b:eth3 a:eth4", "a-c a:eth2 c:eth1", "x a:eth5 c:eth2", "a-b-c a-b:eth1 c:eth3",
		"a-b-3 a:eth6 b:eth4", "lan-a a:eth7 b:eth5 c:eth4", "lan-a-2 a:eth8 b:eth6 c:eth5",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAnMTUThatNobodyGaveIsMarked(t *testing.T) {
	v := describe("a b", "a b")
	v.Links[0].Endpoints[1].MTU = DefaultMTU
	mustComplete(t, v)
	for i, auto := range []bool{true, false} {
		if e := v.Links[0].Endpoints[i]; e.MTU != DefaultMTU || e.AutoMTU != auto {
			t.Errorf("%s has the MTU %d, automatic %v; want %d, %v", e.Node, e.MTU, e.AutoMTU, DefaultMTU, auto)
		}
	}
}

func TestRoutingIsInherited(t *testing.T) {
	for _, c := range []struct{ network, node, want Routing }{
		{Routing{}, Routing{}, Routing{Protocol: None}},
		{Routing{Protocol: OSPF}, Routing{}, Routing{Protocol: OSPF, Daemon: FRR, Timers: TimersFast}},
		{Routing{Protocol: OSPF, Daemon: BIRD, Timers: TimersFast}, Routing{}, Routing{Protocol: OSPF, Daemon: BIRD, Timers: TimersFast}},
		{Routing{Protocol: OSPF, Daemon: BIRD, Timers: TimersFast}, Routing{Protocol: RIP}, Routing{Protocol: RIP, Daemon: BIRD, Timers: TimersFast}},
		{Routing{Protocol: OSPF, Daemon: BIRD, Timers: TimersFast}, Routing{Daemon: FRR}, Routing{Protocol: OSPF, Daemon: FRR, Timers: TimersFast}},
		{Routing{Protocol: OSPF, Daemon: BIRD, Timers: TimersFast}, Routing{Protocol: ISIS}, Routing{Protocol: ISIS, Daemon: FRR, Timers: TimersFast}},
		{Routing{Protocol: OSPF, Daemon: BIRD, Timers: TimersFast}, Routing{Protocol: Static}, Routing{Protocol: Static}},
		{Routing{Protocol: OSPF, Daemon: BIRD, Timers: TimersFast}, Routing{Protocol: None}, Routing{Protocol: None}},
		{Routing{}, Routing{Protocol: BGP}, Routing{Protocol: BGP, IGP: None, Daemon: FRR, Timers: TimersFast}},
		{Routing{Protocol: Static}, Routing{Protocol: BGP, Timers: TimersFast}, Routing{Protocol: BGP, IGP: None, Daemon: FRR, Timers: TimersFast}},
	} {
		v := describe("a")
		v.Routing, v.Nodes[0].Routing = c.network, c.node
		if got := mustComplete(t, v).Nodes[0].Routing; got != c.want {
			t.Errorf("network %v, node %v: got %v, want %v", c.network, c.node, got, c.want)
		}
	}
}

func TestAddressesComeFromTheirPools(t *testing.T) {
	for _, pools := range []Addressing{
		{},
		{IPv4: netip.MustParsePrefix("192.168.0.0/22")},
		{IPv6: netip.MustParsePrefix("2001:db8::/32")},
		{IPv4: netip.MustParsePrefix("10.1.0.0/16"), IPv6: netip.MustParsePrefix("fd00::/104")},
	} {
		v := grid(8)
		v.Addressing = pools
		mustComplete(t, v)
		if pools == (Addressing{}) {
			pools = Addressing{IPv4: DefaultIPv4, IPv6: DefaultIPv6}
		}
		families := 0
		for _, p := range []netip.Prefix{pools.IPv4, pools.IPv6} {
			if p.IsValid() {
				families++
			}
		}
		for _, n := range v.Nodes {
			if len(n.Loopbacks) != families {
				t.Fatalf("%v: node %s has %v", pools, n.Name, n.Loopbacks)
			}
			for _, a := range n.Loopbacks {
				if !pools.IPv4.Contains(a) && !pools.IPv6.Contains(a) {
					t.Errorf("%v: loopback %s", pools, a)
				}
			}
			if pools.IPv4.IsValid() && n.RouterID != n.Loopbacks[0] {
				t.Errorf("%v: router ID %s, loopbacks %v", pools, n.RouterID, n.Loopbacks)
			}
		}
		for _, l := range v.Links {
			for _, e := range l.Endpoints {
				if len(e.Addrs) != families {
					t.Fatalf("%v: %s:%s has %v", pools, e.Node, e.Name, e.Addrs)
				}
				for _, p := range e.Addrs {
					if !pools.IPv4.Contains(p.Addr()) && !pools.IPv6.Contains(p.Addr()) {
						t.Errorf("%v: address %s", pools, p)
					}
					if l.Type == PointToPoint && p.Bits() != p.Addr().BitLen()-1 {
						t.Errorf("point-to-point address %s", p)
					}
				}
			}
		}
	}
}

func TestNamedAddressesAreRespected(t *testing.T) {
	v := describe("a b c d", "a b", "c d", "a b c d")
	v.Links[0].Endpoints[0].Addrs = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/30"), netip.MustParsePrefix("fe80::1/64")}
	v.Links[2].Endpoints[3].Addrs = []netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")}
	// What the description takes from the pool by name is not drawn again.
	free := describe("a b c d", "a b", "c d")
	mustComplete(t, free)
	v.Nodes[3].Loopbacks = []netip.Addr{free.Nodes[2].Loopbacks[0]}
	mustComplete(t, v)
	if got := v.Links[0].Endpoints[1].Addrs; len(got) != 2 || got[0] != netip.MustParsePrefix("192.0.2.2/30") || got[1].Masked() != netip.MustParsePrefix("fe80::/64") {
		t.Errorf("the other end got %v", got)
	}
	for _, e := range v.Links[2].Endpoints {
		if len(e.Addrs) != 1 || e.Addrs[0].Masked() != netip.MustParsePrefix("2001:db8::/64") {
			t.Errorf("%s got %v", e.Node, e.Addrs)
		}
	}
	if v.Nodes[2].Loopbacks[0] == v.Nodes[3].Loopbacks[0] {
		t.Error("a named loopback was drawn again")
	}
}

func TestFullPoolsAreNamed(t *testing.T) {
	v := describe("a b c", "a b")
	v.Addressing.IPv4 = netip.MustParsePrefix("10.0.0.0/29") // room for three loopbacks and one link
	mustComplete(t, v)
	v = describe("a b c d", "a b")
	v.Addressing.IPv4 = netip.MustParsePrefix("10.0.0.0/29")
	var errs Errors
	if err := v.Complete(); !errors.As(err, &errs) || errs[0].Path != "nodes[3]" || !strings.Contains(err.Error(), "10.0.0.0/29") {
		t.Errorf("got %v", err)
	}
	// A pool that the description itself has filled is refused soon, however large.
	v = grid(30)
	v.Links[0].Endpoints[0].Addrs = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}
	if err := v.Complete(); err == nil {
		t.Error("a full pool gave addresses")
	}
}

// A small pool is used to the last address.
func TestPoolsFillUp(t *testing.T) {
	v := &VNet{Name: "full", Addressing: Addressing{IPv4: netip.MustParsePrefix("10.0.0.0/24")}}
	for i := range 127 {
		v.Nodes = append(v.Nodes, Node{Name: fmt.Sprintf("n%d", i)})
	}
	for i := range 32 {
		v.Links = append(v.Links, Link{Endpoints: []Interface{{Node: fmt.Sprintf("n%d", i)}, {Node: fmt.Sprintf("n%d", i+1)}}})
	}
	mustComplete(t, v)
}

func TestTheLargestNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a few seconds; not with -short")
	}
	v := &VNet{Name: "large"}
	for i := range MaxNodes {
		v.Nodes = append(v.Nodes, Node{Name: fmt.Sprintf("n%d", i)})
	}
	for i := range MaxLinks {
		v.Links = append(v.Links, Link{Endpoints: []Interface{{Node: fmt.Sprintf("n%d", i%MaxNodes)}, {Node: fmt.Sprintf("n%d", (i*7+1+i/MaxNodes)%MaxNodes)}}})
	}
	v.Links = slices.DeleteFunc(v.Links, func(l Link) bool { return l.Endpoints[0].Node == l.Endpoints[1].Node })
	mustComplete(t, v)
	v.Nodes = append(v.Nodes, Node{Name: "one-more"})
	if err := v.Complete(); err == nil || !strings.Contains(err.Error(), "10001 nodes") {
		t.Errorf("got %v", err)
	}
}

func TestComponents(t *testing.T) {
	v := describe("a b c d e f g", "a c", "b d", "c e", "d f b")
	v.Links[0].Down = true
	if diff := cmp.Diff([][]string{{"a", "c", "e"}, {"b", "d", "f"}, {"g"}}, v.Components()); diff != "" {
		t.Error(diff)
	}
	adj := v.Adjacency()
	if diff := cmp.Diff([]Neighbor{{Node: "d", Link: 1, Local: 0, Remote: 1}, {Node: "d", Link: 3, Local: 2, Remote: 0}, {Node: "f", Link: 3, Local: 2, Remote: 1}}, adj["b"]); diff != "" {
		t.Error(diff)
	}
	if v.Node("c") != &v.Nodes[2] || v.Node("x") != nil || v.Link("none") != nil {
		t.Error("look-ups by name")
	}
}

// A node on a LAN by two interfaces has two of everything, and is no neighbour of itself.
func TestSeveralEndsOfANode(t *testing.T) {
	v := mustComplete(t, describe("a b", "seg=a a b"))
	ends := v.Links[0].Endpoints
	if ends[0].Name != "eth1" || ends[1].Name != "eth2" || ends[0].MAC == ends[1].MAC {
		t.Errorf("ends %+v", ends)
	}
	for i := range ends {
		if len(ends[i].Addrs) != 2 || ends[i].Addrs[0].Masked() != ends[2].Addrs[0].Masked() || i > 0 && ends[i].Addrs[0] == ends[0].Addrs[0] {
			t.Errorf("%s:%s has the addresses %v", ends[i].Node, ends[i].Name, ends[i].Addrs)
		}
	}
	// What is alone there keeps its address when another end of its node comes.
	alone := mustComplete(t, describe("a b", "seg=a b b")).Links[0].Endpoints
	if !slices.Equal(alone[0].Addrs, ends[0].Addrs) || !slices.Equal(alone[1].Addrs, ends[2].Addrs) {
		t.Errorf("addresses %v and %v have become %v and %v", ends[0].Addrs, ends[2].Addrs, alone[0].Addrs, alone[1].Addrs)
	}
	if diff := cmp.Diff([]Neighbor{{Node: "b", Local: 0, Remote: 2}, {Node: "b", Local: 1, Remote: 2}}, v.Adjacency()["a"]); diff != "" {
		t.Error(diff)
	}
	wire := describe("a", "a a")
	if err := errors.Join(wire.Complete(), wire.Validate()); err == nil || !strings.Contains(err.Error(), "type: lan") {
		t.Errorf("a point-to-point link from a node to itself: %v", err)
	}
}

const promised = `[10.110.241.132 fd00::3e99:bc71] 10.110.241.132 4203410062
a-b a:eth1 52:ee:1d:20:7f:a3 [10.160.60.52/31 fd00::8000:0:1:7014:abec/127]
a-b b:eth1 6a:86:3a:e8:95:49 [10.160.60.53/31 fd00::8000:0:1:7014:abed/127]
hub a:eth2 06:76:f7:63:0c:0e [10.209.188.34/24 fd00::d1bc:0:0:4f96:a726/64]
hub b:eth2 26:72:a9:a2:48:22 [10.209.188.103/24 fd00::d1bc:0:0:ad7c:cce9/64]
hub c:eth1 5a:3d:51:42:31:a4 [10.209.188.220/24 fd00::d1bc:0:0:9377:57e6/64]`
