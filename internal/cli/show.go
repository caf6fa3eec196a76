package cli

import (
	"time"

	"github.com/spf13/cobra"
)

func newShowCommand(env *Env) *cobra.Command {
	var (
		timeout time.Duration
		output  *choice
	)
	cmd := &cobra.Command{
		Use:     "show VNET[/NODE]",
		Aliases: []string{"inspect"},
		Short:   "Show a virtual network, or one node of it, as it is now",
		Long: lines(
			"Show the nodes and links of a network: addresses, limits, state, restarts, memory,",
			"packets and drops. With a node, show only that node, its processes and interfaces.",
			"The counters are read in the root context and count every frame."),
		Example: lines(
			"  trellis show abilene",
			"  trellis show abilene/denver",
			"  trellis show abilene -o json | jq '.nodes[] | {name, state}'"),
		Args: exactly("VNET[/NODE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := parseTarget(args[0])
			if err != nil {
				return err
			}
			if at.iface != "" {
				return usagef("%q names an interface; write VNET or VNET/NODE", args[0])
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			resp, err := env.get(ctx, timeout, at.vnet, at.node)
			if err != nil {
				return err
			}
			if at.node == "" {
				view := viewNetwork(resp)
				return env.print(output, view, view.table)
			}
			view, err := viewOneNode(resp, at.node)
			if err != nil {
				return err
			}
			return env.print(output, view, view.table)
		},
		ValidArgsFunction: completeWith(env, completeVNetOrNode),
	}
	timeoutFlag(cmd, &timeout, 30*time.Second)
	output = outputFlag(cmd)
	return cmd
}
