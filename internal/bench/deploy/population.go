package deploy

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"trellis/internal/vnet"
)

// The whole of the Internet Topology Zoo, which the scale suite stands in for.
const (
	ZooNetworks = 276
	ZooNodes    = 10952
)

// largestShare bounds one network of a population: at most one in so many of all
// nodes, so that a small population has some variety, too.
const largestShare = 8

// Population gives networks that have about so many nodes together, none more:
// as many networks as the Zoo would have for them. Each of the given ones is
// taken once, unless it is too large, and then the small ones again and again
// under other names. The order is random, and the same at each call.
func Population(from []Case, nodes int) ([]Case, error) {
	var each []Case
	for _, c := range from {
		if len(c.VNet.Nodes)*largestShare <= nodes {
			each = append(each, c)
		}
	}
	if len(each) == 0 {
		return nil, fmt.Errorf("none of the %d networks is small enough for a population of %d nodes: the largest may have %d", len(from), nodes, nodes/largestShare)
	}
	slices.SortStableFunc(each, func(a, b Case) int { return cmp.Compare(len(a.VNet.Nodes), len(b.VNet.Nodes)) })
	networks := max(1, int(math.Round(float64(nodes)*ZooNetworks/ZooNodes)))
	p := population{copies: map[string]int{}, left: nodes}
	for _, c := range each[:min(len(each), networks)] {
		p.take(c)
	}
	for i := 0; p.left >= len(each[0].VNet.Nodes); i++ {
		// What is still to come has this mean; what has up to twice as many nodes
		// comes close to it on average.
		mean := float64(p.left) / float64(max(1, networks-len(p.taken)))
		fits := each[:1]
		for n := range each {
			if size := len(each[n].VNet.Nodes); float64(size) <= 2*mean && size <= p.left {
				fits = each[:n+1]
			}
		}
		p.take(fits[i%len(fits)])
	}
	random := rand.New(rand.NewPCG(seed, seed))
	random.Shuffle(len(p.taken), func(i, j int) { p.taken[i], p.taken[j] = p.taken[j], p.taken[i] })
	return p.taken, nil
}

// population is one that grows.
type population struct {
	taken  []Case
	copies map[string]int
	left   int // nodes
}

// take adds a copy of a network, if there is room for it.
func (p *population) take(c Case) {
	if len(c.VNet.Nodes) > p.left {
		return
	}
	base := fmt.Sprintf("%.26s", c.VNet.Name) // a network's name has 32 characters at most
	p.copies[base]++
	v := *c.VNet
	v.Name = fmt.Sprintf("%s-%d", base, p.copies[base])
	p.taken = append(p.taken, Case{Name: v.Name, Source: c.Source, VNet: &v})
	p.left -= len(v.Nodes)
}

// size counts nodes and links of networks.
func size(cases []Case) (nodes, links int) {
	for _, c := range cases {
		nodes += len(c.VNet.Nodes)
		links += len(c.VNet.Links)
	}
	return nodes, links
}

// staticCopies gives the networks with static routing.
func staticCopies(cases []Case) ([]Case, error) {
	out := slices.Clone(cases)
	for i := range out {
		v, err := Reroute(out[i].VNet, vnet.Routing{Protocol: vnet.Static})
		if err != nil {
			return nil, err
		}
		out[i].VNet = v
	}
	return out, nil
}
