package cli

import (
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
)

func newRestartCommand(env *Env) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "restart VNET/NODE [DAEMON]",
		Short: "Restart a node, or one of its daemons",
		Long: lines(
			"Restart one daemon of a node, by a name as `trellis show VNET/NODE` lists it, or",
			"`command`; or else the node: its processes end, what was written in it is lost, and it",
			"starts again with its files, its interfaces and its `exec` commands. All other",
			"nodes and links stay as they are. It returns when the node runs again."),
		Example: lines(
			"  trellis restart abilene/denver",
			"  trellis restart abilene/denver ospfd"),
		Args: between(1, "VNET/NODE", "DAEMON"),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := parseNode(args[0])
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			client, err := env.client()
			if err != nil {
				return err
			}
			msg := &trellisv1.RestartRequest{Vnet: at.vnet, Node: at.node}
			what := at.vnet + "/" + at.node
			if len(args) > 1 {
				msg.Service = args[1]
				what = msg.Service + " in " + what
			}
			req := connect.NewRequest(msg)
			call, cancel := limited(ctx, timeout, req.Header())
			defer cancel()
			_, err = client.Restart(call, req)
			if interrupted(ctx) {
				return fmt.Errorf("interrupted; `trellis show %s` tells whether it has restarted", args[0])
			}
			if err != nil {
				return cause(call, err)
			}
			fmt.Fprintf(env.Stdout, "restarted %s\n", what)
			return nil
		},
		ValidArgsFunction: completeWith(env, completeDaemon),
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 90*time.Second, "give up waiting after this long")
	return cmd
}
