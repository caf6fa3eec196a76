package cli

import (
	"bytes"
	_ "embed"
	"fmt"

	"github.com/spf13/cobra"
)

// bashCompletion is ours, since cobra's needs the package bash-completion.
//
//go:embed completion.bash
var bashCompletion string

func newCompletionCommand(env *Env) *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print the shell's completion script",
		Long: lines(
			"Print a script that teaches the shell to complete verbs, flags, networks, nodes,",
			"interfaces, links and substrate nodes. The names come from the running service. The",
			"script for bash needs bash 4.3 and no other package."),
		Example: lines(
			"  trellis completion bash > /etc/bash_completion.d/trellis",
			"  source <(trellis completion bash)",
			"  trellis completion fish > ~/.config/fish/completions/trellis.fish"),
		Args:      exactly("bash, zsh or fish"),
		ValidArgs: shells,
		RunE: func(cmd *cobra.Command, args []string) error {
			var (
				buf  bytes.Buffer
				err  error
				root = cmd.Root()
			)
			switch args[0] {
			case "bash":
				_, err = buf.WriteString(bashCompletion)
			case "zsh":
				err = root.GenZshCompletion(&buf)
			case "fish":
				err = root.GenFishCompletion(&buf, true)
			default:
				return usagef("no completion for %q; the shells are bash, zsh and fish", args[0])
			}
			if err == nil {
				_, err = env.Stdout.Write(buf.Bytes())
			}
			if err != nil {
				return fmt.Errorf("write the completion script: %w", err)
			}
			return nil
		},
	}
}
