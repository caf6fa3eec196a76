package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/bench/attack"
	"trellis/internal/bench/deploy"
)

func newBenchAttackCommand(env *Env) *cobra.Command {
	var (
		cfg    attack.Config
		output *choice
	)
	cmd := &cobra.Command{
		Use:   "attack [ATTACK…]",
		Short: "Try what a hostile node can take from the machine and from others",
		Long: lines(
			"Try the attacks of docs/security.md: each from the root of a node with a quarter of a",
			"core and 64 MiB of memory, for some seconds, on a service that is started for this.",
			"Meanwhile another network sends a TCP stream, verbs are run and a network comes up. The",
			"report says what the machine and the others lost, and which attacks were not held, in",
			"which case the exit status is 1. The last one, all, is ten such nodes that take memory",
			"together. Attacks are bounded: a machine survives those that are not held, if it has 2",
			"GiB to spare. It needs python3."),
		Example: lines(
			"  sudo trellis bench attack",
			"  sudo trellis bench attack loop-bridges device-queues -o json"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if cfg.Seconds < 4 || cfg.Seconds > 60 {
				return usagef("--seconds %d: an attack lasts from 4 to 60 seconds", cfg.Seconds)
			}
			if cfg.Attacks, err = attack.Select(args); err != nil {
				return usagef("%v", err)
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			bar := newProgress(env.Stderr)
			defer bar.finish()
			cfg.Progress = func(done, total int, name string) {
				bar.update(&trellisv1.Progress{Phase: "attacking", Done: int32(done), Total: int32(total), Detail: name})
			}
			var report attack.Report
			err = env.withThrowaway(ctx, bar, func(service *deploy.Service) (err error) {
				cfg.Program, cfg.Address = service.Program(), service.Address
				report, err = attack.Run(ctx, cfg)
				return err
			})
			bar.finish()
			if err != nil {
				return errors.New(err.Error()) // a sentence about another service would not fit
			}
			if err := env.print(output, report, func(w io.Writer) { attackTable(w, &report) }); err != nil {
				return err
			}
			var open []string
			for _, r := range report.Results {
				if len(r.NotHeld) > 0 {
					open = append(open, r.Attack)
				}
			}
			if len(open) > 0 {
				return fmt.Errorf("%s not held: %s", count(len(open), "attack"), strings.Join(open, ", "))
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, a := range attack.Attacks() {
				names = append(names, a.Name+"\t"+a.What)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().IntVar(&cfg.Seconds, "seconds", 6, "how long each attack lasts")
	output = outputFlag(cmd)
	return cmd
}

// attackTable writes the report for people.
func attackTable(w io.Writer, r *attack.Report) {
	machineLines(w, r.Machine)
	t := newTable("ATTACK", ">LOST MIB", ">CHARGED MIB", ">RATE, GBIT/S", ">KEPT", ">LS, S", ">UP, S", "VERDICT")
	for i := range r.Results {
		a := &r.Results[i]
		verdict := "held"
		if len(a.NotHeld) > 0 {
			verdict = strings.Join(a.NotHeld, "; ")
		}
		t.add(a.Attack, fmt.Sprint(a.Memory>>20), fmt.Sprint(a.Charged>>20), fmt.Sprintf("%.2f", a.RateDuring/1e9),
			fmt.Sprintf("%.0f %%", 100*a.Kept()), fmt.Sprintf("%.2f", a.Verb), fmt.Sprintf("%.2f", a.Up), verdict)
	}
	t.write(w)
	fmt.Fprintf(w, "\nEach from nodes of %g cores and %d MiB, %d s: one, or as docs/benchmarks.md says. Lost: by which the kernel's own memory grew at the most. Kept: of the\nrate of another network's TCP stream, from one second after the start on, beside a node that only spins.\n", r.CPU, r.Limit>>20, r.Seconds)
	for _, a := range r.Results {
		if a.Told != "" {
			fmt.Fprintf(w, "%s: %s\n", a.Attack, a.Told)
		}
	}
}
