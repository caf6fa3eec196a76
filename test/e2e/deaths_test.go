package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trellis/test/testenv"
)

// routed is a line of routers, so that every packet from one end to the other
// goes by routes that OSPF has found.
const routed = `name: routed
routing: {protocol: ospf, timers: fast}
nodes: {a: {}, b: {}, c: {}}
links:
  - {endpoints: [a, b], rate: 100mbit}
  - [b, c]
`

// TestServiceRestartsUnderTraffic ends the service in every way, and puts
// another build in its place, while packets flow.
func TestServiceRestartsUnderTraffic(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "routed.yaml", routed)
	s.Must("up", file)
	before := show(t, s, "routed")
	f := startFlow(t, s, "routed", "a", "c")
	unchanged := func(t *testing.T) {
		t.Helper()
		if out := s.Must("up", file); !strings.Contains(out, "nothing to change") {
			t.Errorf("up after the restart says %s", out)
		}
		after := show(t, s, "routed")
		if !maps.Equal(before.pids(), after.pids()) {
			t.Errorf("processes were %v and are %v", before.pids(), after.pids())
		}
		for _, n := range after.Nodes {
			if n.Restarts != 0 || n.State != "running" {
				t.Errorf("node %s is %s after %d restarts", n.Name, n.State, n.Restarts)
			}
		}
	}
	t.Run("serve --stop", func(t *testing.T) {
		s.Must("serve", "--stop")
		if err := s.WaitExit(20 * time.Second); err != nil {
			t.Fatal(err)
		}
		s.Must("serve", "--stop") // what does not run is stopped
		s.Restart()
		unchanged(t)
	})
	t.Run("kill -9", func(t *testing.T) {
		for range 3 {
			s.Kill9()
			s.Restart()
		}
		unchanged(t)
	})
	t.Run("another build", func(t *testing.T) {
		other := filepath.Join(t.TempDir(), "trellis")
		build := exec.Command("go", "build", "-ldflags", "-X trellis/internal/cli.Version=other", "-o", other, "trellis/cmd/trellis")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		testenv.Run(t, build)
		s.Stop()
		upgraded := exec.Command(other, "serve", "--run-dir", s.RunDir, "--state-dir", s.StateDir, "--instance", s.Instance)
		if err := s.NS.Start(upgraded); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- upgraded.Wait() }()
		eventually(t, 20*time.Second, "the other build answers", func() bool {
			out, _, code := s.Trellis("version", "-o", "json")
			return code == 0 && strings.Contains(out, `"other"`)
		})
		unchanged(t)
		if err := upgraded.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Errorf("the other build ends with %v", err)
		}
		s.Restart()
		unchanged(t)
	})
	f.mustNotHaveLost(t)
	if f.sent < 1000 {
		t.Errorf("%d packets were sent: the test shows little", f.sent)
	}
	s.Must("down", "routed")
	nothingLeft(t, s)
}

// node gives one node of what show tells.
func (v shown) node(t *testing.T, name string) (state string, restarts int) {
	t.Helper()
	for _, n := range v.Nodes {
		if n.Name == name {
			return n.State, n.Restarts
		}
	}
	t.Fatalf("%s has no node %s", v.Name, name)
	return "", 0
}

func TestANodeThatDiesIsRestarted(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "routed.yaml", routed))
	before := show(t, s, "routed")
	if err := syscall.Kill(before.pid(t, "b"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the node runs again", func() bool {
		v := show(t, s, "routed")
		state, restarts := v.node(t, "b")
		return state == "running" && restarts == 1 && v.pids()["b"] > 0 && v.pids()["b"] != before.pids()["b"]
	})
	eventually(t, 20*time.Second, "everything is reachable again", func() bool {
		_, _, code := s.Trellis("ping", "routed")
		return code == 0
	})
	after := show(t, s, "routed")
	for _, name := range []string{"a", "c"} {
		if after.pid(t, name) != before.pid(t, name) {
			t.Errorf("node %s was restarted with its neighbour", name)
		}
	}
	if out := testenv.Run(t, s.NS.Command("tc", "qdisc", "show", "dev", after.device(t, "b", "eth1"))); !strings.Contains(out, "100Mbit") {
		t.Errorf("the restarted node's link has the qdisc %s", out)
	}
	s.Must("down", "routed")
	nothingLeft(t, s)
}

func TestANodeThatKeepsDyingIsHeldBack(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "pair.yaml", fmt.Sprintf(pair, "p"))
	s.Must("up", file)
	deaths, held := 0, false
	for begin := time.Now(); time.Since(begin) < 6*time.Second; time.Sleep(5 * time.Millisecond) {
		v := show(t, s, "p")
		state, _ := v.node(t, "a")
		held = held || state == "restarting"
		if pid := v.pids()["a"]; state == "running" && pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil {
			deaths++
			eventually(t, 20*time.Second, "the death is noticed", func() bool {
				v := show(t, s, "p")
				state, restarts := v.node(t, "a")
				return restarts >= deaths && (state != "running" || v.pids()["a"] != pid)
			})
		}
	}
	// Pauses of 0, 0.25, 0.5, 1, 2, 4 s.
	if deaths < 3 || deaths > 7 || !held {
		t.Errorf("%d restarts in six seconds, held back: %v", deaths, held)
	}
	// Whoever asks gets it at once.
	s.Must("up", file, "--timeout", "5s")
	v := show(t, s, "p")
	if state, restarts := v.node(t, "a"); state != "running" || restarts < deaths {
		t.Errorf("after up the node is %s with %d restarts, want %d", state, restarts, deaths)
	}
	s.Must("ping", "p")
	s.Must("down", "p")
	nothingLeft(t, s)
}

func TestADaemonThatDiesIsRestarted(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "routed.yaml", routed))
	before := show(t, s, "routed")
	type service struct {
		Name, State   string
		PID, Restarts int
	}
	services := func() map[string]service {
		v := decode[struct{ Services []service }](t, s.Must("show", "routed/b", "-o", "json"))
		all := map[string]service{}
		for _, v := range v.Services {
			all[v.Name] = v
		}
		return all
	}
	for _, daemon := range []string{"ospfd", "zebra"} {
		t.Run(daemon, func(t *testing.T) {
			old := services()[daemon]
			if old.PID <= 0 {
				t.Fatalf("no %s in %+v", daemon, services())
			}
			if _, stderr, code := s.Trellis("exec", "routed/b", "--", "kill", "-9", strconv.Itoa(old.PID)); code != 0 {
				t.Fatal(stderr)
			}
			eventually(t, 30*time.Second, daemon+" runs again", func() bool {
				now := services()[daemon]
				return now.State == "running" && now.PID != old.PID && now.Restarts > old.Restarts
			})
			eventually(t, 20*time.Second, "its routes are back", func() bool {
				out, _, code := s.Trellis("exec", "routed/b", "--", "vtysh", "-c", "show ip route ospf")
				return code == 0 && strings.Contains(out, before.loopback(t, "a").String()) && strings.Contains(out, before.loopback(t, "c").String())
			})
			eventually(t, 20*time.Second, "everything is reachable", func() bool {
				_, _, code := s.Trellis("ping", "routed")
				return code == 0
			})
		})
	}
	if after := show(t, s, "routed"); !maps.Equal(before.pids(), after.pids()) {
		t.Errorf("processes were %v and are %v", before.pids(), after.pids())
	}
}

// TestANodeIsRestartedWhileOthersMissIt holds a router back until the others have
// lost their routes to it, so that the service waits for what only the restart
// can bring.
func TestANodeIsRestartedWhileOthersMissIt(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "routed.yaml", routed))
	for deaths := 1; deaths <= 3; deaths++ { // pauses of 0, 0.25 and 0.5 s
		var pid int
		eventually(t, 10*time.Second, fmt.Sprintf("the node runs after %d deaths", deaths-1), func() bool {
			v := show(t, s, "routed")
			state, restarts := v.node(t, "b")
			pid = v.pids()["b"]
			return state == "running" && restarts == deaths-1 && pid > 0
		})
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 10*time.Second, "the node runs after three deaths", func() bool {
		state, restarts := show(t, s, "routed").node(t, "b")
		return state == "running" && restarts == 3
	})
	eventually(t, 30*time.Second, "everything is reachable again", func() bool {
		_, _, code := s.Trellis("ping", "routed")
		return code == 0
	})
	s.Must("down", "routed")
	nothingLeft(t, s)
}
