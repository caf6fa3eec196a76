package draw

import "math"

// point is a place or a vector on the plane, y pointing down.
type point struct{ x, y float64 }

func (p point) add(q point) point               { return point{p.x + q.x, p.y + q.y} }
func (p point) sub(q point) point               { return point{p.x - q.x, p.y - q.y} }
func (p point) scale(f float64) point           { return point{p.x * f, p.y * f} }
func (p point) norm() float64                   { return math.Hypot(p.x, p.y) }
func (p point) dist(q point) float64            { return p.sub(q).norm() }
func (p point) toward(q point, f float64) point { return p.add(q.sub(p).scale(f)) }

// rect is a rectangle with its sides along the axes.
type rect struct{ x0, y0, x1, y1 float64 }

// around gives the rectangle of a size around a center.
func around(c point, w, h float64) rect {
	return rect{c.x - w/2, c.y - h/2, c.x + w/2, c.y + h/2}
}

func (r rect) center() point { return point{(r.x0 + r.x1) / 2, (r.y0 + r.y1) / 2} }

func (r rect) union(o rect) rect {
	return rect{min(r.x0, o.x0), min(r.y0, o.y0), max(r.x1, o.x1), max(r.y1, o.y1)}
}

// overlap gives the area that two rectangles share.
func (r rect) overlap(o rect) float64 {
	w, h := min(r.x1, o.x1)-max(r.x0, o.x0), min(r.y1, o.y1)-max(r.y0, o.y0)
	if w <= 0 || h <= 0 {
		return 0
	}
	return w * h
}

// crossing gives the length of the segment from a to b inside the rectangle
// (Liang and Barsky, 1984).
func (r rect) crossing(a, b point) float64 {
	t0, t1 := 0.0, 1.0
	d := b.sub(a)
	for _, side := range [4][2]float64{{-d.x, a.x - r.x0}, {d.x, r.x1 - a.x}, {-d.y, a.y - r.y0}, {d.y, r.y1 - a.y}} {
		p, q := side[0], side[1]
		switch {
		case p == 0:
			if q < 0 {
				return 0
			}
		case p < 0:
			t0 = max(t0, q/p)
		default:
			t1 = min(t1, q/p)
		}
	}
	if t0 >= t1 {
		return 0
	}
	return (t1 - t0) * d.norm()
}

// bounds gives the smallest rectangle with all points; zero for none.
func bounds(ps []point) rect {
	if len(ps) == 0 {
		return rect{}
	}
	r := rect{ps[0].x, ps[0].y, ps[0].x, ps[0].y}
	for _, p := range ps[1:] {
		r = r.union(rect{p.x, p.y, p.x, p.y})
	}
	return r
}
