package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/wire"
)

// fakeService answers as a service with one network would, over a real socket.
type fakeService struct {
	trellisv1connect.UnimplementedVNetServiceHandler

	silent bool // about its protocol, as services of protocol 1 are

	mu      sync.Mutex
	vnets   map[string]*trellisv1.VNet
	setLink *trellisv1.SetLinkRequest // the last one
	exec    []*trellisv1.ExecRequest  // every message of the last session

	// apply, remove, ping and session stand in for the usual answers.
	apply   func(context.Context, *trellisv1.ApplyRequest, *connect.ServerStream[trellisv1.ApplyResponse]) error
	remove  func(context.Context, *trellisv1.DeleteRequest, *connect.ServerStream[trellisv1.DeleteResponse]) error
	ping    *trellisv1.PingResult
	hosts   []*trellisv1.HostStatus
	missing []string                       // figures
	tunnels map[string][]*trellisv1.Tunnel // by link
	session func(*fakeService, *connect.BidiStream[trellisv1.ExecRequest, trellisv1.ExecResponse]) error
	capture func(context.Context, *trellisv1.CaptureRequest, *connect.ServerStream[trellisv1.CaptureResponse]) error
}

// created is when the fake's networks were created: 3 May 2026, noon.
const created = 1777809600

const triangle = `name: triangle
routing: ospf
nodes: {a: {}, b: {}, c: {}}
links:
  - {name: ab, endpoints: [a, b], rate: 10mbit}
  - {name: bc, endpoints: [b, c]}
  - {name: ca, endpoints: [c, a], rate: 1gbit}
`

// runningTriangle is the triangle as a service tells of it, with addresses that
// depend on nothing but this function.
func runningTriangle() *trellisv1.VNet {
	ospf := &trellisv1.Routing{Protocol: "ospf", Daemon: "frr", Timers: "default"}
	v := &trellisv1.VNet{Name: "triangle", Routing: ospf}
	for i, name := range []string{"a", "b", "c"} {
		v.Nodes = append(v.Nodes, &trellisv1.Node{
			Name: name, Image: "host", Memory: 256 << 20, Pids: 512, Routing: ospf,
			Loopbacks: []string{fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("fd00::%d", i+1)}, RouterId: fmt.Sprintf("10.0.0.%d", i+1),
		})
	}
	end := func(node, name string, link, host int, rate uint64) *trellisv1.Interface {
		return &trellisv1.Interface{
			Node: node, Name: name, Mac: fmt.Sprintf("02:00:00:00:%02x:%02x", link, host), Mtu: 1500,
			Addrs: []string{fmt.Sprintf("10.1.%d.%d/31", link, host)}, Tx: &trellisv1.Shape{Rate: rate},
		}
	}
	v.Links = []*trellisv1.Link{
		{Name: "ab", Type: "p2p", Endpoints: []*trellisv1.Interface{end("a", "eth1", 1, 0, 10e6), end("b", "eth1", 1, 1, 10e6)}},
		{Name: "bc", Type: "p2p", Endpoints: []*trellisv1.Interface{end("b", "eth2", 2, 0, 0), end("c", "eth1", 2, 1, 0)}},
		{Name: "ca", Type: "p2p", Endpoints: []*trellisv1.Interface{end("c", "eth2", 3, 0, 1e9), end("a", "eth2", 3, 1, 5e6)}},
	}
	return v
}

// startFake runs a fake service with the triangle on a socket of its own and
// returns it with an environment that talks to it.
func startFake(t *testing.T) (*fakeService, *testEnv) {
	t.Helper()
	f := &fakeService{vnets: map[string]*trellisv1.VNet{"triangle": runningTriangle()}, hosts: twoHosts()}
	env := newTestEnv(t)
	f.listen(t, env)
	return f, env
}

// listen serves f on env's socket until the test ends.
func (f *fakeService) listen(t *testing.T, env *testEnv) {
	t.Helper()
	l, err := net.Listen("unix", env.socket())
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	path, handler := trellisv1connect.NewVNetServiceHandler(f)
	if !f.silent {
		handler = wire.Versioned(handler, "v9")
	}
	mux.Handle(path, handler)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: mux, Protocols: protocols}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
}

// testEnv is an environment whose output is kept.
type testEnv struct {
	*Env
	t        *testing.T
	out, err bytes.Buffer
}

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	for _, name := range []string{envAddress, envRunDir, envStateDir} {
		t.Setenv(name, "")
	}
	// A socket's path is at most 107 bytes; a test's own directory may be longer.
	dir, err := os.MkdirTemp("", "trellis-cli")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	e := &testEnv{t: t, Env: &Env{Stdin: strings.NewReader(""), RunDir: dir}}
	e.Stdout, e.Stderr = &e.out, &e.err
	return e
}

// run runs a command line against the environment's service and returns its
// exit status, with the output of that command alone in out and err.
func (e *testEnv) run(args ...string) int {
	e.t.Helper()
	e.out.Reset()
	e.err.Reset()
	return run(e.Env, append([]string{"--run-dir", e.RunDir}, args...))
}

// want runs a command line and checks its exit status and standard output.
func (e *testEnv) want(status int, output string, args ...string) {
	e.t.Helper()
	if got := e.run(args...); got != status {
		e.t.Errorf("trellis %s: exit status %d, want %d; stderr: %s", strings.Join(args, " "), got, status, e.err.String())
	}
	if got := e.out.String(); got != output {
		e.t.Errorf("trellis %s printed\n%s\nwant\n%s", strings.Join(args, " "), got, output)
	}
}

// wantError runs a command line that must end with a status and a message.
func (e *testEnv) wantError(status int, message string, args ...string) {
	e.t.Helper()
	if got := e.run(args...); got != status {
		e.t.Errorf("trellis %s: exit status %d, want %d", strings.Join(args, " "), got, status)
	}
	if got := e.err.String(); !strings.Contains(got, message) {
		e.t.Errorf("trellis %s printed\n%s\nwant something with\n%s", strings.Join(args, " "), got, message)
	}
}

// file writes a file of the test's and returns its path.
func (e *testEnv) file(name, text string) string {
	e.t.Helper()
	path := filepath.Join(e.RunDir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		e.t.Fatal(err)
	}
	return path
}

func progressOf(phase string, done, total int32, detail string) *trellisv1.ApplyResponse {
	return &trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Progress{Progress: &trellisv1.Progress{Phase: phase, Done: done, Total: total, Detail: detail}}}
}

func (f *fakeService) Apply(ctx context.Context, r *connect.Request[trellisv1.ApplyRequest], s *connect.ServerStream[trellisv1.ApplyResponse]) error {
	if f.apply != nil {
		return f.apply(ctx, r.Msg, s)
	}
	v := r.Msg.GetVnet()
	if r.Msg.GetDryRun() {
		return s.Send(&trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Steps{Steps: &trellisv1.Steps{Steps: []*trellisv1.Step{
			{Op: "start", Object: "node a", Detail: "image host"}, {Op: "join", Object: "link ab"},
		}}}})
	}
	for _, p := range []*trellisv1.ApplyResponse{
		{Event: &trellisv1.ApplyResponse_Estimate{Estimate: &trellisv1.Estimate{Nodes: 3, Summary: "3 nodes, about 30 MiB", Warnings: []string{"host1 has 20 MiB"}}}},
		progressOf("admitted", 0, 0, ""), progressOf("creating", 0, 6, ""), progressOf("creating", 3, 6, "node b"),
		progressOf("creating", 6, 6, ""), progressOf("converging", 1, 3, "c lacks 10.0.0.1/32"),
	} {
		if err := s.Send(p); err != nil {
			return err
		}
	}
	result := &trellisv1.ApplyResult{
		Vnet: v.GetName(), Nodes: int32(len(v.GetNodes())), Links: int32(len(v.GetLinks())), CreatedSeconds: 0.25, Changes: 6,
	}
	if r.Msg.GetWait() {
		result.ConvergedSeconds, result.Checked, result.Complete = 1.5, 3, 3
	}
	return s.Send(&trellisv1.ApplyResponse{Event: &trellisv1.ApplyResponse_Result{Result: result}})
}

func (f *fakeService) Delete(ctx context.Context, r *connect.Request[trellisv1.DeleteRequest], s *connect.ServerStream[trellisv1.DeleteResponse]) error {
	if f.remove != nil {
		return f.remove(ctx, r.Msg, s)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	result := &trellisv1.DeleteResult{Seconds: 0.1}
	for name := range f.vnets {
		if r.Msg.GetAll() || name == r.Msg.GetName() {
			result.Vnets = append(result.Vnets, name)
			delete(f.vnets, name)
		}
	}
	if len(result.Vnets) == 0 && !r.Msg.GetAll() {
		return connect.NewError(connect.CodeNotFound, errors.New("no network "+r.Msg.GetName()))
	}
	return s.Send(&trellisv1.DeleteResponse{Event: &trellisv1.DeleteResponse_Result{Result: result}})
}

func (f *fakeService) summary(v *trellisv1.VNet) *trellisv1.Summary {
	n := int32(len(v.GetNodes()))
	return &trellisv1.Summary{
		Name: v.GetName(), State: "degraded", Hosts: []string{"host1", "host2"}, Nodes: n, NodesUp: n - 1, Links: int32(len(v.GetLinks())),
		Routing: v.GetRouting().GetProtocol(), CreatedUnix: created, Message: "node c: restarts too often",
	}
}

func (f *fakeService) List(context.Context, *connect.Request[trellisv1.ListRequest]) (*connect.Response[trellisv1.ListResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := &trellisv1.ListResponse{}
	for _, v := range f.vnets {
		m.Vnets = append(m.Vnets, f.summary(v))
	}
	return connect.NewResponse(m), nil
}

func (f *fakeService) Get(_ context.Context, r *connect.Request[trellisv1.GetRequest]) (*connect.Response[trellisv1.GetResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.vnets[r.Msg.GetName()]
	if v == nil {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no network "+r.Msg.GetName()+"; `trellis ls` lists them"))
	}
	m := &trellisv1.GetResponse{Summary: f.summary(v), Vnet: v, Messages: f.missing}
	for _, n := range v.GetNodes() {
		s := &trellisv1.NodeStatus{
			Name: n.GetName(), State: "running", Pid: 4711, Host: hostOf(n.GetName()), Fastpath: "on", Memory: 10 << 20, CpuSeconds: 0.5,
			Services: []*trellisv1.ServiceStatus{{Name: "zebra", State: "running", Pid: 7}, {Name: "ospfd", State: "running", Pid: 8, Restarts: 1}},
		}
		if n.GetName() == "c" {
			s.State, s.Restarts, s.Message = "failed", 5, "restarts too often"
			s.Fastpath = "off: a queueing discipline on eth1"
		}
		m.Nodes = append(m.Nodes, s)
	}
	for _, l := range v.GetLinks() {
		s := &trellisv1.LinkStatus{Name: l.GetName(), Type: l.GetType(), State: "up"}
		for _, e := range l.GetEndpoints() {
			s.Ports = append(s.Ports, &trellisv1.PortStatus{
				Node: e.GetNode(), Interface: e.GetName(), Device: "tr-" + e.GetNode() + e.GetName(), Host: hostOf(e.GetNode()),
				RxPackets: 10, RxBytes: 1000, TxPackets: 20, TxBytes: 2000, RxFastPackets: 5, RxFastBytes: 500,
				Drops: 1, DropsByReason: map[string]uint64{"unjoined": 1, "runt": 0},
				StackByReason: map[string]uint64{"netfilter": 3, "ttl": 0},
			})
		}
		f.across(s)
		s.Tunnels = f.tunnels[l.GetName()]
		m.Links = append(m.Links, s)
	}
	return connect.NewResponse(m), nil
}

// hostOf places the nodes: c alone is on the second machine.
func hostOf(node string) string {
	if node == "c" {
		return "host2"
	}
	return "host1"
}

// across gives a link between the two machines its paths. That of ca is broken as
// c sees it.
func (f *fakeService) across(l *trellisv1.LinkStatus) {
	a, b := l.Ports[0], l.Ports[1]
	if a.Host == b.Host {
		a.TxFastPackets, a.TxFastBytes = 20, 2000
		return
	}
	for _, p := range []*trellisv1.PortStatus{a, b} {
		path := &trellisv1.Path{Peer: "host1", Remote: "192.0.2.1", Key: 0xbeef01, Mtu: 1500, State: "up"}
		if p.Host == "host1" {
			path.Peer, path.Remote, path.Mtu, path.Message = "host2", "192.0.2.2", 1400, "narrower than the link's 1500"
		} else if l.GetName() == "ca" {
			path.State, path.Mtu, path.Message = "down", 0, "192.0.2.1 has no route"
			l.State, l.Message = "broken", "no path from host2 to host1: 192.0.2.1 has no route"
		}
		p.Paths = append(p.Paths, path)
	}
}

func (f *fakeService) Hosts(context.Context, *connect.Request[trellisv1.HostsRequest]) (*connect.Response[trellisv1.HostsResponse], error) {
	return connect.NewResponse(&trellisv1.HostsResponse{Hosts: f.hosts}), nil
}

func (f *fakeService) ForgetHost(_ context.Context, r *connect.Request[trellisv1.ForgetHostRequest]) (*connect.Response[trellisv1.ForgetHostResponse], error) {
	for i, h := range f.hosts {
		if h.GetName() == r.Msg.GetName() {
			if h.GetState() == "alive" {
				return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("forget host "+h.GetName()+": its agent lives; stop it first"))
			}
			f.hosts = slices.Delete(f.hosts, i, i+1)
			return connect.NewResponse(&trellisv1.ForgetHostResponse{}), nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no substrate node "+r.Msg.GetName()))
}

// twoHosts are a substrate node in order, and one that has vanished.
func twoHosts() []*trellisv1.HostStatus {
	return []*trellisv1.HostStatus{
		{
			Name: "host1", State: "alive", SeenUnix: created, Version: "v9", Addresses: []string{"192.0.2.1", "fd00::1"}, Mtu: 1500,
			Memory: 4 << 30, MemoryUsed: 512 << 20, Cpu: 8, CpuUsed: 0.5, Nodes: 2,
			Uplinks: []*trellisv1.UplinkStatus{
				{Interface: "eth1", Xdp: "native", Mtu: 1500, Drops: map[string]uint64{"unknown-peer": 12, "gre-version": 3, "runt": 0}},
				{Interface: "eth2", Xdp: "generic", Mtu: 9000, Message: "the driver has no native XDP: generic mode costs several times as much a packet"},
			},
		},
		{Name: "host2", State: "vanished", SeenUnix: created - 90, Version: "v9", Memory: 1 << 30, MemoryUsed: 1 << 30, Cpu: 2, CpuUsed: 2, Nodes: 1, Message: "clock 4 s ahead"},
	}
}

func (f *fakeService) SetLink(_ context.Context, r *connect.Request[trellisv1.SetLinkRequest]) (*connect.Response[trellisv1.SetLinkResponse], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.setLink = r.Msg
	for _, l := range f.vnets[r.Msg.GetVnet()].GetLinks() {
		if l.GetName() == r.Msg.GetLink() {
			return connect.NewResponse(&trellisv1.SetLinkResponse{Link: l}), nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, errors.New("no link "+r.Msg.GetLink()))
}

func (f *fakeService) Exec(_ context.Context, s *connect.BidiStream[trellisv1.ExecRequest, trellisv1.ExecResponse]) error {
	return f.session(f, s)
}

func (f *fakeService) Capture(ctx context.Context, r *connect.Request[trellisv1.CaptureRequest], s *connect.ServerStream[trellisv1.CaptureResponse]) error {
	return f.capture(ctx, r.Msg, s)
}

func (f *fakeService) Ping(_ context.Context, r *connect.Request[trellisv1.PingRequest], s *connect.ServerStream[trellisv1.PingResponse]) error {
	return s.Send(&trellisv1.PingResponse{Event: &trellisv1.PingResponse_Result{Result: f.ping}})
}

func (f *fakeService) Info(context.Context, *connect.Request[trellisv1.InfoRequest]) (*connect.Response[trellisv1.InfoResponse], error) {
	return connect.NewResponse(&trellisv1.InfoResponse{Version: "v9", Pid: 42, StateDir: "/s", RunDir: "/r", Host: "host1"}), nil
}

// receive takes the next message of a session and keeps it.
func (f *fakeService) receive(s *connect.BidiStream[trellisv1.ExecRequest, trellisv1.ExecResponse]) (*trellisv1.ExecRequest, error) {
	m, err := s.Receive()
	if err == nil {
		f.mu.Lock()
		f.exec = append(f.exec, m)
		f.mu.Unlock()
	}
	return m, err
}

// echo is a session that writes its input to its output, upper case, and exits
// with 3 when the input ends.
func echo(f *fakeService, s *connect.BidiStream[trellisv1.ExecRequest, trellisv1.ExecResponse]) error {
	for {
		m, err := f.receive(s)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch e := m.Message.(type) {
		case *trellisv1.ExecRequest_Stdin:
			err = s.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_Stdout{Stdout: bytes.ToUpper(e.Stdin)}})
		case *trellisv1.ExecRequest_StdinClosed:
			return s.Send(&trellisv1.ExecResponse{Message: &trellisv1.ExecResponse_ExitCode{ExitCode: 3}})
		}
		if err != nil {
			return err
		}
	}
}

// within fails the test when f does not return in time.
func within(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("not done within %s", d)
	}
}
