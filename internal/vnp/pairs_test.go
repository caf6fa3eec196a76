package vnp

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

func dual(n int) []PingNode {
	nodes := make([]PingNode, n)
	for i := range nodes {
		nodes[i].Loopbacks = []netip.Addr{
			netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
			netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}),
		}
	}
	return nodes
}

func TestAllPairsAreOrderedAndPerSharedFamily(t *testing.T) {
	nodes := dual(3)
	nodes[2].Loopbacks = nodes[2].Loopbacks[1:] // IPv6 only
	want := []PingPair{
		{0, 1, IPv4}, {0, 1, IPv6}, {0, 2, IPv6},
		{1, 0, IPv4}, {1, 0, IPv6}, {1, 2, IPv6},
		{2, 0, IPv6}, {2, 1, IPv6},
	}
	if got := allPairs(nodes); !reflect.DeepEqual(got, want) {
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

func TestSampleHasDifferentPairsAndRepeats(t *testing.T) {
	nodes := dual(40)
	got := samplePairs(nodes, 100, 7)
	if len(got) != 200 {
		t.Fatalf("100 node pairs in two families gave %d pairs", len(got))
	}
	seen := make(map[PingPair]bool)
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
	count := make(map[PingPair]int)
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
