package vnp

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"trellis/internal/agentapi"
	"trellis/internal/vnet"
)

// addressBook says at which addresses the nodes of a network reach one another.
type addressBook struct {
	nodes []agentapi.PingNode
	index map[string]int // of the nodes that were there at first, by name
	// direct are the addresses on a shared link of two nodes one of which nobody
	// announces routes to: of the first, as the second sees it. By their names.
	direct map[[2]string][]netip.Addr
	ends   map[[2]string]int // index of a node's end with those addresses
}

// newAddressBook takes the addresses that the nodes' names stand for, or, where
// the description gives a node none, those that were found in it.
func newAddressBook(v *vnet.VNet, found map[string][]netip.Addr) *addressBook {
	names := v.NameAddresses()
	shared := v.SharedAddresses()
	b := &addressBook{index: map[string]int{}, direct: map[[2]string][]netip.Addr{}, ends: map[[2]string]int{}}
	announced := map[string]bool{} // reached at a loopback
	for i := range v.Nodes {
		n := &v.Nodes[i]
		addrs := names[n.Name]
		if own := found[n.Name]; len(own) > 0 {
			addrs = own
		}
		if len(shared) > 0 { // an echo to one may be answered by any
			addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return shared[a] })
		}
		b.index[n.Name] = len(b.nodes)
		b.nodes = append(b.nodes, agentapi.PingNode{Name: n.Name, Addrs: onePerFamily(addrs)})
		announced[n.Name] = len(n.Loopbacks) > 0 && len(addrs) > 0 && slices.Contains(n.Loopbacks, addrs[0]) || len(found[n.Name]) > 0
	}
	for li := range v.Links {
		ends := v.Links[li].Endpoints
		for i := range ends {
			for j := range ends {
				if ends[i].Node == ends[j].Node || announced[ends[i].Node] && announced[ends[j].Node] {
					continue
				}
				key := [2]string{ends[i].Node, ends[j].Node}
				if b.direct[key] == nil {
					b.direct[key] = sharedSubnet(&ends[i], &ends[j])
				}
			}
		}
	}
	return b
}

// onePerFamily keeps the first address of each family.
func onePerFamily(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if !slices.ContainsFunc(out, func(b netip.Addr) bool { return a.Is4() == b.Is4() }) {
			out = append(out, a)
		}
	}
	return out
}

// sharedSubnet gives the addresses of one end that lie in a subnet of the other.
func sharedSubnet(of, seenBy *vnet.Interface) []netip.Addr {
	var out []netip.Addr
	for _, p := range of.Addrs {
		if slices.ContainsFunc(seenBy.Addrs, func(q netip.Prefix) bool { return q.Masked() == p.Masked() }) {
			out = append(out, p.Addr())
		}
	}
	return onePerFamily(out)
}

// end gives the end of a node that another one is to talk to, or talks from.
func (b *addressBook) end(node, other int) int {
	key := [2]string{b.nodes[node].Name, b.nodes[other].Name}
	addrs := b.direct[key]
	if len(addrs) == 0 {
		return node
	}
	at, known := b.ends[key]
	if !known {
		at = len(b.nodes)
		b.nodes = append(b.nodes, agentapi.PingNode{Name: key[0], Addrs: addrs})
		b.ends[key] = at
	}
	return at
}

// pairs gives the pairs between two nodes, one for each family that both have an
// address of, IPv4 first.
func (b *addressBook) pairs(from, to int) []agentapi.PingPair {
	from, to = b.end(from, to), b.end(to, from)
	var out []agentapi.PingPair
	for _, f := range []string{agentapi.IPv4, agentapi.IPv6} {
		if hasFamily(b.nodes[from], f) && hasFamily(b.nodes[to], f) {
			out = append(out, agentapi.PingPair{From: from, To: to, Family: f})
		}
	}
	return out
}

// hasFamily reports whether the node has an address of a family.
func hasFamily(n agentapi.PingNode, family string) bool {
	return slices.ContainsFunc(n.Addrs, func(a netip.Addr) bool { return a.Is4() == (family == agentapi.IPv4) })
}

// allPairs returns every ordered pair of different nodes, in every family that
// both have an address of.
func (b *addressBook) allPairs() []agentapi.PingPair {
	n := len(b.nodes)
	if n == 0 {
		return nil
	}
	pairs := make([]agentapi.PingPair, 0, 2*n*(n-1))
	for from := range n {
		for to := range n {
			if from != to {
				pairs = append(pairs, b.pairs(from, to)...)
			}
		}
	}
	return pairs
}

// samplePairs returns n different ordered pairs of nodes, drawn evenly, each in
// every family that both nodes have an address of, sorted as allPairs sorts them.
// The same nodes, n and seed give the same pairs. Where there are no more than n
// ordered pairs, it returns all.
func (b *addressBook) samplePairs(n int, seed int64) []agentapi.PingPair {
	nodes := len(b.nodes)
	total := nodes * (nodes - 1)
	if n >= total {
		return b.allPairs()
	}
	pairs := make([]agentapi.PingPair, 0, 2*max(n, 0))
	for _, k := range sample(total, n, rand.New(rand.NewPCG(uint64(seed), 0))) {
		from, to := k/(nodes-1), k%(nodes-1)
		if to >= from {
			to++
		}
		pairs = append(pairs, b.pairs(from, to)...)
	}
	return pairs
}

// sample draws n different numbers below total, each set of them as likely as any
// other, and sorts them (Floyd's algorithm: time and memory follow n).
func sample(total, n int, rng *rand.Rand) []int {
	drawn := make(map[int]bool, max(n, 0))
	out := make([]int, 0, max(n, 0))
	for j := total - n; j < total; j++ {
		k := rng.IntN(j + 1)
		if drawn[k] {
			k = j
		}
		drawn[k] = true
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
