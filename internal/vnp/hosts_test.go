package vnp_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/api/trellis/v1/trellisv1connect"
	"trellis/internal/agentapi"
	"trellis/internal/store"
)

// silent makes the agent one that cannot be asked.
func (s *substrate) silent(host string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = &agentapi.Unreachable{Host: host, Why: "substrate node " + host + " does not answer", Err: errors.New("dial")}
}

// ring is a VNet of three nodes, each on a machine of its own.
func ring(t *testing.T) (map[string]*substrate, trellisv1connect.VNetServiceClient) {
	t.Helper()
	subs, _, c := serveOn(t, "alpha", "beta", "gamma")
	v := &trellisv1.VNet{Name: "x", Addressing: &trellisv1.Addressing{Ipv4: "10.0.0.0/8", Ipv6: "fd00::/48"}}
	hosts := []string{"alpha", "beta", "gamma"}
	for i, name := range []string{"a", "b", "c"} {
		v.Nodes = append(v.Nodes, &trellisv1.Node{Name: name, On: hosts[i], Memory: 1 << 30, Cpu: 0.5})
	}
	for _, ends := range [][2]string{{"a", "b"}, {"b", "c"}, {"c", "a"}} {
		v.Links = append(v.Links, &trellisv1.Link{Name: ends[0] + ends[1], Type: "p2p", Endpoints: []*trellisv1.Interface{{Node: ends[0]}, {Node: ends[1]}}})
	}
	if _, _, _, err := apply(t.Context(), c, &trellisv1.ApplyRequest{Vnet: v, Wait: true}); err != nil {
		t.Fatal(err)
	}
	return subs, c
}

func ping(t *testing.T, c trellisv1connect.VNetServiceClient, req *trellisv1.PingRequest) (*trellisv1.PingResult, error) {
	t.Helper()
	stream, err := c.Ping(t.Context(), connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var r *trellisv1.PingResult
	for stream.Receive() {
		if e := stream.Msg().GetResult(); e != nil {
			r = e
		}
	}
	return r, stream.Err()
}

// Each machine sends for its nodes, to nodes anywhere; what one cannot send has
// failed for its reason.
func TestPingOverHosts(t *testing.T) {
	subs, c := ring(t)
	r, err := ping(t, c, &trellisv1.PingRequest{Vnet: "x"})
	if err != nil {
		t.Fatal(err)
	}
	// Three nodes, two families, twelve pairs; each fake lets its first one fail.
	if r.Pairs != 12 || r.Reachable != 9 || len(r.Failed) != 3 {
		t.Errorf("%d of %d reachable, failed %v", r.Reachable, r.Pairs, r.Failed)
	}
	for i, from := range []string{"a", "b", "c"} {
		sub := subs[[]string{"alpha", "beta", "gamma"}[i]]
		if len(sub.pinged) != 1 || len(sub.pinged[0].Pairs) != 4 {
			t.Fatalf("%s was asked for %+v", sub.name, sub.pinged)
		}
		for _, p := range sub.pinged[0].Pairs {
			if sub.pinged[0].Nodes[p.From].Name != from {
				t.Errorf("%s sends for %s", sub.name, sub.pinged[0].Nodes[p.From].Name)
			}
		}
		if f := r.Failed[i]; f.From != from || f.Reason != "no answer" {
			t.Errorf("failure %d: %v", i, f)
		}
	}
	subs["beta"].silent("beta")
	r, err = ping(t, c, &trellisv1.PingRequest{Vnet: "x"})
	if err != nil {
		t.Fatal(err)
	}
	untried := 0
	for _, f := range r.Failed {
		if f.From == "b" && f.Reason == "not tried: substrate node beta does not answer" {
			untried++
		}
	}
	if r.Pairs != 12 || r.Reachable != 6 || untried != 4 || len(r.Failed) != 6 {
		t.Errorf("without beta: %d of %d reachable, failed %v", r.Reachable, r.Pairs, r.Failed)
	}
	subs["alpha"].silent("alpha")
	subs["gamma"].silent("gamma")
	_, err = ping(t, c, &trellisv1.PingRequest{Vnet: "x"})
	wantError(t, err, connect.CodeUnavailable, "substrate node alpha does not answer")
}

func TestASampleIsTheSameWhicheverMachinesSendIt(t *testing.T) {
	subs, c := ring(t)
	asked := func() (pairs []string) {
		for _, sub := range subs {
			for _, r := range sub.pinged {
				for _, p := range r.Pairs {
					pairs = append(pairs, r.Nodes[p.From].Name+r.Nodes[p.To].Name+p.Family)
				}
			}
			sub.pinged = nil
		}
		slices.Sort(pairs)
		return pairs
	}
	for range 2 {
		if _, err := ping(t, c, &trellisv1.PingRequest{Vnet: "x", Sample: 2, Seed: 5}); err != nil {
			t.Fatal(err)
		}
	}
	pairs := asked()
	if len(pairs) != 8 {
		t.Fatalf("two samples of 2 pairs in two families sent %v", pairs)
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] != pairs[i+1] {
			t.Errorf("the same seed gave %v", pairs)
		}
	}
}

func TestExecAndCaptureGoWhereTheNodeIs(t *testing.T) {
	subs, c := ring(t)
	m := start("cat")
	m.GetStart().Node = "b"
	stream := c.Exec(t.Context())
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
	if first, err := stream.Receive(); err != nil || !first.GetStarted() {
		t.Fatalf("first message %v, %v", first, err)
	}
	if err := stream.Send(&trellisv1.ExecRequest{Message: &trellisv1.ExecRequest_StdinClosed{StdinClosed: true}}); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := stream.Receive(); err != nil {
			break
		}
	}
	frames, err := c.Capture(t.Context(), connect.NewRequest(&trellisv1.CaptureRequest{Vnet: "x", Node: "c", Interface: "eth1", Count: 1}))
	if err != nil {
		t.Fatal(err)
	}
	defer frames.Close()
	for frames.Receive() {
	}
	if err := frames.Err(); err != nil {
		t.Fatal(err)
	}
	if len(subs["alpha"].entered) > 0 || !slices.Equal(subs["beta"].entered, []string{"b"}) || !slices.Equal(subs["gamma"].entered, []string{"c:eth1"}) {
		t.Errorf("entered %v, %v, %v", subs["alpha"].entered, subs["beta"].entered, subs["gamma"].entered)
	}
	subs["beta"].silent("beta")
	stream = c.Exec(t.Context())
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Receive()
	wantError(t, err, connect.CodeUnavailable, "substrate node beta does not answer")
}

// The figures of all machines come together; those of one that is silent are
// missing, and said to be.
func TestStatisticsOfAllHosts(t *testing.T) {
	subs, c := ring(t)
	remote := netip.MustParseAddr("192.0.2.1")
	subs["alpha"].nodes = map[string]agentapi.NodeStats{"a": {Memory: 1, FastPath: agentapi.FastPathOn}}
	subs["beta"].nodes = map[string]agentapi.NodeStats{"b": {Memory: 2, FastPath: "off: nftables rules"}}
	subs["gamma"].nodes = map[string]agentapi.NodeStats{"c": {Memory: 3}}
	subs["alpha"].ports = map[string]agentapi.PortStats{"a:eth1": {Device: "tr1", RxPackets: 9, RxFastPackets: 4, Drops: 2, DropsBy: map[string]uint64{"runt": 2},
		Paths: []agentapi.PathStats{{Peer: "beta", Remote: remote, Key: 7, MTU: 1400, State: agentapi.PathUp, Message: "narrower than 1500"}}}}
	subs["beta"].ports = map[string]agentapi.PortStats{"b:eth2": {Device: "tr2",
		Paths: []agentapi.PathStats{{Peer: "gamma", Remote: remote, Key: 8, State: agentapi.PathDown, Message: "no route"}}}}
	subs["gamma"].ports = map[string]agentapi.PortStats{}
	get := func() *trellisv1.GetResponse {
		t.Helper()
		r, err := c.Get(t.Context(), connect.NewRequest(&trellisv1.GetRequest{Name: "x"}))
		if err != nil {
			t.Fatal(err)
		}
		return r.Msg
	}
	m := get()
	if len(m.Messages) != 0 || !slices.Equal(m.Summary.Hosts, []string{"alpha", "beta", "gamma"}) {
		t.Errorf("messages %q, hosts %q", m.Messages, m.Summary.Hosts)
	}
	if m.Nodes[0].Memory != 1 || m.Nodes[0].Fastpath != "on" || m.Nodes[1].Memory != 2 || m.Nodes[1].Fastpath != "off: nftables rules" || m.Nodes[2].Memory != 3 {
		t.Errorf("nodes %v", m.Nodes)
	}
	if l := m.Links[0]; l.State != "up" || l.Message != "the path from alpha to beta: narrower than 1500" || l.Ports[0].Host != "alpha" || l.Ports[0].RxFastPackets != 4 ||
		l.Ports[0].DropsByReason["runt"] != 2 || l.Ports[0].Paths[0].Key != 7 || l.Ports[0].Paths[0].Remote != "192.0.2.1" || l.Ports[1].Host != "beta" {
		t.Errorf("link ab: %v", l)
	}
	if l := m.Links[1]; l.State != "broken" || l.Message != "no path from beta to gamma: no route" {
		t.Errorf("link bc: %v", l)
	}
	subs["beta"].silent("beta")
	m = get()
	if len(m.Messages) != 1 || m.Messages[0] != "no statistics from beta: substrate node beta does not answer" {
		t.Errorf("messages %q", m.Messages)
	}
	if m.Nodes[0].Memory != 1 || m.Nodes[1].Memory != 0 || m.Nodes[1].State != "running" || m.Nodes[2].Memory != 3 {
		t.Errorf("nodes %v", m.Nodes)
	}
}

func TestHosts(t *testing.T) {
	subs, c := ring(t)
	subs["beta"].uplinks = []agentapi.UplinkStats{{Interface: "eth1", XDP: "native", MTU: 1500, Drops: map[string]uint64{"runt": 3}}}
	if err := subs["gamma"].alive.Close(); err != nil {
		t.Fatal(err)
	}
	subs["alpha"].silent("alpha")
	subs["beta"].alive.Update(func(h *store.Host) {
		h.Uplinks = []store.HostUplink{{Interface: "eth1", XDP: "generic"}, {Interface: "eth2", Message: "down"}}
	})
	var h []*trellisv1.HostStatus
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		r, err := c.Hosts(t.Context(), connect.NewRequest(&trellisv1.HostsRequest{}))
		if err != nil || len(r.Msg.Hosts) != 3 {
			t.Fatalf("%v, %v", r, err)
		}
		if h = r.Msg.Hosts; len(h[1].Uplinks) == 2 || time.Now().After(deadline) {
			break
		}
	}
	if h[0].Name != "alpha" || h[0].State != "alive" || h[0].Message != "substrate node alpha does not answer" {
		t.Errorf("alpha: %v", h[0])
	}
	if h[1].Name != "beta" || h[1].Message != "" || h[1].Nodes != 1 || h[1].MemoryUsed != 1<<30 || h[1].CpuUsed != 0.5 || h[1].Memory != 16<<30 ||
		h[1].Mtu != 1500 || !slices.Equal(h[1].Addresses, []string{"192.0.2.2"}) {
		t.Errorf("beta: %v", h[1])
	}
	// What the agent counts now goes before what it has written.
	if u := h[1].Uplinks; len(u) != 2 || u[0].Xdp != "native" || u[0].Mtu != 1500 || u[0].Drops["runt"] != 3 || u[1].Interface != "eth2" || u[1].Message != "down" {
		t.Errorf("uplinks of beta: %v", u)
	}
	if h[2].Name != "gamma" || h[2].State != "vanished" {
		t.Errorf("gamma: %v", h[2])
	}
}

func TestForgetHost(t *testing.T) {
	subs, c := ring(t)
	forget := func(name string) error {
		_, err := c.ForgetHost(t.Context(), connect.NewRequest(&trellisv1.ForgetHostRequest{Name: name}))
		return err
	}
	wantError(t, forget(""), connect.CodeInvalidArgument, "names no substrate node")
	wantError(t, forget("gama"), connect.CodeNotFound, `there is no substrate node "gama"; did you mean "gamma"?`)
	wantError(t, forget("gamma"), connect.CodeFailedPrecondition, "its agent lives")
	if _, err := remove(t.Context(), c, &trellisv1.DeleteRequest{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	if err := subs["gamma"].alive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := forget("gamma"); err != nil {
		t.Fatal(err)
	}
	r, err := c.Hosts(t.Context(), connect.NewRequest(&trellisv1.HostsRequest{}))
	if err != nil || len(r.Msg.Hosts) != 2 {
		t.Errorf("%v, %v", r, err)
	}
}

// Everything is swept on the machines that live; one that has vanished does so
// when it is back.
func TestSweepReachesWhoLives(t *testing.T) {
	subs, c := ring(t)
	if _, err := remove(t.Context(), c, &trellisv1.DeleteRequest{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	if err := subs["gamma"].alive.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := remove(t.Context(), c, &trellisv1.DeleteRequest{All: true}); err != nil {
		t.Fatal(err)
	}
	if subs["alpha"].swept != 1 || subs["beta"].swept != 1 || subs["gamma"].swept != 0 {
		t.Errorf("swept %d, %d, %d times", subs["alpha"].swept, subs["beta"].swept, subs["gamma"].swept)
	}
	subs["beta"].silent("beta")
	_, err := remove(t.Context(), c, &trellisv1.DeleteRequest{All: true})
	if err == nil || !strings.Contains(err.Error(), "remove what no VNet owns from beta: substrate node beta does not answer") {
		t.Errorf("error %v", err)
	}
}
