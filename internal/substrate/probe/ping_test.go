package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// dual gives n nodes with a loopback of each family.
func dual(n int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i].Addrs = []netip.Addr{
			netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
			netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}),
		}
	}
	return nodes
}

// patience is how long what should be answered is waited for, on a machine that may be
// busy.
const patience = 500 * time.Millisecond

// allPairs gives every ordered pair of different nodes, in both families.
func allPairs(nodes []Node) []Pair {
	var pairs []Pair
	for from := range nodes {
		for to := range nodes {
			if from != to {
				pairs = append(pairs, Pair{from, to, IPv4}, Pair{from, to, IPv6})
			}
		}
	}
	return pairs
}

// star makes n nodes, each in a namespace with both loopbacks, on one bridge,
// each with static routes to all others.
func star(t *testing.T, n int) (hub *testenv.NetNS, spaces []*testenv.NetNS, nodes []Node) {
	t.Helper()
	testenv.NeedRoot(t, "makes network namespaces")
	testenv.NeedCommand(t, "ip", "nsenter")
	hub = testenv.NewNetNS(t)
	hub.IPBatch(t, "link add br0 type bridge mcast_snooping 0", "link set br0 up")
	nodes = dual(n)
	var add []string
	for i := range n {
		ns := testenv.NewNetNS(t)
		spaces = append(spaces, ns)
		nodes[i].Name, nodes[i].NS = fmt.Sprintf("n%d", i), ns.FD()
		add = append(add,
			fmt.Sprintf("link add p%d master br0 type veth peer name eth1 netns %s", i, ns.Path()),
			fmt.Sprintf("link set p%d up", i))
	}
	hub.IPBatch(t, add...)
	for i, ns := range spaces {
		batch := []string{
			"link set lo up",
			fmt.Sprintf("addr add %v/32 dev lo", nodes[i].Addrs[0]),
			fmt.Sprintf("addr add %v/128 dev lo", nodes[i].Addrs[1]),
			"link set eth1 addrgenmode none",
			fmt.Sprintf("addr add 192.168.0.%d/24 dev eth1", i+1),
			// Without a link-local address there is no neighbour discovery for others' packets.
			fmt.Sprintf("addr add fe80::%x/64 dev eth1 nodad", i+1),
			fmt.Sprintf("addr add fd01::%x/64 dev eth1 nodad", i+1),
			"link set eth1 up",
		}
		for j := range n {
			if i != j {
				batch = append(batch,
					fmt.Sprintf("route add %v/32 via 192.168.0.%d", nodes[j].Addrs[0], j+1),
					fmt.Sprintf("route add %v/128 via fd01::%x", nodes[j].Addrs[1], j+1))
			}
		}
		ns.IPBatch(t, batch...)
	}
	return hub, spaces, nodes
}

func TestPingReachesEveryPair(t *testing.T) {
	_, _, nodes := star(t, 12)
	pairs := allPairs(nodes)
	calls, last := 0, -1
	got, err := Ping(t.Context(), nodes, pairs, Options{}, func(done, total int) {
		calls++
		if done < last || done > total || total != len(pairs) {
			t.Errorf("progress went from %d to %d of %d", last, done, total)
		}
		last = done
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.RTT) != 12*11*2 || len(got.Failed) != 0 {
		t.Fatalf("got %d of %d pairs, failed: %v", len(got.RTT), 12*11*2, got.Failed)
	}
	if r := got.RTT; r[0] <= 0 || !slices.IsSorted(r) || r[len(r)-1] > time.Second {
		t.Errorf("round-trip times %v make no sense", r)
	}
	if calls == 0 || last != len(pairs) {
		t.Errorf("progress ended at %d after %d calls", last, calls)
	}
}

// A destination on another machine is but an address.
func TestPingOfANodeElsewhere(t *testing.T) {
	_, _, nodes := star(t, 2)
	nodes[1].NS = Elsewhere
	got, err := Ping(t.Context(), nodes, []Pair{{0, 1, IPv4}, {0, 1, IPv6}}, Options{}, nil)
	if err != nil || len(got.RTT) != 2 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestPingComesFromTheLoopback(t *testing.T) {
	_, spaces, nodes := star(t, 2)
	// Without a way back to the loopback, nothing but a wrong source is answered.
	spaces[1].IPBatch(t, fmt.Sprintf("route del %v/32", nodes[0].Addrs[0]))
	got, err := Ping(t.Context(), nodes, []Pair{{0, 1, IPv4}, {0, 1, IPv6}}, Options{Timeout: patience, Tries: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.RTT) != 1 || len(got.Failed) != 1 || got.Failed[0].Pair != 0 {
		t.Errorf("got %+v", got)
	}
}

func TestPingNamesWhatFails(t *testing.T) {
	hub, spaces, nodes := star(t, 5)
	spaces[0].IPBatch(t,
		fmt.Sprintf("route del %v/32", nodes[1].Addrs[0]),
		fmt.Sprintf("route replace unreachable %v/128", nodes[1].Addrs[1]))
	spaces[2].IPBatch(t, fmt.Sprintf("addr del %v/32 dev lo", nodes[2].Addrs[0]))
	// n3 forwards to nowhere: it says so by ICMP.
	testenv.Run(t, spaces[3].Command("sysctl", "-qw", "net.ipv4.ip_forward=1"))
	spaces[0].IPBatch(t, fmt.Sprintf("route replace %v/32 via 192.168.0.4", nodes[2].Addrs[0]))
	spaces[3].IPBatch(t, fmt.Sprintf("route replace unreachable %v/32", nodes[2].Addrs[0]))
	hub.IPBatch(t, "link set p4 down")

	pairs := []Pair{{0, 1, IPv4}, {0, 1, IPv6}, {0, 2, IPv4}, {0, 2, IPv6}, {2, 0, IPv4}, {0, 3, IPv4}, {0, 4, IPv4}}
	got, err := Ping(t.Context(), nodes, pairs, Options{Timeout: patience, Tries: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.RTT) != 2 {
		t.Errorf("%d of 7 reachable, want 2", len(got.RTT))
	}
	want := []struct {
		pair   Pair
		reason string
	}{
		{Pair{0, 1, IPv4}, "cannot send: network is unreachable"},
		{Pair{0, 1, IPv6}, "cannot send: no route to host"},
		{Pair{0, 2, IPv4}, "host unreachable, says 192.168.0.4"},
		{Pair{2, 0, IPv4}, "n2 does not have its address 10.0.0.2"},
		{Pair{0, 4, IPv4}, fmt.Sprintf("no reply within %v, 2 tries", patience)},
	}
	if len(got.Failed) != len(want) {
		t.Fatalf("failed: %+v", got.Failed)
	}
	for i, w := range want {
		f := got.Failed[i]
		if pairs[f.Pair] != w.pair || f.Reason != w.reason {
			t.Errorf("failure %d is %+v, want %v: %s", i, f, w.pair, w.reason)
		}
	}
}

func TestPingRepeatsWhatIsLost(t *testing.T) {
	testenv.NeedCommand(t, "nft")
	_, spaces, nodes := star(t, 2)
	// The first three requests are lost: an IPv4 echo of ours is 36 bytes long.
	testenv.Run(t, spaces[1].Command("nft",
		"add table ip t; add chain ip t in { type filter hook input priority 0; }; "+
			"add rule ip t in icmp type echo-request quota 108 bytes drop"))
	pairs := []Pair{{0, 1, IPv4}}
	once, err := Ping(t.Context(), nodes, pairs, Options{Timeout: patience, Tries: 1}, nil)
	if err != nil || len(once.RTT) != 0 {
		t.Fatalf("one try: %+v, %v; the rule should have dropped it", once, err)
	}
	again, err := Ping(t.Context(), nodes, pairs, Options{Timeout: patience, Tries: 5}, nil)
	if err != nil || len(again.RTT) != 1 {
		t.Errorf("five tries: %+v, %v", again, err)
	}
}

// Routers that disagree for a moment answer with ICMP errors, and those at once.
func TestPingOutlastsAnICMPError(t *testing.T) {
	_, spaces, nodes := star(t, 3)
	to := netip.PrefixFrom(nodes[1].Addrs[0], 32)
	testenv.Run(t, spaces[2].Command("sysctl", "-qw", "net.ipv4.ip_forward=1"))
	spaces[0].IPBatch(t, fmt.Sprintf("route replace %v via 192.168.0.3", to))
	spaces[2].IPBatch(t, fmt.Sprintf("route replace unreachable %v", to))
	const timeout = time.Second
	restored := make(chan error, 1)
	time.AfterFunc(timeout*3/2, func() {
		restored <- spaces[2].Command("ip", "route", "replace", to.String(), "via", "192.168.0.2").Run()
	})
	got, err := Ping(t.Context(), nodes, []Pair{{0, 1, IPv4}}, Options{Timeout: timeout}, nil)
	if e := <-restored; e != nil {
		t.Fatal(e)
	}
	if err != nil || len(got.RTT) != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestPingGetsThroughANarrowLink(t *testing.T) {
	testenv.NeedCommand(t, "tc")
	hub, _, nodes := star(t, 2)
	testenv.Run(t, hub.Command("tc", "qdisc", "add", "dev", "p1", "root", "tbf", "rate", "500kbit", "burst", "1600", "limit", "1600"))
	pairs := make([]Pair, 1500)
	for i := range pairs {
		pairs[i] = Pair{0, 1, IPv4}
	}
	got, err := Ping(t.Context(), nodes, pairs, Options{Timeout: 200 * time.Millisecond}, nil)
	if err != nil || len(got.RTT) != len(pairs) {
		t.Errorf("%d of %d reachable, %v", len(got.RTT), len(pairs), err)
	}
}

func TestPingIsNotHeldUpBySilence(t *testing.T) {
	hub, _, nodes := star(t, 3)
	hub.IPBatch(t, "link set p1 down")
	var pairs []Pair
	for range 600 {
		pairs = append(pairs, Pair{0, 1, IPv4}, Pair{0, 2, IPv4})
	}
	start := time.Now()
	got, err := Ping(t.Context(), nodes, pairs, Options{Timeout: time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.RTT) != 600 || len(got.Failed) != 600 {
		t.Errorf("%d reachable, %d failed, want 600 each", len(got.RTT), len(got.Failed))
	}
	// One window a timeout would take 600/64 + 2 * 600/16 s.
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestPingEndsWithItsContext(t *testing.T) {
	hub, _, nodes := star(t, 2)
	hub.IPBatch(t, "link set p1 down")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := Ping(ctx, nodes, allPairs(nodes), Options{Timeout: 20 * time.Second}, nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v to stop", took)
	}
}

func TestPingRefusesWrongPairs(t *testing.T) {
	nodes := dual(2)
	away := append(dual(2), Node{Name: "away", NS: Elsewhere, Addrs: nodes[0].Addrs})
	if _, err := Ping(t.Context(), away, []Pair{{2, 0, IPv4}}, Options{}, nil); err == nil || !strings.Contains(err.Error(), "away runs on another machine") {
		t.Errorf("a source elsewhere: error %v", err)
	}
	nodes[1] = Node{Name: "bare", Addrs: []netip.Addr{nodes[1].Addrs[0]}}
	for want, pair := range map[string]Pair{
		"does not index":       {0, 2, IPv4},
		"unknown address":      {0, 1, "ipx"},
		"bare has no ipv6":     {0, 1, IPv6},
		"node bare has no ipv": {1, 0, IPv6},
	} {
		_, err := Ping(t.Context(), nodes, []Pair{pair}, Options{}, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one with %q", pair, err, want)
		}
	}
}

func TestPingSaysWhichNamespaceItCannotEnter(t *testing.T) {
	testenv.NeedRoot(t, "makes network namespaces")
	nodes := dual(2)
	nodes[0].Name, nodes[0].NS = "gone", 1<<20
	_, err := Ping(t.Context(), nodes, []Pair{{0, 1, IPv4}}, Options{}, nil)
	if err == nil || !strings.Contains(err.Error(), "ping from gone") {
		t.Errorf("error %v", err)
	}
}
