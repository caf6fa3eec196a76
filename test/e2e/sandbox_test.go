package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"trellis/test/testenv"
)

// hosts is what the tests use of the JSON of `trellis substrate ls`.
type hosts []struct {
	Name, State string
	Addresses   []string
	MTU, Nodes  int
	Memory      int64
	MemoryUsed  int64
	Message     string
}

// substrate reads `trellis substrate ls`.
func substrate(t *testing.T, c client) hosts {
	t.Helper()
	return decode[hosts](t, c.Must("substrate", "ls", "-o", "json"))
}

// states gives the state of each host.
func (h hosts) states() map[string]string {
	all := map[string]string{}
	for _, v := range h {
		all[v.Name] = v.State
	}
	return all
}

// places gives the host of each node.
func (v shown) places() map[string]string {
	all := map[string]string{}
	for _, n := range v.Nodes {
		all[n.Name] = n.Host
	}
	return all
}

// link gives a link by its name.
func (v shown) link(t *testing.T, name string) shownLink {
	t.Helper()
	for _, l := range v.Links {
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("%s has no link %s", v.Name, name)
	return shownLink{}
}

// reachable reports whether every node of a network reaches every other.
func reachable(c client, network string) bool {
	_, _, code := c.Trellis("ping", network)
	return code == 0
}

// example gives the path of an example.
func example(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "examples", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAbileneOverThreeMachines is the README's next step after the demo, and
// what may happen to a network that spreads.
func TestAbileneOverThreeMachines(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartSandbox(t, testenv.SandboxOptions{})
	s.Must("up", example(t, "abilene.yaml"))
	// Converged means that everything is reachable now, at the first attempt.
	if p := decode[ping](t, s.Must("ping", "abilene", "-o", "json")); p.Pairs != 220 || p.Reachable != 220 {
		t.Errorf("ping says %+v", p)
	}
	before := show(t, s, "abilene")
	if got := slices.Compact(slices.Sorted(maps.Values(before.places()))); !slices.Equal(got, []string{"alpha", "beta", "gamma"}) {
		t.Errorf("the nodes are on %v", got)
	}
	for _, h := range substrate(t, s) {
		if h.State != "alive" || h.Message != "" || h.MTU != 1500 || h.Nodes < 3 || h.Nodes > 4 || h.MemoryUsed != int64(h.Nodes)*256<<20 {
			t.Errorf("substrate ls says %+v", h)
		}
	}

	t.Run("every host answers for all", func(t *testing.T) {
		for _, h := range s.Hosts {
			if v := show(t, h, "abilene"); v.State != "running" || !maps.Equal(v.pids(), before.pids()) {
				t.Errorf("%s says %+v", h.Name, v)
			}
			for _, node := range []string{"seattle", "atlanta", "new-york"} {
				if out := h.Must("exec", "abilene/"+node, "--", "cat", "/proc/sys/kernel/hostname"); strings.TrimSpace(out) != node {
					t.Errorf("%s: the host name in %s is %q", h.Name, node, out)
				}
			}
			if !reachable(h, "abilene") {
				t.Errorf("%s: ping fails", h.Name)
			}
		}
		if _, _, code := s.Hosts[1].Trellis("exec", "abilene/seattle", "--", "sh", "-c", "exit 7"); code != 7 {
			t.Errorf("a command on another host that exits with 7 gives %d", code)
		}
	})

	t.Run("up again changes nothing", func(t *testing.T) {
		for _, h := range s.Hosts {
			if out := h.Must("up", example(t, "abilene.yaml")); !strings.Contains(out, "nothing to change") {
				t.Errorf("%s: up says %s", h.Name, out)
			}
		}
		if after := show(t, s, "abilene"); !maps.Equal(after.pids(), before.pids()) || !maps.Equal(after.places(), before.places()) {
			t.Errorf("before %+v\nafter  %+v", before, after)
		}
	})

	t.Run("an agent vanishes and comes back", func(t *testing.T) {
		// A flow between two nodes of other hosts, and one to a node of the host's own.
		onBeta, elsewhere := pick(t, before, "beta"), pick(t, before, "gamma")
		f := startFlow(t, s, "abilene", elsewhere, onBeta)
		s.Sandbox("kill", "beta")
		eventually(t, 30*time.Second, "the host is shown as vanished", func() bool {
			return substrate(t, s).states()["beta"] == "vanished"
		})
		v := show(t, s, "abilene")
		if !maps.Equal(v.places(), before.places()) {
			t.Errorf("the nodes are placed at %v, and were at %v", v.places(), before.places())
		}
		for _, n := range v.Nodes {
			if n.Host == "beta" && n.State == "running" {
				t.Errorf("node %s is shown as %s, and its host has vanished", n.Name, n.State)
			}
		}
		if _, stderr, code := s.Trellis("exec", "abilene/"+onBeta, "--", "true"); code != 1 || !strings.Contains(stderr, "beta") || strings.Count(stderr, "\n") != 1 {
			t.Errorf("exec on a host that has vanished: exit status %d, %s", code, stderr)
		}
		s.Sandbox("start", "beta")
		eventually(t, 30*time.Second, "the host is alive again", func() bool {
			return substrate(t, s).states()["beta"] == "alive"
		})
		eventually(t, 30*time.Second, "the network is as it was", func() bool {
			v := show(t, s, "abilene")
			return v.State == "running" && maps.Equal(v.pids(), before.pids())
		})
		f.mustNotHaveLost(t)
		if !reachable(s, "abilene") {
			t.Error("ping fails")
		}
	})

	t.Run("a cut parts it", func(t *testing.T) {
		parted := 0 // pairs, of both families, of nodes on this side of the cut and on that
		for _, from := range before.places() {
			for _, to := range before.places() {
				if (from == "gamma") != (to == "gamma") {
					parted += 2
				}
			}
		}
		s.Sandbox("cut", "gamma")
		eventually(t, 60*time.Second, "the two sides do not reach each other", func() bool {
			// The agent of the far side cannot be asked.
			out, _, _ := s.Trellis("ping", "abilene", "-o", "json")
			p := decode[ping](t, out)
			return p.Pairs > 0 && p.Reachable <= p.Pairs-parted/2
		})
		s.Sandbox("heal", "gamma")
		eventually(t, 60*time.Second, "everything is reachable again", func() bool { return reachable(s, "abilene") })
		if after := show(t, s, "abilene"); !maps.Equal(after.pids(), before.pids()) {
			t.Errorf("processes were %v and are %v", before.pids(), after.pids())
		}
	})

	t.Run("the store goes away", func(t *testing.T) {
		f := startFlow(t, s, "abilene", pick(t, before, "beta"), pick(t, before, "gamma"))
		s.Sandbox("kill", "alpha")
		began := time.Now()
		_, stderr, code := s.Hosts[1].Trellis("up", write(t, "more.yaml", strings.ReplaceAll(routed, "routed", "more")))
		if code != 1 || !strings.Contains(stderr, "store") || strings.Count(stderr, "trellis: ") != 1 || time.Since(began) > 20*time.Second {
			t.Errorf("up without a store, after %v: exit status %d, %s", time.Since(began), code, stderr)
		}
		s.Sandbox("start", "alpha")
		eventually(t, 60*time.Second, "changes are taken again", func() bool {
			_, _, code := s.Hosts[1].Trellis("up", example(t, "abilene.yaml"))
			return code == 0
		})
		eventually(t, 30*time.Second, "all hosts are alive", func() bool {
			for _, state := range substrate(t, s.Hosts[2]).states() {
				if state != "alive" {
					return false
				}
			}
			return true
		})
		if after := show(t, s, "abilene"); !maps.Equal(after.pids(), before.pids()) {
			t.Errorf("processes were %v and are %v", before.pids(), after.pids())
		}
		f.mustNotHaveLost(t)
	})

	t.Run("what is made while a host is away is made when it comes back", func(t *testing.T) {
		s.Sandbox("kill", "gamma")
		eventually(t, 30*time.Second, "the host is shown as vanished", func() bool {
			return substrate(t, s).states()["gamma"] == "vanished"
		})
		_, stderr, code := s.Trellis("down", "abilene", "--timeout", "5s")
		if code == 0 || !strings.Contains(stderr, "gamma") {
			t.Errorf("down with a host away: exit status %d, %s", code, stderr)
		}
		s.Sandbox("start", "gamma")
		s.Must("down", "abilene")
	})
	for _, h := range s.Hosts {
		bare(t, s, h.Name)
	}
}

// pick gives a node on a host.
func pick(t *testing.T, v shown, host string) string {
	t.Helper()
	for _, n := range v.Nodes {
		if n.Host == host {
			return n.Name
		}
	}
	t.Fatalf("%s has no node on %s", v.Name, host)
	return ""
}

// bare fails the test if a host has more interfaces than its uplink.
func bare(t *testing.T, s *testenv.Sandbox, host string) {
	t.Helper()
	eventually(t, 20*time.Second, host+" has nothing but its uplink", func() bool {
		return strings.Count(s.Exec(host, "ip", "-o", "link", "show"), "\n") == 2 // and lo
	})
}

func TestASandboxThatIsThereStays(t *testing.T) {
	t.Parallel()
	s := testenv.StartSandbox(t, testenv.SandboxOptions{Hosts: []string{"a", "b"}})
	pids := func() map[string]int {
		all := map[string]int{}
		for _, h := range s.Hosts {
			all[h.Name] = s.Host(h.Name).PID
		}
		return all
	}
	before := pids()
	s.Sandbox("up", s.File())
	if after := pids(); !maps.Equal(before, after) || before["a"] == 0 || before["b"] == 0 {
		t.Errorf("the services were %v and are %v", before, after)
	}
	other := write(t, "other.yaml", "name: t\nhosts: {a: {memory: 2GiB, cpu: 2}, b: {memory: 1GiB, cpu: 2}}\n")
	if _, stderr, code := s.TrySandbox(nil, "up", other); code != 1 || !strings.Contains(stderr, "sandbox t is there and differs in host a; `trellis sandbox down t` first") {
		t.Errorf("up of another description: exit status %d, %s", code, stderr)
	}
	// What was killed, it starts.
	s.Sandbox("kill", "b")
	s.Sandbox("up", s.File())
	if now := s.Host("b"); now.State != "running" || now.PID == before["b"] {
		t.Errorf("after the kill and up b is %+v", now)
	}
	// Verbs without an address find it.
	if _, stderr, code := s.TryAnywhere("ls"); code != 0 || !strings.Contains(stderr, "asking host a of sandbox t") {
		t.Errorf("ls: exit status %d, %s", code, stderr)
	}
}

// TestASandboxGoesWhateverWasKilled kills everything that a sandbox has in every
// order, and the sandbox verbs in the middle.
func TestASandboxGoesWhateverWasKilled(t *testing.T) {
	t.Parallel()
	s := testenv.StartSandbox(t, testenv.SandboxOptions{Hosts: []string{"a", "b"}})
	file := write(t, "x.yaml", "name: x\nrouting: static\nnodes: {m: {on: a}, n: {on: b}}\nlinks: [[m, n], {name: seg, type: lan, endpoints: [m, n]}]\n")
	for i, spoil := range []func(){
		func() {},
		func() { s.Sandbox("kill", "a") },
		func() { s.Sandbox("kill", "b") },
		func() { s.Sandbox("kill", "a"); s.Sandbox("kill", "b") },
		func() {
			if err := os.RemoveAll(filepath.Join(s.StateDir, "sandbox")); err != nil {
				t.Fatal(err)
			}
		},
		func() {
			for _, n := range show(t, s, "x").pids() {
				if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		if i > 0 {
			s.Sandbox("up", s.File())
		}
		s.Must("up", file)
		s.Must("ping", "x")
		spoil()
		s.Sandbox("down")
		left, err := s.Leftovers()
		if err != nil || len(left) > 0 {
			t.Fatalf("case %d: left behind: %q, %v", i, left, err)
		}
	}
	for _, after := range []time.Duration{1, 20, 60, 150, 400, 900} {
		if err := s.Interrupted(after*time.Millisecond, "up", s.File()); err != nil {
			t.Fatal(err)
		}
		if err := s.Interrupted(after*time.Millisecond/4, "down"); err != nil {
			t.Fatal(err)
		}
		s.Sandbox("up", s.File())
		s.Sandbox("down")
		left, err := s.Leftovers()
		if err != nil || len(left) > 0 {
			t.Fatalf("killed after %d ms: left behind: %q, %v", after, left, err)
		}
	}
}
