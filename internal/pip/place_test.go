package pip

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// substrate is a store with live substrate nodes: alpha, beta and gamma have
// uplinks, island has none.
type substrate struct {
	*store.Store
	p     *Provider
	alive map[string]*store.Registration
}

func newSubstrate(t *testing.T) *substrate {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	sub := &substrate{Store: s, p: another(t, s), alive: map[string]*store.Registration{}}
	for i, name := range []string{"alpha", "beta", "gamma"} {
		sub.alive[name] = register(t, s, store.Host{Name: name, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}, MTU: 1500})
	}
	sub.alive["island"] = register(t, s, store.Host{Name: "island"})
	return sub
}

// vanish ends a substrate node's agent.
func (s *substrate) vanish(t *testing.T, name string) {
	t.Helper()
	if err := s.alive[name].Close(); err != nil {
		t.Fatal(err)
	}
}

// run runs the provider until the test ends.
func (s *substrate) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- s.p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}

// report plays the agents that have converged to, or removed, what they are to.
func (s *substrate) report(t *testing.T, name string, hosts ...string) {
	t.Helper()
	for _, host := range hosts {
		p, err := s.Plan(t.Context(), host, name)
		if err != nil {
			t.Fatal(err)
		}
		st := &store.Status{Generation: p.Generation, Phase: store.PhaseConverged}
		if p.Empty() {
			st.Phase = store.PhaseRemoved
		}
		if err := s.PutStatus(t.Context(), host, name, st); err != nil {
			t.Fatal(err)
		}
	}
}

// eventually waits until the record is fine; nil stands for none.
func (s *substrate) eventually(t *testing.T, name string, fine func(*store.VNetRecord) bool) {
	t.Helper()
	var rec *store.VNetRecord
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var err error
		if rec, err = s.VNet(t.Context(), name); err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		if fine(rec) {
			return
		}
	}
	t.Fatalf("the record stays %+v", rec)
}

// chain describes a row of nodes, each "name" or "name@host", and the links
// between neighbours.
func chain(name string, nodes ...string) *vnet.VNet {
	v := &vnet.VNet{Name: name}
	for i, n := range nodes {
		node, on, _ := strings.Cut(n, "@")
		v.Nodes = append(v.Nodes, vnet.Node{Name: node, On: on})
		if i > 0 {
			v.Links = append(v.Links, vnet.Link{Endpoints: []vnet.Interface{{Node: v.Nodes[i-1].Name}, {Node: node}}})
		}
	}
	return v
}

func wantPlacement(t *testing.T, rec *store.VNetRecord, want map[string]string) {
	t.Helper()
	if !maps.Equal(rec.Placement, want) {
		t.Errorf("placement %v, want %v", rec.Placement, want)
	}
}

func TestOneTransactionForAllHosts(t *testing.T) {
	s := newSubstrate(t)
	v := chain("x", "a@gamma", "b", "c@beta", "d@beta")
	g := mustAdmit(t, s.p, v)
	wantPlacement(t, g.Record, map[string]string{"a": "gamma", "b": "alpha", "c": "beta", "d": "beta"})
	if !slices.Equal(g.Record.Hosts, []string{"alpha", "beta", "gamma"}) {
		t.Errorf("hosts %v", g.Record.Hosts)
	}
	if spans := slices.Sorted(maps.Keys(g.Record.Keys)); !slices.Equal(spans, []string{"a-b|alpha|gamma|a:eth1|b:eth1", "b-c|alpha|beta|b:eth2|c:eth1"}) {
		t.Errorf("spans %v", spans)
	}
	for host, nodes := range map[string]int{"alpha": 1, "beta": 2, "gamma": 1} {
		p, err := s.Plan(t.Context(), host, "x")
		if err != nil || p.Generation != g.Record.Generation || p.Host != host || len(p.Nodes) != nodes {
			t.Errorf("plan of %s: %+v, %v", host, p, err)
		}
	}
	for i, mtu := range []int{1458, 1458, 1500} {
		if e := g.Record.Spec.Links[i].Endpoints[0]; e.MTU != mtu || !e.AutoMTU {
			t.Errorf("link %d has the MTU %d, automatic %v; want %d", i, e.MTU, e.AutoMTU, mtu)
		}
	}
	again := mustAdmit(t, s.p, v)
	if again.Changed || again.Record.Generation != g.Record.Generation || again.Plans["beta"].Generation != g.Record.Generation {
		t.Errorf("unchanged description: %+v", again)
	}
	_, plans, err := s.p.Preview(t.Context(), v)
	if err != nil || len(plans) != 3 {
		t.Errorf("preview: %d plans, %v", len(plans), err)
	}
}

func TestNodesStayAndMoveOnlyWhenTold(t *testing.T) {
	s := newSubstrate(t)
	s.run(t)
	first := mustAdmit(t, s.p, chain("x", "a@alpha", "b@beta", "c@gamma"))
	s.report(t, "x", "alpha", "beta", "gamma")
	key := first.Record.Keys["a-b|alpha|beta|a:eth1|b:eth1"]

	// Without `on`, everything stays, and so do the keys.
	stays := mustAdmit(t, s.p, chain("x", "a", "b", "c"))
	wantPlacement(t, stays.Record, first.Record.Placement)
	if !maps.Equal(stays.Record.Keys, first.Record.Keys) {
		t.Errorf("keys %v, before %v", stays.Record.Keys, first.Record.Keys)
	}

	// b moves: beta is to remove it, the spans are others, and have keys that
	// nobody has had.
	moved := mustAdmit(t, s.p, chain("x", "a", "b@gamma", "c"))
	wantPlacement(t, moved.Record, map[string]string{"a": "alpha", "b": "gamma", "c": "gamma"})
	if p := moved.Plans["beta"]; p == nil || !p.Empty() || p.Generation != moved.Record.Generation {
		t.Errorf("plan of beta: %+v", p)
	}
	if k := moved.Record.Keys; len(k) != 1 || k["a-b|alpha|gamma|a:eth1|b:eth1"] == 0 || k["a-b|alpha|gamma|a:eth1|b:eth1"] == key {
		t.Errorf("keys %v, the old one was %d", k, key)
	}
	if again := mustAdmit(t, s.p, chain("x", "a", "b@gamma", "c")); again.Changed {
		t.Error("the same description again, with beta still at it, has changed something")
	}
	s.report(t, "x", "alpha", "beta", "gamma")
	s.eventually(t, "x", func(rec *store.VNetRecord) bool { return slices.Equal(rec.Hosts, []string{"alpha", "gamma"}) })
	if _, err := s.Plan(t.Context(), "beta", "x"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("beta's plan: %v", err)
	}

	// And back: the key of before is not used again.
	back := mustAdmit(t, s.p, chain("x", "a", "b@beta", "c"))
	if k := back.Record.Keys["a-b|alpha|beta|a:eth1|b:eth1"]; k == 0 || k == key {
		t.Errorf("key %d, once given up as %d", k, key)
	}
}

func TestPlacementIsRefusedInOneSentence(t *testing.T) {
	s := newSubstrate(t)
	s.vanish(t, "gamma")
	s.alive["small"] = register(t, s.Store, store.Host{Name: "small", Memory: 1 << 30})
	large := chain("x", "a@small")
	large.Nodes[0].Memory = 64 << 40
	wide := chain("x", "a@alpha", "b@beta")
	wide.Links[0].Endpoints[1].MTU = 1500
	for name, c := range map[string]struct {
		v     *vnet.VNet
		words []string
	}{
		"unknown host":   {chain("x", "a@alpa"), []string{"node a is to be on alpa", `no substrate node "alpa"`, `did you mean "alpha"?`}},
		"no host at all": {chain("x", "a@mars"), []string{`no substrate node "mars"`, "alpha, beta, gamma, island, small"}},
		"vanished host":  {chain("x", "a@gamma"), []string{"node a is to be on gamma", "gamma has not been heard of for 0 s"}},
		"no uplink":      {chain("x", "a@alpha", "b@island"), []string{"link a-b", "from alpha to island", "island has no uplink"}},
		"memory":         {large, []string{"node a may have 64TiB of memory", "small 1GiB all together", "lower memory"}},
		"MTU":            {wide, []string{"link a-b", "b:eth1 asks for 1500", "at most 1458"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.p.Admit(t.Context(), c.v, Admission{})
			var refused Refused
			if !errors.As(err, &refused) {
				t.Fatalf("not refused: %v", err)
			}
			for _, w := range c.words {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if records, err := s.VNets(t.Context()); err != nil || len(records) != 0 {
				t.Errorf("%d records, %v", len(records), err)
			}
			if len(s.p.ids.reserved) != 0 {
				t.Errorf("id ranges are still held: %v", s.p.ids.reserved)
			}
		})
	}
	other := hosts{"beta": {Alive: true, Host: store.Host{Name: "beta", Version: "9.9", Protocol: store.Protocol + 1}}}
	if err := other.accepts("beta"); err == nil || !strings.Contains(err.Error(), "beta runs trellis 9.9, which speaks protocol") {
		t.Errorf("a host of another protocol: %v", err)
	}
	// A machine without an uplink serves what stays on it.
	if g := mustAdmit(t, s.p, chain("y", "a@island", "b@island")); g.Record.Spec.Links[0].Endpoints[0].MTU != vnet.DefaultMTU {
		t.Errorf("MTU %d", g.Record.Spec.Links[0].Endpoints[0].MTU)
	}
}

func TestAVanishedHostKeepsWhatItHas(t *testing.T) {
	s := newSubstrate(t)
	first := mustAdmit(t, s.p, chain("x", "a@alpha", "b@beta"))
	s.vanish(t, "alpha")
	var mu sync.Mutex
	var asked []string
	check := func(_ context.Context, p *plan.Plan) error {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, p.Host)
		return nil
	}
	g, err := s.p.Admit(t.Context(), chain("x", "a", "b", "c"), Admission{Check: check})
	if err != nil {
		t.Fatal(err)
	}
	wantPlacement(t, g.Record, map[string]string{"a": "alpha", "b": "beta", "c": "beta"})
	if p := g.Plans["alpha"]; len(p.Nodes) != 1 || p.Generation != g.Record.Generation {
		t.Errorf("plan of alpha: %+v", p)
	}
	if !slices.Equal(asked, []string{"beta"}) {
		t.Errorf("asked %v", asked)
	}
	if g.Record.Keys["a-b|alpha|beta|a:eth1|b:eth1"] != first.Record.Keys["a-b|alpha|beta|a:eth1|b:eth1"] {
		t.Errorf("keys %v, before %v", g.Record.Keys, first.Record.Keys)
	}
	_, err = s.p.Admit(t.Context(), chain("x", "a@beta", "b", "c"), Admission{})
	if err == nil || !strings.Contains(err.Error(), "node a cannot go to beta: it may still run on alpha") {
		t.Errorf("a move off a vanished host: %v", err)
	}
	// Taken out of the description, a waits at alpha to be removed.
	out := mustAdmit(t, s.p, chain("x", "b", "c"))
	if p := out.Plans["alpha"]; p == nil || !p.Empty() {
		t.Errorf("plan of alpha: %+v", p)
	}
	if again := mustAdmit(t, s.p, chain("x", "b", "c")); again.Changed {
		t.Error("the same description again has changed something")
	}
	// So it comes back there, and does not run twice.
	wantPlacement(t, mustAdmit(t, s.p, chain("x", "a", "b", "c")).Record, map[string]string{"a": "alpha", "b": "beta", "c": "beta"})
	mustAdmit(t, s.p, chain("x", "b", "c"))
	s.alive["alpha"] = register(t, s.Store, store.Host{Name: "alpha"})
	s.report(t, "x", "alpha")
	if err := s.p.removed(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if rec, err := s.VNet(t.Context(), "x"); err != nil || !slices.Equal(rec.Hosts, []string{"beta"}) || len(rec.Placement) != 2 {
		t.Errorf("after alpha came back: %+v, %v", rec, err)
	}
	s.vanish(t, "alpha")
	for _, host := range []string{"alpha", "beta", "gamma", "island"} {
		if host != "alpha" {
			s.vanish(t, host)
		}
	}
	_, err = s.p.Admit(t.Context(), chain("y", "a"), Admission{})
	if err == nil || !strings.Contains(err.Error(), "no substrate node accepts node a") {
		t.Errorf("with no live host: %v", err)
	}
	// The host whose agent is this process is there, whatever its lease says.
	s.p.host = "alpha"
	wantPlacement(t, mustAdmit(t, s.p, chain("y", "a")).Record, map[string]string{"a": "alpha"})
}

func TestRoomCountsAllVNets(t *testing.T) {
	s := newSubstrate(t)
	big := func(name string) *vnet.VNet {
		v := chain(name, "a")
		v.Nodes[0].Memory = 10 << 30
		return v
	}
	for i, want := range []string{"alpha", "beta", "gamma", "island", "alpha"} {
		wantPlacement(t, mustAdmit(t, s.p, big(fmt.Sprintf("v%d", i))).Record, map[string]string{"a": want})
	}
}

// TestLinksLeaveNoIsland places nodes past a machine that comes first by its name
// and has no uplink, but only where a link would leave it.
func TestLinksLeaveNoIsland(t *testing.T) {
	s := newSubstrate(t)
	register(t, s.Store, store.Host{Name: "aardvark"})
	wantPlacement(t, mustAdmit(t, s.p, chain("x", "a", "b")).Record, map[string]string{"a": "aardvark", "b": "aardvark"})
	wantPlacement(t, mustAdmit(t, s.p, chain("y", "a", "b", "c@gamma")).Record, map[string]string{"a": "alpha", "b": "alpha", "c": "gamma"})
	_, err := s.p.Admit(t.Context(), chain("z", "a", "b@island"), Admission{})
	if err == nil || !strings.Contains(err.Error(), "no uplink") {
		t.Errorf("a link to an island: %v", err)
	}
}

func TestPlansFollowTheSubstrate(t *testing.T) {
	s := newSubstrate(t)
	s.run(t)
	v := chain("x", "a@alpha", "b@beta")
	first := mustAdmit(t, s.p, v)
	local := mustAdmit(t, s.p, chain("y", "a@beta", "b@beta"))
	s.alive["beta"].Update(func(h *store.Host) { h.MTU = 1400 })
	s.eventually(t, "x", func(rec *store.VNetRecord) bool { return rec.Generation == first.Record.Generation+1 })
	p, err := s.Plan(t.Context(), "alpha", "x")
	if err != nil || p.Tunnels[0].MTU != 1358 || p.Nodes[0].Ports[0].MTU != 1358 {
		t.Errorf("plan of alpha: %+v, %v", p, err)
	}
	if g := mustAdmit(t, s.p, v); g.Changed || g.Record.Spec.Links[0].Endpoints[0].MTU != 1358 {
		t.Errorf("up again has changed the MTU to %d", g.Record.Spec.Links[0].Endpoints[0].MTU)
	}
	addr := netip.MustParseAddr("192.0.2.99")
	s.alive["beta"].Update(func(h *store.Host) { h.Addrs = []netip.Addr{addr} })
	s.eventually(t, "x", func(rec *store.VNetRecord) bool { return rec.Generation == first.Record.Generation+2 })
	if p, err := s.Plan(t.Context(), "alpha", "x"); err != nil || p.Tunnels[0].Remote != addr || p.Tunnels[0].Key != first.Record.Keys["a-b|alpha|beta|a:eth1|b:eth1"] {
		t.Errorf("plan of alpha: %+v, %v", p, err)
	}
	// What cannot be any more stays as it was; a host that comes back to it changes
	// nothing.
	s.alive["beta"].Update(func(h *store.Host) { h.Addrs = nil })
	s.alive["beta"].Update(func(h *store.Host) { h.Addrs = []netip.Addr{addr} })
	s.alive["beta"].Update(func(h *store.Host) { h.MTU = 1500 })
	s.eventually(t, "x", func(rec *store.VNetRecord) bool { return rec.Spec.Links[0].Endpoints[0].MTU == 1458 })
	if rec, err := s.VNet(t.Context(), "y"); err != nil || rec.Generation != local.Record.Generation {
		t.Errorf("a VNet without links between machines: %+v, %v", rec, err)
	}
}

func TestRemovalNeedsEveryHost(t *testing.T) {
	s := newSubstrate(t)
	s.run(t)
	mustAdmit(t, s.p, chain("x", "a@alpha", "b@beta"))
	s.vanish(t, "beta")
	if _, err := s.p.Remove(t.Context(), "x", false); err != nil {
		t.Fatal(err)
	}
	s.report(t, "x", "alpha")
	time.Sleep(50 * time.Millisecond)
	if rec, err := s.VNet(t.Context(), "x"); err != nil || rec.State != store.Removing {
		t.Fatalf("forgotten too early: %+v, %v", rec, err)
	}
	register(t, s.Store, store.Host{Name: "beta"})
	s.report(t, "x", "beta")
	s.eventually(t, "x", func(rec *store.VNetRecord) bool { return rec == nil })
}

// A substrate node that is gone for good is forgotten once nothing is wanted there,
// and with it what waits to be removed.
func TestRemovalDoesNotWaitForAForgottenHost(t *testing.T) {
	s := newSubstrate(t)
	s.run(t)
	mustAdmit(t, s.p, chain("x", "a@alpha", "b@beta"))
	mustAdmit(t, s.p, chain("y", "a@alpha", "b@beta"))
	s.vanish(t, "beta")
	if _, err := s.p.Remove(t.Context(), "x", false); err != nil {
		t.Fatal(err)
	}
	s.report(t, "x", "alpha")
	if err := s.ForgetHost(t.Context(), "beta"); err == nil || !strings.Contains(err.Error(), "y has a part there") {
		t.Fatalf("forget a host that a network wants: %v", err)
	}
	mustAdmit(t, s.p, chain("y", "a@alpha"))
	if err := s.ForgetHost(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	s.eventually(t, "x", func(rec *store.VNetRecord) bool { return rec == nil })
	s.eventually(t, "y", func(rec *store.VNetRecord) bool { return rec != nil && slices.Equal(rec.Hosts, []string{"alpha"}) })
	if _, err := s.Plan(t.Context(), "beta", "y"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the plan of a forgotten host: %v", err)
	}
}

// A host that was forgotten while no provider ran is noticed by the next.
func TestProviderFindsForgottenHosts(t *testing.T) {
	s := newSubstrate(t)
	mustAdmit(t, s.p, chain("x", "a@beta"))
	s.vanish(t, "beta")
	if _, err := s.p.Remove(t.Context(), "x", false); err != nil {
		t.Fatal(err)
	}
	if err := s.ForgetHost(t.Context(), "beta"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.VNet(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	s.run(t)
	s.eventually(t, "x", func(rec *store.VNetRecord) bool { return rec == nil })
}

// TestProvidersSideBySide has three providers admit, change and remove at once.
func TestProvidersSideBySide(t *testing.T) {
	s := newSubstrate(t)
	providers := []*Provider{s.p, another(t, s.Store), another(t, s.Store)}
	var g sync.WaitGroup
	for i := range 30 {
		g.Go(func() {
			v := chain(fmt.Sprintf("x%d", i%10), "a@alpha", "b@beta", "c@gamma")
			v.Nodes[0].Memory = int64(100+i) << 20
			if _, err := providers[i%3].Admit(t.Context(), v, Admission{}); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	g.Wait()
	records, err := s.VNets(t.Context())
	if err != nil || len(records) != 10 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	ids, keys := map[uint32]string{}, map[uint32]string{}
	for _, rec := range records {
		if other, ok := ids[rec.IDBase]; ok {
			t.Errorf("%s and %s share ids from %d", rec.Name(), other, rec.IDBase)
		}
		ids[rec.IDBase] = rec.Name()
		for span, k := range rec.Keys {
			if other, ok := keys[k]; ok {
				t.Errorf("%s %s and %s share the key %d", rec.Name(), span, other, k)
			}
			keys[k] = rec.Name() + " " + span
		}
		for _, host := range rec.Hosts {
			p, err := s.Plan(t.Context(), host, rec.Name())
			if err != nil || p.Generation != rec.Generation {
				t.Errorf("plan of %s for %s: %+v, %v; record generation %d", rec.Name(), host, p, err, rec.Generation)
			}
		}
	}
	if len(keys) != 20 {
		t.Errorf("%d keys", len(keys))
	}
}

// TestRecordsOfOneMachineGoOn takes over a record of before there was placement.
func TestRecordsOfOneMachineGoOn(t *testing.T) {
	s := newSubstrate(t)
	first := mustAdmit(t, s.p, chain("x", "a@gamma", "b@gamma"))
	old := *first.Record
	old.Placement = nil
	if err := s.Put(t.Context(), &old, first.Plans); err != nil {
		t.Fatal(err)
	}
	down := true
	g, _, err := s.p.SetLink(t.Context(), "x", "a-b", LinkChange{Down: &down}, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantPlacement(t, g.Record, map[string]string{"a": "gamma", "b": "gamma"})
	wantPlacement(t, mustAdmit(t, s.p, chain("x", "a", "b")).Record, map[string]string{"a": "gamma", "b": "gamma"})
}

// What must be done is done once the store is back, or has room.
func TestProviderWaitsForTheStore(t *testing.T) {
	p, _ := newProvider(t)
	for _, fault := range []error{store.ErrUnavailable, store.ErrNoSpace, store.ErrConflict} {
		tries := 0
		err := p.retryAway(t.Context(), func() error {
			if tries++; tries == 1 {
				return fmt.Errorf("forget VNet x: %w", fault)
			}
			return store.ErrNotFound
		})
		if tries != 2 || !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%v: %d tries, %v", fault, tries, err)
		}
	}
	for _, fault := range []error{Refused{errors.New("no room")}, errors.New("value is damaged"), context.Canceled} {
		tries := 0
		err := p.retryAway(t.Context(), func() error { tries++; return fmt.Errorf("plan VNet x: %w", fault) })
		if tries != 1 || !errors.Is(err, fault) {
			t.Errorf("%v: %d tries, %v", fault, tries, err)
		}
	}
}
