package plot

import (
	"html"
	"math"
	"slices"
	"strings"
)

// Lines is a chart of lines over an axis.
type Lines struct {
	Title, X, Y string
	// Log has the X axis in powers: the least x is above 0.
	Log bool
	// LogY has the Y axis in powers of ten.
	LogY bool
	// Marks are the values of X that are written; nil: round ones.
	Marks []float64
	Lines []Line
}

// Line is a line through points, by x.
type Line struct {
	Name   string
	Points [][2]float64
	Paper  bool // a paper's: grey and dashed
}

// axis maps values to pixels.
type axis struct {
	from, to   float64 // values
	start, end float64 // pixels
	log        bool
}

func (a *axis) at(v float64) float64 {
	from, to := a.from, a.to
	if a.log {
		v, from, to = math.Log(max(v, a.from)), math.Log(from), math.Log(to)
	}
	if to == from {
		return a.start
	}
	return a.start + (v-from)/(to-from)*(a.end-a.start)
}

// SVG draws the chart.
func (l *Lines) SVG() string {
	const plotHeight, left, right = 300.0, 70.0, width - 24.0
	var c canvas
	c.text(margin, 22, "start", "t", l.Title)
	names, fills := make([]string, len(l.Lines)), make([]string, len(l.Lines))
	var xs, ys []float64
	colour := 0
	for i, line := range l.Lines {
		names[i], fills[i] = line.Name, paperColour
		if !line.Paper {
			fills[i] = colours[colour%len(colours)]
			colour++
		}
		for _, p := range line.Points {
			xs, ys = append(xs, p[0]), append(ys, p[1])
		}
	}
	top := c.legend(44, names, fills, true) + 4
	if len(xs) == 0 {
		xs, ys = []float64{1}, []float64{1}
	}
	x := axis{from: 0, to: slices.Max(xs), start: left, end: right, log: l.Log}
	if l.Log {
		x.from = slices.Min(xs)
	}
	marksX := l.Marks
	if marksX == nil {
		marksX = ticks(x.to, 8)
		x.to = marksX[len(marksX)-1]
	}
	bottom := top + plotHeight
	y := axis{to: slices.Max(ys), start: bottom, end: top, log: l.LogY}
	var marksY []float64
	if l.LogY {
		least := slices.Max(ys)
		for _, v := range ys {
			if v > 0 {
				least = min(least, v)
			}
		}
		for p := math.Floor(math.Log10(max(least, 1e-12))); ; p++ {
			marksY = append(marksY, math.Pow(10, p))
			if math.Pow(10, p) >= y.to {
				break
			}
		}
		y.from = marksY[0]
	} else {
		marksY = ticks(y.to, 6)
	}
	y.to = marksY[len(marksY)-1]
	for _, v := range marksY {
		c.line(left, y.at(v), right, y.at(v), "g")
		c.text(left-6, y.at(v)+4, "end", "n", number(v))
	}
	for _, v := range marksX {
		c.line(x.at(v), top, x.at(v), bottom, "g")
		c.text(x.at(v), bottom+16, "middle", "n", number(v))
	}
	c.line(left, bottom, right, bottom, "a")
	c.line(left, top, left, bottom, "a")
	for i, line := range l.Lines {
		var path []string
		for _, p := range line.Points {
			path = append(path, px(x.at(p[0]))+","+px(y.at(p[1])))
		}
		dash := ""
		if line.Paper {
			dash = ` stroke-dasharray="6 4"`
		}
		c.add(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`, strings.Join(path, " "), fills[i], dash)
		for _, p := range line.Points {
			c.add(`<circle cx="%s" cy="%s" r="2.6" fill="%s"/>`, px(x.at(p[0])), px(y.at(p[1])), fills[i])
		}
	}
	c.text((left+right)/2, bottom+36, "middle", "n", l.X)
	c.add(`<text transform="translate(%s %s) rotate(-90)" text-anchor="middle" class="n">%s</text>`, px(margin+6), px((top+bottom)/2), html.EscapeString(l.Y))
	c.height = bottom + 48
	return c.finish(l.Title)
}
