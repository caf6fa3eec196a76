package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trellis/internal/bench/forward"
)

func newBenchForwardCommand(env *Env) *cobra.Command {
	var (
		cfg     forward.Config
		seconds float64
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
			fmt.Sprintf("and chain-N and shortbridge-N of N routers in a row, 1 to %d.", forward.MaxRouters)),
		Example: lines(
			"  sudo trellis bench forward",
			"  sudo trellis bench forward --configs native,shortbridge,chain-10 --size 64,1518 -o json"),
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkForward(&cfg, seconds); err != nil {
				return err
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
			return env.print(output, report, func(w io.Writer) { forwardTable(w, &report) })
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Configs, "configs", forward.Standard(), "configurations to measure")
	f.IntSliceVar(&cfg.Sizes, "size", []int{forward.MinSize}, "sizes of frames, in bytes with the check sequence")
	f.IntVar(&cfg.Repeat, "repeat", 5, "measure each this many times")
	f.Float64Var(&seconds, "seconds", 1, "length of one run")
	output = outputFlag(cmd)
	return cmd
}

// checkForward refuses what cannot be measured.
func checkForward(cfg *forward.Config, seconds float64) error {
	switch {
	case cfg.Repeat < 1:
		return usagef("--repeat %d: measure at least once", cfg.Repeat)
	case !(seconds >= 0.01 && seconds <= forward.MaxSeconds):
		return usagef("--seconds %v: a run takes from 0.01 to %d seconds", seconds, forward.MaxSeconds)
	case len(cfg.Configs) == 0:
		return usagef("--configs names nothing; known are %s", strings.Join(forward.Names(), ", "))
	case len(cfg.Sizes) == 0:
		return usagef("--size names no size; the default is %d", forward.MinSize)
	}
	for i, name := range cfg.Configs {
		if err := forward.Check(name); err != nil {
			return usagef("--configs: %v", err)
		}
		if slices.Contains(cfg.Configs[:i], name) {
			return usagef("--configs names %s twice", name)
		}
	}
	for i, n := range cfg.Sizes {
		if n < forward.MinSize || n > forward.MaxSize {
			return usagef("--size %d: a frame has %d to %d bytes", n, forward.MinSize, forward.MaxSize)
		}
		if slices.Contains(cfg.Sizes[:i], n) {
			return usagef("--size names %d twice", n)
		}
	}
	return nil
}

// forwardTable writes the report for people.
func forwardTable(w io.Writer, r *forward.Report) {
	machineLines(w, r.Machine)
	t := newTable("CONFIGURATION", ">SIZE", ">KPPS", ">NS", ">NS WITHOUT GENERATOR", ">OF NATIVE", ">LOSS")
	whole := func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
	ratio := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	for i := range r.Rows {
		row := &r.Rows[i]
		t.add(row.Config, strconv.Itoa(row.Size),
			spread(row.Over(func(n forward.Round) float64 { return n.Kpps }), whole),
			whole(row.NS), whole(row.NSWithoutGenerator),
			spread(row.Over(func(n forward.Round) float64 { return n.RatioToNative }), ratio),
			fmt.Sprintf("%.2f%%", 100*row.Loss))
	}
	t.write(w)
	fmt.Fprintf(w, "\nEverything on core %d; runs of %g s; median (min–max) of %s\n", r.Core, r.Seconds, count(r.Repeat, "round"))
	for i := range r.Generator {
		g := &r.Generator[i]
		fmt.Fprintf(w, "By themselves, %s and sink, %d bytes: %.0f ns\n", g.Config, g.Size, g.NS)
	}
	for _, s := range r.Skipped {
		fmt.Fprintf(w, "Skipped, %s: %s\n", s.Config, s.Reason)
	}
}
