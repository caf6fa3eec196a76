package e2e

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// triangle can lose any one link and stay connected.
const triangle = `name: tri
routing: {protocol: ospf, timers: fast}
nodes: {a: {}, b: {}, c: {}}
links:
  - {name: ab, endpoints: [a, b]}
  - {name: bc, endpoints: [b, c]}
  - {name: ca, endpoints: [c, a]}
`

func TestALifeOfANetwork(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "tri.yaml", triangle)

	type upResult struct {
		VNet         string
		Nodes, Links int
		Seconds      struct{ Created, Converged float64 }
	}
	up := decode[upResult](t, s.Must("up", file, "-o", "json"))
	if up.VNet != "tri" || up.Nodes != 3 || up.Links != 3 || up.Seconds.Created <= 0 || up.Seconds.Converged < up.Seconds.Created {
		t.Errorf("up says %+v", up)
	}

	// Converged means that everything is reachable now, at the first attempt.
	if p := decode[ping](t, s.Must("ping", "tri", "-o", "json")); p.Pairs != 12 || p.Reachable != 12 || len(p.Failed) != 0 {
		t.Errorf("ping says %+v", p)
	}
	before := decode[shown](t, s.Must("show", "tri", "-o", "json"))
	if before.State != "running" || len(before.Nodes) != 3 || len(before.Links) != 3 {
		t.Errorf("show says %+v", before)
	}

	t.Run("exec", func(t *testing.T) {
		out := s.Must("exec", "tri/a", "--", "cat", "/proc/sys/kernel/hostname")
		if strings.TrimSpace(out) != "a" {
			t.Errorf("the host name in node a is %q", out)
		}
		if _, _, code := s.Trellis("exec", "tri/a", "--", "sh", "-c", "exit 7"); code != 7 {
			t.Errorf("a command that exits with 7 gives %d", code)
		}
		if _, stderr, code := s.Trellis("exec", "tri/nobody", "--", "true"); code != 1 || !strings.Contains(stderr, "nobody") {
			t.Errorf("exec in a node that is not there: exit status %d, %s", code, stderr)
		}
	})

	t.Run("up again changes nothing", func(t *testing.T) {
		s.Must("up", file)
		after := decode[shown](t, s.Must("show", "tri", "-o", "json"))
		if !reflect.DeepEqual(before, after) {
			t.Errorf("before %+v\nafter  %+v", before, after)
		}
	})

	t.Run("link down and up", func(t *testing.T) {
		s.Must("link", "set", "tri", "ab", "--down")
		for _, node := range []string{"tri/a", "tri/b"} {
			if out := s.Must("exec", node, "--", "ip", "link", "show", "dev", "eth1"); !strings.Contains(out, "NO-CARRIER") {
				t.Errorf("%s has carrier after its link was pulled: %s", node, out)
			}
		}
		allReachable := func() bool {
			_, _, code := s.Trellis("ping", "tri")
			return code == 0
		}
		eventually(t, 20*time.Second, "everything is reachable the other way round", allReachable)
		s.Must("link", "set", "tri", "ab", "--up")
		eventually(t, 20*time.Second, "node a hears from b again", func() bool {
			return !strings.Contains(s.Must("exec", "tri/a", "--", "ip", "link", "show", "dev", "eth1"), "NO-CARRIER") && allReachable()
		})
	})

	t.Run("a restart of the service disturbs nothing", func(t *testing.T) {
		s.Restart()
		s.Kill9()
		s.Restart()
		s.Must("up", file)
		after := decode[shown](t, s.Must("show", "tri", "-o", "json"))
		if !reflect.DeepEqual(before.Nodes, after.Nodes) {
			t.Errorf("before %+v\nafter  %+v", before.Nodes, after.Nodes)
		}
	})

	s.Must("down", "tri")
	nothingLeft(t, s)
	if out := s.Must("ls", "-o", "json"); strings.Contains(out, "tri") {
		t.Errorf("ls still lists it: %s", out)
	}
	s.Must("down", "tri") // what is not there is down
}

func TestUpRefusesABadFile(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "bad.yaml", strings.Replace(triangle, "endpoints: [b, c]", "endpoints: [b, d]", 1))
	stdout, stderr, code := s.Trellis("up", file)
	if code != 2 {
		t.Errorf("exit status %d, want 2", code)
	}
	// Line 6 is the one of link bc.
	if !strings.Contains(stderr, file+":6") || !strings.Contains(stderr, `d`) {
		t.Errorf("the message does not name file, line and node: %s%s", stdout, stderr)
	}
	nothingLeft(t, s)
}

func TestDryRunTouchesNothing(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	out := s.Must("up", write(t, "tri.yaml", triangle), "--dry-run")
	for _, what := range []string{"a", "b", "c", "eth1", "eth2"} {
		if !strings.Contains(out, what) {
			t.Errorf("the steps do not name %s:\n%s", what, out)
		}
	}
	nothingLeft(t, s)
}
