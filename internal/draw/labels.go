package draw

import "math"

// label is a text and where it may stand.
type label struct {
	text  string
	font  float64
	spots []spot
	at    int // index of the spot chosen
}

// spot is one place for a label. Cost is what choosing it costs by itself.
type spot struct {
	box  rect
	cost float64
}

func (l *label) box() rect { return l.spots[l.at].box }

// labelRounds is how often every label looks for a better place while the
// others stay.
const labelRounds = 6

// place chooses a spot for each label so that as little as possible is
// covered: other labels first, then nodes, then links.
func place(labels []*label, nodes []rect, lines [][2]point) {
	// What does not move is reckoned once for each spot.
	index := newGrid(nodes, lines)
	for _, l := range labels {
		for i := range l.spots {
			s := &l.spots[i]
			for _, n := range index.nodes(s.box) {
				s.cost += 8 * s.box.overlap(nodes[n]) / 10
			}
			for _, k := range index.lines(s.box) {
				s.cost += 0.6 * s.box.crossing(lines[k][0], lines[k][1])
			}
		}
		l.at = 0
	}
	for range labelRounds {
		changed := false
		boxes := make([]rect, len(labels))
		for i, l := range labels {
			boxes[i] = l.box()
		}
		others := newGrid(boxes, nil)
		for i, l := range labels {
			best, least := l.at, math.Inf(1)
			for k, s := range l.spots {
				cost := s.cost
				if cost >= least {
					continue
				}
				for _, j := range others.nodes(s.box) {
					if j != i {
						cost += 5 * s.box.overlap(labels[j].box())
					}
				}
				if cost < least {
					best, least = k, cost
				}
			}
			if best != l.at {
				l.at, changed = best, true
				others.add(i, l.box())
			}
		}
		if !changed {
			return
		}
	}
}

// beside gives the places around a node's circle: below, above, right, left,
// then the corners, then the same farther out.
func beside(c point, radius, w, h float64) []spot {
	var out []spot
	for ring := range 2 {
		gap := radius + 2 + float64(ring)*h*0.9
		side := gap + w/2 + 1
		diagonal := gap*0.75 + w/2
		for i, p := range []point{
			{0, gap + h/2}, {side, 0}, {-side, 0}, {0, -gap - h/2},
			{diagonal, gap*0.6 + h/2}, {diagonal, -gap*0.6 - h/2}, {-diagonal, gap*0.6 + h/2}, {-diagonal, -gap*0.6 - h/2},
		} {
			out = append(out, spot{around(c.add(p), w, h), float64(i)*1.5 + float64(ring)*25})
		}
	}
	return out
}

// atEnd gives the places beside a path near one of its ends, on either side of it:
// the nearest first.
func atEnd(p path, far bool, radius, w, h float64) []spot {
	from, next := p.at(0), p.at(0.1)
	if far {
		from, next = p.at(1), p.at(0.9)
	}
	length := from.dist(p.at(0.5)) * 2
	d := next.sub(from)
	norm := d.norm()
	if norm == 0 {
		return []spot{{box: around(from, w, h)}}
	}
	d = d.scale(1 / norm)
	n := point{-d.y, d.x}
	along := radius + 3 + (math.Abs(d.x)*w+math.Abs(d.y)*h)/2
	aside := 2 + (math.Abs(n.x)*w+math.Abs(n.y)*h)/2
	var out []spot
	for k := range 6 {
		at := along + float64(k)*h/2
		if k > 0 && at > length*0.55 {
			break
		}
		on := from.add(d.scale(at))
		if p.bent {
			t := min(at/length, 1)
			if far {
				t = 1 - t
			}
			on = p.at(t)
		}
		for side, sign := range []float64{1, -1} {
			out = append(out, spot{around(on.add(n.scale(sign*aside)), w, h), float64(3*k + side)})
		}
	}
	return out
}

// along gives the places on a path, the middle first.
func along(p path, w, h float64) []spot {
	var out []spot
	for i, t := range []float64{0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73} {
		out = append(out, spot{around(p.at(t), w, h), float64(i) * 4})
	}
	return out
}

// grid finds what is near a place without looking at everything.
type grid struct {
	cell    float64
	rects   map[[2]int][]int
	strokes map[[2]int][]int
}

func newGrid(rects []rect, lines [][2]point) *grid {
	g := &grid{cell: 80, rects: map[[2]int][]int{}, strokes: map[[2]int][]int{}}
	for i, r := range rects {
		g.add(i, r)
	}
	for i, l := range lines {
		// A line is entered in every cell that one of its points falls in.
		steps := int(l[0].dist(l[1])/(g.cell/2)) + 1
		seen := map[[2]int]bool{}
		for s := 0; s <= steps; s++ {
			c := g.at(l[0].toward(l[1], float64(s)/float64(steps)))
			for _, n := range [][2]int{c, {c[0] + 1, c[1]}, {c[0] - 1, c[1]}, {c[0], c[1] + 1}, {c[0], c[1] - 1}} {
				if !seen[n] {
					seen[n] = true
					g.strokes[n] = append(g.strokes[n], i)
				}
			}
		}
	}
	return g
}

func (g *grid) at(p point) [2]int {
	return [2]int{int(math.Floor(p.x / g.cell)), int(math.Floor(p.y / g.cell))}
}

func (g *grid) add(i int, r rect) {
	g.each(r, func(c [2]int) { g.rects[c] = append(g.rects[c], i) })
}

func (g *grid) each(r rect, f func([2]int)) {
	from, to := g.at(point{r.x0, r.y0}), g.at(point{r.x1, r.y1})
	for x := from[0]; x <= to[0]; x++ {
		for y := from[1]; y <= to[1]; y++ {
			f([2]int{x, y})
		}
	}
}

// nodes lists the rectangles that may touch r, each once.
func (g *grid) nodes(r rect) []int { return g.near(r, g.rects) }

// lines lists the lines that may cross r, each once.
func (g *grid) lines(r rect) []int { return g.near(r, g.strokes) }

func (g *grid) near(r rect, in map[[2]int][]int) []int {
	var out []int
	g.each(r, func(c [2]int) {
		for _, i := range in[c] {
			known := false
			for _, o := range out {
				known = known || o == i
			}
			if !known {
				out = append(out, i)
			}
		}
	})
	return out
}
