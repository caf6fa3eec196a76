package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"trellis/internal/agentapi"
	"trellis/internal/plan"
	"trellis/internal/store"
)

func TestWhoCannotBeAsked(t *testing.T) {
	s := newSite(t)
	unreachable := func(err error) bool { u := (*agentapi.Unreachable)(nil); return errors.As(err, &u) }
	check := func(host, want string, again bool) {
		t.Helper()
		_, err := s.fleet.Agent(t.Context(), host)
		if err == nil || !strings.Contains(err.Error(), want) || unreachable(err) != again {
			t.Errorf("%s: error %v, want %q", host, err, want)
		}
	}
	check("alpha", "alpha runs no agent", false)
	check("betta", `there is no substrate node "betta"; did you mean "beta"?`, false)
	s.change("beta", func(h *store.HostState) { h.Alive, h.Seen = false, time.Now().Add(-12*time.Second) })
	check("beta", "substrate node beta has not been heard of for 12 s; what runs there goes on", true)
	s.change("beta", func(h *store.HostState) { h.Alive, h.Protocol = true, store.Protocol+1 })
	check("beta", fmt.Sprintf("beta runs another version of Trellis (v9, protocol %d; protocol %d here)", store.Protocol+1, store.Protocol), false)
	s.change("beta", func(h *store.HostState) { h.Protocol, h.API = store.Protocol, "" })
	check("beta", "set `listen`", false)
	s.change("beta", func(h *store.HostState) { h.API = "127.0.0.1:1" })
	s.fleet.config.TLS = nil
	check("beta", "set `tls`", false)
	s.fleet.config.Local = s.agent
	if sub, err := s.fleet.Agent(t.Context(), "alpha"); err != nil || sub != agentapi.Agent(s.agent) {
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
	var u *agentapi.Unreachable
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
	p, err := beta.Exec(t.Context(), "x", "a", agentapi.ExecSpec{Argv: []string{"sleep"}, Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard})
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

// A host whose service has just died, whatever of the connection there was by
// then, is named with what to do, and so it is to the client of this one.
func TestAnAgentThatDiesCostsASentence(t *testing.T) {
	s := newSite(t)
	for name, serve := range map[string]func(net.Conn){
		"refused":       nil,
		"accepted":      func(net.Conn) {},
		"in handshake":  func(c net.Conn) { c.Read(make([]byte, 1)) },
		"after request": closeAfterRequest(t, s.tls["beta"], nil),
		"in answer":     closeAfterRequest(t, s.tls["beta"], headersOfAnswer),
	} {
		t.Run(name, func(t *testing.T) {
			at := "127.0.0.1:1"
			if serve != nil {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						serve(c)
						c.Close()
					}
				}()
				at = l.Addr().String()
			}
			s.change("beta", func(h *store.HostState) { h.API = at })
			beta := s.beta(t)
			for call, f := range map[string]func() error{
				"Prepare": func() error { return beta.Prepare(t.Context(), &plan.Plan{}) },
				"DryRun":  func() error { _, err := beta.DryRun(t.Context(), &plan.Plan{}); return err },
				"Exec": func() error {
					p, err := beta.Exec(t.Context(), "x", "a", agentapi.ExecSpec{Argv: []string{"true"}, Stdout: io.Discard, Stderr: io.Discard})
					if err == nil {
						_, err = p.Wait()
					}
					return err
				},
				"Capture": func() error { return beta.Capture(t.Context(), "x", "a", "eth1", 0, 1, io.Discard) },
				"Logs": func() error {
					return beta.Logs(t.Context(), "x", "a", agentapi.LogQuery{}, func(string, []byte) error { return nil })
				},
				"Restart": func() error { return beta.Restart(t.Context(), "x", "a", "") },
				"Ping": func() error {
					_, err := beta.Ping(t.Context(), agentapi.PingRequest{}, func(int, int) {})
					return err
				},
				"Addresses":   func() error { _, err := beta.Addresses(t.Context(), "x", nil); return err },
				"NodeStats":   func() error { _, err := beta.NodeStats(t.Context(), "x"); return err },
				"PortStats":   func() error { _, err := beta.PortStats(t.Context(), "x"); return err },
				"UplinkStats": func() error { _, err := beta.UplinkStats(t.Context()); return err },
				"SweepAll":    func() error { return beta.SweepAll(t.Context()) },
			} {
				t.Run(call, func(t *testing.T) {
					err := f()
					wantUnreachable(t, err, "substrate node beta does not answer at "+at)
					wantUnreachable(t, err, "`trellis serve` there")
					if known := (*connect.Error)(nil); errors.As(err, &known) {
						t.Errorf("clients would see %q alone", known.Message())
					}
				})
			}
		})
	}
}

// headersOfAnswer is an HTTP/2 frame: HEADERS of stream 1, with :status 200 and the
// content type of a stream (RFC 9113, RFC 7541).
var headersOfAnswer = func() []byte {
	block := append([]byte{0x88, 0x0f, 0x10, 25}, "application/connect+proto"...)
	return append([]byte{0, 0, byte(len(block)), 1, 4, 0, 0, 0, 1}, block...)
}()

// closeAfterRequest takes a connection as far as a request, sends a beginning of the
// answer, and returns.
func closeAfterRequest(t *testing.T, config *tls.Config, answer []byte) func(net.Conn) {
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	return func(c net.Conn) {
		secured := tls.Server(c, config)
		settings := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}
		if _, err := secured.Write(settings); err != nil {
			t.Error(err)
			return
		}
		// The preface and the client's settings come first, in one write.
		for range 2 {
			if _, err := secured.Read(make([]byte, 64<<10)); err != nil {
				return
			}
		}
		_, _ = secured.Write(answer) // the client may be gone
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
