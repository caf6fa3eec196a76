package e2e

import (
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// TestGreedyNodesHurtNobody lets a node's root take all that it can of the
// machine, while its neighbours and the service must go on answering.
func TestGreedyNodesHurtNobody(t *testing.T) {
	testenv.Measures(t)
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "greed.yaml", `name: greed
routing: static
nodes:
  a: {memory: 48MiB, pids: 64, disk: 8MiB, cpu: 0.3}
  b: {}
  c: {}
links: [[a, b], [b, c]]
`)
	s.Must("up", file)
	before := show(t, s, "greed")

	for _, attack := range []struct {
		what, command string
		long          bool // it does not end by itself
	}{
		{"memory", "tail /dev/zero", false},
		{"memory in files", "dd if=/dev/zero of=/tmp/x bs=1M count=500; rm -f /tmp/x", false},
		{"files", "i=0; while echo > /tmp/f$i; do i=$((i+1)); done; rm -rf /tmp/f*", false},
		{"processor", "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; wait", true},
		// A shell that cannot fork ends, so the first one does no more of it once
		// the bomb is lit.
		{"processes", "bomb() { bomb & bomb & while :; do :; done; }; sleep 60 & bomb & wait", true},
	} {
		t.Run(attack.what, func(t *testing.T) {
			ended := make(chan struct{})
			cmd := s.Command(t.Context(), "exec", "-n", "--timeout", "6s", "greed/a", "--", "sh", "-c", attack.command)
			if err := s.NS.Start(cmd); err != nil {
				t.Fatal(err)
			}
			go func() {
				defer close(ended)
				_ = cmd.Wait() // how the greedy one ends is its own business
			}()
			worst := time.Duration(0)
			for begin := time.Now(); time.Since(begin) < 2500*time.Millisecond; {
				asked := time.Now()
				if _, stderr, code := s.Trellis("exec", "greed/b", "--", "ping", "-c1", "-W1", "c"); code != 0 {
					t.Errorf("other nodes do not reach each other: %s", stderr)
				}
				s.Must("ls")
				worst = max(worst, time.Since(asked))
				select {
				case <-ended:
					if attack.long {
						t.Error("the attack has ended early: the test shows nothing")
					}
					begin = time.Time{}
				default:
				}
			}
			if worst > 2*time.Second {
				t.Errorf("an answer took %v", worst)
			}
			if attack.long {
				cpu := func() float64 {
					return decode[struct{ CPUSeconds float64 }](t, s.Must("show", "greed/a", "-o", "json")).CPUSeconds
				}
				// The time in which it is asked counts, since nobody knows when in it
				// the answer was true.
				begin, used := time.Now(), cpu()
				time.Sleep(time.Second)
				// 0.3 cores, and what a period of 100 ms at either end may add.
				if share := (cpu() - used) / time.Since(begin).Seconds(); share > 0.4 {
					t.Errorf("a node of 0.3 cores uses %.2f", share)
				}
			}
			select {
			case <-ended:
			case <-time.After(15 * time.Second):
				t.Fatal("exec does not end at its timeout")
			}
			after := show(t, s, "greed")
			for _, n := range []string{"b", "c"} {
				if after.pid(t, n) != before.pid(t, n) {
					t.Errorf("node %s was restarted", n)
				}
			}
		})
	}

	// Its limits are what it was given, and what it used is told.
	if out := s.Must("show", "greed/a"); !strings.Contains(out, "48") {
		t.Errorf("show does not tell the limit of 48 MiB: %s", out)
	}
	begin := time.Now()
	s.Must("down", "greed")
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("the network with a fork bomb took %v to remove", d)
	}
	nothingLeft(t, s)
}
