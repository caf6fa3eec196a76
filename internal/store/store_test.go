package store

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
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

// record is a record of a VNet with so many nodes, and its plan.
func record(name string, nodes int, generation int64, base uint32) (*VNetRecord, map[string]*plan.Plan) {
	v := &vnet.VNet{Name: name}
	p := &plan.Plan{VNet: name, Generation: generation, IDBase: base}
	for i := range nodes {
		n := fmt.Sprintf("n%d", i)
		v.Nodes = append(v.Nodes, vnet.Node{Name: n, Loopbacks: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}})
		p.Nodes = append(p.Nodes, plan.Node{Name: n})
	}
	return &VNetRecord{Spec: v, State: Present, Generation: generation, IDBase: base, Created: time.Now()},
		map[string]*plan.Plan{"h": p}
}

func TestStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	for _, what := range []string{"new", "existing", "existing"} {
		start := time.Now()
		s, err := Open(t.Context(), Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: ready after %v", what, time.Since(start))
		rec, plans := record("a", 10, 1, 0)
		rec.Spec.Name = fmt.Sprintf("a%d", time.Now().UnixNano()%10000)
		start = time.Now()
		if err := s.Put(t.Context(), rec, plans); err != nil {
			t.Error(err)
		}
		t.Logf("%s: put in %v", what, time.Since(start))
		start = time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		t.Logf("%s: closed after %v", what, time.Since(start))
	}
}

var _ = errors.Is
var _ = strings.Contains
var _ context.Context
