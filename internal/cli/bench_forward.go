package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trellis/internal/bench/forward"
	"trellis/internal/bench/paper"
)

func newBenchForwardCommand(env *Env) *cobra.Command {
	var (
		cfg     forward.Config
		seconds float64
		sizes   []string
		routers []int
		plots   string
		output  *choice
	)
	cmd := &cobra.Command{
		Use:   "forward",
		Short: "Measure what it costs to forward a packet, natively and through virtual routers",
		Long: lines(
			"Forward packets natively and through virtual routers, on one core that also generates",
			"and counts them, so that the rate is the inverse of a packet's whole cost. Each frame",
			"is checked on arrival: addresses, TTL, checksum, tunnel headers. All configurations are",
			"built side by side and measured in turns. The ratio to native forwarding of the same",
			"round is what carries over to other machines.",
			"",
			"Configurations: "+strings.Join(forward.Names(), ", ")+",",
			fmt.Sprintf("chain-N and shortbridge-N of N routers in a row, 1 to %d, and as --routers has them,", forward.MaxRouters),
			fmt.Sprintf("%s-xN, of N routers side by side, 1 to %d.", strings.TrimSuffix(strings.Join(forward.Beside(1), ", "), "-x1"), forward.MaxBeside),
			"",
			"--sweep generates at a pace, on a second core: throughput against offered load, loss by",
			"gaps in sequence numbers, latency, and the highest rates without loss and with 0.5 %",
			"(RFC 2544, with trials of --seconds).",
			"Several --size, --routes and --flows are measured in all combinations."),
		Example: lines(
			"  sudo trellis bench forward",
			"  sudo trellis bench forward --configs native,shortbridge,chain-10 --size 64,512,1518,imix -o json",
			"  sudo trellis bench forward --configs egre-fast --routes 1,1000,500000 --flows 1,64,32768",
			"  sudo trellis bench forward --configs egre-fast --routers 1,4,16,64",
			"  sudo trellis bench forward --configs native,veth-bridge,egre-fast --sweep --cpu --seconds 0.3 --plots plots"),
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkForward(&cfg, sizes, routers, seconds); err != nil {
				return err
			}
			if plots != "" {
				if err := os.MkdirAll(plots, 0o755); err != nil {
					return fmt.Errorf("--plots: %w", err)
				}
			}
			cfg.Length = time.Duration(seconds * float64(time.Second))
			ctx, stop := interruptible(cmd)
			defer stop()
			bar := newProgress(env.Stderr)
			defer bar.finish()
			cfg.Progress = bar.update
			report, err := forward.Run(ctx, cfg)
			bar.finish()
			if err != nil {
				if interrupted(ctx) {
					return errors.New("interrupted; the namespaces of the measurement are gone")
				}
				return err
			}
			if plots != "" {
				if err := writePlots(plots, paper.Plots(&report)); err != nil {
					return err
				}
			}
			return env.print(output, report, func(w io.Writer) { forwardTable(w, &report) })
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Configs, "configs", forward.Standard(), "configurations to measure")
	f.StringSliceVar(&sizes, "size", []string{strconv.Itoa(forward.MinSize)}, "sizes of frames, in bytes with the check sequence, or imix (7:4:1 of 64, 594, 1518)")
	f.IntSliceVar(&cfg.Routes, "routes", nil, "routes in each FIB besides the needed ones, up to 500000")
	f.IntSliceVar(&cfg.Flows, "flows", nil, "flows that packets are of in turns, powers of two up to 32768")
	f.IntSliceVar(&routers, "routers", nil, "measure routers side by side, too: how many, 1 to 64")
	f.IntVar(&cfg.Repeat, "repeat", 5, "measure each this many times")
	f.StringVar(&plots, "plots", "", "write drawings, as SVG, into this directory")
	f.BoolVar(&cfg.Force, "force", false, "measure although an interface of the machine carries real traffic")
	f.BoolVar(&cfg.Sweep, "sweep", false, "offer loads from light to twice saturation, too, from a second core")
	f.BoolVar(&cfg.CPU, "cpu", false, "with --sweep: sample what the routers' core spends its time on")
	f.Float64Var(&seconds, "seconds", 1, "length of one run")
	output = outputFlag(cmd)
	return cmd
}

// writePlots writes drawings into a directory, by their names.
func writePlots(dir string, plots map[string]string) error {
	for name, svg := range plots {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(svg), 0o644); err != nil {
			return fmt.Errorf("write a drawing: %w", err)
		}
	}
	return nil
}

// checkForward refuses what cannot be measured.
func checkForward(cfg *forward.Config, sizes []string, routers []int, seconds float64) error {
	switch {
	case cfg.Repeat < 1:
		return usagef("--repeat %d: measure at least once", cfg.Repeat)
	case !(seconds >= 0.01 && seconds <= forward.MaxSeconds):
		return usagef("--seconds %v: a run takes from 0.01 to %d seconds", seconds, forward.MaxSeconds)
	case cfg.CPU && !cfg.Sweep:
		return usagef("--cpu samples during a sweep: add --sweep")
	case len(cfg.Configs) == 0:
		return usagef("--configs names nothing; known are %s", strings.Join(forward.Names(), ", "))
	case len(sizes) == 0:
		return usagef("--size names no size; the default is %d", forward.MinSize)
	}
	if err := checkTwice("routers", routers); err != nil {
		return err
	}
	for _, n := range routers {
		if n < 1 || n > forward.MaxBeside {
			return usagef("--routers %d: there are 1 to %d side by side", n, forward.MaxBeside)
		}
		cfg.Configs = append(cfg.Configs, forward.Beside(n)...)
	}
	if err := checkTwice("configs", cfg.Configs); err != nil {
		return err
	}
	for _, name := range cfg.Configs {
		if err := forward.Check(name); err != nil {
			return usagef("--configs: %v", err)
		}
	}
	cfg.Sizes = nil
	for _, text := range sizes {
		size, err := forward.ParseSize(text)
		if err != nil {
			return usagef("--size: %v", err)
		}
		cfg.Sizes = append(cfg.Sizes, size)
	}
	for _, n := range cfg.Routes {
		if n < 0 || n > forward.MaxRoutes {
			return usagef("--routes %d: a FIB gets 0 to %d more", n, forward.MaxRoutes)
		}
	}
	for _, n := range cfg.Flows {
		if err := forward.CheckFlows(n); err != nil {
			return usagef("--flows: %v", err)
		}
	}
	return errors.Join(checkTwice("size", cfg.Sizes), checkTwice("routes", cfg.Routes), checkTwice("flows", cfg.Flows))
}

// checkTwice refuses what a flag names twice.
func checkTwice[T comparable](flag string, values []T) error {
	for i, v := range values {
		if slices.Contains(values[:i], v) {
			return usagef("--%s names %v twice", flag, v)
		}
	}
	return nil
}

// forwardTable writes the report for people.
func forwardTable(w io.Writer, r *forward.Report) {
	machineLines(w, r.Machine)
	whole := func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
	ratio := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	routes, flows, routers := false, false, false
	for i := range r.Rows {
		row := &r.Rows[i]
		routes, flows, routers = routes || row.Routes > 0, flows || row.Flows > 0, routers || row.Routers > 0
	}
	heading := []string{"CONFIGURATION", ">SIZE"}
	if routes {
		heading = append(heading, ">ROUTES")
	}
	if flows {
		heading = append(heading, ">FLOWS")
	}
	heading = append(heading, ">KPPS", ">NS", ">NS WITHOUT GENERATOR", ">OF NATIVE", ">LOSS")
	if routers {
		heading = append(heading, ">FAIRNESS")
	}
	t := newTable(heading...)
	for i := range r.Rows {
		row := &r.Rows[i]
		cells := []string{row.Config, row.Size.String()}
		if routes {
			cells = append(cells, strconv.Itoa(row.Routes))
		}
		if flows {
			cells = append(cells, strconv.Itoa(max(1, row.Flows)))
		}
		cells = append(cells,
			spread(row.Over(func(n forward.Round) float64 { return n.Kpps }), whole),
			whole(row.NS), whole(row.NSWithoutGenerator),
			spread(row.Over(func(n forward.Round) float64 { return n.RatioToNative }), ratio),
			fmt.Sprintf("%.2f%%", 100*row.Loss))
		if routers {
			fairness := "-"
			if row.Routers > 0 {
				fairness = fmt.Sprintf("%.3f", row.Fairness)
			}
			cells = append(cells, fairness)
		}
		t.add(cells...)
	}
	t.write(w)
	fmt.Fprintf(w, "\nEverything on core %d; runs of %g s; median (min–max) of %s\n", r.Core, r.Seconds, count(r.Repeat, "round"))
	for i := range r.Generator {
		g := &r.Generator[i]
		fmt.Fprintf(w, "By themselves, %s and sink, %v bytes: %.0f ns\n", g.Config, g.Size, g.NS)
	}
	for i := range r.Sweeps {
		sweepTable(w, &r.Sweeps[i])
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "Skipped, %s: %s\n", s.Config, s.Reason)
	}
}

// sweepTable writes a sweep for people.
func sweepTable(w io.Writer, s *forward.Sweep) {
	fmt.Fprintf(w, "\n%s, %v bytes, at a pace: %.0f kpps at saturation, %.0f without loss, %.0f with 0.5 %%\n",
		s.Config, s.Size, s.Saturation, s.NoDrop.Kpps, s.HalfPercent.Kpps)
	heading := []string{">OFFERED KPPS", ">KPPS", ">LOSS", ">MISSING", ">50 %, µs", ">99 %", ">99.9 %"}
	if s.Routers > 0 {
		heading = append(heading, ">FAIRNESS")
	}
	t := newTable(heading...)
	micro := func(ns float64) string { return strconv.FormatFloat(ns/1000, 'f', 1, 64) }
	for i := range s.Points {
		p := &s.Points[i]
		cells := []string{
			fmt.Sprintf("%.0f", p.Offered), fmt.Sprintf("%.0f", p.Kpps), fmt.Sprintf("%.2f%%", 100*p.Loss), strconv.FormatUint(p.Missing, 10),
			micro(p.Latency.P50), micro(p.Latency.P99), micro(p.Latency.P999),
		}
		if s.Routers > 0 {
			cells = append(cells, fmt.Sprintf("%.3f", p.Fairness))
		}
		t.add(cells...)
	}
	t.write(w)
	for i, c := range s.CPU {
		if i == 0 {
			fmt.Fprint(w, "The core's time at saturation:")
		}
		if c.Share >= 0.005 {
			fmt.Fprintf(w, " %s %.0f%%;", c.Part, 100*c.Share)
		}
	}
	if len(s.CPU) > 0 {
		fmt.Fprintln(w)
	}
}
