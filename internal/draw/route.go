package draw

import "math"

// path is how an edge runs: straight from a to b, or bent as a quadratic curve
// with a control point.
type path struct {
	a, b, control point
	bent          bool
}

// at gives the point at t, from 0 at a to 1 at b.
func (p path) at(t float64) point {
	if !p.bent {
		return p.a.toward(p.b, t)
	}
	return p.a.toward(p.control, t).toward(p.control.toward(p.b, t), t)
}

// route decides how the edges run. Edges between the same vertices fan out,
// and an edge that would run through a third vertex bends around it.
func (p *picture) route() {
	for _, e := range p.edges {
		r := path{a: p.at[e.a], b: p.at[e.b]}
		d := r.b.sub(r.a)
		length := d.norm()
		if length == 0 {
			p.paths = append(p.paths, r)
			continue
		}
		normal := point{-d.y / length, d.x / length}
		bend := float64(e.nth) - float64(e.many-1)/2
		// The sign keeps the fan of edges that were written the other way round.
		if e.a > e.b {
			bend = -bend
		}
		offset := 2 * bend * min(2.2*p.style.radius+6, length/float64(e.many))
		if e.many == 1 {
			offset = p.detour(e, r, normal, length)
		}
		if offset != 0 {
			r.control, r.bent = r.a.toward(r.b, 0.5).add(normal.scale(offset)), true
		}
		p.paths = append(p.paths, r)
	}
}

// detour gives how far along the normal the control point of a straight edge
// must move for the edge to clear the other vertices; 0 where it does.
func (p *picture) detour(e edge, r path, normal point, length float64) float64 {
	offset := 0.0
	for i, c := range p.at {
		if i == e.a || i == e.b {
			continue
		}
		clearance := p.style.radius + 5
		if p.vertices[i].shape == lan {
			_, h := p.style.lanSize(p.vertices[i].label)
			clearance = h/2 + 5
		}
		rel := c.sub(r.a)
		across := rel.x*normal.x + rel.y*normal.y
		t := (rel.x*normal.y - rel.y*normal.x) / length
		if t < 0.04 || t > 0.96 || math.Abs(across) >= clearance {
			continue
		}
		// A quadratic curve leaves its chord by 2t(1-t) of the control's offset.
		need := min((clearance-math.Abs(across))/(2*t*(1-t)), 0.45*length)
		if across > 0 {
			need = -need
		}
		if math.Abs(need) > math.Abs(offset) {
			offset = need
		}
	}
	return offset
}
