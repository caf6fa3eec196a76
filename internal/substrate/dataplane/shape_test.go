package dataplane_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"trellis/internal/substrate/bridge"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/shaper"
	"trellis/internal/vnet"
	"trellis/test/testenv"
)

// throughput gives the TCP throughput of one stream in bit/s, as the receiver
// sees it. It is short: for ratios and limits, not for records.
func throughput(t testing.TB, from, to *nstest.Node, addr string) float64 {
	t.Helper()
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("needs iperf3")
	}
	server := exec.Command("nsenter", "-t", fmt.Sprint(to.Pid), "-n", "iperf3", "-s", "-1")
	must(t, server.Start())
	defer func() {
		server.Process.Kill()
		server.Wait()
	}()
	var (
		out string
		err error
	)
	for range 50 { // until the server listens
		time.Sleep(20 * time.Millisecond)
		if out, err = from.Exec(t, "iperf3 -J -O 0.3 -t 1.2 -c "+addr); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("iperf3: %v\n%s", err, out)
	}
	var result struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("iperf3 said %s: %v", out, err)
	}
	return result.End.Received.Rate
}

// atLeast is throughput, asked for again where it is less: other work of the
// machine's may be why.
func atLeast(t testing.TB, from, to *nstest.Node, addr string, least float64) (rate float64) {
	t.Helper()
	for try := 0; try < 5 && rate < least; try++ {
		rate = throughput(t, from, to, addr)
	}
	return rate
}

// mustCarry floods a direction from a node's interface and holds what leaves by
// the shaped device, queue always full, to its rate.
func mustCarry(t *testing.T, from *nstest.Node, device string, rate float64) {
	t.Helper()
	tap := from.Tap(t, "eth1")
	full := frame("ff:ff:ff:ff:ff:ff", 0x88b5, 1514)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				if tap.Send(full) != nil { // the node's own queue is full
					time.Sleep(50 * time.Microsecond)
				}
			}
		}
	}()
	sent := func() (bytes uint64, after, before time.Time) {
		t.Helper()
		after = time.Now()
		var devices []struct {
			Stats64 struct{ Tx struct{ Bytes uint64 } }
		}
		must(t, json.Unmarshal([]byte(nstest.Sh(t, "ip -s -j link show dev "+device)), &devices))
		bytes = devices[0].Stats64.Tx.Bytes
		return bytes, after, time.Now()
	}
	time.Sleep(100 * time.Millisecond) // fills the queue, spends the burst
	// Never too much; too little only as long as the machine has other things to do.
	var got float64
	for try := 0; try < 10 && got < 0.9*rate; try++ {
		bytes, after, before := sent()
		time.Sleep(500 * time.Millisecond)
		more, until, end := sent()
		got = 8 * float64(more-bytes) / until.Sub(before).Seconds()
		if least := 8 * float64(more-bytes) / end.Sub(after).Seconds(); least > 1.1*rate {
			t.Errorf("%s carries %.2f Mbit/s, set to %.2f", device, least/1e6, rate/1e6)
		}
	}
	close(stop)
	<-done
	t.Logf("%s carries %.2f of %.2f Mbit/s", device, got/1e6, rate/1e6)
	if got < 0.9*rate {
		t.Errorf("%s carries %.2f Mbit/s, set to %.2f", device, got/1e6, rate/1e6)
	}
}

// TestWireRates gives the two directions of a link different rates.
func TestWireRates(t *testing.T) {
	testenv.Measures(t)
	l := newLab(t)
	n := nodes(t, 2)
	ports := l.wire(t, n[0], "eth1", n[1], "eth1")
	n[0].Configure(t, "eth1", "10.0.0.1/24", "fd00::1/64")
	n[1].Configure(t, "eth1", "10.0.0.2/24", "fd00::2/64")
	a, b := nstest.Index(t, ports[0]), nstest.Index(t, ports[1])
	must(t, shaper.SetAll(map[string]vnet.Shape{ports[0]: {Rate: 20_000_000}, ports[1]: {Rate: 200_000_000}}))
	must(t, l.Join(dataplane.End{Index: a, Shaped: true}, dataplane.End{Index: b, Shaped: true}))
	mustCarry(t, n[0], ports[1], 200e6)
	mustCarry(t, n[1], ports[0], 20e6)
	q, err := shaper.Read()
	must(t, err)
	if q[a].Shape.Rate != 20_000_000 || q[b].Shape.Rate != 200_000_000 || q[b].Bytes < 1e6 {
		t.Errorf("the kernel has %+v and %+v", q[a], q[b])
	}
	// Off again: the joint first, then the qdisc.
	must(t, l.Join(dataplane.End{Index: a}, dataplane.End{Index: b}))
	must(t, shaper.SetAll(map[string]vnet.Shape{ports[0]: {}, ports[1]: {}}))
	must(t, shaper.Set(ports[0], vnet.Shape{})) // there is none to remove
	if free := atLeast(t, n[1], n[0], "10.0.0.1", 400e6); free < 400e6 {
		t.Errorf("%.0f Mbit/s after the limit was lifted", free/1e6)
	}
}

// TestLANRates shapes what one node sends into a LAN, by a helper pair, and what
// it gets, at its port.
func TestLANRates(t *testing.T) {
	testenv.Measures(t)
	l := newLab(t)
	n := nodes(t, 2)
	l.lan(t, "tblan", 1500, n[1])
	s := nstest.Spec(n[0], "eth1")
	must(t, port.Create([]port.Spec{s}))
	must(t, port.CreateHelpers([]port.Helper{{Device: s.Device, Alias: s.Alias, Group: s.Group, MTU: s.MTU}}))
	shaped, member := port.HelperNames(s.Device)
	must(t, l.Attach("net", s.Device, nstest.Index(t, s.Device), dataplane.Port))
	must(t, l.Attach("net", shaped, nstest.Index(t, shaped), dataplane.Port))
	must(t, l.Attach("net", member, nstest.Index(t, member), dataplane.Member))
	must(t, bridge.SetPort("tblan", member))
	must(t, l.Join(dataplane.End{Index: nstest.Index(t, s.Device), Shaped: true}, dataplane.End{Index: nstest.Index(t, shaped), Shaped: true}))
	must(t, shaper.SetAll(map[string]vnet.Shape{shaped: {Rate: 30_000_000}, s.Device: {Rate: 100_000_000}}))
	must(t, port.SetUp(map[string]bool{s.Device: true, shaped: true, member: true}))
	for i, node := range n {
		node.Configure(t, "eth1", fmt.Sprintf("10.0.0.%d/24", i+1))
	}
	mustCarry(t, n[0], shaped, 30e6)
	mustCarry(t, n[1], s.Device, 100e6)
	taps := []*nstest.Tap{n[0].Tap(t, "eth1"), n[1].Tap(t, "eth1")}
	for _, node := range n {
		node.Must(t, fmt.Sprintf("ip link set eth1 mtu %d", 1500+tags))
	}
	mustPass(t, strangeFrames(1500), taps[0], taps[1])
	mustPass(t, strangeFrames(1500), taps[1], taps[0])
}
