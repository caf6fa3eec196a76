package equal

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// item is a part of a world: a line for a tool that both routers run.
type item struct {
	tool string // ip, ip6, tc (a line of a batch), nft (of a file), sysctl (name=value)
	line string
}

func (i item) String() string { return i.tool + ": " + i.line }

// world is what the routers hold besides their interfaces' addresses and
// neighbours.
type world struct {
	items      []item
	dst4, dst6 []netip.Prefix // where its routes lead
}

// ground is what every world stands on. Neighbours that are not there are given
// up at once: asking for them takes time, and each router its own.
func ground() []item {
	var items []item
	for _, name := range []string{"eth1", "eth2", "eth3", "eth4", "ten0"} {
		items = append(items, item{"sysctl", "net.ipv4.neigh." + name + ".mcast_solicit=0"}, item{"sysctl", "net.ipv6.neigh." + name + ".mcast_solicit=0"})
	}
	for i := range ifaces {
		n, name := i+1, ifaces[i].name
		for _, line := range []string{
			fmt.Sprintf("addr add 10.%d.0.1/24 dev %s", n, name),
			fmt.Sprintf("addr add fd0%d::1/64 dev %s nodad", n, name),
			fmt.Sprintf("addr add fe80::1/64 dev %s nodad", name),
			fmt.Sprintf("link set %s up", name),
		} {
			items = append(items, item{"ip", line})
		}
	}
	for n := 1; n <= 5; n++ {
		name := fmt.Sprintf("eth%d", n)
		if n == 5 {
			name = "ten0"
		}
		for host := 2; host <= 4; host++ {
			mac := fmt.Sprintf("02:00:00:00:b%d:0%d", n, host)
			for _, address := range []string{fmt.Sprintf("10.%d.0.%d", n, host), fmt.Sprintf("fd0%d::%d", n, host), fmt.Sprintf("fe80::%d", host)} {
				items = append(items, item{"ip", fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", address, mac, name)})
			}
		}
	}
	return items
}

// apply puts the router into a world and gives what the tools have complained
// of: a kernel may lack what a line asks for, but then for both routers.
func (r *router) apply(w world) string { return r.lines(slices.Concat(ground(), w.items)) }

// nextTick waits for the kernel's next tick: until then the fast path goes by
// what it has found before. The coarse clock counts ticks, and on a machine that
// shares its processors with others they may come late.
func nextTick() {
	begin := coarse()
	for coarse() == begin {
		time.Sleep(time.Millisecond)
	}
}

func coarse() unix.Timespec {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		panic(err) // there since Linux 2.6.32
	}
	return now
}

func (r *router) lines(items []item) string {
	var log strings.Builder
	defer nextTick()
	for len(items) > 0 {
		tool, n := items[0].tool, 1
		for n < len(items) && items[n].tool == tool {
			n++
		}
		var lines strings.Builder
		for _, i := range items[:n] {
			lines.WriteString(i.line + "\n")
		}
		items = items[n:]
		var out string
		var err error
		switch tool {
		case "ip":
			out, err = r.run(lines.String(), "ip", "-force", "-batch", "-")
		case "ip6":
			out, err = r.run(lines.String(), "ip", "-6", "-force", "-batch", "-")
		case "tc":
			out, err = r.run(lines.String(), "tc", "-force", "-batch", "-")
		case "nft":
			out, err = r.run(lines.String(), "nft", "-f", "-")
		case "sysctl":
			err = r.Do(func() error {
				for line := range strings.Lines(lines.String()) {
					name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
					if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0); err != nil {
						log.WriteString(err.Error() + "\n")
					}
				}
				return nil
			})
		}
		if err != nil {
			fmt.Fprintf(&log, "%s: %v: %s", tool, err, out)
		}
	}
	return log.String()
}

// newWorld makes a world from a seed.
func newWorld(seed uint64) world {
	b := &builder{Rand: rand.New(rand.NewPCG(seed, 0x776f726c64))}
	b.links()
	// What comes back of a packet finds its way.
	b.add("ip", "route add 30.0.0.0/8 via 10.1.0.2 dev eth1")
	b.add("ip6", "route add 2001:db8:ee00::/40 via fd01::2 dev eth1")
	b.routes4()
	b.routes6()
	if b.one(15) {
		b.mtu()
	}
	// What keeps all packets off the fast path is rare, or little would be tried.
	if b.one(3) {
		b.rules()
	}
	if b.one(3) {
		b.sysctls()
	}
	if b.one(8) {
		b.netfilter()
	}
	if b.one(10) {
		b.traffic()
	}
	if b.one(12) {
		b.ipsec()
	}
	if b.one(10) {
		b.devices()
	}
	return b.world
}

// builder makes a world.
type builder struct {
	*rand.Rand
	world
}

func (b *builder) one(in int) bool           { return b.IntN(in) == 0 }
func (b *builder) of(these ...string) string { return these[b.IntN(len(these))] }

func (b *builder) add(tool, format string, args ...any) {
	b.items = append(b.items, item{tool, fmt.Sprintf(format, args...)})
}

// out is an interface by which a route may lead, with its number.
func (b *builder) out() (string, int) {
	if b.one(12) {
		return "ten0", 5
	}
	n := 1 + b.IntN(len(ifaces))
	return ifaces[n-1].name, n
}

func (b *builder) hop4() string {
	name, n := b.out()
	switch b.IntN(12) {
	case 0:
		return "dev " + name // to whoever is there
	case 1:
		return fmt.Sprintf("via inet6 fe80::%d dev %s", 2+b.IntN(3), name)
	case 2:
		return fmt.Sprintf("via 10.%d.0.9 dev %s", n, name) // no neighbour
	case 3:
		return fmt.Sprintf("via 10.%d.0.%d dev %s onlink", 1+b.IntN(5), 2+b.IntN(3), name)
	}
	return fmt.Sprintf("via 10.%d.0.%d dev %s", n, 2+b.IntN(3), name)
}

func (b *builder) hop6() string {
	name, n := b.out()
	switch b.IntN(10) {
	case 0:
		return "dev " + name
	case 1, 2, 3:
		return fmt.Sprintf("via fe80::%d dev %s", 2+b.IntN(3), name)
	case 4:
		return fmt.Sprintf("via fd0%d::9 dev %s", n, name)
	}
	return fmt.Sprintf("via fd0%d::%d dev %s", n, 2+b.IntN(3), name)
}

// routes makes routes of a family to prefixes.
func (b *builder) routes(tool string, prefixes []netip.Prefix, hop func() string, table string) {
	for _, p := range prefixes {
		extra := table
		if b.one(15) {
			extra += fmt.Sprintf(" metric %d", 1+b.IntN(300))
		}
		if b.one(15) {
			extra += b.of(" mtu lock 1300", " mtu lock 600", " mtu lock 9000", " advmss 500", " hoplimit 5", " window 1000")
		}
		if b.one(25) && tool == "ip" {
			extra += b.of(" tos 0x10", " tos 0x08", " realm 7", " src 10.255.0.1", " scope link")
		}
		switch b.IntN(12) {
		case 0:
			b.add(tool, "route add %s %v%s", b.of("blackhole", "unreachable", "prohibit", "throw"), p, extra)
		case 1, 2, 3, 4:
			line := ""
			for range 2 + b.IntN(3) {
				to := strings.ReplaceAll(hop(), " onlink", "")
				for tool == "ip6" && strings.HasPrefix(to, "dev") { // not there
					to = hop()
				}
				line += fmt.Sprintf(" nexthop %s weight %d", to, 1+b.IntN(4))
			}
			b.add(tool, "route add %v%s%s", p, extra, line)
		case 5:
			encap := b.of("mpls 100", "ip id 5 dst 10.2.0.2")
			if tool == "ip6" {
				encap = b.of("mpls 100", "seg6 mode encap segs fd02::2", "seg6 mode inline segs fd02::2", "ioam6 trace prealloc type 0x800000 ns 0 size 4")
			}
			b.add(tool, "route add %v encap %s %s%s", p, encap, hop(), extra)
		default:
			b.add(tool, "route add %v %s%s", p, hop(), extra)
		}
	}
}

func (b *builder) routes4() {
	for k := range 12 + b.IntN(12) {
		bits := []int{16, 16, 20, 24, 30, 32}[b.IntN(6)]
		p, _ := netip.AddrFrom4([4]byte{20, byte(k), byte(b.IntN(256)), byte(b.IntN(256))}).Prefix(bits)
		b.dst4 = append(b.dst4, p)
		if b.one(6) { // one within
			p, _ := netip.AddrFrom4([4]byte{20, byte(k), byte(b.IntN(256)), byte(b.IntN(256))}).Prefix(bits)
			b.dst4 = append(b.dst4, p)
		}
	}
	b.routes("ip", b.dst4, b.hop4, "")
	if b.one(2) {
		b.routes("ip", []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, b.hop4, "")
	}
	if b.one(8) {
		b.add("ip", "route add local 20.0.77.0/24 dev lo")
		b.dst4 = append(b.dst4, netip.MustParsePrefix("20.0.77.0/24"))
	}
	if b.one(8) {
		b.nexthops("ip", "10", "20.200.0.0/16")
		b.dst4 = append(b.dst4, netip.MustParsePrefix("20.200.0.0/16"))
	}
}

// mtu makes a route with an MTU that is not locked, which somebody has to watch
// for: netns.RouteEvents does.
func (b *builder) mtu() {
	if b.one(2) {
		b.add("ip", "route replace %v via 10.2.0.2 dev eth2 mtu %d", b.dst4[0], 600+b.IntN(800))
	} else {
		b.add("ip6", "route replace %v via fd02::2 dev eth2 mtu %d", b.dst6[0], 600+b.IntN(800))
	}
}

func (b *builder) routes6() {
	for k := range 12 + b.IntN(12) {
		bits := []int{48, 48, 56, 64, 127, 128}[b.IntN(6)]
		a := netip.MustParseAddr(fmt.Sprintf("2001:db8:%x:%x::%x", k, b.IntN(65536), b.IntN(65536)))
		p, _ := a.Prefix(bits)
		b.dst6 = append(b.dst6, p)
	}
	b.routes("ip6", b.dst6, b.hop6, "")
	if b.one(2) {
		b.routes("ip6", []netip.Prefix{netip.MustParsePrefix("::/0")}, b.hop6, "")
	}
	if b.one(8) {
		b.add("ip6", "route add 2001:db8:0:9::/64 from 2001:db8:ee00::/40 via fd02::2 dev eth2")
		b.dst6 = append(b.dst6, netip.MustParsePrefix("2001:db8:0:9::/64"))
	}
	if b.one(8) {
		b.nexthops("ip6", "fd", "2001:db8:200::/48")
		b.dst6 = append(b.dst6, netip.MustParsePrefix("2001:db8:200::/48"))
	}
}

// nexthops routes by the kernel's objects of that name.
func (b *builder) nexthops(tool, family, prefix string) {
	base := 10
	address := func(n int) string { return fmt.Sprintf("10.%d.0.2", n) }
	if family == "fd" {
		base, address = 20, func(n int) string { return fmt.Sprintf("fd0%d::2", n) }
	}
	for n := 1; n <= 3; n++ {
		b.add(tool, "nexthop add id %d via %s dev eth%d", base+n, address(n), n)
	}
	switch b.IntN(3) {
	case 0:
		b.add(tool, "nexthop add id %d group %d,2/%d,3", base+5, base+2, base+3)
	case 1:
		b.add(tool, "nexthop add id %d blackhole", base+5)
	case 2:
		b.add(tool, "nexthop add id %d group %d/%d/%d", base+5, base+1, base+2, base+3)
	}
	b.add(tool, "route add %s nhid %d", prefix, base+5)
}

func (b *builder) rules() {
	for _, tool := range []string{"ip", "ip6"} {
		if b.one(3) {
			continue
		}
		prefixes, hop, from := b.dst4, b.hop4, []string{"30.0.0.0/9", "10.1.0.0/24", "30.0.0.0/8"}
		if tool == "ip6" {
			prefixes, hop, from = b.dst6, b.hop6, []string{"2001:db8:ee00::/41", "fd01::/64", "2001:db8:ee00::/40"}
		}
		some := slices.Clone(prefixes)
		b.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
		b.routes(tool, some[:len(some)/2], hop, " table 100")
		b.routes(tool, some[len(some)/3:], hop, " table 101")
		for k := range 1 + b.IntN(3) {
			what := ""
			switch b.IntN(9) {
			case 0:
				what = "from " + b.of(from...)
			case 1:
				what = fmt.Sprintf("to %v", some[b.IntN(len(some))])
			case 2:
				what = b.of("iif eth1", "iif eth2", "iif lo", "oif eth2")
			case 3:
				what = "tos " + b.of("0x10", "0x08", "0x04")
			case 4:
				what = "ipproto " + b.of("udp", "tcp", "icmp", "sctp", "47")
			case 5:
				what = fmt.Sprintf("ipproto %s %s %d-%d", b.of("udp", "tcp"), b.of("sport", "dport"), 1+b.IntN(20000), 20000+b.IntN(45000))
			case 6:
				what = "fwmark " + b.of("0", "1", "0x10/0xf0")
			case 7:
				what = "not from " + b.of(from...)
			case 8:
				what = "uidrange 0-100"
			}
			switch b.IntN(8) {
			case 0:
				what += " " + b.of("blackhole", "unreachable", "prohibit")
			case 1:
				what += fmt.Sprintf(" lookup 100 suppress_prefixlength %d", b.IntN(40))
			case 2:
				what += " lookup 101 suppress_ifgroup default"
			case 3:
				what += fmt.Sprintf(" goto %d", 300+b.IntN(2)*10)
			default:
				what += " lookup " + b.of("100", "101")
			}
			b.add(tool, "rule add pref %d %s", 100+k*10, what)
		}
		b.add(tool, "rule add pref 300 lookup %s", b.of("main", "100"))
		b.add(tool, "rule add pref 310 lookup %s", b.of("main", "101"))
	}
}

func (b *builder) sysctls() {
	all := []string{
		"net.ipv4.fib_multipath_hash_policy=0", "net.ipv4.fib_multipath_hash_policy=0", "net.ipv4.fib_multipath_hash_policy=2", "net.ipv4.fib_multipath_hash_policy=3",
		"net.ipv6.fib_multipath_hash_policy=0", "net.ipv6.fib_multipath_hash_policy=0", "net.ipv6.fib_multipath_hash_policy=2", "net.ipv6.fib_multipath_hash_policy=3",
		"net.ipv4.fib_multipath_use_neigh=1", "net.ipv4.conf.eth1.forwarding=0", "net.ipv4.conf.eth2.forwarding=0", "net.ipv4.conf.all.forwarding=0",
		"net.ipv6.conf.eth1.forwarding=0", "net.ipv6.conf.eth2.forwarding=0", "net.ipv6.conf.all.forwarding=0",
		"net.ipv4.conf.eth1.rp_filter=1", "net.ipv4.conf.eth1.rp_filter=2", "net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.all.rp_filter=2", "net.ipv4.conf.eth2.rp_filter=1",
		"net.ipv4.conf.eth1.accept_local=1", "net.ipv4.conf.all.accept_local=1", "net.ipv4.conf.eth1.route_localnet=1", "net.ipv4.conf.all.route_localnet=1",
		"net.ipv6.conf.all.proxy_ndp=1", "net.ipv4.conf.eth1.disable_policy=1", "net.ipv6.conf.eth1.disable_policy=1",
		"net.ipv4.conf.eth1.drop_unicast_in_l2_multicast=1", "net.ipv6.conf.eth1.drop_unicast_in_l2_multicast=1",
		"net.ipv4.ip_forward_use_pmtu=1", "net.ipv4.conf.all.accept_redirects=1", "net.ipv4.conf.all.send_redirects=1", "net.ipv4.conf.eth1.send_redirects=1",
		"net.ipv6.conf.eth1.disable_ipv6=1", "net.ipv6.conf.eth2.disable_ipv6=1", "net.ipv4.conf.eth1.src_valid_mark=1", "net.ipv4.ip_early_demux=0",
		"net.ipv4.conf.all.bc_forwarding=1", "net.ipv4.conf.eth1.proxy_arp=1", "net.ipv4.conf.eth1.accept_source_route=1", "net.ipv4.conf.all.accept_source_route=1",
		"net.ipv6.conf.all.accept_source_route=1", "net.ipv6.conf.eth1.accept_source_route=1", "net.ipv6.conf.eth1.seg6_enabled=1", "net.ipv6.conf.all.seg6_enabled=1",
		"net.ipv4.conf.all.ignore_routes_with_linkdown=0", "net.ipv6.conf.eth3.mtu=1280", "net.ipv6.conf.eth1.force_forwarding=1", "net.ipv4.ip_default_ttl=3",
		"net.ipv4.fib_multipath_hash_fields=0x3f", "net.ipv6.fib_multipath_hash_fields=0x3f",
	}
	for range 1 + b.IntN(3) {
		b.add("sysctl", "%s", all[b.IntN(len(all))])
	}
}

func (b *builder) netfilter() {
	rule := func() string {
		return b.of("udp dport 1-30000 drop", "tcp sport 1-30000 drop", "ip ttl set 9", "ip dscp set 5", "ip6 hoplimit set 7", "meta mark set 1", "icmp type echo-request drop",
			"counter", "udp dport 1-20000 reject", "ip saddr 30.0.0.0/9 drop", "ip daddr 20.0.0.0/12 ip daddr set 10.2.0.3", "meta length > 1000 drop", "ct state new counter")
	}
	for k := range 1 + b.IntN(2) {
		switch b.IntN(6) {
		case 0:
			b.add("nft", "table netdev t%d { chain c { type filter hook ingress device eth1 priority 0; %s; }; }", k, b.of("udp dport 1-30000 drop", "ip ttl set 9", "counter", "ether type ip6 drop"))
		case 1:
			b.add("nft", "table netdev t%d { chain c { type filter hook egress device eth2 priority 0; %s; }; }", k, b.of("udp dport 1-30000 drop", "ip ttl set 9", "counter", "ether type ip6 drop"))
		default:
			b.add("nft", "table inet t%d { chain c { type filter hook %s priority %d; %s; }; }", k, b.of("prerouting", "forward", "postrouting", "input", "output"), b.IntN(200)-100, rule())
		}
	}
}

// traffic is traffic control.
func (b *builder) traffic() {
	device := b.of("eth1", "eth2", "eth3", "eth4")
	switch b.IntN(4) {
	case 0:
		b.add("tc", "qdisc add dev %s root %s", device, b.of("pfifo limit 100000", "bfifo limit 100000000", "tbf rate 10gbit burst 10mb limit 100mb"))
	case 1:
		b.add("tc", "qdisc add dev %s clsact", device)
		b.add("tc", "filter add dev %s %s protocol ip u32 match ip dst 20.0.0.0/12 action mirred egress redirect dev ten0", device, b.of("ingress", "egress"))
	case 2:
		b.add("tc", "qdisc add dev %s clsact", device)
	case 3:
		b.add("tc", "qdisc add dev %s ingress", device)
		b.add("tc", "filter add dev %s parent ffff: protocol ipv6 u32 match u32 0 0 action mirred egress mirror dev ten0", device)
	}
}

func (b *builder) ipsec() {
	switch b.IntN(4) {
	case 0:
		b.add("ip", "xfrm policy add src 30.0.0.0/9 dst 20.0.0.0/8 dir fwd action block")
	case 1:
		b.add("ip", "xfrm policy add src 0.0.0.0/0 dst 20.4.0.0/16 dir out tmpl src 10.2.0.1 dst 10.2.0.2 proto esp mode transport level use")
	case 2:
		b.add("ip", "xfrm policy setdefault %s block", b.of("fwd", "out", "in"))
	case 3:
		b.add("ip", "xfrm policy add src ::/0 dst 2001:db8:4::/48 dir %s action block", b.of("fwd", "out"))
	}
}

// links changes the interfaces before there are routes by them.
func (b *builder) links() {
	if b.one(12) {
		b.add("ip", "link set eth%d mtu %d", 2+b.IntN(3), b.pick(1280, 1000, 576, 200, 1290))
	}
	if b.one(20) {
		b.add("ip", "link set eth%d %s", 1+b.IntN(4), b.of("arp off", "promisc on", "allmulticast on"))
	}
	if b.one(15) {
		b.add("ip", "neigh replace 10.2.0.3 dev eth2 %s", b.of("nud failed", "lladdr 02:00:00:00:99:99 nud stale", "lladdr 02:00:00:00:99:99 nud noarp", "nud none"))
		b.add("ip", "neigh replace fd02::3 dev eth2 %s", b.of("nud failed", "lladdr 02:00:00:00:99:99 nud stale", "lladdr 02:00:00:00:99:99 nud noarp", "nud none"))
	}
	if b.one(15) {
		b.add("ip", "addr add 10.9.0.1/24 dev eth%d", 1+b.IntN(4))
		b.add("ip", "addr add 30.0.0.%d/32 dev lo", b.IntN(255))
	}
}

func (b *builder) pick(of ...int) int { return of[b.IntN(len(of))] }

// devices are the tenant's own, in the way of frames or not.
func (b *builder) devices() {
	n := 1 + b.IntN(4)
	switch b.IntN(6) {
	case 0:
		b.add("ip", "link add link eth%d name mac0 address 02:00:00:00:dd:01 type macvlan mode %s", n, b.of("private", "bridge", "passthru"))
		b.add("ip", "link set mac0 up")
	case 1:
		b.add("ip", "link add br0 address 02:00:00:00:dd:02 type bridge")
		b.add("ip", "link set eth%d master br0", n)
		b.add("ip", "link set br0 up")
	case 2:
		b.add("ip", "link set eth%d down", n)
	case 3:
		b.add("ip", "link set eth%d address 02:00:00:00:dd:03", n)
	case 4:
		b.add("ip", "link add vx0 address 02:00:00:00:dd:04 type vxlan id 5 remote 10.2.0.2 dstport 4789 dev eth2")
		b.add("ip", "addr add 10.8.0.1/24 dev vx0")
		b.add("ip", "link set vx0 up")
		b.add("ip", "neigh replace 10.8.0.2 lladdr 02:00:00:00:b8:02 dev vx0")
		b.add("ip", "route replace 20.5.0.0/16 via 10.8.0.2")
	case 5:
		b.add("ip", "link set eth%d name wan0", n)
	}
}
