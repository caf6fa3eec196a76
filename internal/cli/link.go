package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/vnet"
)

func newLinkCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "link",
		Short: "Change a running link",
		Long: lines(
			"Change a link of a running network in place: nothing restarts, only the link's",
			"frames notice."),
		Example: "  trellis link set abilene denver-seattle --rate 10mbit --delay 20ms",
		Args:    verbsOnly,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLinkSetCommand(env))
	return cmd
}

func newLinkSetCommand(env *Env) *cobra.Command {
	var (
		rate, loss    string
		delay, jitter time.Duration
		up, down      bool
		timeout       time.Duration
		output        *choice
	)
	cmd := &cobra.Command{
		Use:   "set VNET LINK [NODE[:INTERFACE]]",
		Short: "Set a link's rate, delay, jitter and loss, or pull and plug its cable",
		Long: lines(
			"Set properties of a running link; those that are not named stay as they are. They",
			"apply to every direction of the link until the next `trellis up`, whose file decides",
			"again. --down takes the carrier away at every end, as pulling the cable does, and",
			"routing reacts; --up gives it back. LINK is a name as `trellis show VNET` lists it.",
			"With NODE, all that is set is set at that node's end alone; the end of a LAN can be",
			"pulled so, while the others keep their carriers."),
		Example: lines(
			"  trellis link set abilene denver-seattle --rate 10mbit",
			"  trellis link set abilene denver-seattle --delay 20ms --jitter 2ms --loss 0.1%",
			"  trellis link set abilene denver-seattle --rate none --loss 0",
			"  trellis link set abilene denver-seattle --down",
			"  trellis link set office exchange alice --down"),
		Args: between(2, "VNET", "LINK", "NODE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			msg := &trellisv1.SetLinkRequest{Vnet: args[0], Link: args[1]}
			if len(args) > 2 {
				node, iface, named := strings.Cut(args[2], ":")
				if node == "" || named && iface == "" {
					return usagef("%q names no end of a link; write NODE or NODE:INTERFACE", args[2])
				}
				msg.Node, msg.Interface = node, iface
			}
			changed := cmd.Flags().Changed
			if changed("rate") {
				bits, err := parseRate(rate)
				if err != nil {
					return usagef("--rate: %v", err)
				}
				msg.Rate = &bits
			}
			if changed("delay") {
				if delay < 0 {
					return usagef("--delay %s: a delay cannot be negative; 0 takes it away", delay)
				}
				ns := int64(delay)
				msg.DelayNs = &ns
			}
			if changed("jitter") {
				if jitter < 0 {
					return usagef("--jitter %s: jitter cannot be negative; 0 takes it away", jitter)
				}
				ns := int64(jitter)
				msg.JitterNs = &ns
			}
			if changed("loss") {
				p, err := vnet.ParseLoss(loss)
				if err != nil {
					return usagef("--loss: %v", err)
				}
				msg.Loss = &p
			}
			if up && down {
				return usagef("--up and --down exclude each other")
			}
			if changed("up") || changed("down") {
				cut := down || changed("up") && !up
				msg.Down = &cut
			}
			if msg.Rate == nil && msg.DelayNs == nil && msg.JitterNs == nil && msg.Loss == nil && msg.Down == nil {
				return usagef("nothing to set; name at least one of --rate, --delay, --jitter, --loss, --up and --down")
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			client, err := env.client()
			if err != nil {
				return err
			}
			req := connect.NewRequest(msg)
			call, cancel := limited(ctx, timeout, req.Header())
			defer cancel()
			resp, err := client.SetLink(call, req)
			if interrupted(ctx) {
				return fmt.Errorf("interrupted; `trellis show %s` tells whether the link has changed", args[0])
			}
			if err != nil {
				return cause(call, err)
			}
			view := viewLink(resp.Msg.GetLink(), nil)
			return env.print(output, view, func(w io.Writer) {
				var shapes, pulled []string
				for _, e := range view.Ends {
					shapes = append(shapes, e.Shape.String())
					if e.Down {
						pulled = append(pulled, e.Node+":"+e.Name)
					}
				}
				fmt.Fprintf(w, "%s: %s %s\n", view.Name, view.State, distinct(shapes))
				if len(pulled) > 0 {
					fmt.Fprintf(w, "pulled: %s\n", strings.Join(pulled, " "))
				}
			})
		},
		ValidArgsFunction: completeWith(env, completeLink),
	}
	f := cmd.Flags()
	f.StringVar(&rate, "rate", "", "bits per second in each direction, e.g. 10mbit; none lifts the limit")
	f.DurationVar(&delay, "delay", 0, "one-way delay, e.g. 20ms")
	f.DurationVar(&jitter, "jitter", 0, "variation around the delay, e.g. 2ms")
	f.StringVar(&loss, "loss", "", "share of frames that are lost, e.g. 0.1%")
	f.BoolVar(&up, "up", false, "plug the cable in")
	f.BoolVar(&down, "down", false, "pull the cable")
	timeoutFlag(cmd, &timeout, 30*time.Second)
	output = outputFlag(cmd)
	return cmd
}

// parseRate reads a rate in bit/s; "none", and "unlimited" as in files, give 0,
// which lifts the limit. A rate written as 0 is a mistake, as it is in files.
func parseRate(s string) (uint64, error) {
	if s == "none" || s == "unlimited" {
		return 0, nil
	}
	return vnet.ParseRate(s)
}
