package draw

import (
	"cmp"
	"math"
	"slices"
)

// geoShare is the share of the nodes that must have coordinates for a drawing to
// follow them. The others are placed between their neighbours.
const geoShare = 0.5

// hasGeo reports whether the drawing follows the nodes' coordinates: enough of
// them have some, and not all the same.
func (s *scene) hasGeo() bool {
	placed, routers := 0, 0
	distinct := map[[2]float64]bool{}
	for _, v := range s.vertices {
		if v.shape == lan {
			continue
		}
		routers++
		if v.geo != nil {
			placed++
			distinct[[2]float64{v.geo.Latitude, v.geo.Longitude}] = true
		}
	}
	return routers > 1 && len(distinct) > 1 && float64(placed) >= geoShare*float64(routers)
}

// project places the vertices on a plane by their coordinates, in degrees, x to
// the east and y to the south. Known says which of them have any.
//
// The projection is equirectangular, true to scale at the middle latitude of
// the network: simple, and close enough for reading a picture. The map is cut at
// the widest gap between longitudes, so that a network across the Pacific stays
// in one piece, and wide stretches without nodes, oceans mostly, are narrowed.
func (s *scene) project() (at []point, known []bool) {
	at, known = make([]point, len(s.vertices)), make([]bool, len(s.vertices))
	var longitudes []float64
	south, north := math.Inf(1), math.Inf(-1)
	for _, v := range s.vertices {
		if v.geo == nil {
			continue
		}
		longitudes = append(longitudes, wrap(v.geo.Longitude, -180))
		south, north = min(south, v.geo.Latitude), max(north, v.geo.Latitude)
	}
	slices.Sort(longitudes)
	west, gap := longitudes[0], longitudes[0]+360-longitudes[len(longitudes)-1]
	for i := 1; i < len(longitudes); i++ {
		if g := longitudes[i] - longitudes[i-1]; g > gap {
			west, gap = longitudes[i], g
		}
	}
	// At the poles a degree of longitude is nothing; keep some width there.
	scale := max(math.Cos((south+north)/2*math.Pi/180), 0.1)
	for i, v := range s.vertices {
		if v.geo != nil {
			at[i] = point{(wrap(v.geo.Longitude, west) - west) * scale, north - v.geo.Latitude}
			known[i] = true
		}
	}
	narrow(at, known, func(p *point) *float64 { return &p.x })
	narrow(at, known, func(p *point) *float64 { return &p.y })
	return at, known
}

// emptyShare is the share of the map's extent that a stretch without nodes may
// take at most.
const emptyShare = 0.1

// narrow shortens the stretches of an axis that have no nodes: a few times, since
// a stretch that was most of the extent is still much of what is left of it.
func narrow(at []point, known []bool, axis func(*point) *float64) {
	for range 3 {
		narrowOnce(at, known, axis)
	}
}

func narrowOnce(at []point, known []bool, axis func(*point) *float64) {
	var order []int
	for i := range at {
		if known[i] {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(*axis(&at[i]), *axis(&at[j])) })
	first, last := *axis(&at[order[0]]), *axis(&at[order[len(order)-1]])
	// Few nodes have wide stretches by nature.
	most := (last - first) * max(emptyShare, 3/float64(len(order)))
	shift, before := 0.0, first
	for _, i := range order {
		v := axis(&at[i])
		if gap := *v - before; gap > most {
			shift += gap - most
		}
		before = *v
		*v -= shift
	}
}

// wrap brings a longitude into the 360 degrees east of west.
func wrap(longitude, west float64) float64 {
	d := math.Mod(longitude-west, 360)
	if d < 0 {
		d += 360
	}
	return west + d
}

// fillIn places the vertices that are not known at the mean of their
// neighbours, repeatedly, so that chains of them stretch out.
func fillIn(at []point, known []bool, neighbors [][]int) {
	var middle point
	n := 0
	for i := range at {
		if known[i] {
			middle = middle.add(at[i])
			n++
		}
	}
	middle = middle.scale(1 / float64(max(n, 1)))
	for i := range at {
		if !known[i] {
			at[i] = middle
		}
	}
	const rounds = 50
	for range rounds {
		for i := range at {
			if known[i] || len(neighbors[i]) == 0 {
				continue
			}
			var sum point
			for _, j := range neighbors[i] {
				sum = sum.add(at[j])
			}
			at[i] = sum.scale(1 / float64(len(neighbors[i])))
		}
	}
}
