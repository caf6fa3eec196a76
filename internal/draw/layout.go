package draw

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/graph/layout"
	"gonum.org/v1/gonum/spatial/r2"
)

// Bounds on what the layout does, in vertices of a component.
const (
	// isomapNodes is the most that Isomap is asked for: its time grows with the
	// cube. Larger components start from pivot scaling.
	isomapNodes = 400
	// stressNodes is the most that is refined: distances take four bytes a pair.
	stressNodes = 4000
)

// stressPairs bounds the work of the refinement, in pairs of vertices looked at.
const stressPairs = 1.5e8

// arrange places the vertices by the graph alone, with neighbours about one
// unit apart. Each component is laid out by itself and they are then packed.
//
// A component starts from Isomap (gonum.org/v1/gonum/graph/layout) and is
// refined by stress majorization (Gansner, Koren and North, "Graph drawing by
// stress majorization", 2004), which brings distances on the plane to the lengths
// of shortest paths.
func (s *scene) arrange() []point {
	neighbors := s.neighbors()
	var parts [][]point
	components := s.components(neighbors)
	for _, members := range components {
		parts = append(parts, arrangeComponent(members, neighbors))
	}
	pack(parts)
	out := make([]point, len(s.vertices))
	for c, members := range components {
		for i, v := range members {
			out[v] = parts[c][i]
		}
	}
	return out
}

// components lists the vertices of each component, the largest first.
func (s *scene) components(neighbors [][]int) [][]int {
	seen := make([]bool, len(s.vertices))
	var out [][]int
	for start := range s.vertices {
		if seen[start] {
			continue
		}
		seen[start] = true
		members := []int{start}
		for i := 0; i < len(members); i++ {
			for _, n := range neighbors[members[i]] {
				if !seen[n] {
					seen[n] = true
					members = append(members, n)
				}
			}
		}
		out = append(out, members)
	}
	stableBySize(out)
	return out
}

func arrangeComponent(members []int, neighbors [][]int) []point {
	n := len(members)
	switch n {
	case 1:
		return []point{{}}
	case 2:
		return []point{{}, {1, 0}}
	}
	g := newHopGraph(members, neighbors)
	at := startLayout(g)
	if n <= stressNodes {
		majorize(at, hops(g.adjacent))
	}
	level(at)
	return at
}

// startLayout gives a first placement.
func startLayout(g *hopGraph) []point {
	n := len(g.nodes)
	noise := rand.New(rand.NewPCG(1, uint64(n)))
	var at []point
	if n > isomapNodes {
		at = pivotLayout(g.adjacent)
	} else {
		optimizer := layout.NewOptimizerR2(g, layout.IsomapR2{}.Update)
		for optimizer.Update() {
		}
		at = make([]point, n)
		for i := range at {
			c := optimizer.Coord2(int64(i))
			if bad(c) {
				c = r2.Vec{X: noise.NormFloat64(), Y: noise.NormFloat64()}
			}
			at[i] = point{c.X, c.Y}
		}
	}
	// Vertices with the same neighbours get the same place; a little noise lets
	// the refinement separate them.
	for i := range at {
		at[i] = at[i].add(point{0.05 * noise.NormFloat64(), 0.05 * noise.NormFloat64()})
	}
	return at
}

func bad(v r2.Vec) bool {
	return math.IsNaN(v.X) || math.IsNaN(v.Y) || math.IsInf(v.X, 0) || math.IsInf(v.Y, 0)
}

// hops gives the lengths of the shortest paths between all vertices.
func hops(adjacent [][]int) [][]float32 {
	out := make([][]float32, len(adjacent))
	queue := make([]int, 0, len(adjacent))
	for i := range out {
		out[i] = hopsFrom(adjacent, i, queue)
	}
	return out
}

// majorize moves the vertices until the stress, the sum over all pairs of
// ((distance - hops) / hops)², is at a minimum. Each vertex in turn goes to where
// the others' wishes balance, which never raises the stress.
func majorize(at []point, want [][]float32) {
	rounds := min(300, int(stressPairs/float64(len(at)*len(at)))+5)
	for range rounds {
		moved := 0.0
		for i := range at {
			var sum point
			weight := 0.0
			for j := range at {
				if i == j {
					continue
				}
				d := float64(want[i][j])
				w := 1 / (d * d)
				v := at[i].sub(at[j])
				norm := v.norm()
				target := at[j]
				if norm > 1e-9 {
					target = target.add(v.scale(d / norm))
				}
				sum = sum.add(target.scale(w))
				weight += w
			}
			next := sum.scale(1 / weight)
			moved = max(moved, next.dist(at[i]))
			at[i] = next
		}
		if moved < 0.005 {
			return
		}
	}
}

// level turns the points so that their longest extent lies across the page.
func level(at []point) {
	var mean point
	for _, p := range at {
		mean = mean.add(p)
	}
	mean = mean.scale(1 / float64(len(at)))
	var xx, xy, yy float64
	for _, p := range at {
		d := p.sub(mean)
		xx, xy, yy = xx+d.x*d.x, xy+d.x*d.y, yy+d.y*d.y
	}
	angle := math.Atan2(2*xy, xx-yy) / 2
	sin, cos := math.Sincos(-angle)
	for i, p := range at {
		d := p.sub(mean)
		at[i] = point{d.x*cos - d.y*sin, d.x*sin + d.y*cos}
	}
}

// pack sets components side by side in rows, the first and largest at the top
// left, on a page about half as wide again as it is high.
func pack(parts [][]point) {
	const (
		margin = 1.2
		aspect = 1.5
	)
	area, widest := 0.0, 0.0
	for _, p := range parts {
		b := bounds(p)
		w, h := b.x1-b.x0+margin, b.y1-b.y0+margin
		area += w * h
		widest = max(widest, w)
	}
	width := max(math.Sqrt(area*aspect), widest)
	x, y, row := 0.0, 0.0, 0.0
	for _, p := range parts {
		b := bounds(p)
		w, h := b.x1-b.x0+margin, b.y1-b.y0+margin
		if x > 0 && x+w > width {
			x, y, row = 0, y+row, 0
		}
		for i := range p {
			p[i] = p[i].add(point{x - b.x0, y - b.y0})
		}
		x += w
		row = max(row, h)
	}
}
