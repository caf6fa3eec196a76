package vnp_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/agentapi"
	"trellis/internal/plan"
	"trellis/internal/store"
)

// spread is description with node a on alpha and node b on beta.
func spread(name string) *trellisv1.VNet {
	v := description(name)
	v.Nodes[0].On, v.Nodes[1].On = "alpha", "beta"
	return v
}

func (s *substrate) set(report func(*plan.Plan) []store.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report = report
}

// vanish ends the agent: it reports nothing any more, and the store knows.
func (s *substrate) vanish(t *testing.T) {
	t.Helper()
	s.set(func(*plan.Plan) []store.Status { return nil })
	if err := s.alive.Close(); err != nil {
		t.Fatal(err)
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestApplyWaitsForAllHosts has two agents report, one later than the other.
func TestApplyWaitsForAllHosts(t *testing.T) {
	subs, _, c := serveOn(t, "alpha", "beta", "gamma")
	late := 300 * time.Millisecond
	subs["beta"].set(func(p *plan.Plan) []store.Status {
		time.Sleep(late)
		return works(p)
	})
	began := time.Now()
	_, r, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: spread("x"), Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < late {
		t.Errorf("returned after %v, before beta was done", took)
	}
	if r.Changes != 8 || r.CreatedSeconds < late.Seconds() || r.ConvergedSeconds < r.CreatedSeconds {
		t.Errorf("result %v", r)
	}
	got, err := c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	if m := got.Msg; m.Summary.State != "running" || m.Summary.NodesUp != 2 || m.Nodes[0].Host != "alpha" || m.Nodes[1].Host != "beta" ||
		m.Vnet.Links[0].Endpoints[0].Mtu != 1458 {
		t.Errorf("got %v", got.Msg)
	}
}

// TestProgressSumsHostsUp follows the messages of a creation on two hosts.
func TestProgressSumsHostsUp(t *testing.T) {
	subs, _, c := serveOn(t, "alpha", "beta")
	steps := map[string]chan store.Status{"alpha": make(chan store.Status), "beta": make(chan store.Status)}
	for name, sub := range subs {
		sub.set(func(p *plan.Plan) []store.Status { return nil })
		go func() {
			for st := range steps[name] {
				if err := sub.store.PutStatus(context.Background(), name, "x", &st); err != nil {
					panic(err)
				}
			}
		}()
	}
	stream, err := c.Apply(within(t, 20*time.Second), connect.NewRequest(&trellisv1.ApplyRequest{Vnet: spread("x"), Wait: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	receive := func() *trellisv1.Progress {
		t.Helper()
		if !stream.Receive() {
			t.Fatal(stream.Err())
		}
		return stream.Msg().GetProgress()
	}
	if p := receive(); p.GetPhase() != "admitted" {
		t.Fatalf("first %v", p)
	}
	rec, err := subs["alpha"].store.VNet(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, step := range []struct {
		host        string
		st          store.Status
		phase       string
		done, total int32
	}{
		{"alpha", store.Status{Phase: store.PhaseCreating, Done: 3, Total: 10}, "creating", 3, 10},
		{"beta", store.Status{Phase: store.PhaseCreating, Done: 1, Total: 4}, "creating", 4, 14},
		{"alpha", store.Status{Phase: store.PhaseCreated, Routers: 5, Converged: 1, CreatedAt: now}, "creating", 11, 14},
		{"beta", store.Status{Phase: store.PhaseCreated, Routers: 3, Converged: 3, CreatedAt: now}, "converging", 4, 8},
		{"beta", store.Status{Phase: store.PhaseConverged, Routers: 3, Converged: 3, ConvergedAt: now}, "converging", 4, 8},
	} {
		step.st.Generation = rec.Generation
		steps[step.host] <- step.st
		if p := receive(); p.GetPhase() != step.phase || p.Done != step.done || p.Total != step.total {
			t.Errorf("after %s is at %s: %v", step.host, step.st.Phase, p)
		}
	}
	steps["alpha"] <- store.Status{Phase: store.PhaseConverged, Generation: rec.Generation, CreatedAt: now, ConvergedAt: now}
	if !stream.Receive() || stream.Msg().GetResult() == nil {
		t.Errorf("no result: %v", stream.Err())
	}
}

// TestNoHostIsTouchedWhenOneRefuses checks that nothing is committed.
func TestNoHostIsTouchedWhenOneRefuses(t *testing.T) {
	subs, st, c := serveOn(t, "alpha", "beta")
	subs["beta"].refuse = errors.New("no netem here")
	_, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: spread("x")})
	wantError(t, err, connect.CodeFailedPrecondition, "on beta: no netem here")
	if records, err := st.VNets(t.Context()); err != nil || len(records) != 0 {
		t.Errorf("%d records, %v", len(records), err)
	}
}

// TestAFailureOnOneHostUndoesAll checks that a first `up` leaves nothing.
func TestAFailureOnOneHostUndoesAll(t *testing.T) {
	subs, st, c := serveOn(t, "alpha", "beta")
	subs["beta"].set(func(p *plan.Plan) []store.Status {
		if p.Empty() {
			return works(p)
		}
		return []store.Status{{Phase: store.PhaseFailed, Error: "crun is gone"}}
	})
	_, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: spread("x"), Wait: true})
	wantError(t, err, connect.CodeFailedPrecondition, "x on beta: crun is gone", "has been removed")
	if records, err := st.VNets(t.Context()); err != nil || len(records) != 0 {
		t.Errorf("%d records, %v", len(records), err)
	}
}

// TestAVanishedHostIsNamed takes a host away from a running VNet: it is shown, a
// change waits for it, links elsewhere can be set, and what it runs stays its.
func TestAVanishedHostIsNamed(t *testing.T) {
	subs, _, c := serveOn(t, "alpha", "beta", "gamma")
	v := spread("x")
	v.Nodes = append(v.Nodes, &trellisv1.Node{Name: "c", On: "gamma"}, &trellisv1.Node{Name: "d", On: "beta"})
	v.Links = append(v.Links, &trellisv1.Link{Name: "ac", Type: "p2p", Endpoints: []*trellisv1.Interface{{Node: "a"}, {Node: "c"}}})
	if _, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: v, Wait: true}); err != nil {
		t.Fatal(err)
	}
	subs["beta"].vanish(t)
	got, err := c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	m := got.Msg
	if m.Summary.State != "degraded" || m.Summary.Message != "beta has vanished" || m.Summary.NodesUp != 2 {
		t.Errorf("summary %v", m.Summary)
	}
	if n := m.Nodes[1]; n.State != "unknown" || !strings.Contains(n.Message, "beta has not been heard of for") || m.Nodes[0].State != "running" {
		t.Errorf("nodes %v", m.Nodes)
	}

	if l := m.Links[0]; l.State != "unknown" || !strings.Contains(l.Message, "beta has not been heard of") || m.Links[1].State != "up" {
		t.Errorf("links %v", m.Links)
	}

	v.Nodes[2].Cpu = 0.5
	stream, err := c.Apply(within(t, 3*time.Second), connect.NewRequest(&trellisv1.ApplyRequest{Vnet: v, Wait: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	detail := ""
	for stream.Receive() {
		if d := stream.Msg().GetProgress().GetDetail(); d != "" {
			detail = d
		}
	}
	if !strings.HasPrefix(detail, "beta has not been heard of for ") || !strings.HasSuffix(detail, " s; its 2 nodes wait") {
		t.Errorf("last detail %q", detail)
	}
	wantError(t, stream.Err(), connect.CodeDeadlineExceeded, "beta has not been heard of for", "its 2 nodes wait", "trellis show x")

	rate := uint64(5e6)
	if _, err := c.SetLink(within(t, 10*time.Second), connect.NewRequest(&trellisv1.SetLinkRequest{Vnet: "x", Link: "ac", Rate: &rate})); err != nil {
		t.Errorf("a link that is not at the vanished host: %v", err)
	}

	_, _, steps, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: v, DryRun: true})
	if err != nil || !slices.ContainsFunc(steps.GetSteps(), func(s *trellisv1.Step) bool {
		return s.Op == "wait" && s.Object == "host beta" && strings.Contains(s.Detail, "not been heard of")
	}) {
		t.Errorf("steps %v, %v", steps, err)
	}
}

// TestAPathThatIsDownIsNamed has alpha report that it cannot reach beta.
func TestAPathThatIsDownIsNamed(t *testing.T) {
	subs, _, c := serveOn(t, "alpha", "beta")
	subs["alpha"].set(func(p *plan.Plan) []store.Status {
		if p.Empty() {
			return works(p)
		}
		reports := works(p)[:2] // it waits for routes
		reports[1].Paths = []store.PathFault{
			{Link: "cd", Peer: "beta", Message: "it carries 1400"},
			{Link: "ab", Peer: "beta", Down: true, Message: "there is no route to 192.0.2.2"},
		}
		reports[1].FaultyPaths = 2
		return reports
	})
	want := "link ab has no path from alpha to beta: there is no route to 192.0.2.2; and 1 more link is degraded"
	_, _, _, err := apply(within(t, 2*time.Second), c, &trellisv1.ApplyRequest{Vnet: spread("x"), Wait: true})
	wantError(t, err, connect.CodeDeadlineExceeded, "not converged", want)
	list, err := c.List(t.Context(), connect.NewRequest(&trellisv1.ListRequest{}))
	if err != nil || list.Msg.Vnets[0].State != "degraded" || list.Msg.Vnets[0].Message != want {
		t.Errorf("list %v, %v", list, err)
	}
}

func TestDryRunAsksEveryHost(t *testing.T) {
	subs, _, c := serveOn(t, "alpha", "beta")
	subs["alpha"].steps = []agentapi.Step{{Op: "start", Object: "node a", Detail: "new"}}
	subs["beta"].steps = []agentapi.Step{{Op: "start", Object: "node b"}}
	_, _, steps, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: spread("x"), DryRun: true})
	if err != nil || len(steps.GetSteps()) != 2 || steps.Steps[0].Detail != "on alpha: new" || steps.Steps[1].Detail != "on beta" {
		t.Errorf("steps %v, %v", steps, err)
	}
	subs["beta"].mu.Lock()
	subs["beta"].refuse = errors.New("no netem here")
	subs["beta"].mu.Unlock()
	_, _, _, err = apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: spread("x"), DryRun: true})
	wantError(t, err, connect.CodeFailedPrecondition, "on beta: no netem here")
}

// TestDownGoesOnPastAVanishedHost takes one VNet down that a vanished host has a
// part of, and others that it has none of.
func TestDownGoesOnPastAVanishedHost(t *testing.T) {
	subs, st, c := serveOn(t, "alpha", "beta")
	for _, v := range []*trellisv1.VNet{spread("x"), description("y"), description("z")} {
		if _, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: v, Wait: true}); err != nil {
			t.Fatal(err)
		}
	}
	subs["beta"].vanish(t)
	began := time.Now()
	_, err := remove(within(t, 60*time.Second), c, &trellisv1.DeleteRequest{All: true})
	wantError(t, err, connect.CodeFailedPrecondition, "VNet x", "beta has not been heard of for", "its 1 node waits", "when trellis serve runs there again", "`trellis substrate forget beta`")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("gave up after %v", took)
	}
	records, err := st.VNets(t.Context())
	if err != nil || len(records) != 1 || records[0].Name() != "x" || records[0].State != store.Removing {
		t.Fatalf("records %v, %v", records, err)
	}
	if subs["alpha"].swept != 1 {
		t.Errorf("alpha was swept %d times", subs["alpha"].swept)
	}
	list, err := c.List(t.Context(), connect.NewRequest(&trellisv1.ListRequest{}))
	if err != nil || list.Msg.Vnets[0].State != "removing" || !strings.Contains(list.Msg.Vnets[0].Message, "beta has vanished") {
		t.Errorf("list %v, %v", list, err)
	}

	// It comes back, and finds the empty plan.
	again, err := st.Register(t.Context(), store.Host{Name: "beta", ID: "id-beta", Instance: "trellis", Version: "v1", Memory: 1 << 30, CPU: 1})
	if err != nil {
		t.Fatal(err)
	}
	subs["beta"].alive = again
	rec := records[0]
	if err := st.PutStatus(t.Context(), "beta", "x", &store.Status{Generation: rec.Generation, Phase: store.PhaseRemoved}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := st.VNet(t.Context(), "x"); errors.Is(err, store.ErrNotFound) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("x is not forgotten")
		}
	}
}

// What a client hears of an agent that does not answer is the sentence, and not
// what the connection's own error says.
func TestClientsHearTheSentence(t *testing.T) {
	subs, _, c := serveOn(t, "alpha", "beta")
	if _, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: spread("x"), Wait: true}); err != nil {
		t.Fatal(err)
	}
	const sentence = "substrate node beta does not answer; start it"
	subs["beta"].mu.Lock()
	subs["beta"].away = &agentapi.Unreachable{
		Host: "beta", Why: sentence, Err: connect.NewError(connect.CodeUnavailable, errors.New("connection refused")),
	}
	subs["beta"].mu.Unlock()
	exec := c.Exec(t.Context())
	if err := exec.Send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_Start{Start: &trellisv1.ExecStart{Vnet: "x", Node: "b", Argv: []string{"true"}}}}); err != nil {
		t.Fatal(err)
	}
	_, execErr := exec.Receive()
	capture, err := c.Capture(t.Context(), connect.NewRequest(&trellisv1.CaptureRequest{Vnet: "x", Node: "b", Interface: "eth1"}))
	if err != nil {
		t.Fatal(err)
	}
	capture.Receive()
	_, restartErr := c.Restart(t.Context(), connect.NewRequest(&trellisv1.RestartRequest{Vnet: "x", Node: "b"}))
	_, stopErr := c.StopService(t.Context(), connect.NewRequest(&trellisv1.StopServiceRequest{Vnet: "x", Node: "b", Service: "zebra"}))
	_, startErr := c.StartService(t.Context(), connect.NewRequest(&trellisv1.StartServiceRequest{Vnet: "x", Node: "b", Service: "zebra"}))
	for call, err := range map[string]error{"Exec": execErr, "Capture": capture.Err(), "Restart": restartErr, "StopService": stopErr, "StartService": startErr} {
		var known *connect.Error
		if !errors.As(err, &known) || known.Code() != connect.CodeUnavailable || !strings.Contains(known.Message(), sentence) {
			t.Errorf("%s: %v, want %q", call, err, sentence)
		}
	}
	got, err := c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "x"}))
	if err != nil || !strings.Contains(strings.Join(got.Msg.Messages, "\n"), sentence) {
		t.Errorf("%v, %v", got, err)
	}
}

// A network whose own software leaves routes missing has not converged, whatever its
// agent has ended with.
func TestApplySaysWhatIsMissing(t *testing.T) {
	sub, _, c := serve(t)
	sub.set(func(p *plan.Plan) []store.Status {
		now := time.Now()
		return []store.Status{{
			Phase: store.PhaseConverged, CreatedAt: now, ConvergedAt: now, Changes: 4, Routers: 2, Converged: 1,
			Missing: []store.Missing{{Node: "b", Prefixes: []string{"10.9.0.1/32"}, Count: 1}}, MissingNodes: 1,
		}}
	})
	_, r, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: description("x"), Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Checked != 2 || r.Complete != 1 || r.ConvergedSeconds != 0 || r.Message != "b has no route to 10.9.0.1/32" {
		t.Errorf("result %v", r)
	}
}
