package draw

import (
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/graph/layout"
	"gonum.org/v1/gonum/graph/simple"
	"gonum.org/v1/gonum/spatial/r2"
)

// isomapNodes is the largest component, in vertices, that Isomap is asked for:
// its time grows with the cube. Larger ones start from Eades' spring embedder.
const isomapNodes = 250

// stressRounds bounds the refinement; it ends earlier when it no longer moves.
const stressRounds = 300

// arrange places the vertices by the graph alone, with neighbours about one
// unit apart. Each component is laid out by itself and they are then packed.
//
// A component starts from a layout of gonum.org/v1/gonum/graph/layout, and is
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
	local := make(map[int]int, n)
	for i, v := range members {
		local[v] = i
	}
	g := simple.NewUndirectedGraph()
	for i := range members {
		g.AddNode(simple.Node(i))
	}
	adjacent := make([][]int, n)
	for i, v := range members {
		for _, w := range neighbors[v] {
			j := local[w]
			adjacent[i] = append(adjacent[i], j)
			if i < j {
				g.SetEdge(simple.Edge{F: simple.Node(i), T: simple.Node(j)})
			}
		}
	}
	at := startLayout(g, n)
	majorize(at, hops(adjacent))
	level(at)
	return at
}

// startLayout asks the layout library for a first placement.
func startLayout(g *simple.UndirectedGraph, n int) []point {
	src := rand.NewPCG(1, uint64(n))
	update := layout.IsomapR2{}.Update
	if n > isomapNodes {
		eades := layout.EadesR2{Repulsion: 1, Rate: 0.05, Updates: 60, Theta: 0.6, Src: src}
		update = eades.Update
	}
	optimizer := layout.NewOptimizerR2(g, update)
	for optimizer.Update() {
	}
	at := make([]point, n)
	jitter := rand.New(src)
	for i := range at {
		c := optimizer.Coord2(int64(i))
		if bad(c) {
			c = r2.Vec{X: jitter.NormFloat64(), Y: jitter.NormFloat64()}
		}
		// Vertices with the same neighbours get the same place from Isomap; a
		// little noise lets the refinement part them.
		at[i] = point{c.X + 0.05*jitter.NormFloat64(), c.Y + 0.05*jitter.NormFloat64()}
	}
	return at
}

func bad(v r2.Vec) bool {
	return math.IsNaN(v.X) || math.IsNaN(v.Y) || math.IsInf(v.X, 0) || math.IsInf(v.Y, 0)
}

// hops gives the lengths of the shortest paths between all vertices.
func hops(adjacent [][]int) [][]float32 {
	n := len(adjacent)
	out := make([][]float32, n)
	queue := make([]int, 0, n)
	for i := range out {
		row := make([]float32, n)
		for j := range row {
			row[j] = -1
		}
		row[i] = 0
		queue = append(queue[:0], i)
		for k := 0; k < len(queue); k++ {
			v := queue[k]
			for _, w := range adjacent[v] {
				if row[w] < 0 {
					row[w] = row[v] + 1
					queue = append(queue, w)
				}
			}
		}
		out[i] = row
	}
	return out
}

// majorize moves the vertices until the stress, the sum over all pairs of
// ((distance - hops) / hops)², is at a minimum. Each vertex in turn goes to where
// the others' wishes balance, which never raises the stress.
func majorize(at []point, want [][]float32) {
	for range stressRounds {
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
