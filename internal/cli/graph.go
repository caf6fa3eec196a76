package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trellis/internal/draw"
	"trellis/internal/vnet"
	"trellis/internal/wire"
)

// drawings holds the formats of graph, by name.
var drawings = map[string]func(io.Writer, *vnet.VNet, draw.Options) error{
	"dot":     draw.DOT,
	"svg":     draw.SVG,
	"mermaid": draw.Mermaid,
}

// drawingOf gives the format that a file's name calls for.
var drawingOf = map[string]string{
	".dot": "dot", ".gv": "dot", ".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid",
}

func newGraphCommand(env *Env) *cobra.Command {
	var (
		file    string
		show    draw.Options
		timeout time.Duration
		output  *choice
	)
	cmd := &cobra.Command{
		Use:   "graph VNET|FILE",
		Short: "Draw a running network, or the one that a file describes",
		Long: lines(
			"Draw a network to standard output, or to a file with -w, whose ending then names the",
			"format where -o does not. SVG places the nodes by their coordinates where they have",
			"any, else by a layout; pointing at a node or a link shows its addresses. Routers are",
			"circles, hosts squares, LANs bars. An argument with a dot or a slash is a file."),
		Example: lines(
			"  trellis graph abilene -w abilene.svg",
			"  trellis graph examples/abilene.yaml -o mermaid",
			"  trellis graph examples/lan.yaml --interfaces --addresses -w lan.svg",
			"  trellis graph abilene | neato -Tpdf > abilene.pdf"),
		Args: exactly("VNET or FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind := output.value
			if file != "" && file != "-" && !cmd.Flags().Changed("output") {
				known := false
				if kind, known = drawingOf[strings.ToLower(filepath.Ext(file))]; !known {
					return usagef("the ending of %s names no format; name one with -o dot, svg or mermaid", file)
				}
			}
			v, err := env.described(cmd, args[0], timeout)
			if err != nil {
				return err
			}
			var buf bytes.Buffer
			if err := drawings[kind](&buf, v, show); err != nil {
				return fmt.Errorf("draw %s: %w", v.Name, err)
			}
			if file == "" || file == "-" {
				_, err = env.Stdout.Write(buf.Bytes())
			} else {
				err = writeWhole(file, buf.Bytes())
			}
			if err != nil {
				return fmt.Errorf("write the drawing: %w", err)
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			names, _ := completeWith(env, completeVNet)(cmd, args, word)
			return names, cobra.ShellCompDirectiveDefault
		},
	}
	output = choiceFlag(cmd, "the format to draw in", "dot", "svg", "mermaid")
	cmd.Flags().StringVarP(&file, "write", "w", "", "write to this file; -: standard output")
	cmd.Flags().BoolVar(&show.Interfaces, "interfaces", false, "show the names of interfaces at the ends of links")
	cmd.Flags().BoolVar(&show.Addresses, "addresses", false, "show addresses of interfaces and loopbacks")
	timeoutFlag(cmd, &timeout, 30*time.Second)
	return cmd
}

// described gives the network that arg names: a file's or a running one.
func (e *Env) described(cmd *cobra.Command, arg string, timeout time.Duration) (*vnet.VNet, error) {
	if isFile(arg) {
		return e.load(arg, anyPath)
	}
	ctx, stop := interruptible(cmd)
	defer stop()
	resp, err := e.get(ctx, timeout, arg, "")
	if err != nil {
		return nil, err
	}
	v, err := wire.FromProto(resp.GetVnet())
	if err != nil {
		return nil, fmt.Errorf("read the service's description of %s: %w", arg, err)
	}
	return v, nil
}

// writeWhole writes a file so that it is never seen half-written. What is there
// and no regular file, a device or a pipe, is written to and not replaced.
func writeWhole(path string, data []byte) (err error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return os.WriteFile(path, data, 0o644)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
