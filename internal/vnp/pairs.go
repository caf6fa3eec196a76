package vnp

import (
	"math/rand/v2"
	"net/netip"
)

// The address families of a [PingPair].
const (
	IPv4 = "ipv4"
	IPv6 = "ipv6"
)

// has reports whether the node has a loopback of a family.
func (n PingNode) has(family string) bool {
	for _, a := range n.Loopbacks {
		if isFamily(a, family) {
			return true
		}
	}
	return false
}

func isFamily(a netip.Addr, family string) bool { return a.Is4() == (family == IPv4) }

// families are the ones in which both nodes have a loopback, IPv4 first.
func families(a, b PingNode) []string {
	var both []string
	for _, f := range []string{IPv4, IPv6} {
		if a.has(f) && b.has(f) {
			both = append(both, f)
		}
	}
	return both
}

// allPairs returns every ordered pair of different nodes, in every family that
// both have a loopback of.
func allPairs(nodes []PingNode) []PingPair {
	if len(nodes) == 0 {
		return nil
	}
	pairs := make([]PingPair, 0, 2*len(nodes)*(len(nodes)-1))
	for from := range nodes {
		for to := range nodes {
			if from == to {
				continue
			}
			for _, f := range families(nodes[from], nodes[to]) {
				pairs = append(pairs, PingPair{From: from, To: to, Family: f})
			}
		}
	}
	return pairs
}

// samplePairs returns n different ordered pairs of nodes, drawn evenly, each in
// every family that both nodes have a loopback of, sorted as allPairs sorts
// them. The same nodes, n and seed give the same pairs. Where there are no more
// than n ordered pairs, it returns all.
func samplePairs(nodes []PingNode, n int, seed int64) []PingPair {
	total := len(nodes) * (len(nodes) - 1)
	if n >= total {
		return allPairs(nodes)
	}
	// Selection sampling (Knuth, TAOCP 3.4.2, algorithm S): one pass, no
	// memory beyond the result, and the result comes out sorted.
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	pairs := make([]PingPair, 0, 2*max(n, 0))
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
			pairs = append(pairs, PingPair{From: from, To: to, Family: f})
		}
	}
	return pairs
}
