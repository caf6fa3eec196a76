package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	trellisv1 "trellis/api/trellis/v1"
)

// hostView is one substrate node in `substrate ls -o json`.
type hostView struct {
	Name       string       `json:"name"`
	State      string       `json:"state"`          // alive, vanished
	Seen       string       `json:"seen,omitempty"` // when it was last heard of; RFC 3339, UTC
	Version    string       `json:"version"`
	Addresses  []string     `json:"addresses"`  // that tunnels end at
	MTU        int          `json:"mtu"`        // of the underlay; 0: no uplink
	Nodes      int          `json:"nodes"`      // placed there
	Memory     int64        `json:"memory"`     // bytes that nodes may be given
	MemoryUsed int64        `json:"memoryUsed"` // bytes that they are given
	CPU        float64      `json:"cpu"`        // cores
	CPUUsed    float64      `json:"cpuUsed"`
	Uplinks    []uplinkView `json:"uplinks"`
	Message    string       `json:"message,omitempty"`
}

type uplinkView struct {
	Interface string            `json:"interface"`
	XDP       string            `json:"xdp,omitempty"` // native, generic
	MTU       int               `json:"mtu,omitempty"`
	Drops     map[string]uint64 `json:"drops"` // packets, by reason
	Message   string            `json:"message,omitempty"`
}

func viewHost(h *trellisv1.HostStatus) hostView {
	v := hostView{
		Name: h.GetName(), State: h.GetState(), Version: h.GetVersion(), Addresses: append([]string{}, h.GetAddresses()...),
		MTU: int(h.GetMtu()), Nodes: int(h.GetNodes()), Memory: h.GetMemory(), MemoryUsed: h.GetMemoryUsed(),
		CPU: h.GetCpu(), CPUUsed: h.GetCpuUsed(), Uplinks: []uplinkView{}, Message: oneLine(h.GetMessage()),
	}
	if t := h.GetSeenUnix(); t > 0 {
		v.Seen = time.Unix(t, 0).UTC().Format(time.RFC3339)
	}
	for _, u := range h.GetUplinks() {
		view := uplinkView{
			Interface: u.GetInterface(), XDP: u.GetXdp(), MTU: int(u.GetMtu()), Drops: counted(u.GetDrops()), Message: oneLine(u.GetMessage()),
		}
		v.Uplinks = append(v.Uplinks, view)
	}
	return v
}

func newSubstrateCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "substrate",
		Short: "Look at the machines that carry the networks",
		Long: lines(
			"Substrate nodes are the machines that share a store and carry the nodes of the",
			"virtual networks: each runs `trellis serve`."),
		Example: "  trellis substrate ls",
		Args:    verbsOnly,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSubstrateLsCommand(env), newSubstrateForgetCommand(env))
	return cmd
}

func newSubstrateLsCommand(env *Env) *cobra.Command {
	var (
		timeout time.Duration
		output  *choice
	)
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the substrate nodes",
		Long: lines(
			"List the substrate nodes: whether their agents answer, where tunnels to them end and",
			"what the underlay carries there, what their nodes are given of their memory and",
			"processors, and their uplinks. One that has vanished may still run its nodes."),
		Example: lines(
			"  trellis substrate ls",
			"  trellis substrate ls -o json | jq -r '.[] | select(.state != \"alive\") | .name'"),
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			client, err := env.client()
			if err != nil {
				return err
			}
			req := connect.NewRequest(&trellisv1.HostsRequest{})
			call, cancel := limited(ctx, timeout, req.Header())
			defer cancel()
			resp, err := client.Hosts(call, req)
			if err != nil {
				return cause(call, err)
			}
			result := []hostView{}
			for _, h := range resp.Msg.GetHosts() {
				result = append(result, viewHost(h))
			}
			return env.print(output, result, func(w io.Writer) { tableHosts(w, result, time.Now()) })
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	timeoutFlag(cmd, &timeout, 30*time.Second)
	output = outputFlag(cmd)
	return cmd
}

func newSubstrateForgetCommand(env *Env) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "forget HOST",
		Short: "Forget a substrate node that is gone for good",
		Long: lines(
			"Take a substrate node off the list. Its agent must not live, and no network may want a",
			"part there. One that comes back after all is on the list again."),
		Example: "  trellis substrate forget gamma",
		Args:    exactly("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			client, err := env.client()
			if err != nil {
				return err
			}
			req := connect.NewRequest(&trellisv1.ForgetHostRequest{Name: args[0]})
			call, cancel := limited(ctx, timeout, req.Header())
			defer cancel()
			if _, err := client.ForgetHost(call, req); err != nil {
				return cause(call, err)
			}
			if _, err := fmt.Fprintf(env.Stdout, "%s: forgotten\n", args[0]); err != nil {
				return fmt.Errorf("write the result: %w", err)
			}
			return nil
		},
		ValidArgsFunction: completeWith(env, completeHost),
	}
	timeoutFlag(cmd, &timeout, 30*time.Second)
	return cmd
}

func tableHosts(w io.Writer, hosts []hostView, now time.Time) {
	if len(hosts) == 0 {
		fmt.Fprintln(w, "no substrate nodes")
		return
	}
	t := newTable("NAME", "STATE", ">HEARD", "ADDRESSES", ">MTU", ">NODES", ">MEMORY", ">CPU", "UPLINKS", "VERSION", "MESSAGE")
	drops := newTable("HOST", "UPLINK", "REASON", ">PACKETS")
	for _, h := range hosts {
		var uplinks []string
		messages := nonEmpty(h.Message)
		for _, u := range h.Uplinks {
			uplinks = append(uplinks, strings.TrimSpace(u.Interface+" "+u.XDP))
			if u.Message != "" {
				messages = append(messages, u.Interface+": "+u.Message)
			}
			for _, reason := range slices.Sorted(maps.Keys(u.Drops)) {
				drops.add(h.Name, u.Interface, reason, fmt.Sprint(u.Drops[reason]))
			}
		}
		mtu := "-"
		if h.MTU != 0 {
			mtu = fmt.Sprint(h.MTU)
		}
		t.add(h.Name, h.State, heard(h, now), dash(strings.Join(h.Addresses, " ")), mtu, fmt.Sprint(h.Nodes),
			fmt.Sprintf("%s/%s", size(h.MemoryUsed), size(h.Memory)), fmt.Sprintf("%.4g/%.4g", h.CPUUsed, h.CPU),
			dash(strings.Join(uplinks, ", ")), h.Version, strings.Join(messages, "; "))
	}
	t.write(w)
	drops.section(w)
}

// heard says how long ago a substrate node was heard of.
func heard(h hostView, now time.Time) string {
	t, err := time.Parse(time.RFC3339, h.Seen)
	switch {
	case err != nil:
		return "-"
	case h.State == "alive":
		return "now"
	}
	return ago(t, now)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}
