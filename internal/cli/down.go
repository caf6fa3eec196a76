package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/vnet"
)

// downResult is what `down -o json` prints.
type downResult struct {
	VNets   []string `json:"vnets"` // those that were removed
	Seconds float64  `json:"seconds"`
}

func newDownCommand(env *Env) *cobra.Command {
	var (
		file    string
		all     bool
		timeout time.Duration
		output  *choice
	)
	cmd := &cobra.Command{
		Use:     "down VNET | -f FILE | --all",
		Aliases: []string{"destroy"},
		Short:   "Take a virtual network down, leaving nothing of it",
		Long: lines(
			"Remove a virtual network: its containers, interfaces, programs, limits and files.",
			"The verb returns when nothing is left. Taking down a network that does not exist",
			"succeeds and says that there was nothing to do, so it can be repeated.",
			"",
			"--all removes every network, and whatever else of Trellis is left on the machine,",
			"also where the service's store was lost. With no service running, a root user's",
			"`down` runs one for as long as it takes."),
		Example: lines(
			"  trellis down abilene",
			"  trellis down -f examples/abilene.yaml",
			"  trellis down --all"),
		Args: func(cmd *cobra.Command, args []string) error {
			named := len(args)
			if file != "" {
				named++
			}
			if all {
				named++
			}
			if named != 1 {
				return usagef("%s needs one of VNET, -f FILE and --all; see `%s --help`", verb(cmd), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req := connect.NewRequest(&trellisv1.DeleteRequest{All: all})
			again := "trellis down --all"
			switch {
			case file != "":
				v, err := env.load(file, anyPath)
				if err != nil {
					return err
				}
				req.Msg.Name = v.Name
			case !all:
				req.Msg.Name = args[0]
			}
			if !all {
				again = "trellis down " + req.Msg.Name
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			client, started, err := env.clientOrStart(ctx)
			if err != nil {
				return err
			}
			if started {
				defer func() {
					if e := env.stop(env); e != nil && err == nil {
						err = fmt.Errorf("stop the service that was started for this: %w", e)
					}
				}()
			}
			req.Msg.StallNs = timeout.Nanoseconds()
			call, moved, cancel := stallLimited(ctx, timeout)
			defer cancel()
			bar := newProgress(env.Stderr)
			defer bar.finish()
			stream, err := client.Delete(call, req)
			if err == nil {
				defer stream.Close()
				for stream.Receive() {
					moved()
					switch e := stream.Msg().Event.(type) {
					case *trellisv1.DeleteResponse_Progress:
						bar.update(e.Progress)
					case *trellisv1.DeleteResponse_Result:
						bar.finish()
						return printDown(env, output, req.Msg.Name, "", e.Result)
					}
				}
				err = stream.Err()
			}
			bar.finish()
			switch {
			case interrupted(ctx):
				return fmt.Errorf("interrupted; the removal may be unfinished: `%s` finishes it", again)
			case connect.CodeOf(err) == connect.CodeNotFound && !all:
				return printDown(env, output, req.Msg.Name, nearestVNet(ctx, client, req.Msg.Name), &trellisv1.DeleteResult{})
			case err == nil:
				return errors.New("the service ended its answer without a result; its log says why")
			}
			return cause(call, err)
		},
		ValidArgsFunction: completeWith(env, completeVNet),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "take down the network that FILE describes")
	cmd.Flags().BoolVar(&all, "all", false, "take down every network, and anything of Trellis that is left")
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Minute, "give up when nothing was removed for this long; 0: never")
	output = outputFlag(cmd)
	return cmd
}

// nearestVNet gives the network that a mistyped name most likely means; empty: none
// is near, or the service does not list them.
func nearestVNet(ctx context.Context, client trellisv1connect.VNetServiceClient, name string) string {
	r, err := client.List(ctx, connect.NewRequest(&trellisv1.ListRequest{}))
	if err != nil {
		return "" // the answer is the same, without the hint
	}
	var names []string
	for _, s := range r.Msg.GetVnets() {
		names = append(names, s.GetName())
	}
	return vnet.Nearest(name, names)
}

// printDown reports what was removed; near is the network that a name of none may
// have meant.
func printDown(env *Env, output *choice, name, near string, r *trellisv1.DeleteResult) error {
	result := downResult{VNets: append([]string{}, r.GetVnets()...), Seconds: r.GetSeconds()}
	return env.print(output, result, func(w io.Writer) {
		switch {
		case len(result.VNets) > 0:
			fmt.Fprintf(w, "%s: gone after %.2fs\n", strings.Join(result.VNets, ", "), result.Seconds)
		case near != "":
			fmt.Fprintf(w, "%s: no such network, nothing to do; did you mean %q?\n", name, near)
		case name != "":
			fmt.Fprintf(w, "%s: no such network, nothing to do\n", name)
		default:
			fmt.Fprintln(w, "no networks; whatever was left of Trellis is gone")
		}
	})
}
