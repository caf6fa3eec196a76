package store

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"trellis/internal/plan"
)

func host(name, id string) Host {
	return Host{
		Name: name, ID: id, Instance: "trellis", Version: "test",
		Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, MTU: 1500, Memory: 1 << 30, CPU: 2,
	}
}

func mustRegister(t *testing.T, s *Store, h Host) *Registration {
	t.Helper()
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

// crash ends a registration as a killed process would.
func (r *Registration) crash() {
	r.end(errRegistrationClosed)
	r.heartbeats.Wait()
}

// eventually waits until the host is in a state that is fine.
func eventually(t *testing.T, s *Store, within time.Duration, name string, fine func(HostState) bool) HostState {
	t.Helper()
	var hosts map[string]HostState
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var err error
		if hosts, err = s.Hosts(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h, ok := hosts[name]; ok && fine(h) {
			return h
		}
	}
	t.Fatalf("host %s after %v: %+v", name, within, hosts[name])
	panic("not reached")
}

func TestSilence(t *testing.T) {
	for since, want := range map[time.Duration]string{
		-time.Second: "0 s", 12 * time.Second: "12 s", 3 * time.Minute: "3 min", 5 * time.Hour: "5 h", 72 * time.Hour: "3 days",
	} {
		h := HostState{Host: Host{Name: "beta"}, Seen: time.Now().Add(-since)}
		if got := h.Silence(); got != "beta has not been heard of for "+want {
			t.Errorf("after %v: %q", since, got)
		}
	}
}

func TestHostComesAndGoes(t *testing.T) {
	s := open(t, t.TempDir())
	watch := s.WatchHosts(t.Context())
	if e := next(t, watch); !e.Synced {
		t.Fatalf("event %+v of no hosts", e)
	}
	r := mustRegister(t, s, host("alpha", "1"))
	for e := next(t, watch); e.Host == nil || !e.Host.Alive; e = next(t, watch) {
		if e.Name != "alpha" || e.Err != nil {
			t.Fatalf("event %+v", e)
		}
	}
	hosts, err := s.Hosts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := hosts["alpha"]
	if !h.Alive || h.MTU != 1500 || h.Protocol != Protocol || len(h.Addrs) != 1 || time.Since(h.Clock) > time.Minute {
		t.Errorf("host %+v", h)
	}
	r.Update(func(h *Host) { h.MTU = 1400 })
	eventually(t, s, 10*time.Second, "alpha", func(h HostState) bool { return h.MTU == 1400 })
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if r.Err() != nil {
		t.Errorf("a closed registration has the error %v", r.Err())
	}
	if hosts, err = s.Hosts(t.Context()); err != nil || hosts["alpha"].Alive || hosts["alpha"].MTU != 1400 {
		t.Errorf("after close: %+v, %v", hosts, err)
	}
	for e := next(t, watch); e.Host == nil || e.Host.Alive; e = next(t, watch) {
	}
}

func TestClaimedHostIsKnownOnceItReports(t *testing.T) {
	s := open(t, t.TempDir())
	h := host("alpha", "1")
	r, err := s.Claim(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // reported by others
	if hosts, err := s.Hosts(t.Context()); err != nil || len(hosts) != 0 {
		t.Errorf("hosts after the claim: %+v, %v", hosts, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := r.Flush(short); err == nil {
		t.Error("nothing was told, and is in the store")
	}
	r.Update(func(h *Host) { h.MTU = 1400 })
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if hosts, err := s.Hosts(t.Context()); err != nil || !hosts["alpha"].Alive || hosts["alpha"].MTU != 1400 {
		t.Errorf("hosts after the update: %+v, %v", hosts, err)
	}
	one, err := s.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := open(t, t.TempDir()).Identity(t.Context())
	if again, err2 := s.Identity(t.Context()); err != nil || err2 != nil || again != one || other == one {
		t.Errorf("identities %q, %q and %q, %v, %v", one, again, other, err, err2)
	}
}

func TestCrashedHostVanishesWithinSeconds(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	mustRegister(t, s, host("witness", "1"))
	r := mustRegister(t, s, host("alpha", "2"))
	time.Sleep(hostTTL + time.Second) // the lease is renewed
	eventually(t, s, 10*time.Second, "alpha", func(h HostState) bool { return h.Alive })
	crashed := time.Now()
	r.crash()
	eventually(t, s, 2*hostTTL, "alpha", func(h HostState) bool { return !h.Alive })
	t.Logf("vanished after %v", time.Since(crashed))
	h := eventually(t, s, 10*time.Second, "alpha", func(h HostState) bool { return h.Seen.After(crashed) })
	if late := h.Seen.Sub(crashed); late > 2*hostTTL {
		t.Errorf("seen to vanish %v after the crash", late)
	}
}

func TestNameOfLiveHostIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	first := mustRegister(t, s, host("alpha", "1"))
	_, err := s.Register(t.Context(), host("alpha", "2"))
	if !errors.Is(err, ErrNameTaken) {
		t.Fatalf("second agent of one name: %v", err)
	}
	wantSentence(t, err, `"alpha"`, "192.0.2.1", "`host:`")
	if first.Err() != nil {
		t.Errorf("the first agent has lost its name: %v", first.Err())
	}
	if h := eventually(t, s, 10*time.Second, "alpha", func(HostState) bool { return true }); h.ID != "1" || !h.Alive {
		t.Errorf("host after the refusal: %+v", h)
	}
	first.crash() // its lease runs out while the other waits
	mustRegister(t, s, host("alpha", "2"))
}

func TestKilledHostTakesItsNameAtOnce(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	first := mustRegister(t, s, host("alpha", "1"))
	first.crash()
	start := time.Now()
	second := mustRegister(t, s, host("alpha", "1"))
	if d := time.Since(start); d >= hostTTL { // when the lease would have run out
		t.Errorf("registered only after %v", d)
	}
	time.Sleep(2 * hostTTL) // the first one's lease runs out meanwhile
	eventually(t, s, 10*time.Second, "alpha", func(h HostState) bool { return h.Alive })
	// A copy that runs at the same time ends the one before.
	mustRegister(t, s, host("alpha", "1"))
	select {
	case <-second.Done():
		wantSentence(t, second.Err(), "another trellis serve", `"alpha"`)
	case <-time.After(5 * time.Second):
		t.Error("two agents have one name")
	}
}

func TestOtherProtocolIsRefused(t *testing.T) {
	s := open(t, t.TempDir())
	mustRegister(t, s, host("beta", "1"))
	speak(t, s, "beta", Protocol+1, "9.0")
	_, err := s.Register(t.Context(), host("alpha", "2"))
	wantSentence(t, err, fmt.Sprintf("beta (trellis 9.0, protocol %d)", Protocol+1), "same version")
	if hosts, err := s.Hosts(t.Context()); err != nil || len(hosts) != 1 {
		t.Errorf("hosts after the refusal: %+v, %v", hosts, err)
	}
	speak(t, s, "beta", 0, "") // an agent that does not tell: its record counts
	mustRegister(t, s, host("alpha", "2"))
}

// speak has a live agent speak a protocol.
func speak(t *testing.T, s *Store, name string, protocol int, version string) {
	t.Helper()
	entries, err := s.hosts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	as := *entries[name].alive
	as.Protocol, as.Version = protocol, version
	value, err := encode(as)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Put(t.Context(), hostKey(name, fieldAlive), string(value)); err != nil {
		t.Fatal(err)
	}
}

// After an upgrade of all hosts, one that has only claimed its name yet is not
// taken for the older service that its record is of.
func TestClaimedHostSpeaksItsOwnProtocol(t *testing.T) {
	s := open(t, t.TempDir())
	old := mustRegister(t, s, host("beta", "1"))
	old.Update(func(h *Host) { h.Protocol, h.Version = Protocol-1, "0.1" })
	eventually(t, s, 5*time.Second, "beta", func(h HostState) bool { return h.Protocol == Protocol-1 })
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	upgraded, err := s.Claim(t.Context(), host("beta", "1"))
	if err != nil {
		t.Fatal(err)
	}
	defer upgraded.Close()
	mustRegister(t, s, host("alpha", "2"))
}

func TestBadHostNamesAreRefused(t *testing.T) {
	s := open(t, t.TempDir())
	for _, name := range []string{"", "a/b", "a|b", "a b", "-a", "ä", fmt.Sprintf("%064d", 0)} {
		if _, err := s.Register(t.Context(), host(name, "1")); err == nil {
			t.Errorf("a host is called %q", name)
		}
	}
}

func TestForgetHost(t *testing.T) {
	s := open(t, t.TempDir())
	r := mustRegister(t, s, host("h", "1"))
	wantSentence(t, s.ForgetHost(t.Context(), "h"), "lives")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	rec, plans := record("a", 1, 1, 0)
	mustPut(t, s, rec, plans)
	wantSentence(t, s.ForgetHost(t.Context(), "h"), "a has a part there")
	// What is only left to be removed there does not keep it.
	rec.State, rec.Generation = Removing, 2
	mustPut(t, s, rec, map[string]*plan.Plan{"h": {VNet: "a", Generation: 2}})
	watch := s.WatchHosts(t.Context())
	next(t, watch)
	next(t, watch)
	if err := s.ForgetHost(t.Context(), "h"); err != nil {
		t.Fatal(err)
	}
	for e := next(t, watch); e.Host != nil; e = next(t, watch) {
	}
	if hosts, err := s.Hosts(t.Context()); err != nil || len(hosts) != 0 {
		t.Errorf("hosts after forgetting: %+v, %v", hosts, err)
	}
}

func TestDrawnKeysAreUnique(t *testing.T) {
	s := open(t, t.TempDir())
	peek, err := s.PeekKeys(t.Context(), 3)
	if err != nil || len(peek) != 3 {
		t.Fatalf("peeked %v, %v", peek, err)
	}
	results := make(chan []uint32)
	const drawers, each = 8, 50
	for range drawers {
		go func() {
			keys, err := s.DrawKeys(t.Context(), each)
			if err != nil {
				t.Error(err)
			}
			results <- keys
		}()
	}
	seen := map[uint32]bool{}
	for range drawers {
		for _, k := range <-results {
			if k == 0 || seen[k] {
				t.Errorf("key %d was drawn twice, or is none", k)
			}
			seen[k] = true
		}
	}
	if len(seen) != drawers*each {
		t.Errorf("%d keys", len(seen))
	}
	want, err := s.PeekKeys(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.DrawKeys(t.Context(), 2); err != nil || !slices.Equal(got, want) {
		t.Errorf("drawn %v, peeked %v, %v", got, want, err)
	}
}

// TestKeysComeRound draws from a counter at the end of its round: keys that are in use are left
// out from then on.
func TestKeysComeRound(t *testing.T) {
	s := open(t, t.TempDir())
	c := keyCounter{Start: 2, Next: 1<<32 - 2}
	c.begin()
	c.From = c.Start // all were given out in the order
	ahead := c
	order, err := ahead.draw(12, nil)
	if err != nil {
		t.Fatal(err)
	}
	value, err := encode(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Put(t.Context(), nextKeyKey, string(value)); err != nil {
		t.Fatal(err)
	}
	rec, plans := record("a", 1, 1, 0)
	rec.Keys = map[string]uint32{"l1|a|b": order[5], "l2|a|b": order[7]}
	mustPut(t, s, rec, plans)
	for _, want := range [][]uint32{order[:2], order[2:5], {order[6], order[8], order[9]}} {
		got, err := s.DrawKeys(context.Background(), len(want))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("drawn %v, %v, want %v", got, err, want)
		}
	}
}
