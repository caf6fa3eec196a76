package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"trellis/internal/bench/tcp"
)

func newBenchTCPCommand(env *Env) *cobra.Command {
	var (
		cfg     tcp.Config
		seconds float64
		output  *choice
	)
	cmd := &cobra.Command{
		Use:   "tcp",
		Short: "Measure one TCP stream through routers, over shortbridges and over veth pairs",
		Long: lines(
			"Send one TCP stream through a chain of routers on this machine: over Trellis's",
			"shortbridges, over plain veth pairs without transmit checksum offload (and so without",
			"segmentation offload), and over plain veth pairs with both. All three are built side",
			"by side from one description, and measured in turns. The ratio of two rates of one",
			"round is what carries over to other machines."),
		Example: lines(
			"  sudo trellis bench tcp",
			"  sudo trellis bench tcp --routers 1,2,5,10 --seconds 5 --repeat 9 -o json"),
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case cfg.Repeat < 1:
				return usagef("--repeat %d: measure at least once", cfg.Repeat)
			case !(seconds >= 0.1 && seconds <= 600):
				return usagef("--seconds %v: a stream takes from 0.1 to 600 seconds", seconds)
			case len(cfg.Routers) == 0:
				return usagef("--routers names no chain; the default is 1,5")
			}
			for _, k := range cfg.Routers {
				if k < 0 || k > tcp.MaxRouters {
					return usagef("--routers %d: a chain has 0 to %d routers", k, tcp.MaxRouters)
				}
			}
			cfg.Length = time.Duration(seconds * float64(time.Second))
			ctx, stop := interruptible(cmd)
			defer stop()
			bar := newProgress(env.Stderr)
			defer bar.finish()
			cfg.Progress = bar.update
			report, err := tcp.Run(ctx, cfg)
			bar.finish()
			if err != nil {
				if interrupted(ctx) {
					return fmt.Errorf("interrupted; the namespaces of the measurement are gone")
				}
				return err
			}
			return env.print(output, report, func(w io.Writer) { tcpTable(w, &report) })
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.IntSliceVar(&cfg.Routers, "routers", []int{1, 5}, "lengths of the chains to measure")
	f.Float64Var(&seconds, "seconds", 2, "length of one stream, after its warm-up")
	f.IntVar(&cfg.Repeat, "repeat", 5, "measure each this many times")
	output = outputFlag(cmd)
	return cmd
}

// tcpTable writes the report for people.
func tcpTable(w io.Writer, r *tcp.Report) {
	machineLines(w, r.Machine)
	t := newTable(">ROUTERS", ">SHORTBRIDGE", ">VETH, NO OFFLOAD", ">VETH", ">RATIO TO NO OFFLOAD", ">RATIO TO VETH")
	rate := func(v float64) string { return fmt.Sprintf("%.2f", v) }
	for i := range r.Cases {
		c := &r.Cases[i]
		t.add(strconv.Itoa(c.Routers),
			spread(c.Summary[tcp.Shortbridge], rate), spread(c.Summary[tcp.VethNoOffload], rate), spread(c.Summary[tcp.Veth], rate),
			spread(c.Ratio[tcp.VethNoOffload], rate), spread(c.Ratio[tcp.Veth], rate))
	}
	t.write(w)
	fmt.Fprintf(w, "\nGbit/s of payload, MTU %d, one stream of %g s; median (min–max) of %s\n", r.MTU, r.Seconds, count(r.Repeat, "round"))
}
