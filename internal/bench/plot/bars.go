package plot

import "math"

// Bars is a chart of horizontal bars: for each group one of each series.
type Bars struct {
	Title, Unit string
	Series      []Series
	Groups      []string // labels
}

// Series is one kind of bars: a value for each group, NaN where there is none.
type Series struct {
	Name   string
	Values []float64
	// Low and High are the least and the greatest that was measured, drawn as a
	// thin line over the bar; nil: not drawn.
	Low, High []float64
	// Paper says that the figures are a paper's: they are grey.
	Paper bool
}

// SVG draws the chart.
func (b *Bars) SVG() string {
	const barHeight, gap = 13.0, 10.0
	var c canvas
	c.text(margin, 22, "start", "t", b.Title)
	names, fills := make([]string, len(b.Series)), make([]string, len(b.Series))
	most, colour := 0.0, 0
	for i, s := range b.Series {
		names[i] = s.Name
		if s.Paper {
			fills[i] = paperColour
		} else {
			fills[i] = colours[colour%len(colours)]
			colour++
		}
		for _, values := range [][]float64{s.Values, s.High} {
			for _, v := range values {
				if v > most && !math.IsInf(v, 0) {
					most = v
				}
			}
		}
	}
	top := c.legend(44, names, fills, false) + 2
	left := 0.0
	for _, g := range b.Groups {
		left = max(left, textWidth(g))
	}
	left += margin + 10
	const right = width - 60
	marks := ticks(most, 6)
	scale := (right - left) / marks[len(marks)-1]
	y := top
	type bar struct{ group, series int }
	var rows []float64
	var shown []bar
	labels := make([]float64, len(b.Groups))
	for g := range b.Groups {
		from := y
		for i, s := range b.Series {
			if g < len(s.Values) && !math.IsNaN(s.Values[g]) {
				rows, shown = append(rows, y), append(shown, bar{g, i})
				y += barHeight + 1
			}
		}
		if y == from {
			y += barHeight + 1 // a group without a value keeps its place
		}
		labels[g] = (from+y)/2 + 4
		y += gap
	}
	for _, v := range marks {
		x := left + v*scale
		c.line(x, top-4, x, y-gap+4, "g")
		c.text(x, y+8, "middle", "n", number(v))
	}
	for g, label := range b.Groups {
		c.text(left-8, labels[g], "end", "", label)
	}
	for k, r := range shown {
		s := &b.Series[r.series]
		v := s.Values[r.group]
		end := left + v*scale
		c.add(`<rect x="%s" y="%s" width="%s" height="%s" fill="%s"/>`, px(left), px(rows[k]), px(max(1, v*scale)), px(barHeight), fills[r.series])
		if r.group < len(s.Low) && r.group < len(s.High) && !math.IsNaN(s.Low[r.group]) {
			c.line(left+s.Low[r.group]*scale, rows[k]+barHeight/2, left+s.High[r.group]*scale, rows[k]+barHeight/2, "e")
			end = max(end, left+s.High[r.group]*scale)
		}
		c.text(end+5, rows[k]+barHeight-2.5, "start", "n", number(v))
	}
	c.line(left, top-4, left, y-gap+4, "a")
	c.text((left+right)/2, y+26, "middle", "n", b.Unit)
	c.height = y + 38
	return c.finish(b.Title)
}
