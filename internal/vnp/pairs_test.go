package vnp

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"trellis/internal/agentapi"
	"trellis/internal/vnet"
)

func dual(n int) *vnet.VNet {
	v := &vnet.VNet{Name: "x"}
	for i := range n {
		v.Nodes = append(v.Nodes, vnet.Node{
			Name: fmt.Sprintf("n%d", i), Kind: vnet.Router, Routing: vnet.Routing{Protocol: vnet.Static},
			Loopbacks: []netip.Addr{
				netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
				netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}),
			},
		})
	}
	return v
}

func allPairs(v *vnet.VNet) []agentapi.PingPair { return newAddressBook(v, nil).allPairs() }

func samplePairs(v *vnet.VNet, n int, seed int64) []agentapi.PingPair {
	return newAddressBook(v, nil).samplePairs(n, seed)
}

const v4, v6 = agentapi.IPv4, agentapi.IPv6

func pair(from, to int, family string) agentapi.PingPair {
	return agentapi.PingPair{From: from, To: to, Family: family}
}

func TestAllPairsAreOrderedAndPerSharedFamily(t *testing.T) {
	v := dual(3)
	v.Nodes[2].Loopbacks = v.Nodes[2].Loopbacks[1:] // IPv6 only
	want := []agentapi.PingPair{
		pair(0, 1, v4), pair(0, 1, v6), pair(0, 2, v6),
		pair(1, 0, v4), pair(1, 0, v6), pair(1, 2, v6),
		pair(2, 0, v6), pair(2, 1, v6),
	}
	if got := allPairs(v); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestAllPairsOfNothing(t *testing.T) {
	for n := range 2 {
		if got := allPairs(dual(n)); len(got) != 0 {
			t.Errorf("%d nodes have pairs %v", n, got)
		}
	}
}

// Nodes that nobody announces routes to talk to their neighbours at the addresses
// on the link that both are on.
func TestNeighboursMeetOnTheirLink(t *testing.T) {
	v := &vnet.VNet{Name: "x"}
	for i := range 3 {
		v.Nodes = append(v.Nodes, vnet.Node{
			Name: fmt.Sprintf("n%d", i), Kind: vnet.Router, Routing: vnet.Routing{Protocol: vnet.None},
			Loopbacks: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})},
		})
	}
	end := func(node, addr string) vnet.Interface {
		return vnet.Interface{Node: node, Addrs: []netip.Prefix{netip.MustParsePrefix(addr)}}
	}
	v.Links = []vnet.Link{
		{Name: "a", Endpoints: []vnet.Interface{end("n0", "10.1.0.1/30"), end("n1", "10.1.0.2/30")}},
		{Name: "b", Endpoints: []vnet.Interface{end("n1", "10.1.0.5/30"), end("n2", "10.1.0.6/30")}},
	}
	b := newAddressBook(v, nil)
	var got []string
	for _, p := range b.allPairs() {
		got = append(got, fmt.Sprintf("%s %v > %s %v", b.nodes[p.From].Name, b.nodes[p.From].Addrs, b.nodes[p.To].Name, b.nodes[p.To].Addrs))
	}
	want := []string{
		"n0 [10.1.0.1] > n1 [10.1.0.2]",
		"n0 [10.1.0.1] > n2 [10.1.0.6]",
		"n1 [10.1.0.2] > n0 [10.1.0.1]",
		"n1 [10.1.0.5] > n2 [10.1.0.6]",
		"n2 [10.1.0.6] > n0 [10.1.0.1]",
		"n2 [10.1.0.6] > n1 [10.1.0.5]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestFoundAddressesComeFirst(t *testing.T) {
	v := dual(2)
	own := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}
	b := newAddressBook(v, map[string][]netip.Addr{"n1": own})
	if got := b.nodes[1].Addrs; !slices.Equal(got, []netip.Addr{own[0], own[2]}) {
		t.Errorf("n1 is reached at %v", got)
	}
}

func TestSampleHasDifferentPairsAndRepeats(t *testing.T) {
	nodes := dual(40)
	got := samplePairs(nodes, 100, 7)
	if len(got) != 200 {
		t.Fatalf("100 node pairs in two families gave %d pairs", len(got))
	}
	seen := make(map[agentapi.PingPair]bool)
	for _, p := range got {
		if p.From == p.To || seen[p] {
			t.Errorf("bad or repeated pair %v", p)
		}
		seen[p] = true
	}
	if !slices.Equal(got, samplePairs(nodes, 100, 7)) {
		t.Error("the same seed gave other pairs")
	}
	if slices.Equal(got, samplePairs(nodes, 100, 8)) {
		t.Error("another seed gave the same pairs")
	}
}

func TestSampleDrawsEvenly(t *testing.T) {
	nodes := dual(5)
	count := make(map[agentapi.PingPair]int)
	const rounds = 4000
	for seed := range int64(rounds) {
		for _, p := range samplePairs(nodes, 5, seed) {
			count[p]++
		}
	}
	// Each of the 20 ordered pairs is drawn with probability 1/4.
	for _, p := range allPairs(nodes) {
		if c := count[p]; c < rounds/4*85/100 || c > rounds/4*115/100 {
			t.Errorf("pair %v was drawn %d times in %d rounds, about %d expected", p, c, rounds, rounds/4)
		}
	}
}

func TestSampleOfEverythingIsAllPairs(t *testing.T) {
	nodes := dual(4)
	for _, n := range []int{12, 13, 1 << 40} {
		if !slices.Equal(samplePairs(nodes, n, 1), allPairs(nodes)) {
			t.Errorf("a sample of %d differs from all 12 pairs", n)
		}
	}
	for _, n := range []int{0, -1} {
		if got := samplePairs(nodes, n, 1); len(got) != 0 {
			t.Errorf("a sample of %d has %v", n, got)
		}
	}
}

// A sample of a large network costs what the sample does, and not what the
// network's hundred million pairs do.
func TestSampleOfManyNodesIsQuick(t *testing.T) {
	v := dual(10_000)
	began := time.Now()
	if got := samplePairs(v, 1000, 1); len(got) != 2000 {
		t.Fatalf("%d pairs", len(got))
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("drawing 1000 pairs of 10,000 nodes took %v", took)
	}
}

// TestSharedAddressesAreNoTargets: an echo to what several nodes have says nothing of
// any, but between neighbours on their link.
func TestSharedAddressesAreNoTargets(t *testing.T) {
	v := &vnet.VNet{Name: "x", Addressing: vnet.Addressing{IPv4: vnet.DefaultIPv4}, Routing: vnet.Routing{Protocol: vnet.OSPF},
		Nodes: []vnet.Node{{Name: "a"}, {Name: "b"}, {Name: "h", Kind: vnet.Host}, {Name: "i", Kind: vnet.Host}}}
	for i, ends := range [][2]string{{"a", "h"}, {"b", "i"}} {
		v.Nodes[i].Anycast = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
		v.Links = append(v.Links, vnet.Link{Overlap: true, Endpoints: []vnet.Interface{
			{Node: ends[0], Addrs: []netip.Prefix{netip.MustParsePrefix("192.168.1.1/24")}},
			{Node: ends[1], Addrs: []netip.Prefix{netip.MustParsePrefix("192.168.1.2/24")}},
		}})
	}
	if err := v.Complete(); err != nil {
		t.Fatal(err)
	}
	b := newAddressBook(v, map[string][]netip.Addr{"a": {netip.MustParseAddr("192.0.2.9"), v.Nodes[0].Loopbacks[0]}})
	var got []string
	for _, p := range b.allPairs() {
		got = append(got, b.nodes[p.From].Name+"-"+b.nodes[p.To].Name)
		for _, n := range []int{p.From, p.To} {
			if slices.Contains(b.nodes[n].Addrs, netip.MustParseAddr("192.0.2.9")) {
				t.Errorf("%s is reached at an anycast address", b.nodes[n].Name)
			}
		}
	}
	if want := []string{"a-b", "a-h", "b-a", "b-i", "h-a", "i-b"}; !slices.Equal(got, want) {
		t.Errorf("pairs %v, want %v", got, want)
	}
}
