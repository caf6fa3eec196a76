package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
)

func newExecCommand(env *Env) *cobra.Command {
	var (
		tty, noInput bool
		vars         []string
		timeout      time.Duration
	)
	cmd := &cobra.Command{
		Use:   "exec VNET/NODE [--] CMD [ARG...]",
		Short: "Run a command in a node",
		Long: lines(
			"Run a command in a node, as its root. Standard input, output and error are the",
			"command's, signals are passed on to it, and its exit status is this program's;",
			"128+N says that signal N ended it. Flags of trellis come before VNET/NODE."),
		Example: lines(
			"  trellis exec abilene/denver -- ip route",
			"  trellis exec abilene/denver -- vtysh -c 'show ip ospf neighbor'",
			"  trellis exec -t abilene/denver -- top",
			"  tar c . | trellis exec abilene/denver -- tar x -C /tmp"),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("exec needs VNET/NODE and a command; see `trellis exec --help`")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := parseNode(args[0])
			if err != nil {
				return err
			}
			argv := args[1:]
			if len(argv) > 0 && argv[0] == "--" {
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return usagef("no command to run in %s; `trellis console %s` gives a shell", args[0], args[0])
			}
			if tty && noInput {
				return usagef("-t and -n exclude each other: a terminal is an input")
			}
			ctx := cmd.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			s := &session{env: env, input: !noInput, start: &trellisv1.ExecStart{
				Vnet: at.vnet, Node: at.node, Argv: argv, Tty: tty, Env: vars,
			}}
			err = s.run(ctx)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("the command did not end within %s and was stopped", timeout)
			}
			return err
		},
		ValidArgsFunction: completeWith(env, completeNode),
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	f.BoolVarP(&noInput, "no-stdin", "n", false, "leave standard input alone; the command reads end of file")
	f.StringArrayVarP(&vars, "env", "e", nil, "set a variable, NAME=VALUE; may be repeated")
	timeoutFlag(cmd, &timeout, 0)
	return cmd
}

func newConsoleCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "console VNET/NODE",
		Short: "Open a shell in a node",
		Long: lines(
			"Open a shell in a node on this terminal, with job control; the shell follows the",
			"window's size. It ends with the shell, or with the keys ~. at the start of a line;",
			"~~ there types one tilde."),
		Example: "  trellis console abilene/denver",
		Args:    exactly("VNET/NODE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := parseNode(args[0])
			if err != nil {
				return err
			}
			s := &session{env: env, input: true, start: &trellisv1.ExecStart{Vnet: at.vnet, Node: at.node, Tty: true}}
			return s.run(cmd.Context())
		},
		ValidArgsFunction: completeWith(env, completeNode),
	}
	return cmd
}
