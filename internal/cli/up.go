package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/format"
	"trellis/internal/wire"
)

// upResult is what `up -o json` prints.
type upResult struct {
	VNet    string    `json:"vnet"`
	Nodes   int       `json:"nodes"`
	Links   int       `json:"links"`
	Changes int       `json:"changes"`
	Seconds upSeconds `json:"seconds"`
	// Checked is how many nodes' routes were looked at, and Complete how many of
	// them had one to everything that they are to reach.
	Checked  int    `json:"checked"`
	Complete int    `json:"complete"`
	Message  string `json:"message,omitempty"` // what is missing
}

// upSeconds holds times since the service took the request; Converged is 0
// where it was not waited for, no routes were looked at, or some are missing.
type upSeconds struct {
	Created   float64 `json:"created"`
	Converged float64 `json:"converged"`
}

// stepsResult is what `up --dry-run -o json` prints.
type stepsResult struct {
	VNet  string     `json:"vnet"`
	Steps []stepView `json:"steps"`
}

type stepView struct {
	Op     string `json:"op"`
	Object string `json:"object"`
	Detail string `json:"detail,omitempty"`
}

func newUpCommand(env *Env) *cobra.Command {
	var (
		wait     bool
		dryRun   bool
		partial  bool
		timeout  time.Duration
		look     bool
		yes      bool
		settings *[]string
		allowed  *[]string
		output   *choice
	)
	cmd := &cobra.Command{
		Use:     "up FILE",
		Aliases: []string{"deploy", "apply"},
		Short:   "Create a virtual network from a file, or converge a running one to it",
		Long: lines(
			"Create the virtual network that FILE describes, or change the running one of that",
			"name until it is as FILE says. Only what differs is touched: a second `up` of an",
			"unchanged file changes nothing.",
			"",
			"FILE is Trellis' own YAML, GraphML as the Internet Topology Zoo writes it, or - for",
			"standard input. By default the verb returns when every node has a route to all that",
			"it is to reach. When the time is up first, the nodes and prefixes that are missing",
			"are named and the exit status is 1; the network stays and goes on converging.",
			"",
			"A file of somebody else is best brought up with --review, which first shows what it",
			"asks for: files and images of this machine, commands, memory, and the like.",
			"",
			"With no service running and no --address, a root user's `up` starts one in the",
			"background; `trellis serve --stop` ends it."),
		Example: lines(
			"  trellis up examples/abilene.yaml",
			"  trellis up --wait=false big.graphml",
			"  trellis up --dry-run changed.yaml",
			"  trellis up --partial examples/delay.yaml",
			"  trellis up --review theirs.yaml",
			"  trellis up Abilene.graphml --set routing.protocol=static",
			"  trellis up net.yaml --timeout 90s -o json"),
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if yes && !look {
				return usagef("--yes answers what --review asks; give --review too, or leave --yes out")
			}
			var sources []format.Source
			v, err := env.load(args[0], format.Options{
				Set: *settings, AllowPaths: *allowed, Opened: func(s format.Source) { sources = append(sources, s) },
			})
			if err != nil {
				return err
			}
			if partial {
				if err := env.leaveOut(v); err != nil {
					return err
				}
			}
			if look {
				if err := env.confirm(reviewOf(v, sources), args[0], yes); err != nil {
					return err
				}
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			client, _, err := env.clientOrStart(ctx)
			if err != nil {
				return err
			}
			req := connect.NewRequest(&trellisv1.ApplyRequest{Vnet: wire.ToProto(v), DryRun: dryRun, Wait: wait})
			call, cancel := limited(ctx, timeout, req.Header())
			defer cancel()
			bar := newProgress(env.Stderr)
			defer bar.finish()
			admitted := false
			stream, err := client.Apply(call, req)
			if err == nil {
				defer stream.Close()
				for stream.Receive() {
					switch e := stream.Msg().Event.(type) {
					case *trellisv1.ApplyResponse_Estimate:
						noteEstimate(bar, v.Name, e.Estimate)
					case *trellisv1.ApplyResponse_Progress:
						admitted = admitted || e.Progress.GetPhase() != "preparing"
						bar.update(e.Progress)
					case *trellisv1.ApplyResponse_Steps:
						bar.finish()
						return printSteps(env, output, v.Name, e.Steps)
					case *trellisv1.ApplyResponse_Result:
						bar.finish()
						return printUp(env, output, e.Result, wait)
					}
				}
				err = stream.Err()
			}
			bar.finish()
			return upFailure(ctx, call, v.Name, args[0], admitted, err)
		},
		ValidArgsFunction: completeFiles,
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "return only when routing has converged; --wait=false: when all is in place")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the steps and change nothing")
	timeoutFlag(cmd, &timeout, 3*time.Minute)
	cmd.Flags().BoolVar(&partial, "partial", false, "go on without what this machine lacks and the network can do without (delay, jitter and loss without netem), and say what was left out")
	cmd.Flags().BoolVar(&look, "review", false, "show what the file asks for beyond the ordinary, and ask before anything is touched")
	cmd.Flags().BoolVar(&yes, "yes", false, "with --review: show it, and go on without asking")
	settings = setFlag(cmd)
	allowed = allowPathFlag(cmd)
	output = outputFlag(cmd)
	return cmd
}

// upFailure says why an apply ended without a result, and what became of the
// network.
func upFailure(ctx, call context.Context, name, file string, admitted bool, err error) error {
	switch {
	case interrupted(ctx) && admitted:
		return fmt.Errorf("interrupted; the service goes on building %s: `trellis up %s` waits for it again, `trellis down %s` removes it", name, file, name)
	case interrupted(ctx):
		return fmt.Errorf("interrupted before the service admitted %s; `trellis ls` shows whether anything of it exists, `trellis down %s` removes it", name, name)
	case err == nil:
		return errors.New("the service ended its answer without a result; its log says why")
	}
	return cause(call, err)
}

// noteEstimate says beforehand what the network will take, where it takes
// anything, and where that is more than there is.
func noteEstimate(bar *progress, name string, e *trellisv1.Estimate) {
	if e.GetNodes() > 0 && e.GetSummary() != "" {
		bar.note("%s: %s", name, oneLine(e.GetSummary()))
	}
	for _, w := range e.GetWarnings() {
		bar.note("trellis: warning: %s", oneLine(w))
	}
}

func printSteps(env *Env, output *choice, name string, steps *trellisv1.Steps) error {
	result := stepsResult{VNet: name, Steps: []stepView{}}
	for _, s := range steps.GetSteps() {
		result.Steps = append(result.Steps, stepView{s.GetOp(), s.GetObject(), s.GetDetail()})
	}
	return env.print(output, result, func(w io.Writer) {
		if len(result.Steps) == 0 {
			fmt.Fprintf(w, "%s: nothing to change\n", name)
			return
		}
		t := newTable("STEP", "OBJECT", "DETAIL")
		for _, s := range result.Steps {
			t.add(s.Op, s.Object, oneLine(s.Detail))
		}
		t.write(w)
	})
}

func printUp(env *Env, output *choice, r *trellisv1.ApplyResult, wait bool) error {
	result := upResult{
		VNet: r.GetVnet(), Nodes: int(r.GetNodes()), Links: int(r.GetLinks()), Changes: int(r.GetChanges()),
		Seconds: upSeconds{r.GetCreatedSeconds(), r.GetConvergedSeconds()},
		Checked: int(r.GetChecked()), Complete: int(r.GetComplete()), Message: r.GetMessage(),
	}
	return env.print(output, result, func(w io.Writer) {
		var b strings.Builder
		fmt.Fprintf(&b, "%s: %s, %s", result.VNet, count(result.Nodes, "node"), count(result.Links, "link"))
		if result.Changes == 0 {
			b.WriteString("; nothing to change")
		} else {
			fmt.Fprintf(&b, "; in place after %.2fs", result.Seconds.Created)
		}
		switch {
		case !wait:
		case result.Complete < result.Checked:
			fmt.Fprintf(&b, "; %d of %s with all routes", result.Complete, count(result.Checked, "node"))
		case result.Seconds.Converged > 0:
			fmt.Fprintf(&b, ", converged after %.2fs", result.Seconds.Converged)
		case result.Checked == 0:
			b.WriteString(" (no routes are checked)")
		}
		if result.Message != "" {
			b.WriteString(": " + oneLine(result.Message))
		}
		fmt.Fprintln(w, b.String())
	})
}

// timeoutFlag adds --timeout.
func timeoutFlag(cmd *cobra.Command, d *time.Duration, otherwise time.Duration) {
	usage := "give up after this long; 0: never"
	cmd.Flags().DurationVar(d, "timeout", otherwise, usage)
}
