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
func technologies(r *forward.Report) *plot.Bars {
	papers := map[string]float64{forward.VethBridge: kthBridge / kthNative}
	for _, s := range setups {
		if s.Config != forward.VethBridge {
			papers[s.Config] = s.Of
		}
	}
	papers[forward.VethBridge] = setups[3].Of
	var b plot.Bars
	b.Title, b.Unit = "Rate through virtual routers, of native forwarding in the same run", "of native; the thin line is from the least to the greatest round"
	here, then := plot.Series{Name: "this machine"}, plot.Series{Name: "Trellis (2008)", Paper: true}
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Routers > 0 || slices.Contains(b.Groups, row.Config) {
			continue // of another scenario than the first
		}
		median, low, high := ratioOf(row)
		b.Groups = append(b.Groups, row.Config)
		here.Values, here.Low, here.High = append(here.Values, median), append(here.Low, low), append(here.High, high)
		was, ok := papers[row.Config]
		if row.Config == forward.VXLANInside && !slices.ContainsFunc(r.Rows, func(row forward.Row) bool { return row.Config == forward.GREInside }) {
			was, ok = papers[forward.GREInside]
		}
		if !ok {
			was = math.NaN()
		}
		then.Values = append(then.Values, was)
	}
	b.Series = []plot.Series{here, then}
	return &b
}

// bySize draws rates by size of frames, of native's with the smallest.
func bySize(r *forward.Report) *plot.Lines {
	l := plot.Lines{Title: "Rate by size of frames, of native forwarding of the same size", X: "bytes, with the check sequence", Y: "of native", Log: true}
	for _, config := range configurations(r) {
		line := plot.Line{Name: config}
		for i := range r.Rows {
			if row := &r.Rows[i]; row.Config == config && plain(row) && row.Size != forward.IMIX {
				line.Points = append(line.Points, [2]float64{float64(row.Size), row.RatioToNative})
				if x := float64(row.Size); !slices.Contains(l.Marks, x) {
					l.Marks = append(l.Marks, x)
				}
			}
		}
		l.Lines = append(l.Lines, line)
	}
	l.Lines = append(l.Lines, plot.Line{Name: "Trellis (2008): shortbridge, which filled the link from 512 bytes on", Paper: true, Points: shortbridgeBySize})
	return &l
}

// gigabits is what a link carries with frames of a size, preamble and gap
// included, Gbit/s.
func gigabits(kpps float64, size forward.Size) float64 {
	const preambleAndGap = 20
	return kpps * (size.Mean() + preambleAndGap) * 8 / 1e6
}

// byRouters draws the sum over routers side by side.
func byRouters(r *forward.Report) *plot.Lines {
	l := plot.Lines{Title: "Rate of N routers side by side on one core, in all", X: "routers", Y: "kpps", Log: true}
	names := map[string]*plot.Line{}
	var order, seen []string
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Routers == 0 || slices.Contains(seen, row.Config) {
			continue // or of another scenario than the first
		}
		seen = append(seen, row.Config)
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
	return &l
}

// throughput draws sweeps that are of one router, or of several: what arrives by
// what is offered.
func throughput(r *forward.Report) *plot.Lines {
	l := plot.Lines{Title: "Throughput against offered load, routers on one core", X: "offered, of what native forwards at saturation", Y: "arrived, of native's saturation"}
	native := nativeSaturation(r)
	for i := range r.Sweeps {
		s := &r.Sweeps[i]
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
	return &l
}

// nativeSaturation is what native forwards at saturation, kpps; 1 where that was
// not measured.
func nativeSaturation(r *forward.Report) float64 {
	for i := range r.Sweeps {
		if s := &r.Sweeps[i]; s.Config == forward.Native && s.Saturation > 0 {
			return s.Saturation
		}
	}
	return 1
}

// latencies draws the 99th percentile by load.
func latencies(r *forward.Report) *plot.Lines {
	l := plot.Lines{Title: "99th percentile of the time on the way, by load", X: "offered, of saturation", Y: "µs", LogY: true}
	for i := range r.Sweeps {
		s := &r.Sweeps[i]
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
	return &l
}

// tables draws the rate by routes in the FIB, one line for each number of flows
// and configuration.
func tables(r *forward.Report) *plot.Lines {
	l := plot.Lines{Title: "Rate by the routes in the FIB, of one route and one flow", X: "routes", Y: "of the same with one route and one flow", Log: true}
	var flows []int
	for i := range r.Rows {
		row := &r.Rows[i]
		if f := max(1, row.Flows); !slices.Contains(flows, f) {
			flows = append(flows, f)
		}
		if x := float64(row.Routes); !slices.Contains(l.Marks, x) {
			l.Marks = append(l.Marks, x)
		}
	}
	for _, config := range []string{forward.Native, forward.EGREFast} {
		one := find(r, config, forward.Scenario{Size: forward.MinSize, Routes: 1})
		if one == nil {
			continue
		}
		for _, f := range flows {
			line := plot.Line{Name: config + ", " + plural(f, "flow")}
			for i := range r.Rows {
				if row := &r.Rows[i]; row.Config == config && max(1, row.Flows) == f {
					line.Points = append(line.Points, [2]float64{float64(row.Routes), row.Kpps / one.Kpps})
				}
			}
			l.Lines = append(l.Lines, line)
		}
	}
	return &l
}

// plain tells whether a row is of the usual scenario: one router or a row of them,
// one flow, and the routes that are needed.
func plain(row *forward.Row) bool { return row.Routers == 0 && row.Routes == 0 && row.Flows == 0 }

// configurations are those that a report has, in its order.
func configurations(r *forward.Report) (all []string) {
	for i := range r.Rows {
		if row := &r.Rows[i]; row.Routers == 0 && !slices.Contains(all, row.Config) {
			all = append(all, row.Config)
		}
	}
	return all
}

// Plots draws what a report has, as SVG, by names of files: rates by
// technology, by size where there are several, by the number of routers, and
// throughput and latency by load.
func Plots(r *forward.Report) map[string]string {
	all := map[string]string{}
	sizes, routers := map[forward.Size]bool{}, map[int]bool{}
	for i := range r.Rows {
		row := &r.Rows[i]
		if plain(row) && row.Size != forward.IMIX {
			sizes[row.Size] = true
		}
		if row.Routers > 0 {
			routers[row.Routers] = true
		}
	}
	if len(configurations(r)) > 0 {
		all["technologies.svg"] = technologies(r).SVG()
	}
	if len(sizes) > 1 {
		all["sizes.svg"] = bySize(r).SVG()
	}
	if len(routers) > 1 {
		all["routers.svg"] = byRouters(r).SVG()
	}
	if len(r.Sweeps) > 0 {
		all["throughput.svg"], all["latency.svg"] = throughput(r).SVG(), latencies(r).SVG()
	}
	return all
}
