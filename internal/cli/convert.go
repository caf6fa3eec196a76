package cli

import (
	"bytes"
	"fmt"

	"github.com/spf13/cobra"

	"trellis/internal/format"
)

func newConvertCommand(env *Env) *cobra.Command {
	var settings, allowed *[]string
	cmd := &cobra.Command{
		Use:   "convert FILE",
		Short: "Rewrite a description in another format",
		Long: lines(
			"Read a description in any format that `trellis up` takes and write it to standard",
			"output. The YAML loads to the same network as FILE."),
		Example: lines(
			"  trellis convert Abilene.graphml -o yaml > abilene.yaml",
			"  trellis convert - -o yaml < Kdl.graphml"),
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := env.load(args[0], format.Options{Set: *settings, AllowPaths: *allowed})
			if err != nil {
				return err
			}
			var buf bytes.Buffer
			if err := format.WriteYAML(&buf, v); err != nil {
				return fmt.Errorf("write %s as YAML: %w", v.Name, err)
			}
			if _, err := env.Stdout.Write(buf.Bytes()); err != nil {
				return fmt.Errorf("write the result: %w", err)
			}
			return nil
		},
		ValidArgsFunction: completeFiles,
	}
	choiceFlag(cmd, "the format to write", formatYAML)
	settings = setFlag(cmd)
	allowed = allowPathFlag(cmd)
	return cmd
}
