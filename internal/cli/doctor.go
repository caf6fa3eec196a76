package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trellis/internal/doctor"
)

// doctorResult is what `doctor -o json` prints.
type doctorResult struct {
	Status doctor.Status   `json:"status"` // the worst of the checks
	Checks []doctor.Result `json:"checks"`
}

func newDoctorCommand(env *Env) *cobra.Command {
	var (
		security bool
		output   *choice
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine can host virtual networks",
		Long: lines(
			"Check the kernel, its limits, control groups and programs. What is missing is shown",
			"with what that costs and what to do about it. Nothing is changed: what has to be tried",
			"is tried in namespaces that vanish at once. The exit status is 1 when networks cannot",
			"run here, 0 otherwise, warnings included. --security says instead what on this machine",
			"bounds which attack of a node's root, and what does not (docs/security.md)."),
		Example: lines(
			"  sudo trellis doctor",
			"  sudo trellis doctor --security",
			"  trellis doctor -o json | jq '.checks[] | select(.status != \"ok\")'"),
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir := env.stateDir()
			if dir == "" {
				dir = defaultStateDir
			}
			facts, err := doctor.Gather(dir)
			if err != nil {
				return err
			}
			checks, table := doctor.Judge(facts), doctorResult.table
			if security {
				checks, table = doctor.JudgeSecurity(facts), doctorResult.securityTable
			}
			result := doctorResult{doctor.Worst(checks), checks}
			if err := env.print(output, result, func(w io.Writer) { table(result, w) }); err != nil {
				return err
			}
			if result.Status == doctor.Fail {
				return exitStatus(exitFailed)
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVar(&security, "security", false, "what bounds which attack of a node's root here")
	output = outputFlag(cmd)
	return cmd
}

func (r doctorResult) securityTable(w io.Writer) {
	if warnings, _ := r.checks(w); warnings > 0 {
		fmt.Fprintf(w, "\nnot bounded here: %s\n", count(warnings, "attack"))
		return
	}
	fmt.Fprintln(w, "\nall of these are bounded here")
}

func (r doctorResult) table(w io.Writer) {
	warnings, failures := r.checks(w)
	switch {
	case failures > 0:
		fmt.Fprintf(w, "\nthis machine cannot host networks yet: %s, %s\n", count(failures, "failure"), count(warnings, "warning"))
	case warnings > 0:
		fmt.Fprintf(w, "\nthis machine can host networks, with %s\n", count(warnings, "warning"))
	default:
		fmt.Fprintln(w, "\nthis machine can host networks")
	}
}

// checks writes the checks, a line each or, of those that are not ok, three.
func (r doctorResult) checks(w io.Writer) (warnings, failures int) {
	width := 0
	for _, c := range r.Checks {
		width = max(width, len(c.Check))
	}
	for _, c := range r.Checks {
		fmt.Fprintf(w, "%-4s  %-*s  %s\n", c.Status, width, c.Check, c.Found)
		switch c.Status {
		case doctor.Warn:
			warnings++
		case doctor.Fail:
			failures++
		case doctor.OK:
			continue
		}
		fmt.Fprintf(w, "      %-*s  cost: %s\n", width, "", c.Cost)
		fmt.Fprintf(w, "      %-*s  do:   %s\n", width, "", c.Remedy)
	}
	return warnings, failures
}
