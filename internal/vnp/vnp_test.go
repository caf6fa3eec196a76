package vnp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/agentapi"
	"trellis/internal/pip"
	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/vnp"
)

// substrate plays an agent: it reports what a test has it report.
type substrate struct {
	name   string
	store  *store.Store
	alive  *store.Registration
	report func(p *plan.Plan) []store.Status // the answer to a plan

	mu        sync.Mutex
	fetch     chan struct{} // what Prepare waits for; nil: nothing
	tells     bool          // Prepare tells how far it is
	fetching  atomic.Int32
	refuse    error           // of Prepare
	steps     []agentapi.Step // of DryRun
	swept     int
	away      error                  // why it cannot be asked
	pinged    []agentapi.PingRequest // what it was asked to send
	entered   []string               // nodes that it ran commands in, interfaces that it captured at
	nodes     map[string]agentapi.NodeStats
	ports     map[string]agentapi.PortStats
	uplinks   []agentapi.UplinkStats
	addresses map[string][]netip.Addr
	signals   chan syscall.Signal
	clients   []net.Conn
}

// hangUp breaks all connections, as the death of a client does.
func (s *substrate) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		c.Close()
	}
}

func (s *substrate) run(ctx context.Context) {
	for e := range s.store.WatchPlans(ctx, s.name) {
		if e.Plan == nil {
			continue
		}
		s.mu.Lock()
		report := s.report
		s.mu.Unlock()
		for _, st := range report(e.Plan) {
			st.Generation = e.Plan.Generation
			if err := s.store.PutStatus(ctx, s.name, e.VNet, &st); err != nil && !errors.Is(err, store.ErrNotFound) && ctx.Err() == nil {
				panic(err)
			}
		}
	}
}

// works is an agent without faults.
func works(p *plan.Plan) []store.Status {
	if p.Empty() {
		return []store.Status{{Phase: store.PhaseRemoving, Done: 1, Total: 2}, {Phase: store.PhaseRemoved}}
	}
	nodes := map[string]store.NodeState{}
	for _, n := range p.Nodes {
		nodes[n.Name] = store.NodeState{State: store.NodeRunning, Pid: 100}
	}
	now := time.Now()
	return []store.Status{
		{Phase: store.PhaseCreating, Done: 1, Total: 4},
		{Phase: store.PhaseCreated, Nodes: nodes, CreatedAt: now, Changes: 4, Routers: 2, Converged: 1},
		{Phase: store.PhaseConverged, Nodes: nodes, CreatedAt: now, ConvergedAt: now, Changes: 4, Routers: 2, Converged: 2},
	}
}

func (s *substrate) Prepare(ctx context.Context, _ *plan.Plan) error {
	s.mu.Lock()
	refuse, fetch, tells := s.refuse, s.fetch, s.tells
	s.mu.Unlock()
	if tells {
		agentapi.ProgressOf(ctx)("image x: extracted 1 file")
	}
	if fetch != nil {
		s.fetching.Add(1)
		select {
		case <-fetch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return refuse
}

func (s *substrate) DryRun(context.Context, *plan.Plan) ([]agentapi.Step, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.steps, nil
}

func (s *substrate) Logs(_ context.Context, _, node string, q agentapi.LogQuery, each func(string, []byte) error) error {
	s.enter(node + " logs")
	return each("zebra", fmt.Appendf(nil, "%+v\n", q))
}

func (s *substrate) Restart(_ context.Context, _, node, service string) error {
	s.enter(node + " restart " + service)
	return nil
}

func (s *substrate) StopService(_ context.Context, _, node, service string) error {
	s.enter(node + " stop " + service)
	return nil
}

func (s *substrate) StartService(_ context.Context, _, node, service string) error {
	s.enter(node + " start " + service)
	return nil
}

func (s *substrate) Capture(ctx context.Context, _, node, iface string, _ uint32, count uint64, w io.Writer) error {
	s.enter(node + ":" + iface)
	for range count {
		if _, err := w.Write([]byte("frame")); err != nil {
			return err
		}
	}
	return nil
}

func (s *substrate) Addresses(context.Context, string, []string) (map[string][]netip.Addr, error) {
	return s.addresses, nil
}

// Ping says that the first pair fails, and the others answer.
func (s *substrate) Ping(_ context.Context, r agentapi.PingRequest, progress func(int, int)) (*agentapi.PingResult, error) {
	s.mu.Lock()
	s.pinged = append(s.pinged, r)
	s.mu.Unlock()
	progress(1, len(r.Pairs))
	out := &agentapi.PingResult{Failed: []agentapi.PingFailure{{Pair: 0, Reason: "no answer"}}}
	for range r.Pairs[1:] {
		out.RTT = append(out.RTT, time.Millisecond)
	}
	return out, nil
}

func (s *substrate) UplinkStats(context.Context) ([]agentapi.UplinkStats, error) {
	return s.uplinks, nil
}

func (s *substrate) NodeStats(context.Context, string) (map[string]agentapi.NodeStats, error) {
	if s.nodes != nil {
		return s.nodes, nil
	}
	return map[string]agentapi.NodeStats{"a": {Memory: 1 << 20, CPU: 0.5, Services: []agentapi.ServiceStats{{Name: "zebra", State: "running"}}}}, nil
}

func (s *substrate) PortStats(context.Context, string) (map[string]agentapi.PortStats, error) {
	if s.ports != nil {
		return s.ports, nil
	}
	return map[string]agentapi.PortStats{"a:eth1": {Device: "tr1", RxPackets: 7}}, nil
}

func (s *substrate) SweepAll(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.swept++
	return nil
}

// Exec gives a process that copies its input to its output and ends with it, or
// with a signal.
func (s *substrate) Exec(_ context.Context, _, node string, e agentapi.ExecSpec) (agentapi.Process, error) {
	s.enter(node)
	p := &process{signals: s.signals, done: make(chan int, 2)}
	fmt.Fprintf(e.Stderr, "%s %dx%d %s\n", strings.Join(e.Argv, " "), e.Rows, e.Cols, strings.Join(e.Env, " "))
	go func() {
		io.Copy(e.Stdout, e.Stdin) //nolint:errcheck // a client that is gone is the test's doing
		if e.Argv[0] != "sleep" {
			p.done <- 3
		}
	}()
	return p, nil
}

func (s *substrate) enter(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entered = append(s.entered, what)
}

type process struct {
	signals chan syscall.Signal
	done    chan int
}

func (p *process) Wait() (int, error)             { return <-p.done, nil }
func (p *process) Resize(rows, cols uint16) error { return nil }
func (p *process) Signal(sig syscall.Signal) error {
	p.signals <- sig
	p.done <- 128 + int(sig)
	return nil
}

// serve starts the API on a unix socket, over one substrate node named h, and
// gives a client of it.
func serve(t *testing.T) (*substrate, *store.Store, trellisv1connect.VNetServiceClient) {
	t.Helper()
	subs, st, c := serveOn(t, "h")
	return subs["h"], st, c
}

// serveOn is serve over several substrate nodes; the API runs on the first.
func serveOn(t *testing.T, names ...string) (map[string]*substrate, *store.Store, trellisv1connect.VNetServiceClient) {
	t.Helper()
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	provider, err := pip.New(pip.Options{Store: st, Instance: pip.DefaultInstance, SubIDFiles: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	subs := map[string]*substrate{}
	for i, name := range names {
		alive, err := st.Register(t.Context(), store.Host{
			Name: name, ID: "id-" + name, Instance: "trellis", Version: "v1", Memory: 16 << 30, CPU: 8,
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}, MTU: 1500,
		})
		if err != nil {
			t.Fatal(err)
		}
		subs[name] = &substrate{name: name, store: st, alive: alive, report: works, signals: make(chan syscall.Signal, 10)}
	}
	_, handler := trellisv1connect.NewVNetServiceHandler(vnp.New(vnp.Config{
		Store: st, Provider: provider, Version: "v1", StateDir: "/s", RunDir: "/r", Host: names[0],
		Agents: func(_ context.Context, host string) (agentapi.Agent, error) {
			if subs[host] == nil {
				return nil, fmt.Errorf("there is no %s", host)
			}
			subs[host].mu.Lock()
			defer subs[host].mu.Unlock()
			return subs[host], subs[host].away
		},
	}))
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: handler, Protocols: protocols}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, sub := range subs {
		running.Go(func() { sub.run(ctx) })
	}
	running.Go(func() {
		if err := provider.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	go server.Serve(l) //nolint:errcheck // ends with Close
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if sub := subs[names[0]]; err == nil {
			sub.mu.Lock()
			defer sub.mu.Unlock()
			sub.clients = append(sub.clients, conn)
		}
		return conn, err
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		cancel()
		running.Wait()
		for _, sub := range subs {
			if err := sub.alive.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return subs, st, trellisv1connect.NewVNetServiceClient(&http.Client{Transport: transport}, "http://trellis")
}

func description(name string) *trellisv1.VNet {
	return &trellisv1.VNet{
		Name:  name,
		Nodes: []*trellisv1.Node{{Name: "a", Loopbacks: []string{"10.9.9.1"}}, {Name: "b"}},
		Links: []*trellisv1.Link{{Name: "ab", Type: "p2p", Endpoints: []*trellisv1.Interface{{Node: "a"}, {Node: "b"}}}},
	}
}

// apply applies and gives the phases that were told, and the result.
func apply(ctx context.Context, c trellisv1connect.VNetServiceClient, req *trellisv1.ApplyRequest) (phases []string, result *trellisv1.ApplyResult, steps *trellisv1.Steps, err error) {
	stream, err := c.Apply(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, nil, nil, err
	}
	defer stream.Close()
	for stream.Receive() {
		switch e := stream.Msg().Event.(type) {
		case *trellisv1.ApplyResponse_Progress:
			phases = append(phases, e.Progress.Phase)
		case *trellisv1.ApplyResponse_Result:
			result = e.Result
		case *trellisv1.ApplyResponse_Steps:
			steps = e.Steps
		}
	}
	return phases, result, steps, stream.Err()
}

func mustApply(t *testing.T, c trellisv1connect.VNetServiceClient, name string) *trellisv1.ApplyResult {
	t.Helper()
	_, r, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description(name), Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantError(t *testing.T, err error, code connect.Code, words ...string) {
	t.Helper()
	if connect.CodeOf(err) != code {
		t.Errorf("code %v of %v, want %v", connect.CodeOf(err), err, code)
	}
	for _, w := range words {
		if err != nil && !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestApplyCreatesAndConverges(t *testing.T) {
	sub, _, c := serve(t)
	phases, r, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("x"), Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	if phases[0] != "admitted" {
		t.Errorf("phases %v", phases)
	}
	if r == nil || r.Vnet != "x" || r.Nodes != 2 || r.Links != 1 || r.Changes != 4 || r.CreatedSeconds <= 0 || r.ConvergedSeconds < r.CreatedSeconds {
		t.Errorf("result %v", r)
	}
	sub.mu.Lock()
	sub.report = func(p *plan.Plan) []store.Status {
		reports := works(p)
		for i := range reports {
			reports[i].Changes = 1 // the agent looks again, and finds one thing to repair
		}
		return reports
	}
	sub.mu.Unlock()
	if again := mustApply(t, c, "x"); again.Changes != 1 || again.ConvergedSeconds < again.CreatedSeconds {
		t.Errorf("unchanged: %v", again)
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	sub, st, c := serve(t)
	sub.steps = []agentapi.Step{{Op: "start", Object: "node a", Detail: "new"}}
	_, r, steps, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("x"), DryRun: true})
	if err != nil || r != nil || len(steps.GetSteps()) != 1 || steps.Steps[0].Object != "node a" {
		t.Errorf("steps %v, result %v, error %v", steps, r, err)
	}
	if records, err := st.VNets(t.Context()); err != nil || len(records) != 0 {
		t.Errorf("%d records, %v", len(records), err)
	}
}

func TestApplyFailures(t *testing.T) {
	sub, st, c := serve(t)
	bad := description("x")
	bad.Links[0].Endpoints[0].Node = "nobody"
	_, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: bad})
	wantError(t, err, connect.CodeInvalidArgument, "nobody")
	_, _, _, err = apply(t.Context(), c, &trellisv1.ApplyRequest{})
	wantError(t, err, connect.CodeInvalidArgument, "no VNet")

	sub.refuse = errors.New("no netem here")
	_, _, _, err = apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("x")})
	wantError(t, err, connect.CodeFailedPrecondition, "no netem here")
	sub.mu.Lock()
	sub.refuse = nil
	sub.report = func(p *plan.Plan) []store.Status {
		if p.Empty() {
			return works(p)
		}
		return []store.Status{{Phase: store.PhaseFailed, Error: "crun is gone"}}
	}
	sub.mu.Unlock()
	_, _, _, err = apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("x")})
	wantError(t, err, connect.CodeFailedPrecondition, "x: crun is gone", "has been removed")
	if records, err := st.VNets(t.Context()); err != nil || len(records) != 0 {
		t.Errorf("a VNet that could not be made is kept: %d records, %v", len(records), err)
	}
	sub.mu.Lock()
	sub.report = works
	sub.mu.Unlock()
	if r := mustApply(t, c, "x"); r.Changes != 4 { // the same description, after the repair
		t.Errorf("after a failure: %v", r)
	}
}

func TestLateConvergenceNamesWhatIsMissing(t *testing.T) {
	sub, _, c := serve(t)
	sub.report = func(p *plan.Plan) []store.Status {
		if p.Empty() {
			return works(p)
		}
		return []store.Status{{Phase: store.PhaseCreated, Routers: 9, Converged: 2, MissingNodes: 5,
			Missing: []store.Missing{{Node: "b", Prefixes: []string{"10.9.9.1/32"}, Count: 3}}}}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, _, _, err := apply(ctx, c, &trellisv1.ApplyRequest{Vnet: description("x"), Wait: true})
	wantError(t, err, connect.CodeDeadlineExceeded, "not converged", "b has no route to 10.9.9.1/32 (a) and 2 more", "4 more nodes", "trellis exec x/b")
	if _, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("x")}); err != nil {
		t.Errorf("without waiting: %v", err)
	}
}

func TestChangeGoesOnWithoutItsClient(t *testing.T) {
	sub, st, c := serve(t)
	release := make(chan struct{})
	sub.report = func(p *plan.Plan) []store.Status { <-release; return works(p) }
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := c.Apply(ctx, connect.NewRequest(&trellisv1.ApplyRequest{Vnet: description("x"), Wait: true}))
	if err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() || stream.Msg().GetProgress().GetPhase() != "admitted" {
		t.Fatalf("first message %v, %v", stream.Msg(), stream.Err())
	}
	cancel()
	close(release)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		statuses, err := st.Statuses(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if s := statuses["h"]; s != nil && s.Phase == store.PhaseConverged {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the change has stopped with its client")
		}
	}
}

// TestWhatIsPreparedIsTold: an image that takes long is told of before admission,
// and a refusal follows all the same.
func TestWhatIsPreparedIsTold(t *testing.T) {
	sub, _, c := serve(t)
	sub.tells = true
	phases, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("x"), Wait: true})
	if err != nil || len(phases) < 2 || phases[0] != "preparing" || phases[1] != "admitted" {
		t.Errorf("phases %v, %v", phases, err)
	}
	sub.mu.Lock()
	sub.refuse = errors.New("image x: too large")
	sub.mu.Unlock()
	phases, _, _, err = apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("y"), Wait: true})
	if err == nil || len(phases) != 1 || phases[0] != "preparing" {
		t.Errorf("phases %v, %v", phases, err)
	}
}

// remove deletes and gives the result.
func remove(ctx context.Context, c trellisv1connect.VNetServiceClient, req *trellisv1.DeleteRequest) (*trellisv1.DeleteResult, error) {
	stream, err := c.Delete(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var r *trellisv1.DeleteResult
	for stream.Receive() {
		if e := stream.Msg().GetResult(); e != nil {
			r = e
		}
	}
	return r, stream.Err()
}

func TestDelete(t *testing.T) {
	sub, st, c := serve(t)
	for _, name := range []string{"x", "y", "z"} {
		mustApply(t, c, name)
	}
	_, err := remove(t.Context(), c, &trellisv1.DeleteRequest{Name: "nobody"})
	wantError(t, err, connect.CodeNotFound, "nobody", "trellis ls")
	if r, err := remove(t.Context(), c, &trellisv1.DeleteRequest{Name: "x"}); err != nil || len(r.Vnets) != 1 {
		t.Fatalf("delete: %v, %v", r, err)
	}
	if _, err := st.VNet(t.Context(), "x"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("after delete: %v", err)
	}
	sub.mu.Lock()
	sub.report = func(p *plan.Plan) []store.Status {
		return []store.Status{{Phase: store.PhaseFailed, Error: "a mount is busy"}}
	}
	sub.mu.Unlock()
	_, err = remove(t.Context(), c, &trellisv1.DeleteRequest{Name: "y"})
	wantError(t, err, connect.CodeFailedPrecondition, "y", "a mount is busy")
	sub.mu.Lock()
	sub.report = works
	sub.mu.Unlock()
	r, err := remove(t.Context(), c, &trellisv1.DeleteRequest{All: true})
	if err != nil || len(r.Vnets) != 2 || sub.swept != 1 {
		t.Errorf("delete all: %v, %v, swept %d times", r, err, sub.swept)
	}
	if r, err := remove(t.Context(), c, &trellisv1.DeleteRequest{All: true}); err != nil || len(r.Vnets) != 0 || sub.swept != 2 {
		t.Errorf("delete all of nothing: %v, %v, swept %d times", r, err, sub.swept)
	}
}

func TestGetAndList(t *testing.T) {
	_, _, c := serve(t)
	mustApply(t, c, "x")
	got, err := c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	m := got.Msg
	if m.Summary.State != "running" || m.Summary.NodesUp != 2 || m.Nodes[0].Memory != 1<<20 || m.Nodes[0].Pid != 100 ||
		m.Nodes[0].Services[0].Name != "zebra" || m.Links[0].Ports[0].RxPackets != 7 || m.Vnet.Links[0].Endpoints[1].Name != "eth1" {
		t.Errorf("got %v", m)
	}
	one, err := c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "x", Node: "b"}))
	if err != nil || len(one.Msg.Nodes) != 1 || one.Msg.Nodes[0].Name != "b" {
		t.Errorf("one node: %v, %v", one, err)
	}
	_, err = c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "x", Node: "bb"}))
	wantError(t, err, connect.CodeNotFound, "bb")
	_, err = c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "y"}))
	wantError(t, err, connect.CodeNotFound, `"y"`)
	list, err := c.List(t.Context(), connect.NewRequest(&trellisv1.ListRequest{}))
	if err != nil || len(list.Msg.Vnets) != 1 || list.Msg.Vnets[0].Name != "x" {
		t.Errorf("list: %v, %v", list, err)
	}
	info, err := c.Info(t.Context(), connect.NewRequest(&trellisv1.InfoRequest{}))
	if err != nil || info.Msg.Version != "v1" || info.Msg.Host != "h" {
		t.Errorf("info: %v, %v", info, err)
	}
}

func TestSetLink(t *testing.T) {
	_, _, c := serve(t)
	mustApply(t, c, "x")
	rate, down := uint64(5e6), true
	set, err := c.SetLink(t.Context(), connect.NewRequest(&trellisv1.SetLinkRequest{Vnet: "x", Link: "ab", Rate: &rate, Down: &down}))
	if err != nil || !set.Msg.Link.Down || set.Msg.Link.Endpoints[1].Tx.Rate != rate {
		t.Fatalf("set: %v, %v", set, err)
	}
	got, err := c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "x"}))
	if err != nil || got.Msg.Links[0].State != "down" || got.Msg.Vnet.Links[0].Endpoints[0].Tx.Rate != rate {
		t.Errorf("got %v, %v", got, err)
	}
	_, err = c.SetLink(t.Context(), connect.NewRequest(&trellisv1.SetLinkRequest{Vnet: "x", Link: "ab"}))
	wantError(t, err, connect.CodeInvalidArgument, "changes nothing")
	_, err = c.SetLink(t.Context(), connect.NewRequest(&trellisv1.SetLinkRequest{Vnet: "x", Link: "no", Down: &down}))
	wantError(t, err, connect.CodeNotFound, `"no"`)
	if r := mustApply(t, c, "x"); r.Changes == 0 {
		t.Error("the description did not decide again")
	}
}

func TestCaptureAndPing(t *testing.T) {
	_, _, c := serve(t)
	mustApply(t, c, "x")
	frames, err := c.Capture(t.Context(), connect.NewRequest(&trellisv1.CaptureRequest{Vnet: "x", Node: "a", Interface: "eth1", Count: 3}))
	if err != nil {
		t.Fatal(err)
	}
	defer frames.Close()
	var got string
	for frames.Receive() {
		got += string(frames.Msg().Pcap)
	}
	if frames.Err() != nil || got != "frameframeframe" {
		t.Errorf("captured %q, %v", got, frames.Err())
	}
	none, err := c.Capture(t.Context(), connect.NewRequest(&trellisv1.CaptureRequest{Vnet: "x", Node: "a", Interface: "eth9"}))
	if err == nil {
		defer none.Close()
		none.Receive()
		err = none.Err()
	}
	wantError(t, err, connect.CodeNotFound, "eth9", "eth1")

	ping, err := c.Ping(t.Context(), connect.NewRequest(&trellisv1.PingRequest{Vnet: "x", Seed: 42}))
	if err != nil {
		t.Fatal(err)
	}
	defer ping.Close()
	var r *trellisv1.PingResult
	for ping.Receive() {
		r = ping.Msg().GetResult()
	}
	if ping.Err() != nil || r.GetPairs() != 4 || r.Reachable != 3 || r.Seed != 42 || r.RttMedian != 0.001 ||
		r.Failed[0].From != "a" || r.Failed[0].To != "b" || r.Failed[0].Family != "ipv4" || r.Failed[0].Reason != "no answer" {
		t.Errorf("ping: %v, %v", r, ping.Err())
	}
}
