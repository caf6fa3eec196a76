package pip

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"trellis/internal/plan"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

func newProvider(t *testing.T) (*Provider, *store.Store) {
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
	register(t, s, store.Host{Name: "h"})
	return another(t, s), s
}

// another makes a provider for a store.
func another(t *testing.T, s *store.Store) *Provider {
	t.Helper()
	p, err := New(Options{Store: s, Instance: DefaultInstance, SubIDFiles: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// register makes a substrate node known and alive.
func register(t *testing.T, s *store.Store, h store.Host) *store.Registration {
	t.Helper()
	if h.Memory == 0 {
		h.Memory, h.CPU = 16<<30, 8
	}
	h.ID, h.Instance, h.Version = "id-"+h.Name, DefaultInstance, "v1"
	r, err := s.Register(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// pair describes two nodes and the link between them.
func pair(name string) *vnet.VNet {
	return &vnet.VNet{
		Name:  name,
		Nodes: []vnet.Node{{Name: "a"}, {Name: "b"}},
		Links: []vnet.Link{{Name: "ab", Type: vnet.PointToPoint, Endpoints: []vnet.Interface{{Node: "a"}, {Node: "b"}}}},
	}
}

func mustAdmit(t *testing.T, p *Provider, v *vnet.VNet) Grant {
	t.Helper()
	g, err := p.Admit(t.Context(), v, Admission{})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestAdmitIsIdempotent(t *testing.T) {
	p, s := newProvider(t)
	first := mustAdmit(t, p, pair("x"))
	if !first.Changed {
		t.Error("the first admission changed nothing")
	}
	again := mustAdmit(t, p, pair("x"))
	if again.Changed || again.Record.Generation != first.Record.Generation {
		t.Errorf("unchanged description: changed %v, generation %d after %d", again.Changed, again.Record.Generation, first.Record.Generation)
	}
	changed := pair("x")
	changed.Nodes[0].Memory = 99 << 20
	third := mustAdmit(t, p, changed)
	if !third.Changed || third.Record.Generation != first.Record.Generation+1 || third.Record.IDBase != first.Record.IDBase {
		t.Errorf("changed description: %+v after %+v", third.Record, first.Record)
	}
	stored, err := s.Plan(t.Context(), "h", "x")
	if err != nil {
		t.Fatal(err)
	}
	if stored.Generation != third.Record.Generation || stored.Nodes[0].Limits.Memory != 99<<20 {
		t.Errorf("stored plan has generation %d, memory %d", stored.Generation, stored.Nodes[0].Limits.Memory)
	}
	renewed, err := p.Admit(t.Context(), changed, Admission{Renew: func(context.Context, *store.VNetRecord) (bool, error) { return true, nil }})
	if err != nil || renewed.Record.Generation != third.Record.Generation+1 {
		t.Errorf("renewed: %+v, %v", renewed.Record, err)
	}
}

func TestRefusalWritesNothing(t *testing.T) {
	p, s := newProvider(t)
	no := errors.New("no netem")
	_, err := p.Admit(t.Context(), pair("x"), Admission{Check: func(context.Context, *plan.Plan) error { return no }})
	var refused Refused
	if !errors.As(err, &refused) || !errors.Is(err, no) {
		t.Errorf("error %v", err)
	}
	bad := pair("y")
	bad.Links[0].Endpoints[1].Node = "nobody"
	var rules vnet.Errors
	if _, err := p.Admit(t.Context(), bad, Admission{}); !errors.As(err, &rules) {
		t.Errorf("a dangling endpoint: %v", err)
	}
	if records, err := s.VNets(t.Context()); err != nil || len(records) != 0 {
		t.Errorf("%d records, %v", len(records), err)
	}
	if len(p.ids.reserved) != 0 {
		t.Errorf("id ranges are still held: %v", p.ids.reserved)
	}
}

// A node that asks for a machine that is not there is refused; one that asks
// for this machine is not.
func TestPlacementElsewhereIsRefused(t *testing.T) {
	p, st := newProvider(t)
	v := pair("x")
	v.Nodes[0].On = "elsewhere"
	if _, err := p.Admit(t.Context(), v, Admission{}); err == nil || !strings.Contains(err.Error(), `"elsewhere"`) {
		t.Errorf("a node on another machine: %v", err)
	}
	if records, err := st.VNets(t.Context()); err != nil || len(records) != 0 {
		t.Errorf("%d records, %v", len(records), err)
	}
	v.Nodes[0].On = "h"
	mustAdmit(t, p, v)
}

func TestConcurrentAdmissions(t *testing.T) {
	p, s := newProvider(t)
	var g sync.WaitGroup
	for i := range 40 { // four requests for each of ten names, three of them alike
		g.Go(func() {
			v := pair(fmt.Sprintf("x%d", i%10))
			if i >= 30 {
				v.Nodes[0].Memory = 99 << 20
			}
			if _, err := p.Admit(t.Context(), v, Admission{}); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	g.Wait()
	records, err := s.VNets(t.Context())
	if err != nil || len(records) != 10 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	seen := map[uint32]string{}
	for _, r := range records {
		if other, ok := seen[r.IDBase]; ok {
			t.Errorf("%s and %s share ids from %d", r.Name(), other, r.IDBase)
		}
		seen[r.IDBase] = r.Name()
		pl, err := s.Plan(t.Context(), "h", r.Name())
		if err != nil || pl.Generation != r.Generation || pl.IDBase != r.IDBase {
			t.Errorf("plan of %s: %+v, %v; record generation %d", r.Name(), pl, err, r.Generation)
		}
	}
}

func TestRemoveThenForget(t *testing.T) {
	p, s := newProvider(t)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error)
	go func() { ran <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	first := mustAdmit(t, p, pair("x"))
	if _, err := p.Remove(ctx, "nobody", false); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("remove of an unknown VNet: %v", err)
	}
	rec, err := p.Remove(ctx, "x", false)
	if err != nil {
		t.Fatal(err)
	}
	if pl, err := s.Plan(ctx, "h", "x"); err != nil || !pl.Empty() || pl.Generation != rec.Generation || pl.Group != first.Plans["h"].Group {
		t.Errorf("plan after remove: %+v, %v", pl, err)
	}
	again, err := p.Remove(ctx, "x", false)
	if err != nil || again.Generation != rec.Generation {
		t.Errorf("second remove: %+v, %v", again, err)
	}
	// A report on an older generation does not count.
	for _, generation := range []int64{rec.Generation - 1, rec.Generation} {
		if _, err := s.VNet(ctx, "x"); err != nil {
			t.Fatalf("forgotten too early: %v", err)
		}
		if err := s.PutStatus(ctx, "h", "x", &store.Status{Generation: generation, Phase: store.PhaseRemoved}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	deadline := time.Now().Add(5 * time.Second)
	for _, err = s.VNet(ctx, "x"); !errors.Is(err, store.ErrNotFound); _, err = s.VNet(ctx, "x") {
		if time.Now().After(deadline) {
			t.Fatalf("not forgotten: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	anew := mustAdmit(t, p, pair("x"))
	if anew.Record.Generation <= rec.Generation || anew.Record.IDBase != first.Record.IDBase {
		t.Errorf("admitted anew as %+v, after generation %d and ids from %d", anew.Record, rec.Generation, first.Record.IDBase)
	}
}

func TestUpDuringRemoval(t *testing.T) {
	p, s := newProvider(t)
	mustAdmit(t, p, pair("x"))
	rec, err := p.Remove(t.Context(), "x", false)
	if err != nil {
		t.Fatal(err)
	}
	g := mustAdmit(t, p, pair("x"))
	if !g.Changed || g.Record.State != store.Present || g.Record.Generation != rec.Generation+1 {
		t.Errorf("up during removal gave %+v", g.Record)
	}
	if err := s.PutStatus(t.Context(), "h", "x", &store.Status{Generation: rec.Generation, Phase: store.PhaseRemoved}); err != nil {
		t.Fatal(err)
	}
	if err := p.removed(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.VNet(t.Context(), "x"); err != nil {
		t.Errorf("brought up again, and forgotten: %v", err)
	}
}

func TestSetLinkLastsUntilAdmit(t *testing.T) {
	p, _ := newProvider(t)
	first := mustAdmit(t, p, pair("x"))
	rate, down := uint64(1e6), true
	g, l, err := p.SetLink(t.Context(), "x", "ab", LinkChange{Rate: &rate, Down: &down}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l.Endpoints[0].Tx.Rate != rate || l.Endpoints[1].Tx.Rate != rate || !l.Down || g.Record.Generation != first.Record.Generation+1 {
		t.Errorf("link %+v in generation %d", l, g.Record.Generation)
	}
	if port := g.Plans["h"].Nodes[0].Ports[0]; !port.Down || port.Egress.Rate != rate {
		t.Errorf("port in the plan: %+v", port)
	}
	if back := mustAdmit(t, p, pair("x")); !back.Changed || back.Record.Spec.Links[0].Down {
		t.Errorf("admitted after the change: %+v", back.Record.Spec.Links[0])
	}
	loss := 2.0
	if _, _, err := p.SetLink(t.Context(), "x", "ab", LinkChange{Loss: &loss}, nil); err == nil {
		t.Error("a loss of 2 was accepted")
	}
	if _, _, err := p.SetLink(t.Context(), "x", "nolink", LinkChange{Down: &down}, nil); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("unknown link: %v", err)
	}
}

// The cables of a LAN's ends are pulled and plugged one by one, or together.
func TestEndsOfALANArePulled(t *testing.T) {
	down, up := true, false
	l := &vnet.Link{Name: "seg", Type: vnet.LAN, Endpoints: []vnet.Interface{{Node: "a", Name: "eth1"}, {Node: "b", Name: "eth1"}, {Node: "b", Name: "eth2"}}}
	for _, c := range []struct {
		node, iface string
		down        *bool
		want        []bool
	}{
		{"a", "", &down, []bool{true, false, false}},
		{"b", "eth2", &down, []bool{true, false, true}},
		{"a", "eth1", &up, []bool{false, false, true}},
		{"", "", &up, []bool{false, false, false}},
		{"", "", &down, []bool{true, true, true}},
		{"b", "eth1", &up, []bool{true, false, true}},
	} {
		if err := (LinkChange{Node: c.node, Interface: c.iface, Down: c.down}).apply(l); err != nil {
			t.Fatal(err)
		}
		if got := carriers(l); !slices.Equal(got, c.want) {
			t.Errorf("%s:%s, down %v: ends are down: %v, want %v", c.node, c.iface, *c.down, got, c.want)
		}
	}
	wire := &vnet.Link{Name: "ab", Type: vnet.PointToPoint, Endpoints: []vnet.Interface{{Node: "a", Name: "eth1"}, {Node: "b", Name: "eth1"}}}
	for _, c := range []struct {
		on          *vnet.Link
		node, iface string
		what        string
	}{
		{l, "c", "", "is not on link seg"}, {l, "b", "", "b:eth1 and b:eth2"}, {l, "a", "eth2", "but a:eth1 is"}, {wire, "a", "", "point-to-point"},
	} {
		if err := (LinkChange{Node: c.node, Interface: c.iface, Down: &down}).apply(c.on); err == nil || !strings.Contains(err.Error(), c.what) {
			t.Errorf("%s:%s of %s: %v, want %q", c.node, c.iface, c.on.Name, err, c.what)
		}
	}
	rate := uint64(1e6)
	if err := (LinkChange{Node: "a", Rate: &rate}).apply(wire); err != nil || wire.Endpoints[0].Tx.Rate != rate || wire.Endpoints[1].Tx.Rate != 0 {
		t.Errorf("a rate of one end: %+v, %v", wire.Endpoints, err)
	}
}

func TestIDRangesAvoidUsers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "subuid")
	// The first range is taken in part, the second by its last id.
	text := fmt.Sprintf("# users\nme:%d:10\n\nyou:%d:1\n", firstID+5, firstID+2*plan.IDsPerVNet-1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ids, err := newIDSpace(0, DefaultInstance, DefaultInstance, []string{file, file + "-absent"})
	if err != nil {
		t.Fatal(err)
	}
	base, err := ids.reserve(map[uint32]string{firstID + 3*plan.IDsPerVNet: "x"})
	if err != nil || base != firstID+2*plan.IDsPerVNet {
		t.Errorf("took %#x, %v", base, err)
	}
	if base, err := ids.reserve(map[uint32]string{firstID + 3*plan.IDsPerVNet: "x"}); err != nil || base != firstID+4*plan.IDsPerVNet {
		t.Errorf("then took %#x, %v", base, err)
	}
	if err := os.WriteFile(file, []byte("me:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ids.reserve(nil); err == nil {
		t.Error("a broken file was accepted")
	}
}

func TestIDRangesRunOut(t *testing.T) {
	ids, err := newIDSpace(lastID+1-2*plan.IDsPerVNet, DefaultInstance, DefaultInstance, nil)
	if err != nil {
		t.Fatal(err)
	}
	owned := map[uint32]string{}
	for b := uint32(firstID); b <= lastID; b += plan.IDsPerVNet {
		owned[b] = "x"
	}
	delete(owned, firstID) // behind the end
	if base, err := ids.reserve(owned); err != nil || base != firstID {
		t.Errorf("took %#x, %v", base, err)
	}
	if _, err := ids.reserve(owned); !errors.Is(err, ErrExhausted) {
		t.Errorf("full: %v", err)
	}
}
