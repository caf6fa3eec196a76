package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// check reads a drawing as XML and makes sure that everything lies in it.
func check(t *testing.T, svg string) (texts []string, shapes map[string]int) {
	t.Helper()
	shapes = map[string]int{}
	d := xml.NewDecoder(strings.NewReader(svg))
	height := 0.0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts, shapes
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		switch e := token.(type) {
		case xml.StartElement:
			shapes[e.Name.Local]++
			for _, a := range e.Attr {
				v, err := strconv.ParseFloat(a.Value, 64)
				if err != nil {
					if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
						t.Errorf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value)
					}
					continue
				}
				switch a.Name.Local {
				case "height":
					if e.Name.Local == "svg" {
						height = v
					}
				case "x", "x1", "x2", "cx":
					if !(v >= 0 && v <= width) {
						t.Errorf("%s is at x = %v", e.Name.Local, v)
					}
				case "y", "y1", "y2", "cy":
					if !(v >= 0 && v <= height) {
						t.Errorf("%s is at y = %v of %v", e.Name.Local, v, height)
					}
				}
			}
		case xml.CharData:
			if s := strings.TrimSpace(string(e)); s != "" {
				texts = append(texts, s)
			}
		}
	}
}

func TestBars(t *testing.T) {
	b := Bars{
		Title: "Rate <&>", Unit: "of native", Groups: []string{"native", "a & b", "none"},
		Series: []Series{
			{Name: "here", Values: []float64{1, 2.12, math.NaN()}, Low: []float64{1, 2, math.NaN()}, High: []float64{1, 2.5, math.NaN()}},
			{Name: "2008", Values: []float64{1, math.NaN(), math.NaN()}, Paper: true},
		},
	}
	texts, shapes := check(t, b.SVG())
	for _, want := range []string{"Rate <&>", "of native", "a & b", "2.12", "none", "here", "2008"} {
		if !slices.Contains(texts, want) {
			t.Errorf("no %q in %q", want, texts)
		}
	}
	if shapes["rect"] != 1+2+3 { // background, legend, bars
		t.Errorf("shapes are %v", shapes)
	}
	if again := b.SVG(); again != b.SVG() {
		t.Error("the same values give another drawing")
	}
	check(t, (&Bars{Title: "empty"}).SVG())
}

func TestLines(t *testing.T) {
	l := Lines{Title: "Throughput", X: "offered", Y: "kpps", Lines: []Line{
		{Name: "egre-fast", Points: [][2]float64{{10, 10}, {500, 500}, {2000, 2100}}},
		{Name: "KTH", Points: [][2]float64{{334, 334}}, Paper: true},
	}}
	texts, shapes := check(t, l.SVG())
	if shapes["polyline"] != 2 || shapes["circle"] != 4 || !slices.Contains(texts, "offered") {
		t.Errorf("%v, %q", shapes, texts)
	}
	l.Log, l.Marks = true, []float64{10, 100, 1000}
	check(t, l.SVG())
	l.LogY = true
	l.Lines[1].Points = append(l.Lines[1].Points, [2]float64{400, 0}) // no logarithm
	check(t, l.SVG())
	check(t, (&Lines{Title: "empty"}).SVG())
	check(t, (&Lines{Lines: []Line{{Points: [][2]float64{{1, 0}}}}, Log: true, LogY: true}).SVG())
}

func TestTicks(t *testing.T) {
	for most, want := range map[float64][]float64{
		0: {0, 1}, 1: {0, 0.2, 0.4, 0.6, 0.8, 1}, 2.65: {0, 0.5, 1, 1.5, 2, 2.5, 3}, 2000: {0, 500, 1000, 1500, 2000},
	} {
		got := ticks(most, 6)
		if len(got) != len(want) || math.Abs(got[len(got)-1]-want[len(want)-1]) > 1e-9 {
			t.Errorf("ticks to %v are %v, want %v", most, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 0.15: "0.15", 2.12: "2.12", 9.876: "9.88", 998.4: "998", 2.5e6: "2.5 M"} {
		if got := number(v); got != want {
			t.Errorf("%v is written %s, want %s", v, got, want)
		}
	}
}
