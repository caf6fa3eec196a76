package draw

import (
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"trellis/internal/vnet"
)

// linkLabels is the largest number of links whose labels are drawn; with more
// of them a picture is clearer without, and pointing at a link still tells.
const linkLabels = 60

// Space around the picture, in pixels.
const (
	margin   = 24.0
	headline = 44.0
)

// SVG writes a picture of the network as one self-contained SVG file, without
// scripts or references. Routers are circles, hosts are squares, LANs are bars. Nodes stand where their coordinates put them when at
// least half of them have some, else where the layout does.
func SVG(w io.Writer, v *vnet.VNet, o Options) error {
	s := newScene(v, o)
	p := newPicture(s)
	b := bufio.NewWriter(w)
	p.write(b)
	return b.Flush()
}

// picture is a scene with everything in its place.
type picture struct {
	*scene
	style  style
	at     []point
	paths  []path
	names  []*label // of vertices; empty text for LANs, whose name is in the bar
	notes  []*label // of edges; nil where an edge has none
	tips   []*label // at the ends of edges
	bounds rect
}

func newPicture(s *scene) *picture {
	p := &picture{scene: s, style: styleFor(s)}
	if len(s.vertices) == 0 {
		return p
	}
	if s.hasGeo() {
		at, known := s.project()
		fillIn(at, known, s.neighbors())
		p.at = at
	} else {
		p.at = s.arrange()
	}
	p.style.fit(p.at, s)
	p.style.spread(p.at, s)
	p.route()
	p.label()
	p.frame()
	return p
}

// label places the texts.
func (p *picture) label() {
	var all []*label
	var nodes []rect
	for i, v := range p.vertices {
		l := &label{text: v.label, font: p.style.font}
		w, height := textSize(v.label, p.style.font)
		if v.shape == lan {
			w, h := p.style.lanSize(v.label)
			box := around(p.at[i], w, h)
			nodes = append(nodes, box)
			l.spots = []spot{{box: box}}
		} else {
			nodes = append(nodes, around(p.at[i], 2*p.style.radius, 2*p.style.radius))
			l.spots = beside(p.at[i], p.style.radius, w, height)
			all = append(all, l)
		}
		p.names = append(p.names, l)
	}
	var lines [][2]point
	labelled := 0
	for _, e := range p.edges {
		if e.label != "" {
			labelled++
		}
	}
	for i, e := range p.edges {
		r := p.paths[i]
		if r.bent {
			m := r.at(0.5)
			lines = append(lines, [2]point{r.a, m}, [2]point{m, r.b})
		} else {
			lines = append(lines, [2]point{r.a, r.b})
		}
		for k, text := range e.ends {
			if text != "" {
				w, h := textSize(text, p.style.small)
				l := &label{text: text, font: p.style.small, spots: atEnd(r, k == 1, p.style.radius, w, h)}
				p.tips = append(p.tips, l)
				all = append(all, l)
			}
		}
		if e.label == "" || labelled > linkLabels {
			p.notes = append(p.notes, nil)
			continue
		}
		l := &label{text: e.label, font: p.style.small}
		w, h := textWidth(e.label, p.style.small), p.style.small*1.15
		l.spots = along(r, w, h)
		p.notes = append(p.notes, l)
		all = append(all, l)
	}
	place(all, nodes, lines)
}

// frame moves everything so that the picture begins at the margin.
func (p *picture) frame() {
	b := rect{}
	first := true
	cover := func(r rect) {
		if first {
			b, first = r, false
		} else {
			b = b.union(r)
		}
	}
	for i := range p.vertices {
		cover(around(p.at[i], 2*p.style.radius+2, 2*p.style.radius+2))
		cover(p.names[i].box())
	}
	for _, l := range slices.Concat(p.notes, p.tips) {
		if l != nil {
			cover(l.box())
		}
	}
	for _, r := range p.paths {
		m := r.at(0.5)
		cover(rect{m.x, m.y, m.x, m.y})
	}
	p.bounds = b
}

func (p *picture) write(b *bufio.Writer) {
	title := max(textWidth(p.name, 17), textWidth(p.subtitle, 12))
	width := max(p.bounds.x1-p.bounds.x0, title) + 2*margin
	height := p.bounds.y1 - p.bounds.y0 + 2*margin + headline
	shift := point{margin - p.bounds.x0, margin + headline - p.bounds.y0}
	if spare := width - 2*margin - (p.bounds.x1 - p.bounds.x0); spare > 0 {
		shift.x += spare / 2
	}
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %s %s" role="img" font-family="Inter, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif">`+"\n",
		px(width), px(height), px(width), px(height))
	fmt.Fprintf(b, "<title>%s: %s</title>\n", escape(p.name), escape(p.subtitle))
	p.writeStyle(b)
	fmt.Fprintf(b, `<rect width="100%%" height="100%%" fill="#ffffff"/>`+"\n")
	fmt.Fprintf(b, `<text class="h1" x="%s" y="%s">%s</text>`+"\n", px(margin), px(margin+8), escape(p.name))
	fmt.Fprintf(b, `<text class="h2" x="%s" y="%s">%s</text>`+"\n", px(margin), px(margin+26), escape(p.subtitle))
	fmt.Fprintf(b, `<g transform="translate(%s %s)">`+"\n", px(shift.x), px(shift.y))
	for i, e := range p.edges {
		p.writeEdge(b, e, p.paths[i])
	}
	for i, v := range p.vertices {
		p.writeVertex(b, v, p.at[i])
	}
	for _, l := range p.notes {
		if l != nil {
			writeText(b, "rate", l)
		}
	}
	for _, l := range p.tips {
		writeText(b, "tip", l)
	}
	for i, v := range p.vertices {
		if v.shape != lan {
			writeText(b, "name", p.names[i])
		}
	}
	fmt.Fprintln(b, "</g>\n</svg>")
}

func (p *picture) writeStyle(b *bufio.Writer) {
	st := p.style
	fmt.Fprintf(b, `<style>
.h1 { font-size: 17px; font-weight: 600; fill: #1d2733 }
.h2 { font-size: 12px; fill: #5b6875 }
.link { fill: none; stroke: #8a97a6; stroke-width: %s }
.link.down { stroke: #c0392b; stroke-dasharray: 5 4 }
.node { fill: #2f6f9f; stroke: #ffffff; stroke-width: 1.5 }
.host { fill: #5d8a3a; stroke: #ffffff; stroke-width: 1.5 }
.lan { fill: #fdf1d8; stroke: #b7791f; stroke-width: 1.4 }
.name, .rate, .tip, .bus { text-anchor: middle }
.name, .rate, .tip { paint-order: stroke; stroke: #ffffff; stroke-opacity: .88; stroke-linejoin: round }
.name { font-size: %spx; fill: #1d2733; stroke-width: 3px }
.rate { font-size: %spx; fill: #51606f; stroke-width: 4px }
.tip { font-size: %spx; fill: #8a6a1f; stroke-width: 3px }
.bus { font-size: %spx; fill: #6d4708 }
</style>
`, px(st.line), px(st.font), px(st.small), px(st.small), px(st.font))
}

func (p *picture) writeEdge(b *bufio.Writer, e edge, r path) {
	class := "link"
	if e.down {
		class += " down"
	}
	fmt.Fprintf(b, `<path class="%s" d="M%s %s`, class, px(r.a.x), px(r.a.y))
	if r.bent {
		fmt.Fprintf(b, "Q%s %s %s %s", px(r.control.x), px(r.control.y), px(r.b.x), px(r.b.y))
	} else {
		fmt.Fprintf(b, "L%s %s", px(r.b.x), px(r.b.y))
	}
	fmt.Fprintf(b, `"><title>%s</title></path>`+"\n", escape(e.title))
}

func (p *picture) writeVertex(b *bufio.Writer, v vertex, at point) {
	if v.shape == host {
		side := 1.8 * p.style.radius
		fmt.Fprintf(b, `<rect class="host" x="%s" y="%s" width="%s" height="%s" rx="%s"><title>%s</title></rect>`+"\n",
			px(at.x-side/2), px(at.y-side/2), px(side), px(side), px(side/6), escape(v.title))
		return
	}
	if v.shape == router {
		fmt.Fprintf(b, `<circle class="node" cx="%s" cy="%s" r="%s"><title>%s</title></circle>`+"\n",
			px(at.x), px(at.y), px(p.style.radius), escape(v.title))
		return
	}
	w, h := p.style.lanSize(v.label)
	fmt.Fprintf(b, `<g><title>%s</title><rect class="lan" x="%s" y="%s" width="%s" height="%s" rx="%s"/><text class="bus" x="%s" y="%s">%s</text></g>`+"\n",
		escape(v.title), px(at.x-w/2), px(at.y-h/2), px(w), px(h), px(h/2), px(at.x), px(baseline(at.y, p.style.font)), escape(v.label))
}

func writeText(b *bufio.Writer, class string, l *label) {
	c := l.box().center()
	lines := strings.Split(l.text, "\n")
	if len(lines) == 1 {
		fmt.Fprintf(b, `<text class="%s" x="%s" y="%s">%s</text>`+"\n", class, px(c.x), px(baseline(c.y, l.font)), escape(l.text))
		return
	}
	fmt.Fprintf(b, `<text class="%s">`, class)
	y := c.y - float64(len(lines)-1)/2*lineHeight*l.font
	for i, line := range lines {
		fmt.Fprintf(b, `<tspan x="%s" y="%s">%s</tspan>`, px(c.x), px(baseline(y+float64(i)*lineHeight*l.font, l.font)), escape(line))
	}
	fmt.Fprintln(b, "</text>")
}

// baseline gives the baseline of a text whose middle is at y. The attribute
// dominant-baseline would do the same, but not in every viewer.
func baseline(y, font float64) float64 { return y + 0.35*font }

// px writes a length with at most one decimal.
func px(f float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0")
}

// escape makes text safe inside an element or an attribute.
func escape(s string) string {
	var b strings.Builder
	// Writing to a strings.Builder does not fail.
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}
