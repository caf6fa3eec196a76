package store

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// copyOf takes a copy through a file.
func copyOf(t *testing.T, s *Store) (*Copy, []byte) {
	t.Helper()
	c, err := s.ReadAll(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	if c, err = ReadCopy(bytes.NewReader(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	return c, b.Bytes()
}

func TestCopyAndRestore(t *testing.T) {
	s := open(t, t.TempDir())
	rec, plans := record("a", 3, 1, 65536)
	plans["h"].Hosts = noise(3 << 20) // in chunks
	mustPut(t, s, rec, plans)
	mustRegister(t, s, host("h", "1"))
	if err := s.PutStatus(t.Context(), "h", "a", &Status{Generation: 1, Phase: PhaseConverged}); err != nil {
		t.Fatal(err)
	}
	before, err := s.DrawKeys(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := copyOf(t, s)
	if faults := c.Check(); len(faults) != 0 {
		t.Errorf("faults of a sound store: %q", faults)
	}
	// What comes after the copy was taken.
	after, err := s.DrawKeys(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	late, latePlans := record("late", 1, 1, 131072)
	mustPut(t, s, late, latePlans)
	newest, err := s.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	identity, err := s.Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	dir := filepath.Join(t.TempDir(), "etcd")
	if _, err := Restore(t.Context(), Options{Dir: dir, Log: quietly}, c, false); err != nil {
		t.Fatal(err)
	}
	r := open(t, dir)
	names, err := r.Names(t.Context())
	if err != nil || len(names) != 1 || names[0] != "a" {
		t.Errorf("names %q, %v", names, err)
	}
	if p, err := r.Plan(t.Context(), "h", "a"); err != nil || !bytes.Equal(p.Hosts, plans["h"].Hosts) {
		t.Errorf("plan: %v", err)
	}
	if st, err := r.Statuses(t.Context(), "a"); err != nil || len(st) != 0 {
		t.Errorf("statuses of before: %v, %v", st, err)
	}
	if hosts, err := r.Hosts(t.Context()); err != nil || hosts["h"].Instance != "trellis" || hosts["h"].Alive {
		t.Errorf("hosts %+v, %v", hosts, err)
	}
	// Nothing is given out twice.
	used := map[uint32]bool{}
	for _, k := range append(before, after...) {
		used[k] = true
	}
	again, err := r.DrawKeys(t.Context(), 5000)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range again {
		if used[k] {
			t.Fatalf("EGRE key %d is given out again", k)
		}
	}
	if now, err := r.Revision(t.Context()); err != nil || now <= newest {
		t.Errorf("generations go on from %d, and %d was before: %v", now, newest, err)
	}
	if n, err := r.Restores(t.Context()); err != nil || n != 1 {
		t.Errorf("%d restores, %v", n, err)
	}
	if now, err := r.Identity(t.Context()); err != nil || !RestoredFrom(now, identity) || RestoredFrom(identity, now) {
		t.Errorf("identity %q after %q: %v", now, identity, err)
	}
	// A store that is there is replaced by force alone, and not while it is in use.
	if _, err := Restore(t.Context(), Options{Dir: dir, Log: quietly}, c, false); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("restore over a store: %v", err)
	}
	if _, err := Restore(t.Context(), Options{Dir: dir, Log: quietly}, c, true); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("restore over a store that is in use: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	kept, err := Restore(t.Context(), Options{Dir: dir, Log: quietly}, c, true)
	if err != nil {
		t.Fatal(err)
	}
	if there, err := Exists(kept); err != nil || !there {
		t.Errorf("the store that was there is not in %q: %v", kept, err)
	}
}

func TestRestoreToOthers(t *testing.T) {
	certificate := authority(t)
	at := freePort(t)
	near := mustOpen(t, Options{Dir: t.TempDir(), Listen: at, TLS: certificate("alpha")})
	o := Options{Endpoints: []string{"https://" + at}, TLS: certificate("beta"), Log: quietly}
	rec, plans := record("a", 3, 1, 65536)
	mustPut(t, near, rec, plans)
	c, _ := copyOf(t, near)
	late, latePlans := record("late", 1, 1, 131072)
	mustPut(t, near, late, latePlans)
	if _, err := Restore(t.Context(), o, c, false); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("restore over networks: %v", err)
	}
	r := mustRegister(t, near, host("alpha", "1"))
	if _, err := Restore(t.Context(), o, c, true); err == nil || !strings.Contains(err.Error(), "alpha uses") {
		t.Errorf("restore while a service lives: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	// One that was cut off is of no use to anybody, and is done again.
	if _, err := near.client.Put(t.Context(), protocolKey, restoring); err != nil {
		t.Fatal(err)
	}
	wantSentence(t, near.checkProtocol(t.Context()), "is being restored", "restore --force")
	if _, err := Restore(t.Context(), o, c, true); err != nil {
		t.Fatal(err)
	}
	if err := near.checkProtocol(t.Context()); err != nil {
		t.Error(err)
	}
	if names, err := near.Names(t.Context()); err != nil || len(names) != 1 || names[0] != "a" {
		t.Errorf("names %q, %v", names, err)
	}
}

func TestDamagedCopiesAreRefused(t *testing.T) {
	s := open(t, t.TempDir())
	rec, plans := record("a", 30, 1, 65536)
	mustPut(t, s, rec, plans)
	_, text := copyOf(t, s)
	for n := 0; n < len(text); n += 1 + len(text)/50 {
		if _, err := ReadCopy(bytes.NewReader(text[:n])); err == nil {
			t.Errorf("a copy of %d bytes that is cut off after %d is read", len(text), n)
		}
		wrong := bytes.Clone(text)
		wrong[n] ^= 0x40
		if _, err := ReadCopy(bytes.NewReader(wrong)); err == nil {
			t.Errorf("a copy with a wrong byte %d is read", n)
		}
	}
}

func TestCheckNamesFaults(t *testing.T) {
	s := open(t, t.TempDir())
	for i, name := range []string{"a", "b"} {
		rec, plans := record(name, 3, 1, uint32(i+1)*65536)
		rec.Keys = map[string]uint32{"x": 7}
		plans["h"].Hosts = noise(2 << 20)
		mustPut(t, s, rec, plans)
	}
	if _, err := s.client.Delete(t.Context(), chunkKeys(t, s)[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Put(t.Context(), planKey("h", "gone"), "j{}"); err != nil {
		t.Fatal(err)
	}
	c, _ := copyOf(t, s)
	faults := strings.Join(c.Check(), "\n")
	for _, want := range []string{
		"VNet a: its plan for h cannot be read", "has the EGRE key 7 of a x", "there is a plan of VNet gone for h, and no such VNet",
	} {
		if !strings.Contains(faults, want) {
			t.Errorf("faults do not say %q:\n%s", want, faults)
		}
	}
	if _, err := s.Plan(t.Context(), "h", "a"); err == nil || !strings.Contains(err.Error(), "trellis store check") {
		t.Errorf("read of a plan that lacks a part: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "etcd")
	if _, err := Restore(t.Context(), Options{Dir: dir, Log: quietly}, c, false); err == nil || !strings.Contains(err.Error(), "not sound") {
		t.Errorf("restore of an unsound copy: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused restore leaves %s: %v", dir, err)
	}
}

// The counter of keys goes round, and knows when it has.
func TestSkippedKeys(t *testing.T) {
	for _, c := range []struct {
		counter keyCounter
		round   bool
	}{
		{keyCounter{Start: 100, Next: 100}, false},
		{keyCounter{Start: 100, Next: 5000}, false},
		{keyCounter{Start: 100, Next: 90}, true},
		{keyCounter{Start: skipKeys, Next: 0}, true},
		{keyCounter{Start: skipKeys + 1, Next: 0}, false},
	} {
		next := c.counter.Next
		c.counter.skip(skipKeys)
		if c.counter.Round != c.round || c.counter.Next != next+skipKeys {
			t.Errorf("%+v, want round %v", c.counter, c.round)
		}
	}
}
