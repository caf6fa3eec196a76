package e2e

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"trellis/test/testenv"
)

// ring goes once round three machines: what one link loses goes the other way
// round. Node d makes b a router between machines and inside one.
const ring = `name: ring
routing: {protocol: ospf, timers: fast}
nodes: {a: {on: alpha}, b: {on: beta}, c: {on: gamma}, d: {on: beta}}
links:
  - {name: ab, endpoints: [a, b]}
  - {name: bc, endpoints: [b, c]}
  - {name: ca, endpoints: [c, a], cost: 100}
  - {name: bd, endpoints: [b, d]}
`

// statistics are what the tests use of the counters in `trellis show`.
type statistics struct {
	Links []struct {
		Name string
		Ends []struct {
			Node                         string
			RxPackets, TxPackets         uint64
			RxFastPackets, TxFastPackets uint64
		}
	}
}

// fast gives how many packets a node has sent by the fast path, and in all.
func (f statistics) fast(node string) (fast, all uint64) {
	for _, l := range f.Links {
		for _, e := range l.Ends {
			if e.Node == node {
				fast, all = fast+e.TxFastPackets, all+e.TxPackets
			}
		}
	}
	return fast, all
}

// TestServicesRestartUnderTrafficAcrossMachines ends the services of all hosts
// in every way, and puts another build in the place of one, while packets flow
// across machines, through a router on the fast path, and into its machine.
func TestServicesRestartUnderTrafficAcrossMachines(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartSandbox(t, testenv.SandboxOptions{})
	file := write(t, "ring.yaml", ring)
	s.Must("up", file)
	before := show(t, s, "ring")
	flows := []*flow{
		startFlow(t, s, "ring", "a", "c"), startFlow(t, s, "ring", "c", "b"), startFlow(t, s, "ring", "d", "a"),
	}
	unchanged := func(t *testing.T) {
		t.Helper()
		eventually(t, 30*time.Second, "every host is alive", func() bool {
			for _, state := range substrate(t, s.Hosts[2]).states() {
				if state != "alive" {
					return false
				}
			}
			return true
		})
		s.Must("up", file)
		if after := show(t, s, "ring"); !maps.Equal(before.pids(), after.pids()) {
			t.Errorf("processes were %v and are %v", before.pids(), after.pids())
		}
	}
	t.Run("kill -9", func(t *testing.T) {
		for range 2 {
			for _, h := range []string{"beta", "gamma", "alpha"} {
				s.Sandbox("kill", h)
				s.Sandbox("start", h)
			}
		}
		unchanged(t)
	})
	t.Run("serve --stop", func(t *testing.T) {
		for _, h := range []string{"beta", "alpha"} {
			s.Host(h).Must("serve", "--stop")
			s.Sandbox("start", h)
		}
		unchanged(t)
	})
	t.Run("another build", func(t *testing.T) {
		other := filepath.Join(t.TempDir(), "trellis")
		build := exec.Command("go", "build", "-ldflags", "-X trellis/internal/cli.Version=other", "-o", other, "trellis/cmd/trellis")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		testenv.Run(t, build)
		for range 2 {
			s.Host("beta").Must("serve", "--stop")
			start := exec.Command(other, "sandbox", "start", "beta")
			start.Env = append(os.Environ(), "TRELLIS_RUN_DIR="+s.RunDir, "TRELLIS_STATE_DIR="+s.StateDir)
			testenv.Run(t, start)
			unchanged(t)
			s.Host("beta").Must("serve", "--stop")
			s.Sandbox("start", "beta")
		}
		unchanged(t)
	})
	for _, f := range flows {
		f.mustNotHaveLost(t)
		if f.sent < 1000 {
			t.Errorf("%d packets were sent: the test shows little", f.sent)
		}
	}
	if fast, all := decode[statistics](t, s.Must("show", "ring", "-o", "json")).fast("b"); fast < flows[0].sent || fast == all {
		t.Errorf("b has sent %d packets by the fast path, of %d; it has forwarded at least %d", fast, all, flows[0].sent)
	}
}

// TestACutIsRoutedAround takes the way between two machines away.
func TestACutIsRoutedAround(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartSandbox(t, testenv.SandboxOptions{})
	s.Must("up", write(t, "ring.yaml", ring))
	s.Sandbox("cut", "alpha", "beta")
	// beta's agent hears of the store no more, and what it has built goes on.
	eventually(t, 60*time.Second, "the nodes reach each other the other way round", func() bool {
		_, _, toB := s.Trellis("exec", "ring/a", "--", "ping", "-c1", "-W1", "b")
		_, _, toD := s.Trellis("exec", "ring/a", "--", "ping", "-c1", "-W1", "d")
		return toB == 0 && toD == 0
	})
	s.Sandbox("heal", "alpha", "beta")
	eventually(t, 60*time.Second, "everything is reachable", func() bool { return reachable(s, "ring") })
}
