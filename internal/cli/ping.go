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
)

// pingMatrix is the largest network, in nodes, whose pairs are shown one by one.
const pingMatrix = 12

// pingResult is what `ping -o json` prints. Pairs counts ordered pairs of nodes
// times address families. Times are in seconds, 0 where nothing answered.
type pingResult struct {
	VNet      string        `json:"vnet"`
	Pairs     int           `json:"pairs"`
	Reachable int           `json:"reachable"`
	Failed    []pingFailure `json:"failed"`
	RTT       rttView       `json:"rtt"`
	Seed      int64         `json:"seed,omitempty"` // of the sample
}

type pingFailure struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Family string `json:"family"` // ipv4 | ipv6
	Reason string `json:"reason,omitempty"`
}

type rttView struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

func newPingCommand(env *Env) *cobra.Command {
	var (
		sample  int
		seed    int64
		echo    time.Duration
		timeout time.Duration
		output  *choice
	)
	cmd := &cobra.Command{
		Use:   "ping VNET",
		Short: "Check with real packets that every node reaches every other",
		Long: lines(
			"Send ICMP and ICMPv6 echo requests between all pairs of nodes, in both directions, and",
			"say which were answered. They go to loopbacks, and to the interfaces' addresses of",
			"hosts and of nodes without routing. On a large network --sample tries that many",
			"random pairs instead. The exit status is 1 when any pair fails."),
		Example: lines(
			"  trellis ping abilene",
			"  trellis ping kdl --sample 2000",
			"  trellis ping abilene -o json | jq '.failed'"),
		Args: exactly("VNET"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if sample < 0 {
				return usagef("--sample %d: the number of pairs cannot be negative; 0 tries all", sample)
			}
			at, err := parseTarget(args[0])
			if err != nil {
				return err
			}
			if at.node != "" {
				return usagef("%q is not a network; `trellis ping %s` tries all of its nodes", args[0], at.vnet)
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			var nodes []string
			if output.value == formatTable && sample == 0 {
				resp, err := env.get(ctx, timeout, at.vnet, "")
				if err != nil {
					return err
				}
				for _, n := range resp.GetVnet().GetNodes() {
					nodes = append(nodes, n.GetName())
				}
			}
			req := &trellisv1.PingRequest{Vnet: at.vnet, Sample: int32(sample), TimeoutNs: int64(echo), Seed: seed}
			result, err := env.ping(ctx, timeout, req)
			if err != nil {
				return err
			}
			if err := env.print(output, result, func(w io.Writer) { result.table(w, nodes) }); err != nil {
				return err
			}
			if len(result.Failed) > 0 || result.Reachable < result.Pairs {
				return exitStatus(exitFailed)
			}
			return nil
		},
		ValidArgsFunction: completeWith(env, completeVNet),
	}
	cmd.Flags().IntVar(&sample, "sample", 0, "try this many random pairs; 0: all")
	cmd.Flags().Int64Var(&seed, "seed", 0, "seed of the sample, to try the same pairs again; 0: any")
	cmd.Flags().DurationVar(&echo, "echo-timeout", time.Second, "wait this long for each answer")
	timeoutFlag(cmd, &timeout, 5*time.Minute)
	output = outputFlag(cmd)
	return cmd
}

// ping runs one check and returns its outcome.
func (e *Env) ping(ctx context.Context, timeout time.Duration, msg *trellisv1.PingRequest) (*pingResult, error) {
	client, err := e.client()
	if err != nil {
		return nil, err
	}
	req := connect.NewRequest(msg)
	call, cancel := limited(ctx, timeout, req.Header())
	defer cancel()
	bar := newProgress(e.Stderr)
	defer bar.finish()
	stream, err := client.Ping(call, req)
	if err != nil {
		return nil, cause(call, err)
	}
	defer stream.Close()
	for stream.Receive() {
		switch ev := stream.Msg().Event.(type) {
		case *trellisv1.PingResponse_Progress:
			bar.update(ev.Progress)
		case *trellisv1.PingResponse_Result:
			return viewPing(msg.GetVnet(), ev.Result), nil
		}
	}
	bar.finish()
	switch err := stream.Err(); {
	case interrupted(ctx):
		return nil, errors.New("interrupted; the pairs tried so far are not counted, nothing was changed")
	case err == nil:
		return nil, errors.New("the service ended its answer without a result; its log says why")
	default:
		return nil, cause(call, err)
	}
}

func viewPing(vnet string, r *trellisv1.PingResult) *pingResult {
	v := &pingResult{
		VNet: vnet, Pairs: int(r.GetPairs()), Reachable: int(r.GetReachable()), Failed: []pingFailure{},
		RTT: rttView{r.GetRttMin(), r.GetRttMedian(), r.GetRttMax()}, Seed: r.GetSeed(),
	}
	for _, f := range r.GetFailed() {
		v.Failed = append(v.Failed, pingFailure{f.GetFrom(), f.GetTo(), f.GetFamily(), oneLine(f.GetReason())})
	}
	return v
}

func (r *pingResult) table(w io.Writer, nodes []string) {
	fmt.Fprintf(w, "%s: %d of %d pairs reachable", r.VNet, r.Reachable, r.Pairs)
	if r.Reachable > 0 {
		fmt.Fprintf(w, "; round trip %s median, %s to %s", duration(r.RTT.Median), duration(r.RTT.Min), duration(r.RTT.Max))
	}
	fmt.Fprintln(w)
	if len(nodes) > 1 && len(nodes) <= pingMatrix {
		fmt.Fprintln(w)
		r.matrix(w, nodes)
	}
	if len(r.Failed) == 0 {
		return
	}
	const most = 20
	groups := r.grouped()
	t := newTable("FROM", "TO", "FAMILY", "REASON")
	for _, g := range groups[:min(most, len(groups))] {
		t.add(g.from, someOf(g.to), g.families, g.reason)
	}
	t.section(w)
	if len(groups) > most {
		more := 0
		for _, g := range groups[most:] {
			more += g.pairs
		}
		fmt.Fprintf(w, "and %d more pairs; -o json lists all\n", more)
	}
}

// failedGroup are pairs from one node that have failed alike.
type failedGroup struct {
	from, families, reason string
	to                     []string
	pairs                  int // counted by family
}

// grouped puts failures together that differ only in where they went.
func (r *pingResult) grouped() []*failedGroup {
	type failure struct{ from, to, reason string }
	var failures []failure // in order
	families := map[failure][]string{}
	for _, f := range r.Failed {
		w := failure{f.From, f.To, f.Reason}
		if families[w] == nil {
			failures = append(failures, w)
		}
		families[w] = append(families[w], f.Family)
	}
	var groups []*failedGroup
	known := map[failedGroupKey]*failedGroup{}
	for _, w := range failures {
		key := failedGroupKey{w.from, strings.Join(families[w], " "), w.reason}
		g := known[key]
		if g == nil {
			g = &failedGroup{from: w.from, families: key.families, reason: w.reason}
			known[key] = g
			groups = append(groups, g)
		}
		g.to = append(g.to, w.to)
		g.pairs += len(families[w])
	}
	return groups
}

type failedGroupKey struct{ from, families, reason string }

// matrix draws the pairs: who sends in the rows, who answers in the columns.
func (r *pingResult) matrix(w io.Writer, nodes []string) {
	failed := map[[2]string]string{}
	for _, f := range r.Failed {
		failed[[2]string{f.From, f.To}] += f.Family
	}
	head := []string{"FROM \\ TO"}
	for i := range nodes {
		head = append(head, fmt.Sprintf(">%d", i+1))
	}
	t := newTable(head...)
	for i, from := range nodes {
		row := []string{fmt.Sprintf("%2d %s", i+1, from)}
		for _, to := range nodes {
			row = append(row, pairMark(from == to, failed[[2]string{from, to}]))
		}
		t.add(row...)
	}
	t.write(w)
	if len(failed) > 0 {
		fmt.Fprintln(w, "ok: answered   no4, no6: no answer over IPv4, over IPv6   none: neither")
	}
}

// pairMark says in at most four characters how a pair fared.
func pairMark(self bool, failed string) string {
	switch {
	case self:
		return "·"
	case failed == "":
		return "ok"
	case failed == "ipv4":
		return "no4"
	case failed == "ipv6":
		return "no6"
	}
	return "none"
}
