package probe

import (
	"fmt"
	"testing"
	"time"

	"trellis/test/testenv"
)

// hub makes n nodes around one router, each on a wire of its own.
func hub(t testing.TB, n int) []Node {
	t.Helper()
	testenv.NeedRoot(t, "makes network namespaces")
	testenv.NeedCommand(t, "ip", "nsenter", "sysctl")
	centre := testenv.NewNetNS(t)
	testenv.Run(t, centre.Command("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"))
	nodes := dual(n)
	batch := []string{"addr add 169.254.0.1/32 dev lo"}
	spaces := make([]*testenv.NetNS, n)
	for i := range nodes {
		ns := testenv.NewNetNS(t)
		spaces[i] = ns
		nodes[i].Name, nodes[i].NS = fmt.Sprintf("n%d", i), ns.FD()
		batch = append(batch,
			fmt.Sprintf("link add p%d address 02:00:00:00:00:01 type veth peer name eth1 netns %s", i, ns.Path()),
			fmt.Sprintf("addr add fe80::1/64 dev p%d nodad", i),
			fmt.Sprintf("link set p%d up", i),
			fmt.Sprintf("route add %v/32 dev p%d", nodes[i].Addrs[0], i),
			fmt.Sprintf("route add %v/128 via fe80::2 dev p%d", nodes[i].Addrs[1], i))
	}
	centre.IPBatch(t, batch...)
	for i, ns := range spaces {
		ns.IPBatch(t,
			"link set lo up",
			fmt.Sprintf("addr add %v/32 dev lo", nodes[i].Addrs[0]),
			fmt.Sprintf("addr add %v/128 dev lo", nodes[i].Addrs[1]),
			"addr add fe80::2/64 dev eth1 nodad",
			"link set eth1 up",
			"neigh add 169.254.0.1 lladdr 02:00:00:00:00:01 dev eth1",
			fmt.Sprintf("route add default via 169.254.0.1 dev eth1 onlink src %v", nodes[i].Addrs[0]),
			"route add default via fe80::1 dev eth1")
	}
	return nodes
}

// BenchmarkPing tells the cost of an echo over two wires and one router, to and
// fro, with many nodes at once.
func BenchmarkPing(b *testing.B) {
	nodes := hub(b, 100)
	pairs := allPairs(nodes)
	start := time.Now()
	echoes := 0
	for b.Loop() {
		r, err := Ping(b.Context(), nodes, pairs, Options{}, nil)
		if err != nil || len(r.RTT) != len(pairs) {
			b.Fatalf("%d of %d reachable, %v; first failure %+v", len(r.RTT), len(pairs), err, r.Failed[:min(1, len(r.Failed))])
		}
		echoes += len(pairs)
	}
	b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(echoes), "ns/echo")
}
