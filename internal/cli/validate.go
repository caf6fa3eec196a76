package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// validResult is one file in `validate -o json`.
type validResult struct {
	File  string `json:"file"`
	Valid bool   `json:"valid"`
	VNet  string `json:"vnet,omitempty"`
	Nodes int    `json:"nodes"`
	Links int    `json:"links"`
	Error string `json:"error,omitempty"` // FILE:LINE: what; remedy, one line for each
}

func newValidateCommand(env *Env) *cobra.Command {
	var output *choice
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check files without touching anything",
		Long: lines(
			"Check descriptions of networks by the rules that `trellis up` applies, without a",
			"service. Each mistake is a line FILE:LINE: what; remedy on standard error, and the",
			"exit status is then 2."),
		Example: lines(
			"  trellis validate examples/abilene.yaml",
			"  trellis validate zoo/*.graphml"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("validate needs FILE; see `trellis validate --help`")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			results := []validResult{}
			var status error
			for _, file := range args {
				r := validResult{File: file}
				v, err := env.load(file)
				if err != nil {
					r.Error = err.Error()
					fmt.Fprintln(env.Stderr, r.Error)
					status = exitStatus(exitUsage)
				} else {
					r.Valid, r.VNet, r.Nodes, r.Links = true, v.Name, len(v.Nodes), len(v.Links)
				}
				results = append(results, r)
			}
			if err := env.print(output, results, func(w io.Writer) {
				for _, r := range results {
					if r.Valid {
						fmt.Fprintf(w, "%s: valid: %s, %s, %s\n", r.File, r.VNet, count(r.Nodes, "node"), count(r.Links, "link"))
					}
				}
			}); err != nil {
				return err
			}
			return status
		},
		ValidArgsFunction: completeFiles,
	}
	output = outputFlag(cmd)
	return cmd
}
