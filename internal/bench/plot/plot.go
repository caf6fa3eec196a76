// Package plot draws measurements as SVG: bars beside each other, and lines over
// an axis. Drawings stand for themselves: they need no script and no font but the
// viewer's own sans-serif, and are the same for the same values.
package plot

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// Sizes in pixels.
const (
	width      = 760
	textSize   = 12
	charWidth  = 6.6 // of text, on average
	lineHeight = 16
	margin     = 12
)

// colours tell series apart, also for the colour-blind (Okabe and Ito, 2008); a
// paper's own figures are grey.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6bb1"}

const paperColour = "#a8a8a8"

// canvas is a drawing that grows.
type canvas struct {
	b      strings.Builder
	height float64
}

func (c *canvas) add(format string, args ...any) { fmt.Fprintf(&c.b, format+"\n", args...) }

// text writes at a place; anchor is start, middle or end.
func (c *canvas) text(x, y float64, anchor, class, s string) {
	c.add(`<text x="%s" y="%s" text-anchor="%s" class="%s">%s</text>`, px(x), px(y), anchor, class, html.EscapeString(s))
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	c.add(`<line x1="%s" y1="%s" x2="%s" y2="%s" class="%s"/>`, px(x1), px(y1), px(x2), px(y2), class)
}

// finish gives the whole document.
func (c *canvas) finish(title string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%s" viewBox="0 0 %d %s" role="img" aria-label="%s">
<style>text{font:%dpx sans-serif;fill:#222}.t{font-size:14px;font-weight:bold}.n{fill:#555}.g{stroke:#e4e4e4}.a{stroke:#888}.e{stroke:#333}</style>
<rect width="100%%" height="100%%" fill="#fff"/>
%s</svg>
`, width, px(c.height), width, px(c.height), html.EscapeString(title), textSize, c.b.String())
}

// px writes a length without needless digits.
func px(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

// textWidth estimates how wide a text is.
func textWidth(s string) float64 { return charWidth * float64(len([]rune(s))) }

// legend writes what the colours mean from y on, and gives where it ends.
func (c *canvas) legend(y float64, names, fills []string, lines bool) float64 {
	x := float64(margin)
	for i, name := range names {
		w := 18 + textWidth(name) + 18
		if x+w > width-margin && x > margin {
			x = margin
			y += lineHeight
		}
		if lines {
			c.add(`<line x1="%s" y1="%s" x2="%s" y2="%s" stroke="%s" stroke-width="2.5"/>`, px(x), px(y-4), px(x+14), px(y-4), fills[i])
		} else {
			c.add(`<rect x="%s" y="%s" width="12" height="10" fill="%s"/>`, px(x), px(y-9), fills[i])
		}
		c.text(x+18, y, "start", "n", name)
		x += w
	}
	return y + lineHeight
}

// ticks gives round values from 0 to at least most, about n of them.
func ticks(most float64, n int) []float64 {
	if !(most > 0) || math.IsInf(most, 0) {
		return []float64{0, 1}
	}
	step := math.Pow(10, math.Floor(math.Log10(most/float64(n))))
	for _, f := range []float64{1, 2, 2.5, 5, 10} {
		if step*f*float64(n) >= most {
			step *= f
			break
		}
	}
	var all []float64
	for i := 0; ; i++ {
		v := step * float64(i)
		all = append(all, v)
		if v >= most*(1-1e-9) {
			return all
		}
	}
}

// number writes a value shortly.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + " M"
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(math.Round(v*1000)/1000, 'g', 3, 64)
}
