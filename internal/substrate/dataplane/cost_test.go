package dataplane_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/test/testenv"
)

// TestDeployCost makes the ports of a network of 754 nodes and 900 links, and
// removes them, within times that doing it one by one would miss.
func TestDeployCost(t *testing.T) {
	testenv.Measures(t)
	l := newLab(t)
	const links = 900
	made := nodes(t, 30) // stand in for 754: what counts is the ports
	specs := make([]port.Spec, 2*links)
	for i := range specs {
		specs[i] = nstest.Spec(made[i%len(made)], fmt.Sprintf("eth%d", i/len(made)))
	}
	start := time.Now()
	lap := func(what string) time.Duration {
		d := time.Since(start)
		t.Logf("%-28s %v", what, d.Round(time.Millisecond))
		start = time.Now()
		return d
	}
	var deploy time.Duration
	must(t, port.Create(specs))
	deploy += lap("create 1800 ports")
	states, err := port.List("test")
	must(t, err)
	deploy += lap("list")
	index := map[string]int{}
	for _, s := range states {
		index[s.Device] = s.Index
	}
	up := map[string]bool{}
	for _, s := range specs {
		must(t, l.Attach("net", s.Device, index[s.Device], dataplane.Port))
		up[s.Device] = true
	}
	deploy += lap("attach")
	for i := 0; i < len(specs); i += 2 {
		must(t, l.Join(dataplane.End{Index: index[specs[i].Device]}, dataplane.End{Index: index[specs[i+1].Device]}))
	}
	deploy += lap("join")
	must(t, port.SetUp(up))
	deploy += lap("up")
	if found, err := l.Read(); err != nil || len(found) != len(specs) {
		t.Fatalf("%d of %d ports are attached: %v", len(found), len(specs), err)
	}
	lap("read")
	d := mustOpen(t, l.dir)
	lap("adopt")
	must(t, port.DeleteGroup(specs[0].Group))
	remove := lap("delete the group")
	must(t, d.Remove("net"))
	remove += lap("forget")
	t.Logf("deploy %v, remove %v", deploy.Round(time.Millisecond), remove.Round(time.Millisecond))
	slack := time.Duration(1)
	if os.Getenv(withoutTCX) != "" {
		slack = 2
	}
	if deploy > slack*6*time.Second || remove > slack*4*time.Second { // aims with tcx: 2.5 and 1, on a quiet machine
		t.Errorf("deploying takes %v, removing %v", deploy, remove)
	}
	if left, err := port.List("test"); err != nil || len(left) != 0 {
		t.Errorf("%d devices left: %v", len(left), err)
	}
}

// TestTCPBeatsPlainVeth compares one TCP stream through routers joined by
// shortbridges with the same over plain veth pairs without transmit checksum
// offload, which is how other tools join containers.
func TestTCPBeatsPlainVeth(t *testing.T) {
	testenv.Measures(t)
	if testing.Short() {
		t.Skip("measures throughput")
	}
	for routers, aim := range map[int]float64{1: 2, 5: 3} {
		t.Run(fmt.Sprintf("%d routers", routers), func(t *testing.T) {
			l := newLab(t)
			joined, to, _ := l.chain(t, routers)
			plain := nodes(t, routers+2)
			for i := range routers + 1 {
				a, b := plain[i], plain[i+1]
				nstest.Sh(t, fmt.Sprintf("ip link add v0 netns %d type veth peer name v1 netns %d", a.Pid, b.Pid))
				a.Must(t, "ip link set v0 name right && ethtool -K right tx off && ip link set right up")
				b.Must(t, "ip link set v1 name left && ethtool -K left tx off && ip link set left up")
			}
			address(t, plain)
			best := 0.0
			for range 2 { // the machine is shared: the better of two ratios
				fast := throughput(t, joined[0], joined[len(joined)-1], to)
				slow := throughput(t, plain[0], plain[len(plain)-1], to)
				t.Logf("%.1f against %.1f Gbit/s, %.2f×", fast/1e9, slow/1e9, fast/slow)
				best = max(best, fast/slow)
			}
			if best < 0.75*aim { // the aim itself is the benchmark's to hold
				t.Errorf("%.2f× plain veth, aim %.0f×", best, aim)
			}
		})
	}
}
