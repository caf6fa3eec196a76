package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"trellis/internal/agentapi"
	"trellis/internal/plan"
)

// agent plays the agent of a machine.
type agent struct {
	mu    sync.Mutex
	plans []*plan.Plan
	err   error // of everything
	// prepared is what Prepare waits for, when it is there, after it has told how far it is.
	prepared chan struct{}
	hold     chan struct{} // NodeStats waits for it, when it is there
	signals  chan syscall.Signal
	sizes    chan [2]uint16
	ended    chan error // of a capture that goes on
}

func newAgent() *agent {
	return &agent{signals: make(chan syscall.Signal, 10), sizes: make(chan [2]uint16, 10), ended: make(chan error, 1)}
}

func (a *agent) Prepare(ctx context.Context, p *plan.Plan) error {
	if a.prepared != nil {
		agentapi.ProgressOf(ctx)("image x: extracted 1 file")
		<-a.prepared
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.plans = append(a.plans, p)
	return a.err
}

func (a *agent) DryRun(_ context.Context, p *plan.Plan) ([]agentapi.Step, error) {
	return []agentapi.Step{{Op: "start", Object: "node " + p.Nodes[0].Name, Detail: "new"}}, a.err
}

func (a *agent) Logs(ctx context.Context, vnet, node string, q agentapi.LogQuery, each func(string, []byte) error) error {
	if err := each(q.Service, fmt.Appendf(nil, "%s/%s %d\n", vnet, node, q.Tail)); err != nil || !q.Follow {
		return errors.Join(err, a.err)
	}
	<-ctx.Done()
	a.ended <- ctx.Err()
	return nil
}

func (a *agent) Restart(_ context.Context, vnet, node, service string) error {
	if a.err != nil {
		return a.err
	}
	return fmt.Errorf("restarted %s/%s:%s", vnet, node, service)
}

func (a *agent) StopService(_ context.Context, vnet, node, service string) error {
	return errors.Join(a.err, fmt.Errorf("stopped %s/%s:%s", vnet, node, service))
}

func (a *agent) StartService(_ context.Context, vnet, node, service string) error {
	return errors.Join(a.err, fmt.Errorf("started %s/%s:%s", vnet, node, service))
}

func (a *agent) Capture(ctx context.Context, vnet, node, iface string, snaplen uint32, count uint64, w io.Writer) error {
	for i := range count {
		if _, err := fmt.Fprintf(w, "%s/%s:%s %d %d\n", vnet, node, iface, snaplen, i); err != nil {
			return err
		}
	}
	if count == 0 {
		fmt.Fprint(w, "header")
		<-ctx.Done()
		a.ended <- ctx.Err()
	}
	return a.err
}

func (a *agent) Ping(_ context.Context, r agentapi.PingRequest, progress func(int, int)) (*agentapi.PingResult, error) {
	progress(1, len(r.Pairs))
	out := &agentapi.PingResult{}
	for i, p := range r.Pairs {
		if p.Family == agentapi.IPv6 {
			out.Failed = append(out.Failed, agentapi.PingFailure{Pair: i, Reason: fmt.Sprintf("%s to %v in %v", r.Nodes[p.From].Name, r.Nodes[p.To].Addrs, r.Timeout)})
		} else {
			out.RTT = append(out.RTT, time.Duration(i+1)*time.Microsecond)
		}
	}
	return out, a.err
}

var someNodes = map[string]agentapi.NodeStats{
	"a": {Memory: 1 << 20, CPU: 0.5, FastPath: "off: the node has nftables rules", Services: []agentapi.ServiceStats{{Name: "zebra", State: "running", Pid: 7, Restarts: 1}}},
	"b": {},
}

var somePorts = map[string]agentapi.PortStats{
	"a:eth1": {
		Device: "tr1", RxPackets: 1, RxBytes: 2, TxPackets: 3, TxBytes: 4, RxFastPackets: 5, RxFastBytes: 6, TxFastPackets: 7, TxFastBytes: 8,
		Drops: 9, DropsBy: map[string]uint64{"runt": 9},
		Paths: []agentapi.PathStats{
			{Peer: "gamma", Remote: netip.MustParseAddr("192.0.2.3"), Key: 77, MTU: 1400, State: agentapi.PathUp, Message: "narrower than 1500"},
			{Peer: "delta", Remote: netip.MustParseAddr("fd00::4"), Key: 78, State: agentapi.PathDown, Message: "no neighbour"},
		},
	},
	"b:e:1":      {Device: "tr2"}, // an interface's name may hold a colon
	"@lan>gamma": {Device: "tx3", RxPackets: 5},
}

var someUplinks = []agentapi.UplinkStats{{Interface: "eth1", XDP: "native", MTU: 1500, Drops: map[string]uint64{"unknown-peer": 4}, Message: "down"}}

func (a *agent) NodeStats(ctx context.Context, _ string) (map[string]agentapi.NodeStats, error) {
	if a.hold != nil {
		select {
		case <-a.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return someNodes, a.err
}

func (a *agent) PortStats(context.Context, string) (map[string]agentapi.PortStats, error) {
	return somePorts, a.err
}
func (a *agent) Addresses(context.Context, string, []string) (map[string][]netip.Addr, error) {
	return map[string][]netip.Addr{"a": {netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}}, nil
}

func (a *agent) UplinkStats(context.Context) ([]agentapi.UplinkStats, error) {
	return someUplinks, a.err
}
func (a *agent) SweepAll(context.Context) error { return a.err }

// Exec gives a process that copies its input to its output, says on its standard
// error how it was started, and exits with 3; or with a signal.
func (a *agent) Exec(_ context.Context, vnet, node string, e agentapi.ExecSpec) (agentapi.Process, error) {
	if a.err != nil {
		return nil, a.err
	}
	p := &local{a: a, done: make(chan int, 2)}
	if e.Argv[0] == "deaf" {
		return p, nil // reads nothing
	}
	go func() {
		fmt.Fprintf(e.Stderr, "%s/%s %q %q %dx%d %v\n", vnet, node, e.Argv, e.Env, e.Rows, e.Cols, e.TTY)
		if _, err := io.Copy(e.Stdout, e.Stdin); err == nil && e.Argv[0] != "sleep" {
			p.done <- 3
		}
	}()
	return p, nil
}

type local struct {
	a    *agent
	done chan int
}

func (p *local) Wait() (int, error) { return <-p.done, nil }
func (p *local) Resize(rows, cols uint16) error {
	p.a.sizes <- [2]uint16{rows, cols}
	return nil
}
func (p *local) Signal(sig syscall.Signal) error {
	p.a.signals <- sig
	p.done <- 128 + int(sig)
	return nil
}
