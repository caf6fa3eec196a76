package fleet

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/vnp"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// host gives the TLS configuration of a substrate node with certain roles.
func (a *authority) host(t *testing.T, name string, roles ...string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, OrganizationalUnit: roles}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: pool}
}

// agent plays the agent of a machine.
type agent struct {
	mu      sync.Mutex
	plans   []*plan.Plan
	err     error         // of everything
	hold    chan struct{} // NodeStats waits for it, when it is there
	signals chan syscall.Signal
	sizes   chan [2]uint16
	ended   chan error // of a capture that goes on
}

func newAgent() *agent {
	return &agent{signals: make(chan syscall.Signal, 10), sizes: make(chan [2]uint16, 10), ended: make(chan error, 1)}
}

func (a *agent) Prepare(_ context.Context, p *plan.Plan) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.plans = append(a.plans, p)
	return a.err
}

func (a *agent) DryRun(_ context.Context, p *plan.Plan) ([]vnp.Step, error) {
	return []vnp.Step{{Op: "start", Object: "node " + p.Nodes[0].Name, Detail: "new"}}, a.err
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

func (a *agent) Ping(_ context.Context, r vnp.PingRequest, progress func(int, int)) (*vnp.PingResult, error) {
	progress(1, len(r.Pairs))
	out := &vnp.PingResult{}
	for i, p := range r.Pairs {
		if p.Family == vnp.IPv6 {
			out.Failed = append(out.Failed, vnp.PingFailure{Pair: i, Reason: fmt.Sprintf("%s to %v in %v", r.Nodes[p.From].Name, r.Nodes[p.To].Loopbacks, r.Timeout)})
		} else {
			out.RTT = append(out.RTT, time.Duration(i+1)*time.Microsecond)
		}
	}
	return out, a.err
}

var someNodes = map[string]vnp.NodeStats{
	"a": {Memory: 1 << 20, CPU: 0.5, FastPath: "off: the node has nftables rules", Services: []vnp.ServiceStats{{Name: "zebra", State: "running", Pid: 7, Restarts: 1}}},
	"b": {},
}

var somePorts = map[string]vnp.PortStats{
	"a:eth1": {
		Device: "tr1", RxPackets: 1, RxBytes: 2, TxPackets: 3, TxBytes: 4, RxFastPackets: 5, RxFastBytes: 6, TxFastPackets: 7, TxFastBytes: 8,
		Drops: 9, DropsBy: map[string]uint64{"runt": 9},
		Paths: []vnp.PathStats{
			{Peer: "gamma", Remote: netip.MustParseAddr("192.0.2.3"), Key: 77, MTU: 1400, State: vnp.PathUp, Message: "narrower than 1500"},
			{Peer: "delta", Remote: netip.MustParseAddr("fd00::4"), Key: 78, State: vnp.PathDown, Message: "no neighbour"},
		},
	},
	"b:e:1":      {Device: "tr2"}, // an interface's name may hold a colon
	"@lan>gamma": {Device: "tx3", RxPackets: 5},
}

var someUplinks = []vnp.UplinkStats{{Interface: "eth1", XDP: "native", MTU: 1500, Drops: map[string]uint64{"unknown-peer": 4}, Message: "down"}}

func (a *agent) NodeStats(ctx context.Context, _ string) (map[string]vnp.NodeStats, error) {
	if a.hold != nil {
		select {
		case <-a.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return someNodes, a.err
}

func (a *agent) PortStats(context.Context, string) (map[string]vnp.PortStats, error) {
	return somePorts, a.err
}
func (a *agent) UplinkStats(context.Context) ([]vnp.UplinkStats, error) { return someUplinks, a.err }
func (a *agent) SweepAll(context.Context) error                         { return a.err }

// Exec gives a process that copies its input to its output, says on its standard
// error how it was started, and exits with 3; or with a signal.
func (a *agent) Exec(_ context.Context, vnet, node string, e vnp.ExecSpec) (vnp.Process, error) {
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

// site is a fleet of two machines: alpha asks, beta's agent answers.
type site struct {
	agent *agent
	fleet *Fleet

	mu    sync.Mutex
	hosts map[string]store.HostState
}

func (s *site) change(name string, f func(*store.HostState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[name]
	f(&h)
	s.hosts[name] = h
}

// listen offers an agent under a certificate until the test ends.
func listen(t *testing.T, a vnp.Substrate, config *tls.Config) net.Listener {
	t.Helper()
	server, err := NewServer(ServerConfig{Agent: a, TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

func newSite(t *testing.T) *site {
	t.Helper()
	ca := newAuthority(t)
	s := &site{agent: newAgent()}
	l := listen(t, s.agent, ca.host(t, "beta", "agent"))
	s.hosts = map[string]store.HostState{
		"alpha": {Host: store.Host{Name: "alpha", Protocol: store.Protocol}, Alive: true},
		"beta":  {Host: store.Host{Name: "beta", Protocol: store.Protocol, Version: "v9", API: l.Addr().String()}, Alive: true},
	}
	s.fleet = New(Config{Host: "alpha", TLS: ca.host(t, "alpha", "vnp", "agent"), Hosts: func(context.Context) (map[string]store.HostState, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		out := map[string]store.HostState{}
		for name, h := range s.hosts {
			out[name] = h
		}
		return out, nil
	}})
	t.Cleanup(s.fleet.Close)
	return s
}

func (s *site) beta(t *testing.T) vnp.Substrate {
	t.Helper()
	sub, err := s.fleet.Substrate(t.Context(), "beta")
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

func TestEverythingOfAnAgentGetsAcross(t *testing.T) {
	s := newSite(t)
	beta := s.beta(t)
	p := &plan.Plan{VNet: "x", Host: "beta", Generation: 7, Nodes: []plan.Node{{Name: "a", Image: "host"}},
		Tunnels: []plan.Tunnel{{Link: "ab", Peer: "gamma", Local: netip.MustParseAddr("192.0.2.2"), Remote: netip.MustParseAddr("192.0.2.3"), Key: 5}}}
	if err := beta.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if got := s.agent.plans[0]; got.VNet != "x" || got.Generation != 7 || !reflect.DeepEqual(got.Tunnels, p.Tunnels) {
		t.Errorf("the plan came as %+v", got)
	}
	steps, err := beta.DryRun(t.Context(), p)
	if err != nil || !reflect.DeepEqual(steps, []vnp.Step{{Op: "start", Object: "node a", Detail: "new"}}) {
		t.Errorf("steps %v, %v", steps, err)
	}
	nodes, err := beta.NodeStats(t.Context(), "x")
	if err != nil || !reflect.DeepEqual(nodes, someNodes) {
		t.Errorf("nodes %+v, %v", nodes, err)
	}
	ports, err := beta.PortStats(t.Context(), "x")
	if err != nil || !reflect.DeepEqual(ports, somePorts) {
		t.Errorf("ports %+v, %v", ports, err)
	}
	uplinks, err := beta.UplinkStats(t.Context())
	if err != nil || !reflect.DeepEqual(uplinks, someUplinks) {
		t.Errorf("uplinks %+v, %v", uplinks, err)
	}
	if err := beta.SweepAll(t.Context()); err != nil {
		t.Error(err)
	}
	if again := s.beta(t); again != beta {
		t.Error("a second client was made for the same agent")
	}
}

func TestPing(t *testing.T) {
	s := newSite(t)
	told := 0
	r, err := s.beta(t).Ping(t.Context(), vnp.PingRequest{
		VNet: "x", Timeout: time.Second,
		Nodes: []vnp.PingNode{{Name: "a", Loopbacks: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, {Name: "b", Loopbacks: []netip.Addr{netip.MustParseAddr("fd00::2")}}},
		Pairs: []vnp.PingPair{{From: 0, To: 1, Family: vnp.IPv4}, {From: 1, To: 0, Family: vnp.IPv6}, {From: 1, To: 0, Family: vnp.IPv4}},
	}, func(done, total int) { told += done + total })
	want := &vnp.PingResult{RTT: []time.Duration{time.Microsecond, 3 * time.Microsecond}, Failed: []vnp.PingFailure{{Pair: 1, Reason: "b to [10.0.0.1] in 1s"}}}
	if err != nil || !reflect.DeepEqual(r, want) || told != 4 {
		t.Errorf("got %+v, %v, progress %d", r, err, told)
	}
	// What does not fit together never reaches the agent.
	_, err = s.beta(t).Ping(t.Context(), vnp.PingRequest{VNet: "x", Pairs: []vnp.PingPair{{From: 0, To: 1, Family: vnp.IPv4}}}, func(int, int) {})
	if err == nil || !strings.Contains(err.Error(), "on beta: pair 0, 0 to 1, does not index the 0 nodes") {
		t.Errorf("error %v", err)
	}
}

func TestExec(t *testing.T) {
	s := newSite(t)
	var out, errs bytes.Buffer
	stdin, feed := io.Pipe()
	p, err := s.beta(t).Exec(t.Context(), "x", "a", vnp.ExecSpec{
		Argv: []string{"cat", "-u"}, Env: []string{"A=1"}, TTY: true, Rows: 5, Cols: 6, Stdin: stdin, Stdout: &out, Stderr: &errs,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Resize(8, 9); err != nil {
		t.Fatal(err)
	}
	if got := <-s.agent.sizes; got != [2]uint16{8, 9} {
		t.Errorf("the terminal became %v", got)
	}
	long := strings.Repeat("0123456789", 50_000)
	go func() {
		io.WriteString(feed, long) //nolint:errcheck // what is missing is seen below
		feed.Close()
	}()
	code, err := p.Wait()
	if code != 3 || err != nil || out.String() != long || errs.String() != `x/a ["cat" "-u"] ["A=1"] 5x6 true`+"\n" {
		t.Errorf("code %d, %v, %d bytes of output, %q", code, err, out.Len(), errs.String())
	}
	s.agent.err = fmt.Errorf("no node x/q is running here: %w", store.ErrNotFound)
	_, err = s.beta(t).Exec(t.Context(), "x", "q", vnp.ExecSpec{Argv: []string{"true"}, Stdout: io.Discard, Stderr: io.Discard})
	if !errors.Is(err, store.ErrNotFound) || !strings.HasPrefix(err.Error(), "on beta: no node x/q") {
		t.Errorf("an unknown node: %v", err)
	}
}

// A process that does not read its input ends with its client all the same, whether
// the input fits on the way to it or not, and is not in the way of others.
func TestSignalsPassInputThatNobodyReads(t *testing.T) {
	for name, stdin := range map[string]io.Reader{"all": &endless{}, "some": io.LimitReader(&endless{}, 400<<10)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			p, err := s.beta(t).Exec(t.Context(), "x", "a", vnp.ExecSpec{Argv: []string{"deaf"}, Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond) // until nothing goes on
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err := s.beta(t).NodeStats(ctx, "x"); err != nil {
				t.Error(err)
			}
			within(t, 20*time.Second, func() {
				for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGKILL} {
					if err := p.Signal(sig); err != nil {
						t.Logf("signal: %v", err)
					}
				}
				if _, err := p.Wait(); err == nil {
					t.Error("a session that was cut off has an exit status")
				}
			})
			select {
			case got := <-s.agent.signals:
				if got != syscall.SIGHUP {
					t.Errorf("signal %v", got)
				}
			case <-time.After(10 * time.Second):
				t.Error("the process has not heard of the end of its client")
			}
		})
	}
}

// endless is input without an end.
type endless struct{}

func (*endless) Read(b []byte) (int, error) { return len(b), nil }

// The context of the call that has started it does not end a process; a signal
// gets there even while its input is open.
func TestSignalsReachARemoteProcess(t *testing.T) {
	s := newSite(t)
	stdin, feed := io.Pipe()
	defer feed.Close()
	ctx, cancel := context.WithCancel(t.Context())
	p, err := s.beta(t).Exec(ctx, "x", "a", vnp.ExecSpec{Argv: []string{"sleep"}, Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := p.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(); code != 128+int(syscall.SIGHUP) || err != nil {
		t.Errorf("code %d, %v", code, err)
	}
	if got := <-s.agent.signals; got != syscall.SIGHUP {
		t.Errorf("signal %v", got)
	}
}

func TestCapture(t *testing.T) {
	s := newSite(t)
	var out bytes.Buffer
	if err := s.beta(t).Capture(t.Context(), "x", "a", "eth1", 64, 2, &out); err != nil {
		t.Fatal(err)
	}
	if out.String() != "x/a:eth1 64 0\nx/a:eth1 64 1\n" {
		t.Errorf("captured %q", out.String())
	}
	// It ends with its context, here and there.
	ctx, cancel := context.WithCancel(t.Context())
	err := s.beta(t).Capture(ctx, "x", "a", "eth1", 0, 0, writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil }))
	if err != nil {
		t.Errorf("a capture that was called off: %v", err)
	}
	if err := <-s.agent.ended; err == nil {
		t.Error("the agent goes on capturing")
	}
	// And with its writer.
	full := errors.New("disk full")
	err = s.beta(t).Capture(t.Context(), "x", "a", "eth1", 0, 0, writerFunc(func([]byte) (int, error) { return 0, full }))
	if !errors.Is(err, full) {
		t.Errorf("a writer that fails: %v", err)
	}
	if err := <-s.agent.ended; err == nil {
		t.Error("the agent goes on capturing")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestErrorsNameTheSubstrateNode(t *testing.T) {
	s := newSite(t)
	s.agent.err = errors.New("node a needs bird, which this machine lacks")
	err := s.beta(t).Prepare(t.Context(), &plan.Plan{})
	if err == nil || err.Error() != "on beta: node a needs bird, which this machine lacks" {
		t.Errorf("error %v", err)
	}
	s.agent.err = store.ErrNotFound
	if _, err := s.beta(t).PortStats(t.Context(), "x"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("error %v is no ErrNotFound", err)
	}
}

func TestWhoCannotBeAsked(t *testing.T) {
	s := newSite(t)
	unreachable := func(err error) bool { u := (*vnp.Unreachable)(nil); return errors.As(err, &u) }
	check := func(host, want string, again bool) {
		t.Helper()
		_, err := s.fleet.Substrate(t.Context(), host)
		if err == nil || !strings.Contains(err.Error(), want) || unreachable(err) != again {
			t.Errorf("%s: error %v, want %q", host, err, want)
		}
	}
	check("alpha", "alpha runs no agent", false)
	check("betta", `there is no substrate node "betta"; did you mean "beta"?`, false)
	s.change("beta", func(h *store.HostState) { h.Alive, h.Seen = false, time.Now().Add(-12*time.Second) })
	check("beta", "substrate node beta has not been heard of for 12 s; what runs there goes on", true)
	s.change("beta", func(h *store.HostState) { h.Alive, h.Protocol = true, store.Protocol+1 })
	check("beta", "beta runs another version of Trellis (v9, protocol 2; protocol 1 here)", false)
	s.change("beta", func(h *store.HostState) { h.Protocol, h.API = store.Protocol, "" })
	check("beta", "set `listen`", false)
	s.change("beta", func(h *store.HostState) { h.API = "127.0.0.1:1" })
	s.fleet.config.TLS = nil
	check("beta", "set `tls`", false)
	s.fleet.config.Local = s.agent
	if sub, err := s.fleet.Substrate(t.Context(), "alpha"); err != nil || sub != vnp.Substrate(s.agent) {
		t.Errorf("the agent of this machine: %v, %v", sub, err)
	}
}

// within fails the test when f takes longer.
func within(t *testing.T, d time.Duration, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if took := time.Since(start); took > d {
		t.Errorf("it took %v, want at most %v", took, d)
	}
}

func wantUnreachable(t *testing.T, err error, words string) {
	t.Helper()
	var u *vnp.Unreachable
	if !errors.As(err, &u) || u.Host != "beta" || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want one sentence with %q", err, words)
	}
}

func TestAnAgentThatDoesNotAnswerCostsASentence(t *testing.T) {
	s := newSite(t)
	beta := s.beta(t)
	// One that hangs, within the caller's time.
	s.agent.hold = make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	within(t, 2*time.Second, func() {
		_, err := beta.NodeStats(ctx, "x")
		wantUnreachable(t, err, "substrate node beta has not answered in time")
	})
	// A port where nobody listens.
	s.change("beta", func(h *store.HostState) { h.API = "127.0.0.1:1" })
	within(t, 2*time.Second, func() {
		_, err := s.beta(t).NodeStats(t.Context(), "x")
		wantUnreachable(t, err, "beta does not answer at 127.0.0.1:1 (dial tcp 127.0.0.1:1: connect: connection refused)")
	})
	// A peer that accepts and stays silent.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.change("beta", func(h *store.HostState) { h.API = l.Addr().String() })
	within(t, 2*dialTime, func() {
		_, err := s.beta(t).NodeStats(t.Context(), "x")
		wantUnreachable(t, err, "does not answer at")
	})
}

// A connection that goes dead under a call, as when a cable is cut: nothing says
// so but the silence.
func TestACutCableEndsACall(t *testing.T) {
	s := newSite(t)
	through := newRelay(t, s.hosts["beta"].API)
	s.change("beta", func(h *store.HostState) { h.API = through.Addr().String() })
	beta := s.beta(t)
	if _, err := beta.NodeStats(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	stdin, feed := io.Pipe()
	defer feed.Close()
	p, err := beta.Exec(t.Context(), "x", "a", vnp.ExecSpec{Argv: []string{"sleep"}, Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	through.cut()
	within(t, 3*silence, func() {
		_, err := p.Wait()
		wantUnreachable(t, err, "beta does not answer")
	})
	// The agent there finds out too, and hangs up on the process.
	select {
	case sig := <-s.agent.signals:
		if sig != syscall.SIGHUP {
			t.Errorf("first signal %v", sig)
		}
	case <-time.After(3 * silence):
		t.Error("the process has outlived its client")
	}
	within(t, 3*dialTime, func() {
		_, err := beta.NodeStats(t.Context(), "x")
		wantUnreachable(t, err, "beta does not answer")
	})
	through.heal()
	if _, err := beta.NodeStats(t.Context(), "x"); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}

// relay passes bytes between clients and a server, until it is cut.
type relay struct {
	net.Listener
	mu   sync.Mutex
	dead bool
	old  []net.Conn
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l}
	t.Cleanup(func() {
		l.Close()
		for _, c := range r.old {
			c.Close()
		}
	})
	go func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			r.mu.Lock()
			r.old = append(r.old, a, b)
			r.mu.Unlock()
			go r.pass(a, b)
			go r.pass(b, a)
		}
	}()
	return r
}

func (r *relay) pass(from, to net.Conn) {
	buf := make([]byte, 64<<10)
	for mine := false; ; {
		n, err := from.Read(buf)
		if err != nil {
			if !mine {
				to.Close()
			}
			return
		}
		r.mu.Lock()
		mine = mine || r.dead // what was cut once stays so
		r.mu.Unlock()
		if !mine {
			to.Write(buf[:n]) //nolint:errcheck // the reading end sees it
		}
	}
}

func (r *relay) cut()  { r.mu.Lock(); r.dead = true; r.mu.Unlock() }
func (r *relay) heal() { r.mu.Lock(); r.dead = false; r.mu.Unlock() }

// Only machines with a certificate of the authority get through, only under
// their names, and only in the role that asks agents.
func TestStrangersAreRefused(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	a := newAgent()
	l := listen(t, a, ca.host(t, "beta"))
	ask := func(config *tls.Config, host string) error {
		c := dial(host, l.Addr().String(), config)
		defer c.close()
		return c.Prepare(t.Context(), &plan.Plan{})
	}
	for _, roles := range [][]string{nil, {"vnp"}, {"agent", "vnp"}} {
		if err := ask(ca.host(t, "alpha", roles...), "beta"); err != nil {
			t.Errorf("a peer with the roles %q: %v", roles, err)
		}
	}
	err := ask(ca.host(t, "gamma", "agent"), "beta")
	if err == nil || !strings.Contains(err.Error(), "the certificate of gamma is for the roles agent; only vnp may ask agents") {
		t.Errorf("a peer that is but an agent: %v", err)
	}
	err = ask(ca.host(t, "alpha"), "delta")
	if err == nil || !strings.Contains(err.Error(), "delta") || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("another machine than the one that is asked: %v", err)
	}
	none := ca.host(t, "alpha")
	none.Certificates = nil
	wrong := other.host(t, "alpha")
	wrong.RootCAs = ca.host(t, "alpha").RootCAs
	for what, config := range map[string]*tls.Config{"no certificate": none, "another authority's": wrong, "another authority": other.host(t, "alpha")} {
		if err := ask(config, "beta"); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if len(a.plans) != 3 {
		t.Errorf("the agent was asked %d times, want 3", len(a.plans))
	}
	if _, err := NewServer(ServerConfig{Agent: a, TLS: none}); err == nil {
		t.Error("a server without a certificate")
	}
}
