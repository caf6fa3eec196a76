package cli

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
)

// completionTime bounds how long a key press may wait for the service.
const completionTime = 2 * time.Second

// completer offers words for the argument at len(args). Whatever goes wrong
// offers nothing: a key press is no place for an error.
type completer func(ctx context.Context, c trellisv1connect.VNetServiceClient, args []string, word string) ([]string, cobra.ShellCompDirective)

// completeWith makes cobra's form of a completer.
func completeWith(env *Env, f completer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		client, err := env.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		words, directive := f(ctx, client, args, word)
		matching := []string{}
		for _, w := range words {
			if strings.HasPrefix(w, word) {
				matching = append(matching, w)
			}
		}
		return matching, directive | cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFiles offers what up, validate, convert and graph can read.
func completeFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml", "graphml", "xml"}, cobra.ShellCompDirectiveFilterFileExt
}

func vnetNames(ctx context.Context, c trellisv1connect.VNetServiceClient) []string {
	resp, err := c.List(ctx, connect.NewRequest(&trellisv1.ListRequest{}))
	if err != nil {
		return nil
	}
	var names []string
	for _, s := range resp.Msg.GetVnets() {
		names = append(names, s.GetName())
	}
	return names
}

func completeVNet(ctx context.Context, c trellisv1connect.VNetServiceClient, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, 0
	}
	return vnetNames(ctx, c), 0
}

// completeVNetOrNode offers networks, and the nodes of one that is typed out.
func completeVNetOrNode(ctx context.Context, c trellisv1connect.VNetServiceClient, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 && !strings.Contains(word, "/") {
		return vnetNames(ctx, c), cobra.ShellCompDirectiveNoSpace
	}
	return completeNode(ctx, c, args, word)
}

// completeHost offers the substrate nodes.
func completeHost(ctx context.Context, c trellisv1connect.VNetServiceClient, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, 0
	}
	resp, err := c.Hosts(ctx, connect.NewRequest(&trellisv1.HostsRequest{}))
	if err != nil {
		return nil, 0
	}
	var names []string
	for _, h := range resp.Msg.GetHosts() {
		names = append(names, h.GetName())
	}
	return names, 0
}

func completeNode(ctx context.Context, c trellisv1connect.VNetServiceClient, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, 0
	}
	name, _, slash := strings.Cut(word, "/")
	if !slash {
		return suffixed(vnetNames(ctx, c), "/"), cobra.ShellCompDirectiveNoSpace
	}
	resp, err := c.Get(ctx, connect.NewRequest(&trellisv1.GetRequest{Name: name}))
	if err != nil {
		return nil, 0
	}
	var words []string
	for _, n := range resp.Msg.GetVnet().GetNodes() {
		words = append(words, name+"/"+n.GetName())
	}
	return words, 0
}

func completeDaemon(ctx context.Context, c trellisv1connect.VNetServiceClient, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return completeNode(ctx, c, args, word)
	}
	name, node, _ := strings.Cut(args[0], "/")
	resp, err := c.Get(ctx, connect.NewRequest(&trellisv1.GetRequest{Name: name}))
	if err != nil {
		return nil, 0
	}
	var words []string
	for _, n := range resp.Msg.GetNodes() {
		if n.GetName() != node {
			continue
		}
		for _, s := range n.GetServices() {
			words = append(words, s.GetName())
		}
	}
	return words, 0
}

func completeInterface(ctx context.Context, c trellisv1connect.VNetServiceClient, args []string, word string) ([]string, cobra.ShellCompDirective) {
	node, _, colon := strings.Cut(word, ":")
	if len(args) > 0 || !colon {
		words, directive := completeNode(ctx, c, args, word)
		if strings.Contains(word, "/") {
			words, directive = suffixed(words, ":"), cobra.ShellCompDirectiveNoSpace
		}
		return words, directive
	}
	name, node, _ := strings.Cut(node, "/")
	resp, err := c.Get(ctx, connect.NewRequest(&trellisv1.GetRequest{Name: name}))
	if err != nil {
		return nil, 0
	}
	var words []string
	for _, l := range resp.Msg.GetVnet().GetLinks() {
		for _, e := range l.GetEndpoints() {
			if e.GetNode() == node {
				words = append(words, name+"/"+node+":"+e.GetName())
			}
		}
	}
	return words, 0
}

// completeLink offers the network, then its links, then the ends of that one.
func completeLink(ctx context.Context, c trellisv1connect.VNetServiceClient, args []string, word string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return vnetNames(ctx, c), 0
	case 1:
		resp, err := c.Get(ctx, connect.NewRequest(&trellisv1.GetRequest{Name: args[0]}))
		if err != nil {
			return nil, 0
		}
		var words []string
		for _, l := range resp.Msg.GetVnet().GetLinks() {
			words = append(words, l.GetName())
		}
		return words, 0
	case 2:
		resp, err := c.Get(ctx, connect.NewRequest(&trellisv1.GetRequest{Name: args[0]}))
		if err != nil {
			return nil, 0
		}
		var words []string
		for _, l := range resp.Msg.GetVnet().GetLinks() {
			if l.GetName() != args[1] {
				continue
			}
			for _, e := range l.GetEndpoints() {
				words = append(words, e.GetNode()+":"+e.GetName())
			}
		}
		return words, 0
	}
	return nil, 0
}

func suffixed(words []string, suffix string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w + suffix
	}
	return out
}
