package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
)

func newLogsCommand(env *Env) *cobra.Command {
	var (
		follow bool
		tail   int32
	)
	cmd := &cobra.Command{
		Use:   "logs VNET/NODE [DAEMON]",
		Short: "Show what a node's daemons have printed",
		Long: lines(
			"Show what the daemons of a node, and its command, have printed: errors in their",
			"configuration, what they warn of, and how they ended. DAEMON is a name as `trellis",
			"show VNET/NODE` lists it, `command` for the image's command or the node's `cmd`;",
			"without it, the lines of all are shown, the daemon's name before each.",
			"A node keeps the last 16 to 32 KiB of each daemon, until it restarts."),
		Example: lines(
			"  trellis logs abilene/denver",
			"  trellis logs abilene/denver ospfd --tail 20",
			"  trellis logs abilene/denver -f"),
		Args: between(1, "VNET/NODE", "DAEMON"),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := parseNode(args[0])
			if err != nil {
				return err
			}
			if tail < 0 {
				return usagef("--tail %d: a number of lines cannot be negative; 0 is all", tail)
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			client, err := env.client()
			if err != nil {
				return err
			}
			req := &trellisv1.LogsRequest{Vnet: at.vnet, Node: at.node, Tail: tail, Follow: follow}
			if len(args) > 1 {
				req.Service = args[1]
			}
			stream, err := client.Logs(ctx, connect.NewRequest(req))
			if err != nil {
				return endOf(ctx.Err() != nil, err)
			}
			defer stream.Close()
			out := logOutput{w: env.Stdout, prefix: req.Service == "", middle: map[string]bool{}}
			for stream.Receive() {
				if err := out.write(stream.Msg().GetService(), stream.Msg().GetText()); err != nil {
					return fmt.Errorf("write the log: %w", err)
				}
			}
			return endOf(ctx.Err() != nil, stream.Err())
		},
		ValidArgsFunction: completeWith(env, completeNode),
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on with what comes, until an interrupt or the node's end")
	f.Int32VarP(&tail, "tail", "n", 0, "show so many lines of each daemon at most; 0: all that is kept")
	return cmd
}

// endOf is how a stream ends that an interrupt ends well.
func endOf(interrupted bool, err error) error {
	if interrupted {
		return nil
	}
	return err
}

// logOutput writes what daemons have printed. They are a stranger's, and a terminal
// obeys control characters: those are shown, not sent.
type logOutput struct {
	w      io.Writer
	prefix bool // the daemon's name before each line
	// middle tells, by daemon, that its last text has not ended its line.
	middle map[string]bool
}

func (o *logOutput) write(service string, text []byte) error {
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if o.prefix && !o.middle[service] {
			fmt.Fprintf(&b, "%s: ", service)
		}
		b.WriteString(visible(line))
		o.middle[service] = !strings.HasSuffix(line, "\n")
	}
	_, err := io.WriteString(o.w, b.String())
	return err
}

// visible gives a text with its control characters, and what is no UTF-8, escaped.
func visible(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "\\x%02x", s[0])
		case r == '\r' && strings.HasPrefix(s, "\r\n"): // a terminal's end of line
		case r != '\n' && r != '\t' && unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			fmt.Fprintf(&b, "\\x%02x", r)
		default:
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}
