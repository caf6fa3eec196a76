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

	"trellis/internal/agentapi"
	"trellis/internal/plan"
	"trellis/internal/store"
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

// site is a fleet of two machines: alpha asks, beta's agent answers.
type site struct {
	agent *agent
	fleet *Fleet
	tls   map[string]*tls.Config

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
func listen(t *testing.T, a agentapi.Agent, config *tls.Config) net.Listener {
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
	s.tls = map[string]*tls.Config{"alpha": ca.host(t, "alpha", "vnp", "agent"), "beta": ca.host(t, "beta", "agent")}
	l := listen(t, s.agent, s.tls["beta"])
	s.hosts = map[string]store.HostState{
		"alpha": {Host: store.Host{Name: "alpha", Protocol: store.Protocol}, Alive: true},
		"beta":  {Host: store.Host{Name: "beta", Protocol: store.Protocol, Version: "v9", API: l.Addr().String()}, Alive: true},
	}
	s.fleet = New(Config{Host: "alpha", TLS: s.tls["alpha"], Hosts: func(context.Context) (map[string]store.HostState, error) {
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

func (s *site) beta(t *testing.T) agentapi.Agent {
	t.Helper()
	sub, err := s.fleet.Agent(t.Context(), "beta")
	if err != nil {
		t.Fatal(err)
	}
	return sub
}

// TestPreparingGetsAcross: how far another machine is with an image is told here.
func TestPreparingGetsAcross(t *testing.T) {
	s := newSite(t)
	s.agent.prepared = make(chan struct{})
	told := make(chan string, 1)
	var first sync.Once
	ctx := agentapi.WithProgress(t.Context(), func(text string) {
		first.Do(func() {
			told <- text
			close(s.agent.prepared)
		})
	})
	if err := s.beta(t).Prepare(ctx, &plan.Plan{VNet: "x", Host: "beta"}); err != nil {
		t.Fatal(err)
	}
	if text := <-told; text != "on beta: image x: extracted 1 file" {
		t.Errorf("told %q", text)
	}
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
	if err != nil || !reflect.DeepEqual(steps, []agentapi.Step{{Op: "start", Object: "node a", Detail: "new"}}) {
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
	r, err := s.beta(t).Ping(t.Context(), agentapi.PingRequest{
		VNet: "x", Timeout: time.Second,
		Nodes: []agentapi.PingNode{{Name: "a", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, {Name: "b", Addrs: []netip.Addr{netip.MustParseAddr("fd00::2")}}},
		Pairs: []agentapi.PingPair{{From: 0, To: 1, Family: agentapi.IPv4}, {From: 1, To: 0, Family: agentapi.IPv6}, {From: 1, To: 0, Family: agentapi.IPv4}},
	}, func(done, total int) { told += done + total })
	want := &agentapi.PingResult{RTT: []time.Duration{time.Microsecond, 3 * time.Microsecond}, Failed: []agentapi.PingFailure{{Pair: 1, Reason: "b to [10.0.0.1] in 1s"}}}
	if err != nil || !reflect.DeepEqual(r, want) || told != 4 {
		t.Errorf("got %+v, %v, progress %d", r, err, told)
	}
	// What does not fit together never reaches the agent.
	_, err = s.beta(t).Ping(t.Context(), agentapi.PingRequest{VNet: "x", Pairs: []agentapi.PingPair{{From: 0, To: 1, Family: agentapi.IPv4}}}, func(int, int) {})
	if err == nil || !strings.Contains(err.Error(), "on beta: pair 0, 0 to 1, does not index the 0 nodes") {
		t.Errorf("error %v", err)
	}
}

func TestExec(t *testing.T) {
	s := newSite(t)
	var out, errs bytes.Buffer
	stdin, feed := io.Pipe()
	p, err := s.beta(t).Exec(t.Context(), "x", "a", agentapi.ExecSpec{
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
	_, err = s.beta(t).Exec(t.Context(), "x", "q", agentapi.ExecSpec{Argv: []string{"true"}, Stdout: io.Discard, Stderr: io.Discard})
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
			p, err := s.beta(t).Exec(t.Context(), "x", "a", agentapi.ExecSpec{Argv: []string{"deaf"}, Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard})
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
	p, err := s.beta(t).Exec(ctx, "x", "a", agentapi.ExecSpec{Argv: []string{"sleep"}, Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard})
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

func TestLogsAndRestart(t *testing.T) {
	s := newSite(t)
	var got string
	keep := func(service string, text []byte) error { got += service + " " + string(text); return nil }
	if err := s.beta(t).Logs(t.Context(), "x", "a", agentapi.LogQuery{Service: "zebra", Tail: 3}, keep); err != nil || got != "zebra x/a 3\n" {
		t.Errorf("read %q, %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := s.beta(t).Logs(ctx, "x", "a", agentapi.LogQuery{Follow: true}, func(string, []byte) error { cancel(); return nil })
	if err != nil {
		t.Errorf("a log that is no longer followed: %v", err)
	}
	if err := <-s.agent.ended; err == nil {
		t.Error("the agent goes on following")
	}
	if err := s.beta(t).StopService(t.Context(), "x", "a", "ospfd"); err == nil || err.Error() != "on beta: stopped x/a:ospfd" {
		t.Errorf("stop: %v", err)
	}
	if err := s.beta(t).StartService(t.Context(), "x", "a", "ospfd"); err == nil || err.Error() != "on beta: started x/a:ospfd" {
		t.Errorf("start: %v", err)
	}
	if err := s.beta(t).Restart(t.Context(), "x", "a", "ospfd"); err == nil || err.Error() != "on beta: restarted x/a:ospfd" {
		t.Errorf("restart: %v", err)
	}
	s.agent.err = store.NotFound("node x/a has no service %q", "y")
	if err := s.beta(t).Logs(t.Context(), "x", "a", agentapi.LogQuery{}, keep); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a service that is not there: %v", err)
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
