package deploy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/vnet"
)

// seed of the samples: every run tries the same pairs of the same network.
const seed = 1

// mostFailures bounds the failed pairs that a result names.
const mostFailures = 10

// mostCommands bounds the pairs that are tried by a command in a node each,
// which costs the service more than an echo of its own.
const mostCommands = 50

// reach checks a sample of pairs with real packets. The service's own check goes
// from loopback to loopback, so it fits networks in which every node routes.
// Where some do not, commands in the nodes try what can be expected of each.
func (m *measurement) reach(ctx context.Context) (Reach, error) {
	ctx, cancel := m.bounded(ctx)
	defer cancel()
	for i := range m.c.VNet.Nodes {
		if m.c.VNet.Nodes[i].Routing.Protocol == vnet.None {
			return m.reachNeighbours(ctx)
		}
	}
	return m.reachLoopbacks(ctx)
}

func (m *measurement) reachLoopbacks(ctx context.Context) (Reach, error) {
	r := Reach{Method: Loopbacks}
	if len(m.c.VNet.Nodes) < 2 {
		return r, nil
	}
	req := &trellisv1.PingRequest{Vnet: m.c.VNet.Name, Sample: int32(m.Sample), Seed: seed}
	if n := len(m.c.VNet.Nodes); n*(n-1) <= m.Sample {
		req.Sample = 0 // all of them
	}
	stream, err := m.client.Ping(ctx, connect.NewRequest(req))
	if err != nil {
		return r, err
	}
	defer stream.Close()
	for stream.Receive() {
		switch e := stream.Msg().Event.(type) {
		case *trellisv1.PingResponse_Progress:
			m.report(e.Progress)
		case *trellisv1.PingResponse_Result:
			r.Pairs, r.Reachable = int(e.Result.GetPairs()), int(e.Result.GetReachable())
			for _, f := range e.Result.GetFailed()[:min(mostFailures, len(e.Result.GetFailed()))] {
				r.Failed = append(r.Failed, fmt.Sprintf("%s -> %s (%s): %s", f.GetFrom(), f.GetTo(), f.GetFamily(), f.GetReason()))
			}
			return r, nil
		}
	}
	if err := stream.Err(); err != nil {
		return r, err
	}
	return r, errCut
}

// try is one echo to be sent by a command in a node.
type try struct {
	from, to string
	addr     netip.Addr
}

func (m *measurement) reachNeighbours(ctx context.Context) (Reach, error) {
	r := Reach{Method: Neighbours}
	tries := neighbourTries(m.c.VNet, min(m.Sample, mostCommands))
	for i, t := range tries {
		m.report(&trellisv1.Progress{Phase: "pinging", Done: int32(i), Total: int32(len(tries))})
		failure, err := m.ping(ctx, t)
		if err != nil {
			return r, fmt.Errorf("ping %s from %s: %w", t.addr, t.from, err)
		}
		r.Pairs++
		if failure == "" {
			r.Reachable++
		} else if len(r.Failed) < mostFailures {
			r.Failed = append(r.Failed, fmt.Sprintf("%s -> %s (%s): %s", t.from, t.to, t.addr, failure))
		}
	}
	return r, nil
}

// neighbourTries gives at most n echoes, half of them from nodes without
// routing to the far ends of their first links, half between the loopbacks of
// nodes that have the network's own routing.
func neighbourTries(v *vnet.VNet, n int) []try {
	random := rand.New(rand.NewPCG(seed, seed))
	first := map[string]try{}
	for _, l := range v.Links {
		if len(l.Endpoints) < 2 || l.Down {
			continue
		}
		for i, e := range l.Endpoints {
			far := l.Endpoints[(i+1)%len(l.Endpoints)]
			if _, ok := first[e.Node]; !ok && far.Node != e.Node && len(far.Addrs) > 0 {
				first[e.Node] = try{e.Node, far.Node, far.Addrs[0].Addr()}
			}
		}
	}
	var plain []try
	var routers []*vnet.Node
	for i := range v.Nodes {
		node := &v.Nodes[i]
		if t, ok := first[node.Name]; ok && node.Routing.Protocol == vnet.None {
			plain = append(plain, t)
		} else if node.Routing.Protocol == v.Routing.Protocol && node.Routing.Protocol != vnet.None && len(node.Loopbacks) > 0 {
			routers = append(routers, node)
		}
	}
	var pairs []try
	for _, a := range routers {
		for _, b := range routers {
			if a != b {
				pairs = append(pairs, try{a.Name, b.Name, b.Loopbacks[0]})
			}
		}
	}
	for _, list := range [][]try{plain, pairs} {
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	pairs = pairs[:min(len(pairs), n/2)]
	return append(plain[:min(len(plain), n-len(pairs))], pairs...)
}

// ping sends one echo from within a node. A failure is what the command said.
func (m *measurement) ping(ctx context.Context, t try) (failure string, err error) {
	stream := m.client.Exec(ctx)
	defer stream.CloseResponse()
	start := &trellisv1.ExecStart{Vnet: m.c.VNet.Name, Node: t.from, Argv: []string{"ping", "-n", "-q", "-c", "1", "-W", "2", t.addr.String()}}
	for _, req := range []*trellisv1.ExecRequest{
		{Message: &trellisv1.ExecRequest_Start{Start: start}},
		{Message: &trellisv1.ExecRequest_StdinClosed{StdinClosed: true}},
	} {
		if err := stream.Send(req); err != nil {
			break // Receive tells why
		}
	}
	var output strings.Builder
	for {
		resp, err := stream.Receive()
		if err != nil {
			return "", err
		}
		switch e := resp.Message.(type) {
		case *trellisv1.ExecResponse_Stdout:
			output.Write(e.Stdout)
		case *trellisv1.ExecResponse_Stderr:
			output.Write(e.Stderr)
		case *trellisv1.ExecResponse_ExitCode:
			if err := stream.CloseRequest(); err != nil {
				return "", err
			}
			if e.ExitCode == 0 {
				return "", nil
			}
			return fmt.Sprintf("status %d: %s", e.ExitCode, strings.Join(strings.Fields(output.String()), " ")), nil
		}
	}
}
