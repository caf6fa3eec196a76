package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trellis/internal/format"
)

// validResult is one file in `validate -o json`.
type validResult struct {
	File  string `json:"file"`
	Valid bool   `json:"valid"`
	VNet  string `json:"vnet,omitempty"`
	Nodes int    `json:"nodes"`
	Links int    `json:"links"`
	Error string `json:"error,omitempty"` // FILE:LINE: what; remedy, one line for each
	// Review is what the file asks for, with --review.
	Review *review `json:"review,omitempty"`
}

func newValidateCommand(env *Env) *cobra.Command {
	var (
		here     bool
		deep     bool
		look     bool
		output   *choice
		settings *[]string
		allowed  *[]string
	)
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check files without touching anything",
		Long: lines(
			"Check descriptions of networks by the rules that `trellis up` applies, without a",
			"service. Each mistake is a line FILE:LINE: what; remedy on standard error, and the",
			"exit status is then 2.",
			"",
			"--deep also has the daemons' own programs read the configurations of FRR and BIRD",
			"that a node brings, where it runs this machine's programs: vtysh -C and bird -p."),
		Example: lines(
			"  trellis validate examples/abilene.yaml",
			"  sudo trellis validate --here examples/delay.yaml",
			"  trellis validate zoo/*.graphml",
			"  trellis validate --review theirs.yaml",
			"  trellis validate --deep examples/labs/*/lab.yaml"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("validate needs FILE; see `trellis validate --help`")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			options := format.Options{Set: *settings, AllowPaths: *allowed}
			if here {
				m, err := env.machine()
				if err != nil {
					return err
				}
				options.Machine = m
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			results := []validResult{}
			var status error
			for _, file := range args {
				r := validResult{File: file}
				var sources []format.Source
				options.Opened = func(s format.Source) { sources = append(sources, s) }
				v, err := env.load(file, options)
				if err == nil && deep {
					err = env.validateDeep(ctx, file, v)
				}
				if interrupted(ctx) {
					return errors.New("interrupted")
				}
				var input *inputError
				if err != nil && !errors.As(err, &input) {
					return err
				}
				if err != nil {
					r.Error = err.Error()
					fmt.Fprintln(env.Stderr, r.Error)
					status = exitStatus(exitUsage)
				} else {
					r.Valid, r.VNet, r.Nodes, r.Links = true, v.Name, len(v.Nodes), len(v.Links)
					if look {
						r.Review = reviewOf(v, sources)
					}
				}
				results = append(results, r)
			}
			if err := env.print(output, results, func(w io.Writer) {
				for _, r := range results {
					if r.Valid {
						fmt.Fprintf(w, "%s: valid: %s, %s, %s\n", r.File, r.VNet, count(r.Nodes, "node"), count(r.Links, "link"))
					}
					if r.Review != nil {
						r.Review.write(w)
					}
				}
			}); err != nil {
				return err
			}
			return status
		},
		ValidArgsFunction: completeFiles,
	}
	cmd.Flags().BoolVar(&here, "here", false, "check that this machine has what the files ask for, too: netem, routing daemons, sysctls; needs root")
	cmd.Flags().BoolVar(&deep, "deep", false, "have FRR's and BIRD's own programs read the configurations that nodes bring")
	cmd.Flags().BoolVar(&look, "review", false, "show what the files ask for beyond the ordinary: files and images of this machine, commands, and the like")
	settings = setFlag(cmd)
	allowed = allowPathFlag(cmd)
	output = outputFlag(cmd)
	return cmd
}
