package e2e

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"trellis/test/testenv"
)

// The two networks differ in everything that a step of the reconciler can do:
// nodes, links, a LAN, rates, MTUs, limits, configuration, routes.
const (
	faultsBefore = `name: f
routing: static
nodes:
  a: {exec: ["ip link add name mark type veth"]}
  b: {}
  c: {routing: {protocol: ospf, timers: fast}}
  d: {routing: {protocol: ospf, timers: fast}}
  gone: {}
links:
  - {name: ab, endpoints: [a, b], rate: 100mbit}
  - {name: cd, endpoints: [c, d]}
  - {name: bg, endpoints: [b, gone]}
  - {name: seg, type: lan, endpoints: [a, b, gone], rate: 100mbit}
  - {name: old, type: lan, endpoints: [c, d]}
`
	faultsAfter = `name: f
routing: static
nodes:
  a: {exec: ["ip link add name mark type veth"], memory: 128MiB}
  b: {env: {NEW: "1"}}
  c: {routing: {protocol: ospf, timers: fast}}
  d: {routing: {protocol: ospf, timers: fast}}
  e: {}
links:
  - {name: ab, endpoints: [a, b], rate: 50mbit}
  - {name: cd, endpoints: [c, d], mtu: 9000}
  - {name: cd2, endpoints: [c, d]}
  - {name: be, endpoints: [b, e]}
  - {name: seg, type: lan, endpoints: [a, b, e]}
`
)

// points are all places where the service can be made to kill itself, each with
// how often it is passed before: the first time, and later ones.
func points() []string {
	var all []string
	for _, op := range onOneMachine() {
		for _, n := range []int{1, 2} {
			all = append(all, fmt.Sprintf("agent.%s:%d", op, n))
		}
	}
	return append(all, "agent.done:1", "agent.done:2")
}

// TestKilledAtEveryStep kills the service at each step on the way from nothing
// to one network, to another, and back to nothing. After a restart, `up` must
// converge all the same, and `down` must leave nothing. In every second case
// the store is lost as well.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t, "makes network namespaces")
	needFRR(t)
	before, after := write(t, "before.yaml", faultsBefore), write(t, "after.yaml", faultsAfter)
	var reached sync.Map // by point
	// Each in a service of its own, several side by side; the group ends when all have.
	t.Run("points", func(t *testing.T) {
		for i, point := range points() {
			t.Run(point, func(t *testing.T) {
				t.Parallel()
				if killedAt(t, before, after, point, i%2 == 1) {
					reached.Store(point, true)
				}
			})
		}
	})
	for _, op := range onOneMachine() {
		if _, ok := reached.Load(fmt.Sprintf("agent.%s:1", op)); !ok {
			t.Errorf("no network of this test has a step %q", op)
		}
	}
}

// killedAt is the test of one point; storeLost: the store is lost as well. It reports
// whether the service has come to the point.
func killedAt(t *testing.T, before, after, point string, storeLost bool) (reached bool) {
	s := testenv.StartService(t, testenv.Options{Env: []string{"TRELLIS_FAULT=" + point}})
	for _, args := range [][]string{{"up", before}, {"up", after}, {"down", "f"}} {
		_, stderr, code := s.Trellis(append(args, "--timeout", "60s")...)
		if code == 0 {
			continue
		}
		if err := s.WaitExit(10 * time.Second); err != nil {
			t.Fatalf("%v fails and the service lives: %s", args, stderr)
		}
		reached = true
		break
	}
	if s.Running() { // fewer steps of this kind: that the first is reached is checked below
		nothingLeft(t, s)
		return false
	}
	if storeLost {
		if err := os.RemoveAll(s.StateDir); err != nil {
			t.Fatal(err)
		}
		// What runs is of a store that is gone: it goes too when told.
		s.Restart(testenv.Options{Args: []string{"--remove-all"}})
		s.Must("down", "--all")
		nothingLeft(t, s)
	} else {
		s.Restart(testenv.Options{})
	}
	s.Must("up", after, "--timeout", "60s")
	for _, pair := range [][2]string{{"a", "b"}, {"a", "e"}, {"e", "a"}, {"c", "d"}} {
		s.Must("exec", "f/"+pair[0], "--", "ping", "-c1", "-W2", pair[1])
	}
	s.Must("down", "f")
	nothingLeft(t, s)
	return reached
}

// TestKilledBetweenAddressesAndRoutes kills the service when a running node has an
// interface again that was deleted inside, and not yet the routes over it.
func TestKilledBetweenAddressesAndRoutes(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "line.yaml", "name: line\nrouting: static\nnodes: {a: {}, b: {}, c: {}}\nlinks: [[a, b], [b, c]]\n")
	s.Must("up", file)
	s.Must("exec", "line/a", "--", "ip", "link", "del", "eth1")
	s.Stop()
	s.Restart(testenv.Options{Env: []string{"TRELLIS_FAULT=agent.route"}})
	if err := s.WaitExit(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	s.Restart(testenv.Options{})
	s.Must("up", file, "--timeout", "30s")
	s.Must("exec", "line/a", "--", "ping", "-c1", "-W2", "c")
	s.Must("down", "line")
	nothingLeft(t, s)
}

// TestKilledClient kills the client at some moments of an `up`; what was
// admitted goes on, and a second `up` and a `down` end it in order.
func TestKilledClient(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "before.yaml", faultsBefore)
	for _, after := range []time.Duration{5, 20, 50, 100, 200, 400} {
		ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
		_ = s.Command(ctx, "up", file).Run() // killed when ctx ends
		cancel()
		s.Must("up", file, "--timeout", "60s")
		s.Must("down", "f")
		nothingLeft(t, s)
	}
}
