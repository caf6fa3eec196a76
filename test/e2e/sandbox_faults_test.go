package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"trellis/internal/agent/reconcile"
	"trellis/test/testenv"
)

// across are the steps that only links across machines need.
var across = []reconcile.Op{reconcile.AddTunnel, reconcile.Receive, reconcile.Connect, reconcile.FastPath}

// The two networks differ in all that a link across machines can be.
const (
	acrossBefore = `name: f
routing: static
nodes:
  a: {on: alpha}
  b: {on: beta}
  c: {on: alpha}
  d: {on: beta, fastpath: off}
links:
  - {name: ab, endpoints: [a, b]}
  - {name: shaped, endpoints: [c, b], rate: 100mbit}
  - {name: gone, endpoints: [a, d]}
  - {name: bd, endpoints: [b, d]}
  - {name: seg, type: lan, endpoints: [a, b, d]}
  - {name: old, type: lan, endpoints: [c, b]}
`
	acrossAfter = `name: f
routing: static
nodes:
  a: {on: alpha}
  b: {on: beta}
  c: {on: alpha}
  d: {on: beta}
links:
  - {name: ab, endpoints: [a, b], rate: 50mbit}
  - {name: shaped, endpoints: [c, b]}
  - {name: new, endpoints: [c, d]}
  - {name: bd, endpoints: [b, d]}
  - {name: seg, type: lan, endpoints: [a, b, c]}
`
)

// TestKilledAtEveryStepAcrossMachines kills the service of one host at each step
// that links across machines need, on the way from nothing to one network, to
// another, and back to nothing. After a restart `up` must converge all the same,
// and `down` must leave nothing.
func TestKilledAtEveryStepAcrossMachines(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t, "makes network namespaces")
	before, after := write(t, "before.yaml", acrossBefore), write(t, "after.yaml", acrossAfter)
	s := testenv.StartSandbox(t, testenv.SandboxOptions{Hosts: []string{"alpha", "beta"}})
	for _, op := range append(across, reconcile.AddHelper, reconcile.RemoveHelper) { // whose ports begin a path, or are in a LAN
		for n := 1; n <= 2; n++ {
			point := fmt.Sprintf("agent.%s:%d", op, n)
			t.Run(point, func(t *testing.T) {
				s.Sandbox("kill", "beta")
				if _, stderr, code := s.TrySandbox([]string{"TRELLIS_FAULT=" + point}, "start", "beta"); code != 0 {
					t.Fatal(stderr)
				}
				reached := false
				for _, args := range [][]string{{"up", before}, {"up", after}, {"down", "f"}} {
					if reached = diesDuring(t, s, "beta", args...); reached {
						break
					}
				}
				if n == 1 && !reached {
					t.Error("no network of this test has such a step")
				}
				s.Sandbox("kill", "beta")
				s.Sandbox("start", "beta")
				eventually(t, 30*time.Second, "the host is alive again", func() bool {
					return substrate(t, s).states()["beta"] == "alive"
				})
				s.Must("up", after, "--timeout", "60s")
				for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}, {"c", "d"}, {"b", "c"}} {
					s.Must("exec", "f/"+pair[0], "--", "ping", "-c1", "-W2", pair[1])
				}
				s.Must("down", "f")
				for _, h := range s.Hosts {
					bare(t, s, h.Name)
					if groups, err := testenv.Cgroups(h.Instance); err != nil || len(groups) > 0 {
						t.Errorf("%s has the cgroups %q, %v", h.Name, groups, err)
					}
				}
			})
		}
	}
}

// diesDuring runs a verb that succeeds, unless the service of a host ends
// meanwhile. It reports whether it does; the verb is not waited for then.
func diesDuring(t *testing.T, s *testenv.Sandbox, host string, args ...string) bool {
	t.Helper()
	pid := s.Host(host).PID
	ended := errors.New("the service ends")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil {
				cancel(ended)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	out, err := s.Hosts[0].Command(ctx, args...).CombinedOutput()
	if context.Cause(ctx) == ended { // its memory has gone first
		eventually(t, 10*time.Second, "the service has ended", func() bool { return s.Host(host).PID == 0 })
	}
	if s.Host(host).PID == 0 {
		return true
	}
	if err != nil {
		t.Fatalf("%v fails and the service lives: %v\n%s", args, err, out)
	}
	return false
}

// onOneMachine are the steps that a network of one machine can have.
func onOneMachine() []reconcile.Op {
	return slices.DeleteFunc(reconcile.Ops(), func(op reconcile.Op) bool { return slices.Contains(across, op) })
}
