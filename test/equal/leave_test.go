package equal

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// plainWorld has a route of each family from eth1 to eth2.
func plainWorld() world {
	return world{
		items: []item{{"ip", "route add 20.1.0.0/16 via 10.2.0.2 dev eth2"}, {"ip6", "route add 2001:db8:1::/48 via fd02::2 dev eth2"}},
		dst4:  []netip.Prefix{netip.MustParsePrefix("20.1.0.0/16")},
		dst6:  []netip.Prefix{netip.MustParsePrefix("2001:db8:1::/48")},
	}
}

// datagrams are as many UDP packets of each family, each of a flow of its own.
func datagrams(r *rand.Rand, n int) (four, six []shot) {
	m := &maker{Rand: r, plain: true}
	udp := func() []byte {
		p := m.bytes(40)
		binary.BigEndian.PutUint16(p[4:], uint16(len(p)))
		return p
	}
	to := append(slices.Clone(ifaces[0].mac[:]), 2, 0, 0, 0, 0xb0, 0)
	for range n {
		h := append([]byte{0x45, 0, 0, 60, m.byte(), m.byte(), 0x40, 0, 64, 17, 0, 0, 30, m.byte(), m.byte(), 7}, 20, 1, m.byte(), m.byte())
		sum4(h)
		four = append(four, shot{frame: slices.Concat(to, []byte{8, 0}, h, udp())})
		h = slices.Concat([]byte{0x60, 0, 0, 0, 0, 40, 17, 64}, m.addr("2001:db8:ee00::"), m.addr("2001:db8:1::"))
		h[22], h[38] = m.byte(), m.byte()
		six = append(six, shot{frame: slices.Concat(to, []byte{0x86, 0xdd}, h, udp())})
	}
	return four, six
}

// twice repeats each frame.
func twice(shots []shot) (all []shot) {
	for _, s := range shots {
		all = append(all, s, s)
	}
	return all
}

// run has both routers run lines.
func (p *pair) run(t *testing.T, items []item) {
	t.Helper()
	var logs [2]string
	for i, r := range p.routers {
		logs[i] = r.lines(items)
	}
	if logs[0] != "" || logs[1] != "" {
		t.Fatalf("%v: %s%s", items, logs[0], logs[1])
	}
}

// The fast path is off at the kernel's next tick after anything has come that it
// cannot do itself, and on again when that is gone. Nobody but the program at the
// node's end looks.
func TestLeavesAtOnceAndComesBack(t *testing.T) {
	l := newLab(t)
	p, err := l.newPair(plainWorld())
	must(t, err)
	defer p.close()
	r := rand.New(rand.NewPCG(1, 2))
	const n = 20
	check := func(name string, want4, want6 uint64) {
		t.Helper()
		// Each of n/2 flows twice: the second packet may be cut through.
		four, six := datagrams(r, n/2)
		four, six = twice(four), twice(six)
		for _, way := range []struct {
			family string
			shots  []shot
			want   uint64
		}{{"IPv4", four, want4}, {"IPv6", six, want6}} {
			before := p.fastPackets(p.routers[0])
			o, err := p.settle(way.shots)
			must(t, err)
			if d := o.difference(); d != "" {
				t.Errorf("%s: the routers differ:\n%s", name, d)
			}
			if got := p.fastPackets(p.routers[0]) - before; got != way.want {
				t.Errorf("%s: %d of %d %s packets went by the fast path, want %d", name, got, n, way.family, way.want)
			}
		}
	}
	check("nothing", n, n)
	if cut, err := p.cutThrough(p.routers[0]); err != nil || cut == 0 {
		t.Errorf("%d packets were cut through, want some (%v)", cut, err)
	}
	table := func(family, hook, rule string) string {
		return "table " + family + " t { chain c { type filter hook " + hook + " priority 0; " + rule + "; }; }"
	}
	for _, c := range []struct {
		name         string
		four, six    uint64
		do, and, off item
	}{
		{"a rule at forward", 0, 0, item{"nft", table("inet", "forward", "counter")}, item{}, item{"nft", "delete table inet t"}},
		{"a rule at forward that drops", 0, 0, item{"nft", table("inet", "forward", "drop")}, item{}, item{"nft", "delete table inet t"}},
		{"an IPv4 rule at prerouting", 0, n, item{"nft", table("ip", "prerouting", "counter")}, item{}, item{"nft", "delete table ip t"}},
		{"an IPv6 rule at postrouting", n, 0, item{"nft", table("ip6", "postrouting", "ip6 hoplimit set 9")}, item{}, item{"nft", "delete table ip6 t"}},
		{"a rule at input", n, n, item{"nft", table("inet", "input", "drop")}, item{}, item{"nft", "delete table inet t"}},
		{"a rule at the ingress", 0, 0, item{"nft", table("netdev", "ingress device eth1", "counter")}, item{}, item{"nft", "delete table netdev t"}},
		{"a rule at the egress", 0, 0, item{"nft", table("netdev", "egress device eth2", "counter")}, item{}, item{"nft", "delete table netdev t"}},
		{"a rule at another's egress", n, n, item{"nft", table("netdev", "egress device eth3", "drop")}, item{}, item{"nft", "delete table netdev t"}},
		{"a filter at the ingress", 0, 0, item{"tc", "qdisc add dev eth1 clsact"}, item{"tc", "filter add dev eth1 ingress protocol ip u32 match u32 0 0 action mirred egress redirect dev ten0"}, item{"tc", "qdisc del dev eth1 clsact"}},
		{"a filter at the egress", 0, 0, item{"tc", "qdisc add dev eth2 clsact"}, item{"tc", "filter add dev eth2 egress protocol ip u32 match u32 0 0 action mirred egress redirect dev ten0"}, item{"tc", "qdisc del dev eth2 clsact"}},
		{"a queue", 0, 0, item{"tc", "qdisc add dev eth2 root pfifo limit 1000"}, item{}, item{"tc", "qdisc del dev eth2 root"}},
		{"another's queue", n, n, item{"tc", "qdisc add dev eth3 root pfifo limit 1000"}, item{}, item{"tc", "qdisc del dev eth3 root"}},
		{"a macvlan", 0, 0, item{"ip", "link add link eth1 name mac0 type macvlan mode bridge"}, item{"ip", "link set mac0 up"}, item{"ip", "link del mac0"}},
		{"IPsec policy", 0, 0, item{"ip", "xfrm policy add src 30.0.0.0/9 dst 20.0.0.0/8 dir fwd action block"}, item{}, item{"ip", "xfrm policy flush"}},
		{"IPsec for whatever has no policy", 0, 0, item{"ip", "xfrm policy setdefault fwd block"}, item{}, item{"ip", "xfrm policy setdefault fwd accept"}},
		{"rp_filter", 0, n, item{"sysctl", "net.ipv4.conf.eth1.rp_filter=1"}, item{}, item{"sysctl", "net.ipv4.conf.eth1.rp_filter=0"}},
		{"rp_filter everywhere", 0, n, item{"sysctl", "net.ipv4.conf.all.rp_filter=2"}, item{}, item{"sysctl", "net.ipv4.conf.all.rp_filter=0"}},
		{"redirects taken", 0, n, item{"sysctl", "net.ipv4.conf.all.accept_redirects=1"}, item{}, item{"sysctl", "net.ipv4.conf.all.accept_redirects=0"}},
		{"learned MTUs honoured", 0, n, item{"sysctl", "net.ipv4.ip_forward_use_pmtu=1"}, item{}, item{"sysctl", "net.ipv4.ip_forward_use_pmtu=0"}},
		{"IPv4 spread by inner addresses", 0, n, item{"sysctl", "net.ipv4.fib_multipath_hash_policy=2"}, item{}, item{"sysctl", "net.ipv4.fib_multipath_hash_policy=1"}},
		{"IPv6 spread by some fields", n, 0, item{"sysctl", "net.ipv6.fib_multipath_hash_policy=3"}, item{}, item{"sysctl", "net.ipv6.fib_multipath_hash_policy=1"}},
		{"no IPv4 forwarding", 0, n, item{"sysctl", "net.ipv4.conf.eth1.forwarding=0"}, item{}, item{"sysctl", "net.ipv4.conf.eth1.forwarding=1"}},
		{"an IPv6 rule that suppresses", n, 0, item{"ip6", "rule add pref 50 lookup main suppress_prefixlength 0"}, item{}, item{"ip6", "rule del pref 50"}},
		{"an IPv4 rule that suppresses", n, n, item{"ip", "rule add pref 50 lookup main suppress_prefixlength 0"}, item{"ip", "route add 30.0.0.0/8 via 10.1.0.2 dev eth1"}, item{"ip", "rule del pref 50"}},
	} {
		do := []item{c.do}
		if c.and.tool != "" {
			do = append(do, c.and)
		}
		p.run(t, do)
		check(c.name, c.four, c.six)
		p.run(t, []item{c.off})
		check(c.name+", gone", n, n)
	}
}

// An address that the node has just got, on a device that is down at that, is
// no source of packets that it forwards; once it is gone it is one again.
func TestOwnAddressIsNoSource(t *testing.T) {
	l := newLab(t)
	p, err := l.newPair(plainWorld())
	must(t, err)
	defer p.close()
	four, _ := datagrams(rand.New(rand.NewPCG(3, 4)), 1)
	shots := slices.Repeat(four, 3)
	address := netip.AddrFrom4([4]byte(four[0].frame[26:30])).String() + "/32"
	for _, device := range []string{"lo", "eth3", "vx9"} {
		if device == "vx9" {
			p.run(t, []item{{"ip", "link add vx9 type vxlan id 9 dstport 4789"}}) // and leave it down
		}
		for _, step := range []struct {
			line string
			fast uint64
			sent int
		}{{"addr show dev lo", 3, 3}, {"addr add " + address + " dev " + device, 0, 0}, {"addr del " + address + " dev " + device, 3, 3}} {
			for _, r := range p.routers {
				if out, err := r.run("", "ip", strings.Fields(step.line)...); err != nil {
					t.Fatalf("%s: %v: %s", step.line, err, out)
				}
			}
			before := p.fastPackets(p.routers[0])
			o, err := p.settle(shots)
			must(t, err)
			sent := 0
			for _, times := range o[0] {
				sent += times
			}
			if got := p.fastPackets(p.routers[0]) - before; got != step.fast || sent != step.sent || o.difference() != "" {
				t.Errorf("%s: %d packets were sent, %d by the fast path, want %d and %d; %s", step.line, sent, got, step.sent, step.fast, o.difference())
			}
		}
	}
}

// A node with more addresses than can be gone through sends what may come from
// one of them by its stack; one with a few hundred, some of it.
func TestManyAddresses(t *testing.T) {
	l := newLab(t)
	p, err := l.newPair(plainWorld())
	must(t, err)
	defer p.close()
	four, _ := datagrams(rand.New(rand.NewPCG(11, 12)), 50)
	add := func(n int) {
		var items []item
		for i := range n {
			items = append(items, item{"ip", fmt.Sprintf("addr add 40.%d.%d.%d/32 dev lo", n%251, i/250, i%250)})
		}
		p.run(t, items)
	}
	for _, c := range []struct{ add, atLeast, atMost uint64 }{{0, 50, 50}, {300, 10, 49}, {5000, 0, 0}} {
		add(int(c.add))
		before := p.fastPackets(p.routers[0])
		o, err := p.settle(four)
		must(t, err)
		if n := p.fastPackets(p.routers[0]) - before; n < c.atLeast || n > c.atMost || o.difference() != "" {
			t.Errorf("with %d addresses %d of 50 packets went by the fast path, want %d to %d; %s", c.add, n, c.atLeast, c.atMost, o.difference())
		}
	}
}

// A next hop that nobody knows is the stack's to find, and to give up: its ICMP
// goes back from both routers.
func TestUnknownNeighbour(t *testing.T) {
	l := newLab(t)
	w := plainWorld()
	w.items = []item{{"ip", "route add 20.1.0.0/16 via 10.2.0.9 dev eth2"}, {"ip6", "route add 2001:db8:1::/48 via fd02::9 dev eth2"},
		{"ip", "route add 30.0.0.0/8 via 10.1.0.2 dev eth1"}, {"ip6", "route add 2001:db8:ee00::/40 via fd01::2 dev eth1"}}
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, setting := range []string{"mcast_solicit=1", "retrans_time_ms=100"} {
			w.items = append(w.items, item{"sysctl", "net." + family + ".neigh.eth2." + setting})
		}
	}
	p, err := l.newPair(w)
	must(t, err)
	defer p.close()
	four, six := datagrams(rand.New(rand.NewPCG(9, 10)), 1)
	for family, shots := range map[string][]shot{"IPv4": four, "IPv6": six} {
		o, err := p.try(shots, 1500*time.Millisecond)
		must(t, err)
		if d := o.difference(); d != "" || len(o[0]) != 1 {
			t.Errorf("%s: %d frames came back, want one that tells of an unreachable host; %s", family, len(o[0]), d)
		}
	}
	if n := p.fastPackets(p.routers[0]); n != 0 {
		t.Errorf("%d packets went by the fast path", n)
	}
}

// Flows are spread over the ways of a route as its weights say, each on the way
// that the stack would have taken.
func TestFlowsSpread(t *testing.T) {
	l := newLab(t)
	for _, policy := range []string{"0", "1"} {
		p, err := l.newPair(world{items: []item{
			{"sysctl", "net.ipv4.fib_multipath_hash_policy=" + policy}, {"sysctl", "net.ipv6.fib_multipath_hash_policy=" + policy},
			{"ip", "route add 20.1.0.0/16 nexthop via 10.2.0.2 dev eth2 weight 1 nexthop via 10.3.0.2 dev eth3 weight 3"},
			{"ip6", "route add 2001:db8:1::/48 nexthop via fd02::2 dev eth2 weight 1 nexthop via fd03::2 dev eth3 weight 3"},
		}})
		must(t, err)
		r := rand.New(rand.NewPCG(5, 6))
		const rounds = 40
		for family := range 2 {
			by := map[string]int{}
			for range rounds {
				var shots [2][]shot
				shots[0], shots[1] = datagrams(r, chunk)
				o, err := p.try(shots[family], soon)
				must(t, err)
				if o.difference() != "" {
					d, err := p.differs(shots[family])
					must(t, err)
					if d != "" {
						t.Fatalf("policy %s: the routers spread otherwise:\n%s", policy, d)
					}
				}
				for f, times := range o[0] {
					name, _, _ := strings.Cut(f, " ")
					by[name] += times
				}
			}
			all := by["eth2"] + by["eth3"]
			// Four deviations of a binomial distribution.
			if want, margin := float64(all)/4, 4*math.Sqrt(float64(all)*3/16); all < rounds*chunk*9/10 || math.Abs(float64(by["eth2"])-want) > margin {
				t.Errorf("policy %s, family %d: %v of %d flows, want a quarter of them by eth2", policy, family, by, rounds*chunk)
			}
		}
		if fast := p.fastPackets(p.routers[0]); fast < 2*rounds*chunk*9/10 {
			t.Errorf("policy %s: only %d of %d packets went by the fast path", policy, fast, 2*rounds*chunk)
		}
		p.close()
	}
}

// Routers that do differ are found out: what TestEqual says is worth something.
func TestDifferenceIsFound(t *testing.T) {
	l := newLab(t)
	for name, c := range map[string]item{
		"another way": {"ip", "route replace 20.1.0.0/16 via 10.3.0.2 dev eth3"}, "no way": {"ip", "route del 20.1.0.0/16"},
		"another next hop": {"ip", "route replace 20.1.0.0/16 via 10.2.0.3 dev eth2"}, "another hop limit": {"nft", "table ip t { chain c { type filter hook forward priority 0; ip ttl set 9; }; }"},
		"an MTU": {"ip", "route replace 20.1.0.0/16 via 10.2.0.2 dev eth2 mtu lock 68"},
	} {
		p, err := l.newPair(plainWorld())
		must(t, err)
		if log := p.routers[1].lines([]item{c}); log != "" {
			t.Fatal(log)
		}
		four, _ := datagrams(rand.New(rand.NewPCG(7, 8)), 10)
		if name == "an MTU" {
			for i := range four { // longer than it
				four[i].frame = append(four[i].frame, make([]byte, 40)...)
				binary.BigEndian.PutUint16(four[i].frame[16:], 100)
				sum4(four[i].frame[14:34])
			}
		}
		if d, err := p.differs(four); err != nil || d == "" {
			t.Errorf("%s: no difference was found (%v)", name, err)
		} else if less, err := p.narrow(four); err != nil || len(less) != 1 {
			t.Errorf("%s: it was cut down to %d frames (%v)", name, len(less), err)
		}
		p.close()
	}
}
