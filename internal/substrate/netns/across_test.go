package netns_test

import (
	"strings"
	"testing"
	"time"

	"github.com/safchain/ethtool"

	"trellis/internal/substrate/nstest"
)

func TestSegmentTunnels(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	mustPorts(t, nstest.Spec(n, "eth1"), nstest.Spec(n, "eth2"))
	for range 2 { // the second time there is nothing to do
		if err := n.SegmentTunnels("eth1"); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]bool{"eth1": false, "eth2": true} {
		var have map[string]bool
		err := n.Do(func() error {
			e, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer e.Close()
			have, err = e.Features(name)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"tx-udp_tnl-segmentation", "tx-gre-csum-segmentation"} {
			if have[f] != want {
				t.Errorf("%s: %s is %v", name, f, have[f])
			}
		}
		if !have["tx-tcp-segmentation"] {
			t.Errorf("%s: TSO is off", name)
		}
	}
	if err := n.SegmentTunnels("eth9"); err == nil {
		t.Error("an interface that is not there has features")
	}
}

// TestRefreshNeighbours has a neighbour die that nobody sends to any more.
func TestRefreshNeighbours(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	s := nstest.Spec(n, "eth1")
	mustPorts(t, s)
	n.Configure(t, "eth1", "192.0.2.1/24")
	n.Must(t, `sysctl -qw net.ipv4.neigh.eth1.delay_first_probe_time=1 net.ipv4.neigh.eth1.retrans_time_ms=50
		ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:77 dev eth1 nud stale
		ip neigh add 192.0.2.3 lladdr 02:00:00:00:00:78 dev eth1 nud permanent`)
	if asked, err := n.RefreshNeighbours(0); err != nil || asked != 0 {
		t.Fatalf("a limit of none: asked %d, %v", asked, err)
	}
	if asked, err := n.RefreshNeighbours(100); err != nil || asked != 1 {
		t.Fatalf("asked %d, %v", asked, err)
	}
	for deadline := time.Now().Add(5 * time.Second); !strings.Contains(n.Must(t, "ip neigh show to 192.0.2.2"), "FAILED"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a neighbour that is not there is believed in:", n.Must(t, "ip neigh"))
		}
	}
	if out := n.Must(t, "ip neigh show to 192.0.2.3"); !strings.Contains(out, "PERMANENT") {
		t.Error("the tenant's own entry is another:", out)
	}
}

// TestForgetNeighbours leaves what was placed for good, and other interfaces'.
func TestForgetNeighbours(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	mustPorts(t, nstest.Spec(n, "eth1"), nstest.Spec(n, "eth2"))
	n.Configure(t, "eth1", "192.0.2.1/24")
	n.Configure(t, "eth2", "198.51.100.1/24")
	n.Must(t, `ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:77 dev eth1 nud reachable
		ip neigh add 192.0.2.3 lladdr 02:00:00:00:00:77 dev eth1 nud stale
		ip neigh add 192.0.2.4 lladdr 02:00:00:00:00:77 dev eth1 nud permanent
		ip neigh add 2001:db8::2 lladdr 02:00:00:00:00:77 dev eth1 nud stale
		ip neigh add 2001:db8::4 lladdr 02:00:00:00:00:77 dev eth1 nud permanent
		ip neigh add 198.51.100.2 lladdr 02:00:00:00:00:77 dev eth2 nud stale`)
	for range 2 { // the second time there is nothing to do
		if err := n.ForgetNeighbours("eth1"); err != nil {
			t.Fatal(err)
		}
	}
	have := n.Must(t, "ip neigh; ip -6 neigh")
	for addr, want := range map[string]bool{
		"192.0.2.2 ": false, "192.0.2.3 ": false, "2001:db8::2 ": false,
		"192.0.2.4 ": true, "2001:db8::4 ": true, "198.51.100.2 ": true,
	} {
		if strings.Contains(have, addr) != want {
			t.Errorf("%sis in the table: %v, want %v", addr, !want, want)
		}
	}
	if err := n.ForgetNeighbours("eth9"); err != nil {
		t.Error("an interface that is not there:", err)
	}
}

func TestPolicy(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	mustPorts(t, nstest.Spec(n, "eth1"))
	for _, c := range []struct{ set, unset, want string }{
		{"true", "true", ""},
		{"tc qdisc add dev eth1 root tbf rate 1mbit burst 10k latency 1s", "tc qdisc del dev eth1 root", "a qdisc (tbf) at eth1"},
		{"tc qdisc add dev eth1 clsact", "tc qdisc del dev eth1 clsact", "a qdisc (clsact) at eth1"},
		{"ip link add br0 type bridge; ip link set eth1 master br0", "ip link del br0", "eth1 belongs to another device of the node's"},
		{"nft 'table ip t { chain c { type filter hook forward priority 0; }; }'", "nft flush ruleset", "nftables rules"},
		{"nft 'table ip6 t { chain c { type filter hook postrouting priority 0; }; }'", "nft flush ruleset", "nftables rules"},
		{"nft 'table inet t { chain c { type filter hook input priority 0; }; }'", "nft flush ruleset", ""},
	} {
		n.Must(t, c.set)
		if got, err := n.Policy(); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.set, got, err, c.want)
		}
		n.Must(t, c.unset)
		if got, err := n.Policy(); err != nil || got != "" {
			t.Errorf("%s: %q, %v", c.unset, got, err)
		}
	}
}
