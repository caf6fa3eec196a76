package cli

import (
	"time"

	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
)

func newRestartCommand(env *Env) *cobra.Command {
	return serviceCommand(env, &cobra.Command{
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
	}, "restarted", 90*time.Second, func(at target, service string) *trellisv1.RestartRequest {
		return &trellisv1.RestartRequest{Vnet: at.vnet, Node: at.node, Service: service}
	}, trellisv1connect.VNetServiceClient.Restart)
}
