package draw

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// style is the size of things in a picture, in pixels.
type style struct {
	radius float64 // of a node's circle
	font   float64 // of names
	small  float64 // font of links' labels
	pitch  float64 // least distance between two nodes
	hop    float64 // length of an average link
	line   float64 // width of a link
}

// styleFor picks sizes for a scene: small networks get room, large ones stay
// within a page that a browser can show, and texts at the ends of links need
// longer links.
func styleFor(s *scene) style {
	st := styleOf(len(s.vertices))
	widest, highest := 0.0, 0.0
	for _, e := range s.edges {
		for _, text := range e.ends {
			w, h := textSize(text, st.small)
			widest, highest = max(widest, w), max(highest, h)
		}
	}
	names, count := 0.0, 0
	for _, v := range s.vertices {
		if w, _ := textSize(v.label, st.font); v.shape != lan {
			names += w
			count++
		}
	}
	// Most names find their place if nodes are about as far apart as names are wide.
	st.pitch = max(st.pitch, min(0.7*names/float64(max(count, 1))+2*st.radius+st.font, 1.7*st.pitch))
	if widest > 0 {
		st.hop = max(st.hop, 2*widest+3*st.radius+2*st.small)
		st.pitch = max(1.5*st.pitch, widest+highest+2*st.radius)
	}
	return st
}

func styleOf(vertices int) style {
	switch {
	case vertices <= 40:
		return style{radius: 9, font: 13, small: 10.5, pitch: 56, hop: 120, line: 1.6}
	case vertices <= 120:
		return style{radius: 7, font: 11.5, small: 9.5, pitch: 40, hop: 84, line: 1.3}
	case vertices <= 300:
		return style{radius: 5, font: 10, small: 8.5, pitch: 38, hop: 64, line: 1.1}
	}
	return style{radius: 4, font: 9, small: 8, pitch: 30, hop: 50, line: 1}
}

// textWidth estimates the width of a text in a sans-serif font, in pixels: the
// viewer's font is not known here, so the estimate is on the wide side.
func textWidth(s string, font float64) float64 {
	w := 0.0
	for _, r := range s {
		switch {
		case r == 'i' || r == 'l' || r == 'j' || r == '.' || r == ',' || r == '\'' || r == '|' || r == ':':
			w += 0.32
		case r == 'm' || r == 'w' || r == 'M' || r == 'W' || r == '%' || r == '@':
			w += 0.9
		case r >= 'A' && r <= 'Z':
			w += 0.7
		case r > 0x2e80:
			w += 1 // ideographs are as wide as high
		default:
			w += 0.58
		}
	}
	return w * font
}

// textSize estimates the size of lines of text.
func textSize(s string, font float64) (w, h float64) {
	if s == "" {
		return 0, 0
	}
	for line := range strings.Lines(s) {
		w = max(w, textWidth(strings.TrimSuffix(line, "\n"), font))
		h += lineHeight * font
	}
	return w, h
}

// lineHeight is the distance of two lines of text, by the font's size.
const lineHeight = 1.15

// lanSize gives the size of the bar that stands for a LAN.
func (st style) lanSize(label string) (w, h float64) {
	return max(textWidth(label, st.font)+2*st.font, 5*st.font), st.font + 9
}

// fit brings projected coordinates to pixels, so that neighbours are about a
// hop apart, without a picture that is larger than its nodes need.
func (st style) fit(at []point, s *scene) {
	var lengths []float64
	for _, e := range s.edges {
		if d := at[e.a].dist(at[e.b]); d > 0 {
			lengths = append(lengths, d)
		}
	}
	b := bounds(at)
	extent := max(b.x1-b.x0, b.y1-b.y0)
	if extent == 0 {
		return
	}
	scale := 1200 / extent
	if len(lengths) > 0 {
		slices.Sort(lengths)
		scale = st.hop * 1.2 / lengths[len(lengths)/2]
	}
	// A page for n nodes has n times the pitch squared, with room to spare.
	side := math.Sqrt(float64(len(at))) * st.pitch
	scale = min(max(scale, 2.2*side/extent), max(4.5*side, 900)/extent)
	for i := range at {
		at[i] = at[i].scale(scale)
	}
}

// spread separates vertices that are nearer to each other than the pitch, and
// draws each back to where it belongs.
func (st style) spread(at []point, s *scene) {
	home := slices.Clone(at)
	reach := make([]float64, len(at))
	for i, v := range s.vertices {
		reach[i] = st.pitch / 2
		if v.shape == lan {
			w, _ := st.lanSize(v.label)
			reach[i] = max(reach[i], w/2)
		}
	}
	const rounds = 200
	for round := range rounds {
		pull := 0.05 * (1 - float64(round)/rounds)
		for i := range at {
			at[i] = at[i].toward(home[i], pull)
		}
		cells := map[[2]int][]int{}
		cell := 0.0
		for i := range reach {
			cell = max(cell, 2*reach[i])
		}
		at2 := func(p point) [2]int {
			return [2]int{int(math.Floor(p.x / cell)), int(math.Floor(p.y / cell))}
		}
		for i := range at {
			c := at2(at[i])
			cells[c] = append(cells[c], i)
		}
		moved := false
		for i := range at {
			c := at2(at[i])
			for dx := -1; dx <= 1; dx++ {
				for dy := -1; dy <= 1; dy++ {
					for _, j := range cells[[2]int{c[0] + dx, c[1] + dy}] {
						if j <= i {
							continue
						}
						want := reach[i] + reach[j]
						d := at[j].sub(at[i])
						norm := d.norm()
						if norm >= want {
							continue
						}
						if norm < 1e-6 {
							// The same place: separate them at an angle of their own.
							sin, cos := math.Sincos(float64(i)*2.399963 + float64(j))
							d, norm = point{cos, sin}, 1
							want = max(want, 1)
						}
						push := d.scale((want - d.norm()) / norm / 2 * 0.8)
						at[i], at[j] = at[i].sub(push), at[j].add(push)
						moved = true
					}
				}
			}
		}
		if !moved && pull < 0.01 {
			return
		}
	}
}

func stableBySize(list [][]int) {
	slices.SortStableFunc(list, func(a, b []int) int { return cmp.Compare(len(b), len(a)) })
}
