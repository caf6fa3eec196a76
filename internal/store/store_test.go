package store

import (
	"bufio"
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"trellis/internal/plan"
	"trellis/internal/vnet"
)

// open opens a store and closes it with the test.
func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// record drafts a VNet with so many nodes, and its plan for host h.
func record(name string, nodes int, generation int64, base uint32) (*VNetRecord, map[string]*plan.Plan) {
	v := &vnet.VNet{Name: name}
	p := &plan.Plan{VNet: name, Generation: generation, IDBase: base}
	for i := range nodes {
		n := fmt.Sprintf("n%d", i)
		v.Nodes = append(v.Nodes, vnet.Node{Name: n, Loopbacks: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}})
		p.Nodes = append(p.Nodes, plan.Node{Name: n})
	}
	return &VNetRecord{Spec: v, State: Present, Generation: generation, IDBase: base, Created: time.Now().UTC()},
		map[string]*plan.Plan{"h": p}
}

func mustPut(t testing.TB, s *Store, rec *VNetRecord, plans map[string]*plan.Plan) {
	t.Helper()
	if err := s.Put(t.Context(), rec, plans); err != nil {
		t.Fatal(err)
	}
}

func TestRecordSurvivesRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	s, err := Open(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	want, plans := record("a", 20, 7, 65536)
	mustPut(t, s, want, plans)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir)
	got, err := s.VNet(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, wrote %+v", got, want)
	}
	p, err := s.Plan(t.Context(), "h", "a")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(p, plans["h"]) {
		t.Errorf("read plan %+v, wrote %+v", p, plans["h"])
	}
	got.Generation++ // what was read before the restart can be written after it
	mustPut(t, s, got, plans)
}

func TestPutOfStaleRecordConflicts(t *testing.T) {
	s := open(t, t.TempDir())
	rec, plans := record("a", 1, 1, 65536)
	mustPut(t, s, rec, plans)
	stale, err := s.VNet(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	rec.Generation = 2
	mustPut(t, s, rec, plans)
	stale.Generation = 3
	if err := s.Put(t.Context(), stale, plans); !errors.Is(err, ErrConflict) {
		t.Errorf("put of a stale record: %v, want a conflict", err)
	}
	if err := s.Forget(t.Context(), stale); !errors.Is(err, ErrConflict) {
		t.Errorf("forget of a stale record: %v, want a conflict", err)
	}
	again, plans := record("a", 1, 9, 65536*2)
	if err := s.Put(t.Context(), again, plans); !errors.Is(err, ErrConflict) {
		t.Errorf("put of a second new record: %v, want a conflict", err)
	}
	if got, err := s.VNet(t.Context(), "a"); err != nil || got.Generation != 2 {
		t.Errorf("record after conflicts: %+v, %v; want generation 2", got, err)
	}
}

func TestIDRangeHasOneOwner(t *testing.T) {
	s := open(t, t.TempDir())
	a, plans := record("a", 1, 1, 65536)
	mustPut(t, s, a, plans)
	b, plans := record("b", 1, 1, 65536)
	if err := s.Put(t.Context(), b, plans); !errors.Is(err, ErrConflict) {
		t.Fatalf("second owner of an id range: %v, want a conflict", err)
	}
	if _, err := s.VNet(t.Context(), "b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the refused VNet is in the store: %v", err)
	}
	if err := s.Forget(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, b, plans)
	if owners, err := s.IDRanges(t.Context()); err != nil || !reflect.DeepEqual(owners, map[uint32]string{65536: "b"}) {
		t.Errorf("owners are %v, %v", owners, err)
	}
}

func TestForgetLeavesNothing(t *testing.T) {
	s := open(t, t.TempDir())
	rec, plans := record("a", 1, 1, 65536)
	plans["other"] = plans["h"]
	mustPut(t, s, rec, plans)
	other, plans := record("ab", 1, 1, 65536*2) // a name that begins with the other's
	mustPut(t, s, other, plans)
	for _, name := range []string{"a", "ab"} {
		if err := s.PutStatus(t.Context(), "h", name, &Status{Generation: 1, Phase: PhaseRemoved}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Forget(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	r, err := s.client.Get(t.Context(), "\x00", clientv3FromKey())
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, kv := range r.Kvs {
		keys = append(keys, string(kv.Key))
	}
	want := []string{idsKey(65536 * 2), planKey("h", "ab"), protocolKey, statusKey("ab", "h"), summaryKey("ab"), vnetKey("ab")}
	if !reflect.DeepEqual(keys, want) {
		t.Errorf("keys after forgetting: %q, want %q", keys, want)
	}
}

func TestPutTakesAHostOff(t *testing.T) {
	s := open(t, t.TempDir())
	rec, plans := record("a", 2, 1, 65536)
	plans["g"] = &plan.Plan{VNet: "a", Generation: 1}
	mustPut(t, s, rec, plans)
	for _, host := range []string{"g", "h"} {
		if err := s.PutStatus(t.Context(), host, "a", &Status{Generation: 1, Phase: PhaseCreated}); err != nil {
			t.Fatal(err)
		}
	}
	mustPut(t, s, rec, map[string]*plan.Plan{"g": nil})
	if _, err := s.Plan(t.Context(), "g", "a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the plan of a host that is off: %v", err)
	}
	if statuses, err := s.Statuses(t.Context(), "a"); err != nil || statuses["g"] != nil || statuses["h"] == nil {
		t.Errorf("statuses %v, %v", statuses, err)
	}
	if now, err := s.VNet(t.Context(), "a"); err != nil || !slices.Equal(now.Hosts, []string{"h"}) {
		t.Errorf("record %+v, %v", now, err)
	}
}

func TestStatusNeedsPlan(t *testing.T) {
	s := open(t, t.TempDir())
	if err := s.PutStatus(t.Context(), "h", "a", &Status{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("status without plan: %v, want not found", err)
	}
	rec, plans := record("a", 1, 1, 0)
	mustPut(t, s, rec, plans)
	want := &Status{Generation: 1, Phase: PhaseCreated, Nodes: map[string]NodeState{}, CreatedAt: time.Now().UTC(),
		Missing: []Missing{{Node: "n0", Prefixes: []string{"10.0.0.1/32"}, Count: 3}}, MissingNodes: 1}
	for i := range 300 { // large enough to be compressed
		want.Nodes[fmt.Sprintf("n%d", i)] = NodeState{State: NodeRunning, Pid: i}
	}
	if err := s.PutStatus(t.Context(), "h", "a", want); err != nil {
		t.Fatal(err)
	}
	got, err := s.Statuses(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, map[string]*Status{"h": want}) {
		t.Errorf("read %+v, wrote %+v", got["h"], want)
	}
}

func TestRevisionOutgrowsGenerations(t *testing.T) {
	s := open(t, t.TempDir())
	rec, plans := record("a", 1, 1, 0)
	mustPut(t, s, rec, plans)
	rec.Generation++
	mustPut(t, s, rec, plans)
	if err := s.Forget(t.Context(), rec); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Revision(t.Context()); err != nil || r <= rec.Generation {
		t.Errorf("revision %d, %v; want more than generation %d", r, err, rec.Generation)
	}
}

// TestKillLosesNothingAcknowledged kills writers at any moment.
func TestKillLosesNothingAcknowledged(t *testing.T) {
	if dir := os.Getenv("TRELLIS_TEST_WRITER"); dir != "" {
		s, err := Open(t.Context(), Options{Dir: dir})
		if err != nil {
			fmt.Println("error", err)
			return
		}
		for i := 0; ; i++ {
			rec, plans := record(fmt.Sprintf("a%d-%d", os.Getpid(), i), 30, 1, 0)
			if err := s.Put(t.Context(), rec, plans); err != nil {
				fmt.Println("error", err)
				return
			}
			fmt.Println("wrote", rec.Name())
		}
	}
	dir := t.TempDir()
	var countWritten []string
	for i := range 6 {
		if i%2 == 0 { // amid the start, too
			countWritten = append(countWritten, killWriter(t, dir, time.Duration(20+30*i)*time.Millisecond, false)...)
		} else {
			countWritten = append(countWritten, killWriter(t, dir, 100*time.Millisecond, true)...)
		}
	}
	s := open(t, dir)
	records, err := s.VNets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, r := range records {
		have[r.Name()] = true
	}
	for _, name := range countWritten {
		if !have[name] {
			t.Errorf("%s was acknowledged and is lost", name)
		}
	}
	if len(countWritten) == 0 || len(records) > len(countWritten)+6 {
		t.Errorf("%d records after %d acknowledged writes", len(records), len(countWritten))
	}
	t.Logf("%d writes by 6 killed processes", len(countWritten))
}

func TestKillAmidFirstStart(t *testing.T) {
	for i := range 10 {
		dir := t.TempDir()
		killWriter(t, dir, time.Duration(10+8*i)*time.Millisecond, false)
		open(t, dir)
	}
}

// killWriter has another process write to the store, kills it so long after its start,
// or after its first write, and tells what was written.
func killWriter(t *testing.T, dir string, after time.Duration, first bool) (countWritten []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKillLosesNothingAcknowledged$")
	cmd.Env = append(os.Environ(), "TRELLIS_TEST_WRITER="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := func() { time.AfterFunc(after, func() { cmd.Process.Kill() }) }
	if !first {
		kill()
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "wrote "); ok {
			if first && len(countWritten) == 0 {
				kill()
			}
			countWritten = append(countWritten, name)
		} else if strings.HasPrefix(lines.Text(), "error") {
			t.Error(lines.Text())
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the writer was not killed")
	}
	return countWritten
}

func TestNoPortIsOpened(t *testing.T) {
	before := sockets(t)
	s := open(t, t.TempDir())
	rec, plans := record("a", 1, 1, 0)
	mustPut(t, s, rec, plans)
	for inode := range sockets(t) {
		if !before[inode] {
			t.Errorf("the store has opened socket %s", inode)
		}
	}
}

// sockets lists the sockets of this process.
func sockets(t *testing.T) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			all[to] = true
		}
	}
	return all
}

// TestStoreDoesNotGrow rewrites one VNet many times.
func TestStoreDoesNotGrow(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	rec, plans := record("a", 2, 1, 0)
	rec.Spec.Nodes[0].Files = []vnet.File{{Path: "/x", Content: noise(2 << 20)}}
	for i := range 60 { // 2.7 MiB each in base64, 160 in all
		rec.Generation++
		if i%20 == 0 {
			rec.Spec.Nodes[0].Files[0].Content = noise(2<<20 + i)
		}
		mustPut(t, s, rec, plans)
	}
	// The log is cut by etcd every half minute; the tree must reuse its pages.
	tree, err := os.Stat(filepath.Join(dir, memberDir, "snap", "db"))
	if err != nil {
		t.Fatal(err)
	}
	if limit := int64(96 << 20); tree.Size() > limit {
		t.Errorf("the tree has grown to %d MiB after 160 MiB of writes, want at most %d", tree.Size()>>20, limit>>20)
	}
	t.Logf("%d MiB on disk", tree.Size()>>20)
}

// noise does not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	x := uint64(n)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}

func BenchmarkStart(b *testing.B) {
	for _, what := range []string{"new", "existing"} {
		b.Run(what, func(b *testing.B) {
			dir := b.TempDir()
			for i := 0; b.Loop(); i++ {
				d := dir
				if what == "new" {
					d = filepath.Join(dir, strconv.Itoa(i))
				}
				s, err := Open(b.Context(), Options{Dir: d})
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What is not stored in the end leaves chunks that the next start removes, and none
// that are in use.
func TestChunksOfNothingAreRemoved(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, Options{Dir: dir})
	rec, plans := record("a", 3, 1, 65536)
	plans["h"].Hosts = noise(3 << 20)
	mustPut(t, s, rec, plans)
	used := chunkKeys(t, s)
	for _, key := range []string{planKey("h", "a"), planKey("h", "b"), vnetKey("a")} {
		written, err := s.spill(t.Context(), "test", []entry{{key, noise(2 << 20)}}, 1)
		if err != nil || len(written) != 1 {
			t.Fatalf("%d written, %v", len(written), err)
		}
	}
	if n := len(chunkKeys(t, s)); n <= len(used) {
		t.Fatalf("%d chunks", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, Options{Dir: dir})
	if left := chunkKeys(t, s); !slices.Equal(left, used) {
		t.Errorf("chunks after a start: %q, want %q", left, used)
	}
	if p, err := s.Plan(t.Context(), "h", "a"); err != nil || len(p.Hosts) != 3<<20 {
		t.Errorf("the plan in use: %v", err)
	}
}

// A store of protocol 1 is read and brought up to date, and one of a later protocol
// refused.
func TestStoresOfOtherProtocols(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, Options{Dir: dir})
	rec, plans := record("old", 300, 1, 65536)
	mustPut(t, s, rec, plans)
	for key, v := range map[string]any{vnetKey("old"): rec, planKey("h", "old"): plans["h"]} {
		if _, err := s.client.Put(t.Context(), key, string(deflated(t, v))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.client.Delete(t.Context(), summaryKey("old")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.Put(t.Context(), protocolKey, "1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, Options{Dir: dir})
	all, err := s.Summaries(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "old" || all[0].Nodes != 300 || all[0].State != Present {
		t.Errorf("summaries %+v, %v", all, err)
	}
	if p, err := s.Plan(t.Context(), "h", "old"); err != nil || len(p.Nodes) != 300 {
		t.Errorf("plan of protocol 1: %v", err)
	}
	if got, err := s.client.Get(t.Context(), protocolKey); err != nil || string(got.Kvs[0].Value) != fmt.Sprint(Protocol) {
		t.Errorf("protocol after the upgrade: %v, %v", got, err)
	}
	if _, err := s.client.Put(t.Context(), protocolKey, fmt.Sprint(Protocol+1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), Options{Dir: dir, Log: quietly})
	wantSentence(t, err, "was written by a newer trellis", "run the newer version")
}

// deflated encodes a value as protocol 1 did.
func deflated(t *testing.T, v any) []byte {
	t.Helper()
	plain, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	b.WriteByte(deflateJSON)
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A plan is not stored that was made of hosts as they are no more.
func TestPutNeedsHostsAsTheyWereRead(t *testing.T) {
	s := open(t, t.TempDir())
	r := mustRegister(t, s, host("alpha", "1"))
	hosts, err := s.Hosts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rec, plans := record("a", 1, 1, 65536)
	r.Update(func(h *Host) { h.MTU = 1400 })
	if err := r.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), rec, plans, hosts["alpha"]); !errors.Is(err, ErrConflict) {
		t.Errorf("put by a host that has changed: %v", err)
	}
	if hosts, err = s.Hosts(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), rec, plans, hosts["alpha"]); err != nil {
		t.Error(err)
	}
}
