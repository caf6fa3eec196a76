package routing

import (
	"encoding/binary"
	"math"
	"slices"
)

// paths finds the shortest paths from one source to every vertex of a graph,
// all equal ones at once. It is used for one source after the other and keeps
// its memory.
type paths struct {
	g *graph

	source int32
	dist   []int64
	// mask has words words per vertex: the set of first hops, as indices into
	// hops, that begin a shortest path to it.
	mask  []uint64
	words int
	hops  []NextHop
	// direct tells, for each subnet that the source attaches to, how.
	direct map[int32]attached

	heap   []item
	groups map[string][]NextHop
	key    []byte
}

// attached is the source's cheapest attachment to a subnet. The edges of the
// subnet number its first hops, from base on; and from each of more on, where the
// source is on the subnet by several interfaces of that cost.
type attached struct {
	base int32
	cost int32
	more []int32
}

// item is a vertex waiting at a distance.
type item struct {
	// rank is twice the distance, plus one for a node: at equal distances
	// subnets come first, since they reach nodes at no further cost.
	rank   int64
	vertex int32
}

const unreachable = math.MaxInt64

func newPaths(g *graph) *paths {
	return &paths{g: g, dist: make([]int64, g.nodes+len(g.subnets)), direct: map[int32]attached{}}
}

// run computes the paths from source (Dijkstra; the shortest-path calculation of
// RFC 2328, section 16.1, with its equal-cost handling).
func (p *paths) run(source int32) {
	p.source = source
	p.enumerate()
	for i := range p.dist {
		p.dist[i] = unreachable
	}
	clear(p.mask)
	p.groups = map[string][]NextHop{}
	p.heap = p.heap[:0]
	p.dist[source] = 0
	p.push(item{rank: 1, vertex: source})
	for len(p.heap) > 0 {
		it := p.pop()
		x := it.vertex
		if it.rank>>1 != p.dist[x] || !p.g.transit[x] && x != source {
			continue // overtaken, or the end of the road
		}
		p.relax(x)
	}
}

// enumerate numbers the first hops of the source: every other node on each of
// its subnets.
func (p *paths) enumerate() {
	p.hops = nil
	clear(p.direct)
	for _, out := range p.g.at(p.source) {
		a, again := p.direct[out.to]
		base := int32(len(p.hops))
		switch {
		case again && a.cost < out.cost:
			continue
		case again && a.cost == out.cost:
			a.more = append(a.more, base)
		default:
			a = attached{base: base, cost: out.cost}
		}
		p.direct[out.to] = a
		for _, back := range p.g.at(out.to) {
			p.hops = append(p.hops, NextHop{Gateway: back.addr, Interface: out.name})
		}
	}
	// A more expensive attachment that was seen first leaves hops that no path uses.
	p.words = max(1, (len(p.hops)+63)/64)
	if need := p.words * len(p.dist); cap(p.mask) < need {
		p.mask = make([]uint64, need)
	} else {
		p.mask = p.mask[:need]
	}
}

// relax extends the paths to x, which are final, by the edges of x.
func (p *paths) relax(x int32) {
	d := p.dist[x]
	// Does a shortest path lead from the source straight into the subnet x?
	a, direct := p.direct[x]
	direct = direct && int64(a.cost) == d
	for i, e := range p.g.at(x) {
		if e.to == p.source {
			continue
		}
		nd := d + int64(e.cost)
		if nd > p.dist[e.to] {
			continue
		}
		to := p.set(e.to)
		if nd < p.dist[e.to] {
			p.dist[e.to] = nd
			clear(to)
			rank := nd << 1
			if int(e.to) < p.g.nodes {
				rank |= 1
			}
			p.push(item{rank: rank, vertex: e.to})
		}
		for w, bits := range p.set(x) {
			to[w] |= bits
		}
		if direct {
			hop := a.base + int32(i)
			to[hop/64] |= 1 << (hop % 64)
			for _, base := range a.more {
				hop := base + int32(i)
				to[hop/64] |= 1 << (hop % 64)
			}
		}
	}
}

// set gives the first-hop set of a vertex.
func (p *paths) set(x int32) []uint64 {
	return p.mask[int(x)*p.words:][:p.words:p.words]
}

// via gives the sorted next hops to a vertex; nil where it is not reached or is
// the source's own. Equal sets share one slice.
func (p *paths) via(x int32) []NextHop {
	p.key = p.key[:0]
	count := 0
	for _, bits := range p.set(x) {
		p.key = binary.NativeEndian.AppendUint64(p.key, bits)
		if bits != 0 {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	if group, ok := p.groups[string(p.key)]; ok {
		return group
	}
	var group []NextHop
	for w, bits := range p.set(x) {
		for b := range 64 {
			if bits&(1<<b) != 0 {
				group = append(group, p.hops[w*64+b])
			}
		}
	}
	slices.SortFunc(group, compareHops)
	group = slices.Clip(slices.Compact(group)[:min(len(group), maxPaths)])
	p.groups[string(p.key)] = group
	return group
}

// push and pop keep heap a binary min-heap by rank.
func (p *paths) push(it item) {
	h := append(p.heap, it)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].rank <= it.rank {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = it
	p.heap = h
}

func (p *paths) pop() item {
	h := p.heap
	top := h[0]
	last := h[len(h)-1]
	h = h[:len(h)-1]
	p.heap = h
	if len(h) == 0 {
		return top
	}
	i := 0
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].rank < h[c].rank {
			c++
		}
		if last.rank <= h[c].rank {
			break
		}
		h[i] = h[c]
		i = c
	}
	h[i] = last
	return top
}
