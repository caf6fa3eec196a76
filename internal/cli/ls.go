package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
)

// summaryView is one network in `ls -o json`, and the head of `show -o json`.
type summaryView struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Nodes   int    `json:"nodes"`
	NodesUp int    `json:"nodesUp"`
	Links   int    `json:"links"`
	Routing string `json:"routing"`
	Created string `json:"created,omitempty"` // RFC 3339, UTC
	// Hosts are the substrate nodes that its nodes are placed on.
	Hosts   []string `json:"hosts"`
	Message string   `json:"message,omitempty"`
}

func viewSummary(s *trellisv1.Summary) summaryView {
	v := summaryView{
		Name: s.GetName(), State: s.GetState(), Nodes: int(s.GetNodes()), NodesUp: int(s.GetNodesUp()),
		Links: int(s.GetLinks()), Routing: s.GetRouting(), Hosts: append([]string{}, s.GetHosts()...), Message: oneLine(s.GetMessage()),
	}
	if t := s.GetCreatedUnix(); t != 0 {
		v.Created = time.Unix(t, 0).UTC().Format(time.RFC3339)
	}
	return v
}

func newLsCommand(env *Env) *cobra.Command {
	var (
		timeout time.Duration
		output  *choice
	)
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the virtual networks",
		Long: lines(
			"List the virtual networks of the service with their state, the nodes that run, and",
			"what is wrong where something is. -o json prints an array, empty without networks."),
		Example: lines(
			"  trellis ls",
			"  trellis ls -o json | jq -r '.[].name'"),
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			client, err := env.client()
			if err != nil {
				return err
			}
			req := connect.NewRequest(&trellisv1.ListRequest{})
			call, cancel := limited(ctx, timeout, req.Header())
			defer cancel()
			resp, err := client.List(call, req)
			if err != nil {
				return cause(call, err)
			}
			result := []summaryView{}
			for _, s := range resp.Msg.GetVnets() {
				result = append(result, viewSummary(s))
			}
			return env.print(output, result, func(w io.Writer) { tableSummaries(w, result, time.Now()) })
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	timeoutFlag(cmd, &timeout, 30*time.Second)
	output = outputFlag(cmd)
	return cmd
}

func tableSummaries(w io.Writer, list []summaryView, now time.Time) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no networks; `trellis up FILE` creates one")
		return
	}
	t := newTable("NAME", "STATE", ">NODES", ">LINKS", "ROUTING", "HOSTS", ">AGE", "MESSAGE")
	for _, s := range list {
		nodes := fmt.Sprint(s.Nodes)
		if s.NodesUp != s.Nodes {
			nodes = fmt.Sprintf("%d/%d", s.NodesUp, s.Nodes)
		}
		t.add(s.Name, s.State, nodes, fmt.Sprint(s.Links), s.Routing, dash(someOf(s.Hosts)), s.age(now), s.Message)
	}
	t.write(w)
}

// age gives the time since the network was created, in its largest unit.
func (s summaryView) age(now time.Time) string {
	t, err := time.Parse(time.RFC3339, s.Created)
	if err != nil {
		return "-"
	}
	return ago(t, now)
}

// someOf joins the first few of a list.
func someOf(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, " ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most-1], " "), len(names)-most+1)
}

// ago gives the time since t in its largest unit.
func ago(t, now time.Time) string {
	d := max(now.Sub(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// get fetches a network, or one node of it.
func (e *Env) get(ctx context.Context, timeout time.Duration, name, node string) (*trellisv1.GetResponse, error) {
	client, err := e.client()
	if err != nil {
		return nil, err
	}
	req := connect.NewRequest(&trellisv1.GetRequest{Name: name, Node: node})
	call, cancel := limited(ctx, timeout, req.Header())
	defer cancel()
	resp, err := client.Get(call, req)
	if err != nil {
		return nil, cause(call, err)
	}
	return resp.Msg, nil
}
