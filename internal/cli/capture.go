package cli

import (
	"fmt"
	"os"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
)

func newCaptureCommand(env *Env) *cobra.Command {
	var (
		file    string
		frames  uint64
		snaplen uint32
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "capture VNET/NODE:IF",
		Short: "Capture the frames of an interface as pcap",
		Long: lines(
			"Capture what passes an interface of a node, in both directions, in the pcap format",
			"that tcpdump and Wireshark read. It goes to standard output, or to FILE with -w, until",
			"an interrupt, --count frames or --timeout; all of these end it well, with status 0,",
			"and the number of frames goes to standard error."),
		Example: lines(
			"  trellis capture abilene/denver:eth1 -w denver.pcap",
			"  trellis capture abilene/denver:eth1 | tcpdump -n -r -",
			"  trellis capture abilene/denver:eth1 -c 100 | wireshark -k -i -"),
		Args: exactly("VNET/NODE:IF"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			at, err := parseInterface(args[0])
			if err != nil {
				return err
			}
			if (file == "" || file == "-") && terminal(env.Stdout) != nil {
				return usagef("a capture is binary and standard output is a terminal; use -w FILE, or pipe it into `tcpdump -n -r -`")
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			client, err := env.client()
			if err != nil {
				return err
			}
			req := connect.NewRequest(&trellisv1.CaptureRequest{
				Vnet: at.vnet, Node: at.node, Interface: at.iface, Snaplen: snaplen, Count: frames,
			})
			if timeout > 0 {
				timer := time.AfterFunc(timeout, stop)
				defer timer.Stop()
			}
			out := &pcapOutput{env: env, file: file}
			stream, err := client.Capture(ctx, req)
			if err != nil && ctx.Err() != nil { // ended before it began
				fmt.Fprintf(env.Stderr, "%s captured\n", count(0, "frame"))
				return nil
			}
			if err != nil {
				return err
			}
			defer stream.Close()
			defer func() {
				if e := out.close(); err == nil {
					err = e
				}
			}()
			for stream.Receive() {
				if err := out.write(stream.Msg().GetPcap()); err != nil {
					return err
				}
			}
			if err := stream.Err(); err != nil && ctx.Err() == nil {
				return err
			}
			if err := out.close(); err != nil {
				return err
			}
			where := ""
			if file != "" && file != "-" {
				where = " in " + file
			}
			fmt.Fprintf(env.Stderr, "%s captured%s\n", count(int(out.frames.count), "frame"), where)
			return nil
		},
		ValidArgsFunction: completeWith(env, completeInterface),
	}
	f := cmd.Flags()
	f.StringVarP(&file, "write", "w", "", "write to this file; -: standard output")
	f.Uint64VarP(&frames, "count", "c", 0, "end after so many frames; 0: go on")
	f.Uint32VarP(&snaplen, "snaplen", "s", 0, "keep so many bytes of each frame; 0: all")
	f.DurationVar(&timeout, "timeout", 0, "end the capture after this long; 0: never")
	return cmd
}

// pcapOutput is where a capture goes. A file is made when the service has
// begun to answer, so that a refused capture leaves an old file alone.
type pcapOutput struct {
	env    *Env
	file   string
	f      *os.File
	frames pcapFrames
}

func (o *pcapOutput) write(data []byte) error {
	w := o.env.Stdout
	if o.file != "" && o.file != "-" {
		if o.f == nil {
			f, err := os.Create(o.file)
			if err != nil {
				return fmt.Errorf("write the capture: %w", err)
			}
			o.f = f
		}
		w = o.f
	}
	complete, err := o.frames.push(data)
	if err != nil {
		return err
	}
	if _, err := w.Write(complete); err != nil {
		return fmt.Errorf("write the capture: %w", err)
	}
	return nil
}

func (o *pcapOutput) close() error {
	if o.f == nil {
		return nil
	}
	f := o.f
	o.f = nil
	if err := f.Close(); err != nil {
		return fmt.Errorf("write the capture: %w", err)
	}
	return nil
}
