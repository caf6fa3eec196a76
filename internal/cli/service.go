package cli

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
)

func newStopCommand(env *Env) *cobra.Command {
	return serviceCommand(env, &cobra.Command{
		Use:   "stop VNET/NODE DAEMON",
		Short: "Stop a daemon of a node",
		Long: lines(
			"Stop one daemon of a node, by a name as `trellis show VNET/NODE` lists it, or",
			"`command`. It gets a SIGTERM and, if it runs 5 s later, a SIGKILL. It stays stopped",
			"until `trellis start`, or a restart of it or of the node; `trellis up` leaves it so.",
			"The other daemons go on. It returns when the daemon has ended."),
		Example: "  trellis stop abilene/denver bgpd",
		Args:    exactly("VNET/NODE", "DAEMON"),
	}, "stopped", 30*time.Second, func(at target, service string) *trellisv1.StopServiceRequest {
		return &trellisv1.StopServiceRequest{Vnet: at.vnet, Node: at.node, Service: service}
	}, trellisv1connect.VNetServiceClient.StopService)
}

func newStartCommand(env *Env) *cobra.Command {
	return serviceCommand(env, &cobra.Command{
		Use:   "start VNET/NODE DAEMON",
		Short: "Start a daemon of a node that was stopped",
		Long: lines(
			"Start a daemon that `trellis stop` has stopped; one that runs is left alone. FRR's",
			"other daemons start anew with zebra, as they do when it ends by itself."),
		Example: "  trellis start abilene/denver bgpd",
		Args:    exactly("VNET/NODE", "DAEMON"),
	}, "started", 30*time.Second, func(at target, service string) *trellisv1.StartServiceRequest {
		return &trellisv1.StartServiceRequest{Vnet: at.vnet, Node: at.node, Service: service}
	}, trellisv1connect.VNetServiceClient.StartService)
}

// serviceCommand completes a verb that does something to a daemon of a node, or to the
// node where none is named: done is what it has done then.
func serviceCommand[Request, Response any](
	env *Env, cmd *cobra.Command, done string, limit time.Duration,
	request func(at target, service string) *Request,
	call func(trellisv1connect.VNetServiceClient, context.Context, *connect.Request[Request]) (*connect.Response[Response], error),
) *cobra.Command {
	var timeout time.Duration
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
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
		service, what := "", args[0]
		if len(args) > 1 {
			service, what = args[1], args[1]+" in "+args[0]
		}
		req := connect.NewRequest(request(at, service))
		limitedCtx, cancel := limited(ctx, timeout, req.Header())
		defer cancel()
		_, err = call(client, limitedCtx, req)
		if interrupted(ctx) {
			return fmt.Errorf("interrupted; `trellis show %s` tells whether %s has %s", args[0], what, done)
		}
		if err != nil {
			return cause(limitedCtx, err)
		}
		fmt.Fprintf(env.Stdout, "%s %s\n", done, what)
		return nil
	}
	cmd.ValidArgsFunction = completeWith(env, completeDaemon)
	cmd.Flags().DurationVar(&timeout, "timeout", limit, "give up waiting after this long")
	return cmd
}
