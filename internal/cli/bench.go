package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trellis/internal/bench"
)

func newBenchCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what networks cost on this machine",
		Long: lines(
			"Measure networks on this machine. By default everything happens in namespaces and",
			"directories of the bench's own, which are gone afterwards, also after Ctrl-C: the",
			"machine's network and a running service are not touched. docs/benchmarks.md says what",
			"each figure means."),
		Example: lines(
			"  sudo trellis bench deploy examples/abilene.yaml",
			"  sudo trellis bench tcp",
			"  sudo trellis bench forward",
			"  sudo trellis bench attack",
			"  sudo trellis bench paper"),
		Args: verbsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchDeployCommand(env), newBenchTCPCommand(env), newBenchForwardCommand(env), newBenchAttackCommand(env), newBenchPaperCommand(env))
	return cmd
}

// spread writes median (min–max), each as show writes it.
func spread(s bench.Spread, show func(float64) string) string { return s.Format(show) }

// secondsText and mebibytes write figures for tables, whose headings have the unit.
func secondsText(v float64) string { return fmt.Sprintf("%.2f", v) }
func mebibytes(v float64) string   { return fmt.Sprintf("%.2f", v/(1<<20)) }

// machineLines says what a measurement ran on.
func machineLines(w io.Writer, m bench.Machine) {
	fmt.Fprintf(w, "%s\n%s; load %.2f at the start\n\n", m, m.Time.Format("2006-01-02 15:04 MST"), m.Load)
}
