package paper

import (
	"html/template"
	"math"
	"slices"
	"strings"

	"trellis/internal/bench/forward"
	"trellis/internal/bench/plot"
)

// find gives the row of a configuration in a scenario; nil where there is none.
func find(r *forward.Report, config string, sc forward.Scenario) *forward.Row {
	i := slices.IndexFunc(r.Rows, func(row forward.Row) bool {
		return row.Config == config && row.Size == sc.Size && row.Routes == sc.Routes && max(1, row.Flows) == max(1, sc.Flows)
	})
	if i < 0 {
		return nil
	}
	return &r.Rows[i]
}

// smallest finds the row of a configuration with the smallest frames.
func (r *Report) smallest(config string) *forward.Row {
	i := slices.IndexFunc(r.Technologies.Rows, func(row forward.Row) bool { return row.Config == config })
	if i < 0 {
		return nil
	}
	return &r.Technologies.Rows[i]
}

// today is what stands for a set-up of the papers here: tunnels in the container
// are VXLAN's where the kernel has no GRE.
func (r *Report) today(config string) *forward.Row {
	if row := r.smallest(config); row != nil || config != forward.GREInside {
		return row
	}
	return r.smallest(forward.VXLANInside)
}

func ratioOf(row *forward.Row) (median, low, high float64) {
	if row == nil {
		return math.NaN(), math.NaN(), math.NaN()
	}
	s := row.Over(func(n forward.Round) float64 { return n.RatioToNative })
	return s.Median, s.Min, s.Max
}

func svg(s interface{ SVG() string }) template.HTML {
	return template.HTML(s.SVG()) // its texts are escaped
}

// technologies draws all configurations, of native.
func (r *Report) technologies() template.HTML {
	papers := map[string]float64{forward.VethBridge: kthBridge / kthNative}
	for _, s := range setups {
		if s.Config != forward.VethBridge {
			papers[s.Config] = s.Of
		}
	}
	papers[forward.VethBridge] = setups[3].Of
	var b plot.Bars
	b.Title, b.Unit = "Rate through one router, 64-byte frames, of native forwarding in the same run", "of native; the thin line is from the least to the greatest round"
	here, then := plot.Series{Name: "this machine"}, plot.Series{Name: "Trellis (2008)", Paper: true}
	for i := range r.Technologies.Rows {
		row := &r.Technologies.Rows[i]
		median, low, high := ratioOf(row)
		b.Groups = append(b.Groups, row.Config)
		here.Values, here.Low, here.High = append(here.Values, median), append(here.Low, low), append(here.High, high)
		was, ok := papers[row.Config]
		if row.Config == forward.VXLANInside && r.smallest(forward.GREInside) == nil {
			was, ok = papers[forward.GREInside]
		}
		if !ok {
			was = math.NaN()
		}
		then.Values = append(then.Values, was)
	}
	b.Series = []plot.Series{here, then}
	return svg(&b)
}

// bySize draws rates by size of frames, of native's with the smallest.
func (r *Report) bySize() template.HTML {
	l := plot.Lines{Title: "Rate by size of frames, of native forwarding of the same size", X: "bytes, with the check sequence", Y: "of native", Log: true}
	for _, config := range sizeConfigs {
		line := plot.Line{Name: config}
		for i := range r.Sizes.Rows {
			if row := &r.Sizes.Rows[i]; row.Config == config && row.Size != forward.IMIX {
				line.Points = append(line.Points, [2]float64{float64(row.Size), row.RatioToNative})
				if x := float64(row.Size); !slices.Contains(l.Marks, x) {
					l.Marks = append(l.Marks, x)
				}
			}
		}
		l.Lines = append(l.Lines, line)
	}
	l.Lines = append(l.Lines, plot.Line{Name: "Trellis (2008): shortbridge, which filled the link from 512 bytes on", Paper: true, Points: shortbridgeBySize})
	return svg(&l)
}

// gigabits is what a link carries with frames of a size, preamble and gap
// included, Gbit/s.
func gigabits(kpps float64, size forward.Size) float64 {
	const preambleAndGap = 20
	return kpps * (size.Mean() + preambleAndGap) * 8 / 1e6
}

// byRouters draws the sum over routers side by side.
func (r *Report) byRouters() template.HTML {
	l := plot.Lines{Title: "Rate of N routers side by side on one core, in all", X: "routers", Y: "kpps", Log: true}
	names := map[string]*plot.Line{}
	var order []string
	for i := range r.Routers.Rows {
		row := &r.Routers.Rows[i]
		base := row.Config[:strings.LastIndex(row.Config, "-x")]
		if names[base] == nil {
			names[base] = &plot.Line{Name: base}
			order = append(order, base)
		}
		names[base].Points = append(names[base].Points, [2]float64{float64(row.Routers), row.Kpps})
		if x := float64(row.Routers); !slices.Contains(l.Marks, x) {
			l.Marks = append(l.Marks, x)
		}
	}
	for _, name := range order {
		l.Lines = append(l.Lines, *names[name])
	}
	return svg(&l)
}

// throughput draws sweeps that are of one router, or of several: what arrives by
// what is offered.
func (r *Report) throughput() template.HTML {
	l := plot.Lines{Title: "Throughput against offered load, 64-byte frames, routers on one core", X: "offered, of what native forwards at saturation", Y: "arrived, of native's saturation"}
	native := r.nativeSaturation()
	for i := range r.Sweeps.Sweeps {
		s := &r.Sweeps.Sweeps[i]
		if s.Routers > 0 {
			continue
		}
		line := plot.Line{Name: s.Config}
		for _, p := range s.Points {
			line.Points = append(line.Points, [2]float64{p.Offered / native, p.Kpps / native})
		}
		slices.SortFunc(line.Points, func(a, b [2]float64) int { return int(math.Copysign(1, a[0]-b[0])) })
		l.Lines = append(l.Lines, line)
	}
	const plateau, most = kthBridge / kthNative, 800 / kthNative
	l.Lines = append(l.Lines,
		plot.Line{Name: "KTH: bridge and veth, of its native 720 kpps", Paper: true, Points: [][2]float64{{0.1, 0.1}, {plateau, plateau}, {most, plateau}}})
	return svg(&l)
}

// nativeSaturation is what native forwards at saturation, kpps; 1 where that was
// not measured.
func (r *Report) nativeSaturation() float64 {
	for i := range r.Sweeps.Sweeps {
		if s := &r.Sweeps.Sweeps[i]; s.Config == forward.Native && s.Saturation > 0 {
			return s.Saturation
		}
	}
	return 1
}

// latencies draws the 99th percentile by load.
func (r *Report) latencies() template.HTML {
	l := plot.Lines{Title: "99th percentile of the time on the way, by load", X: "offered, of saturation", Y: "µs", LogY: true}
	for i := range r.Sweeps.Sweeps {
		s := &r.Sweeps.Sweeps[i]
		if s.Routers > 0 || s.Saturation == 0 {
			continue
		}
		line := plot.Line{Name: s.Config}
		for _, p := range s.Points {
			line.Points = append(line.Points, [2]float64{p.Offered / s.Saturation, p.Latency.P99 / 1000})
		}
		slices.SortFunc(line.Points, func(a, b [2]float64) int { return int(math.Copysign(1, a[0]-b[0])) })
		l.Lines = append(l.Lines, line)
	}
	return svg(&l)
}

// tables draws the rate by routes in the FIB, one line for each number of flows
// and configuration.
func (r *Report) tables() template.HTML {
	l := plot.Lines{Title: "Rate by the routes in the FIB, of one route and one flow", X: "routes", Y: "of the same with one route and one flow", Log: true}
	var flows []int
	for i := range r.Tables.Rows {
		row := &r.Tables.Rows[i]
		if f := max(1, row.Flows); !slices.Contains(flows, f) {
			flows = append(flows, f)
		}
		if x := float64(row.Routes); !slices.Contains(l.Marks, x) {
			l.Marks = append(l.Marks, x)
		}
	}
	for _, config := range []string{forward.Native, forward.EGREFast} {
		one := find(&r.Tables, config, forward.Scenario{Size: forward.MinSize, Routes: 1})
		if one == nil {
			continue
		}
		for _, f := range flows {
			line := plot.Line{Name: config + ", " + plural(f, "flow")}
			for i := range r.Tables.Rows {
				if row := &r.Tables.Rows[i]; row.Config == config && max(1, row.Flows) == f {
					line.Points = append(line.Points, [2]float64{float64(row.Routes), row.Kpps / one.Kpps})
				}
			}
			l.Lines = append(l.Lines, line)
		}
	}
	return svg(&l)
}
