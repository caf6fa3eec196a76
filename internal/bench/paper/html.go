package paper

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"

	"trellis/internal/bench"
	"trellis/internal/bench/deploy"
	"trellis/internal/bench/forward"
	"trellis/internal/bench/tcp"
)

//go:embed paper.html
var page string

// WriteHTML writes the report as one HTML file that needs nothing else.
func (r *Report) WriteHTML(w io.Writer) error {
	t, err := template.New("paper").Funcs(template.FuncMap{
		"whole": func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) },
		"two":   func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) },
		"micro": func(ns float64) string { return strconv.FormatFloat(ns/1000, 'f', 1, 64) },
		"part":  func(v float64) string { return strconv.FormatFloat(100*v, 'f', 2, 64) + " %" },
		"group": group,
	}).Parse(page)
	if err != nil {
		return fmt.Errorf("read the page's template: %w", err)
	}
	if err := t.Execute(w, r.view()); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// took says how long it took.
func took(seconds float64) string {
	if seconds < 120 {
		return fmt.Sprintf("%.0f s", seconds)
	}
	return fmt.Sprintf("%.0f minutes", seconds/60)
}

// view is what the page shows.
type view struct {
	*Report
	When, Took string
	Sources    []source
	Glance     []glance
	Setups     []setupRow
	Skipped    []forward.Skipped

	ByTechnology, BySize, ByRouters, ByTable, ByLoad, ByLatency template.HTML

	SizeRows    []sizeRow
	RouterRows  []routerRow
	SweepRows   []forward.Sweep
	Breakdown   []breakdown
	CPU         []cpuRow
	TCPRows     []tcpRow
	NetworkRows []networkRow
}

// glance is a question of the papers in one line.
type glance struct{ Asked, By, Then, Now string }

type setupRow struct {
	setup
	Today, Now string
}

type sizeRow struct {
	Size  string
	Cells []sizeCell
}

type sizeCell struct{ Kpps, Gigabits string }

type routerRow struct {
	Config              string
	Cells               []string // by number of routers
	Kept, Fair, Without string
}

type breakdown struct {
	Config        string
	Points        []breakdownPoint
	RouterNumbers []int
}

type breakdownPoint struct {
	Load, Offered string
	Shares        []string
	Fairness      string
}

type cpuRow struct {
	Config, Paper string
	Shares        []forward.Share
}

type tcpRow struct {
	Routers                        int
	Shortbridge, Plain, Veth, Gain string
}

type networkRow struct {
	Name, Created, Converged, Down string
}

// spread writes median (least–most).
func spread(s bench.Spread, digits int) string {
	return s.Format(func(v float64) string { return strconv.FormatFloat(v, 'f', digits, 64) })
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return group(float64(n)) + " " + noun + "s"
}

// group writes a whole number with its thousands apart.
func group(v float64) string {
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// of writes the ratio of a row to native.
func of(row *forward.Row) string {
	if row == nil {
		return "not measured here"
	}
	return spread(row.Over(func(n forward.Round) float64 { return n.RatioToNative }), 2) + " of native"
}

func (r *Report) view() *view {
	v := &view{
		Report: r, When: r.Machine.Time.Format("2006-01-02 15:04 MST"), Took: took(r.Seconds),
		Sources:      []source{trellis2008, ucl2007, kth, europa, prototype},
		ByTechnology: svg(technologies(&r.Technologies)), BySize: svg(bySize(&r.Sizes)), ByRouters: svg(byRouters(&r.Routers)),
		ByTable: svg(tables(&r.Tables)), ByLoad: svg(throughput(&r.Sweeps)), ByLatency: svg(latencies(&r.Sweeps)),
		SweepRows: r.Sweeps.Sweeps,
	}
	for _, report := range []*forward.Report{&r.Technologies, &r.Sizes, &r.Routers, &r.Tables, &r.Sweeps} {
		for _, s := range report.Skipped {
			if !slices.Contains(v.Skipped, s) {
				v.Skipped = append(v.Skipped, s)
			}
		}
	}
	for _, s := range setups {
		row := r.today(s.Config)
		shown := setupRow{setup: s, Today: s.Config, Now: of(row)}
		if row != nil {
			shown.Today = row.Config
		}
		v.Setups = append(v.Setups, shown)
	}
	v.Glance = r.glances()
	v.sizes()
	v.routers()
	v.sweeps()
	for i := range r.TCP.Cases {
		c := &r.TCP.Cases[i]
		v.TCPRows = append(v.TCPRows, tcpRow{
			c.Routers, spread(c.Summary[tcp.Shortbridge], 2), spread(c.Summary[tcp.VethNoOffload], 2), spread(c.Summary[tcp.Veth], 2), spread(c.Ratio[tcp.VethNoOffload], 2),
		})
	}
	if r.Deploy != nil {
		for i := range r.Deploy.Cases {
			c := &r.Deploy.Cases[i]
			seconds := c.Summary.Seconds
			v.NetworkRows = append(v.NetworkRows, networkRow{
				fmt.Sprintf("%s: %d nodes, %d links, %s", c.Name, c.Nodes, c.Links, c.Routing),
				spread(seconds[deploy.Created], 2), spread(seconds[deploy.Converged], 2), spread(seconds[deploy.Down], 2),
			})
		}
	}
	return v
}

// glances are the questions, each with its answer then and now.
func (r *Report) glances() []glance {
	var all []glance
	add := func(asked, by, then, now string) { all = append(all, glance{asked, by, then, now}) }
	fast, stack := r.smallest(forward.EGREFast), r.smallest(forward.EGREStack)
	add("What of the native packet rate is left to a virtual router behind tunnels?", trellis2008.Short,
		"0.67 by shortbridge and EGRE, 0.73 with the tunnel in the container", of(stack)+" by the router's own stack; "+of(fast)+" on the fast path")
	add("What does a bridge cost instead?", trellis2008.Short+", "+kth.Short,
		fmt.Sprintf("0.38 and 0.32 of native; %.2f (334 of 720 kpps)", kthBridge/kthNative), of(r.smallest(forward.VethBridge))+"; with tunnels "+of(r.smallest(forward.VXLANBridge)))
	add("Does the mapping of devices decide?", kth.Short, "macvlan takes a quarter of what bridge and veth take", "macvlan: "+of(r.smallest(forward.Macvlan)))
	add("And in user space?", trellis2008.Short+", "+europa.Short, "0.10 of native by sockets; 6,700 cycles a packet for two system calls and copies, at most 400 kpps",
		"sockets: "+of(r.smallest(forward.UserPacket))+"; AF_XDP: "+of(r.smallest(forward.UserXDP)))
	first, last := r.ends(forward.EGREFast), r.ends(forward.VethBridge)
	if first.most != nil {
		now := fmt.Sprintf("%s keep %.2f of one router's rate on the fast path, shares of fairness %.3f", plural(first.most.Routers, "router"), first.most.Kpps/first.one.Kpps, first.most.Fairness)
		if last.most != nil {
			now += fmt.Sprintf("; bridged %.2f", last.most.Kpps/last.one.Kpps)
		}
		add("How does the sum hold as routers are added?", ucl2007.Short+", "+europa.Short, "it falls: guests that forward ruin the privileged domain's forwarding, too", now)
	}
	if r.Deploy != nil && len(r.Deploy.Cases) > 0 {
		s := r.Deploy.Cases[0].Summary.Seconds[deploy.Created]
		if s.Samples > 0 {
			add("How long until a virtual network is there?", prototype.Short, onDemand+" on demand, "+preAllocated+" with machines booted before",
				fmt.Sprintf("%.2f s, %s times as fast", s.Median, group(onDemandMean/s.Median)))
		}
	}
	return all
}

// ends are the rows with one router and with the most of them.
type ends struct{ one, most *forward.Row }

func (r *Report) ends(base string) (e ends) {
	for i := range r.Routers.Rows {
		row := &r.Routers.Rows[i]
		if !strings.HasPrefix(row.Config, base+"-x") {
			continue
		}
		if row.Routers == 1 {
			e.one = row
		} else if e.most == nil || row.Routers > e.most.Routers {
			e.most = row
		}
	}
	if e.one == nil {
		return ends{}
	}
	return e
}

// SizeConfigs are the columns of the table of sizes.
func (v *view) SizeConfigs() []string { return sizeConfigs }

func (v *view) sizes() {
	var sizes []forward.Size
	for i := range v.Sizes.Rows {
		if s := v.Sizes.Rows[i].Size; !slices.Contains(sizes, s) {
			sizes = append(sizes, s)
		}
	}
	for _, s := range sizes {
		row := sizeRow{Size: s.String()}
		for _, config := range sizeConfigs {
			cell := sizeCell{"-", ""}
			if m := find(&v.Sizes, config, forward.Scenario{Size: s}); m != nil {
				cell = sizeCell{group(m.Kpps) + " kpps", fmt.Sprintf("%.1f Gbit/s", gigabits(m.Kpps, s))}
			}
			row.Cells = append(row.Cells, cell)
		}
		v.SizeRows = append(v.SizeRows, row)
	}
}

// RouterCounts are the columns of the table of routers side by side.
func (v *view) RouterCounts() []int {
	var all []int
	for i := range v.Report.Routers.Rows {
		if n := v.Report.Routers.Rows[i].Routers; !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	return all
}

func (v *view) routers() {
	for _, base := range []string{forward.VethBridge, forward.VethRouted, forward.EGREStack, forward.EGREFast} {
		e := v.ends(base)
		if e.one == nil || e.most == nil {
			continue
		}
		row := routerRow{Config: base, Kept: fmt.Sprintf("%.2f", e.most.Kpps/e.one.Kpps), Fair: fmt.Sprintf("%.4f", e.most.Fairness)}
		for _, n := range v.RouterCounts() {
			cell := "-"
			if m := find(&v.Report.Routers, base+"-x"+strconv.Itoa(n), forward.Scenario{Size: forward.MinSize}); m != nil {
				cell = group(m.Kpps)
			}
			row.Cells = append(row.Cells, cell)
		}
		v.RouterRows = append(v.RouterRows, row)
	}
}

func (v *view) sweeps() {
	for i := range v.Sweeps.Sweeps {
		s := &v.Sweeps.Sweeps[i]
		if s.Routers > 0 {
			b := breakdown{Config: s.Config}
			for n := range s.Routers {
				b.RouterNumbers = append(b.RouterNumbers, n+1)
			}
			for _, p := range s.Points {
				shown := breakdownPoint{Load: fmt.Sprintf("%.2f", p.Offered/max(1, s.Saturation)), Offered: group(p.Offered), Fairness: fmt.Sprintf("%.4f", p.Fairness)}
				for _, a := range p.ArrivedBy {
					shown.Shares = append(shown.Shares, group(p.Kpps*float64(a)/max(1, float64(p.Arrived))))
				}
				b.Points = append(b.Points, shown)
			}
			v.Breakdown = append(v.Breakdown, b)
			continue
		}
		if len(s.CPU) > 0 {
			row := cpuRow{Config: s.Config, Paper: kthShare[s.Config]}
			for _, c := range s.CPU {
				if c.Share >= 0.02 {
					row.Shares = append(row.Shares, c)
				}
			}
			v.CPU = append(v.CPU, row)
		}
	}
}
