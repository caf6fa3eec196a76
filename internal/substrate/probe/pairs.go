package probe

import (
	"math/rand/v2"
	"net/netip"
)

// The address families of a [Pair].
const (
	IPv4 = "ipv4"
	IPv6 = "ipv6"
)

// Node is one end of echoes.
type Node struct {
	Name string
	// NS is a file descriptor of the node's network namespace. It stays the
	// caller's, and must stay open until Ping returns.
	NS int
	// Addrs holds the node's loopbacks, at most one per family. They are the
	// source of its requests and the destination of the others'.
	Addrs []netip.Addr
}

// addr returns the node's loopback of a family; it is invalid where there is none.
func (n Node) addr(family string) netip.Addr {
	for _, a := range n.Addrs {
		if a.Is4() == (family == IPv4) {
			return a
		}
	}
	return netip.Addr{}
}

// Pair is one echo to make: From and To index the nodes.
type Pair struct {
	From, To int
	Family   string // IPv4 or IPv6
}

// families are the ones in which both nodes have a loopback, IPv4 first.
func families(a, b Node) []string {
	var both []string
	for _, f := range []string{IPv4, IPv6} {
		if a.addr(f).IsValid() && b.addr(f).IsValid() {
			both = append(both, f)
		}
	}
	return both
}

// AllPairs returns every ordered pair of different nodes, in every family that
// both have a loopback of.
func AllPairs(nodes []Node) []Pair {
	if len(nodes) == 0 {
		return nil
	}
	pairs := make([]Pair, 0, 2*len(nodes)*(len(nodes)-1))
	for from := range nodes {
		for to := range nodes {
			if from == to {
				continue
			}
			for _, f := range families(nodes[from], nodes[to]) {
				pairs = append(pairs, Pair{From: from, To: to, Family: f})
			}
		}
	}
	return pairs
}

// Sample returns n different ordered pairs of nodes, drawn evenly, each in
// every family that both nodes have a loopback of, sorted as AllPairs sorts
// them. The same nodes, n and seed give the same pairs. Where there are no more
// than n ordered pairs, it returns AllPairs.
func Sample(nodes []Node, n int, seed int64) []Pair {
	total := len(nodes) * (len(nodes) - 1)
	if n >= total {
		return AllPairs(nodes)
	}
	// Selection sampling (Knuth, TAOCP 3.4.2, algorithm S): one pass, no
	// memory beyond the result, and the result comes out sorted.
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	pairs := make([]Pair, 0, 2*max(n, 0))
	for k, left := 0, n; left > 0; k++ {
		if rng.IntN(total-k) >= left {
			continue
		}
		left--
		from, to := k/(len(nodes)-1), k%(len(nodes)-1)
		if to >= from {
			to++
		}
		for _, f := range families(nodes[from], nodes[to]) {
			pairs = append(pairs, Pair{From: from, To: to, Family: f})
		}
	}
	return pairs
}
