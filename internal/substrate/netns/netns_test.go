package netns_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/routing"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/vnet"
)

func prefixes(s ...string) []netip.Prefix {
	var p []netip.Prefix
	for _, x := range s {
		p = append(p, netip.MustParsePrefix(x))
	}
	return p
}

// mustPorts makes ports with one interface each, up on both sides.
func mustPorts(t *testing.T, specs ...port.Spec) {
	t.Helper()
	if err := port.Create(specs); err != nil {
		t.Fatal(err)
	}
	up := map[string]bool{}
	for _, s := range specs {
		up[s.Device] = true
	}
	if err := port.SetUp(up); err != nil {
		t.Fatal(err)
	}
}

func TestOfPidRefusesOwnNamespace(t *testing.T) {
	nstest.Root(t)
	// The thread's own, not the process's: the tests' root context.
	if _, err := netns.OfPid(unix.Gettid()); err == nil || !strings.Contains(err.Error(), "caller's own") {
		t.Fatalf("opened the caller's own namespace: %v", err)
	}
	if _, err := netns.OfPid(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("opened the namespace of no process: %v", err)
	}
}

func TestConfigureConverges(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	if err := n.Defaults(map[string]string{"net.ipv4.ip_default_ttl": "77"}); err != nil {
		t.Fatal(err)
	}
	mustPorts(t, nstest.Spec(n, "eth1"), nstest.Spec(n, "eth2"))
	want := netns.Interior{
		Interfaces: []netns.Interface{
			{Name: "eth1", MAC: vnet.MAC{2, 1, 1, 1, 1, 1}, MTU: 1400, Up: true, Addrs: prefixes("10.0.0.1/30", "fd00::1/64")},
			{Name: "eth2", MAC: vnet.MAC{2, 1, 1, 1, 1, 2}, MTU: 1500, Up: false},
		},
		Loopbacks: prefixes("10.255.0.1/32", "fd00:ff::1/128"),
	}
	configure := func(wantChanges int) {
		t.Helper()
		changed, err := n.NS.Configure(want)
		if err != nil {
			t.Fatal(err)
		}
		if changed != wantChanges {
			t.Errorf("%d changes, want %d", changed, wantChanges)
		}
		got, err := n.Read()
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Interfaces {
			if got.Interfaces[i].Index == 0 {
				t.Errorf("%s has no number", got.Interfaces[i].Name)
			}
			got.Interfaces[i].Index = 0 // any
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	}
	configure(9) // eth1: MAC, MTU, two addresses, up; eth2: MAC; lo: two addresses, up
	configure(0)

	// The tenant's own addresses are neither seen nor removed, with ours gone.
	n.Must(t, "ip addr add 192.0.2.1/24 dev eth1; ip addr add 10.0.0.9/30 dev eth1; ip -6 addr add 2001:db8::1/64 dev eth1 nodad")
	configure(0)
	want.Interfaces[0].Addrs = prefixes("10.0.0.5/30")
	configure(3)
	out := n.Must(t, "ip addr show dev eth1")
	for _, own := range []string{"192.0.2.1/24", "10.0.0.9/30", "2001:db8::1/64"} {
		if !strings.Contains(out, own) {
			t.Errorf("the tenant's address %s is gone:\n%s", own, out)
		}
	}
	if strings.Contains(out, "fd00::1") || strings.Contains(out, "tentative") {
		t.Errorf("an address was left, or is being checked for duplicates:\n%s", out)
	}

	// What the tenant changed of ours is put right; its own copy taken over.
	n.Must(t, "ip link set eth1 mtu 1300; ip addr del 10.0.0.5/30 dev eth1; ip addr add 10.0.0.5/30 dev eth1; ip link set lo down")
	configure(4)
	configure(0)

	n.Must(t, "ip link set eth1 down; ip link set eth1 name mine")
	if _, err := n.NS.Configure(want); err == nil || !strings.Contains(err.Error(), "eth1") {
		t.Errorf("a missing interface went unnoticed: %v", err)
	}
}

func TestDefaultsAreInherited(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	if err := n.Defaults(map[string]string{"net.ipv4.ip_default_ttl": "77"}); err != nil {
		t.Fatal(err)
	}
	mustPorts(t, nstest.Spec(n, "eth1"))
	for path, want := range map[string]string{
		"ipv4/ip_forward": "1", "ipv4/conf/eth1/forwarding": "1", "ipv6/conf/eth1/forwarding": "1",
		"ipv6/conf/eth1/accept_ra": "0", "ipv6/conf/eth1/accept_dad": "0", "ipv4/conf/eth1/rp_filter": "0",
		"ipv4/fib_multipath_hash_policy": "1", "ipv6/fib_multipath_hash_policy": "1", "ipv4/ip_default_ttl": "77",
	} {
		if got := strings.TrimSpace(n.Must(t, "cat /proc/sys/net/"+path)); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	for _, bad := range []string{"kernel.hostname", "net/../kernel/hostname", "net.ipv4.no_such_thing"} {
		if err := n.Defaults(map[string]string{bad: "1"}); err == nil {
			t.Errorf("the sysctl %s was set", bad)
		}
	}
}

// TestSysctlsOfInterfaces: they are written when the interface is there, and to each
// that takes its place.
func TestSysctlsOfInterfaces(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	if err := n.Defaults(nil); err != nil {
		t.Fatal(err)
	}
	spec := nstest.Spec(n, "eth1.7")
	want := netns.Interior{Interfaces: []netns.Interface{{
		Name: "eth1.7", Up: true,
		Sysctls: map[string]string{"net.ipv4.conf.eth1.7.rp_filter": "2", "net.ipv6.neigh.eth1/7.retrans_time_ms": "500", "net.ipv6.conf.eth1.7.disable_ipv6": "1"},
	}}}
	for range 2 {
		mustPorts(t, spec)
		if _, err := n.NS.Configure(want); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]string{"ipv4/conf/eth1.7/rp_filter": "2", "ipv6/neigh/eth1.7/retrans_time_ms": "500", "ipv4/conf/default/rp_filter": "0"} {
			if got := strings.TrimSpace(n.Must(t, "cat /proc/sys/net/"+path)); got != want {
				t.Errorf("%s is %s, want %s", path, got, want)
			}
		}
		if out := n.Must(t, "ip -6 addr show dev eth1.7"); strings.Contains(out, "fe80") {
			t.Errorf("the interface came up with IPv6 before its sysctl was written:\n%s", out)
		}
		n.Must(t, "ip link del eth1.7")
	}
	want.Interfaces[0].Sysctls = map[string]string{"net.ipv4.conf.eth1.7.no_such_thing": "1"}
	mustPorts(t, spec)
	if _, err := n.NS.Configure(want); err == nil || !strings.Contains(err.Error(), "no_such_thing") {
		t.Errorf("a sysctl that is not there: %v", err)
	}
}

// TestSysctlsAreTried: what a new namespace of a node's has and takes, and nothing of
// the machine's changes.
func TestSysctlsAreTried(t *testing.T) {
	nstest.Root(t)
	before, err := os.ReadFile("/proc/sys/net/ipv4/ip_default_ttl")
	if err != nil {
		t.Fatal(err)
	}
	bad := netns.TrySysctls(map[string]string{
		"net.ipv4.ip_default_ttl": "77", "net.ipv4.conf.eth7.rp_filter": "1", "net.ipv6.conf.eth1/100.accept_ra": "0",
		"net.ipv4.ip_default_tll": "77", "net.ipv4.conf.eth7.rp_fliter": "1", "net.ipv6.neigh.eth1.gc_thresh1": "1",
		"net.ipv6.route.skip_notify_on_dev_down": "1", "net.core.bpf_jit_enable": "1",
		"net.ipv4.tcp_fin_timeout": "soon",
	})
	for _, name := range []string{"net.ipv4.ip_default_tll", "net.ipv4.conf.eth7.rp_fliter", "net.ipv6.neigh.eth1.gc_thresh1", "net.ipv6.route.skip_notify_on_dev_down", "net.core.bpf_jit_enable"} {
		if !errors.Is(bad[name], os.ErrNotExist) {
			t.Errorf("%s: %v", name, bad[name])
		}
	}
	if !errors.Is(bad["net.ipv4.tcp_fin_timeout"], unix.EINVAL) || len(bad) != 6 {
		t.Errorf("refused: %v", bad)
	}
	if after, err := os.ReadFile("/proc/sys/net/ipv4/ip_default_ttl"); err != nil || string(after) != string(before) {
		t.Errorf("the machine's own was %s and is %s, %v", before, after, err)
	}
}

func TestRoutesConvergeAndCover(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	if err := n.Defaults(nil); err != nil {
		t.Fatal(err)
	}
	specs := []port.Spec{nstest.Spec(n, "eth1"), nstest.Spec(n, "eth2")}
	mustPorts(t, specs...)
	n.Configure(t, "eth1", "10.0.1.1/24", "fd00:1::1/64")
	n.Configure(t, "eth2", "10.0.2.1/24", "fd00:2::1/64")
	hop := func(gw, dev string) routing.NextHop {
		return routing.NextHop{Gateway: netip.MustParseAddr(gw), Interface: dev}
	}
	want := []routing.Route{
		{Prefix: netip.MustParsePrefix("10.9.0.1/32"), Hops: []routing.NextHop{hop("10.0.1.2", "eth1")}},
		{Prefix: netip.MustParsePrefix("10.9.0.2/32"), Hops: []routing.NextHop{hop("10.0.2.2", "eth2"), hop("10.0.1.2", "eth1")}},
		{Prefix: netip.MustParsePrefix("fd00:9::1/128"), Hops: []routing.NextHop{hop("fd00:1::2", "eth1")}},
		{Prefix: netip.MustParsePrefix("fd00:9::2/128"), Hops: []routing.NextHop{hop("fd00:1::2", "eth1"), hop("fd00:2::2", "eth2")}},
	}
	set := func(wantChanges int) {
		t.Helper()
		changed, err := n.SetRoutes(want)
		if err != nil {
			t.Fatal(err)
		}
		if changed != wantChanges {
			t.Errorf("%d routes changed, want %d:\n%s", changed, wantChanges, n.Must(t, "ip route; ip -6 route"))
		}
	}
	covers := func(addr string, want bool) {
		t.Helper()
		// The kernel tells its tables of a carrier within a second.
		for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			fib, err := n.FIB()
			if err != nil {
				t.Fatal(err)
			}
			if fib.Covers(netip.MustParseAddr(addr)) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("covers %s: %v, want %v:\n%s", addr, !want, want, n.Must(t, "ip route; ip -6 route"))
				return
			}
		}
	}
	n.Must(t, "ip route add 203.0.113.0/24 via 10.0.1.2; ip -6 route add 2001:db8:5::/48 via fd00:1::2; ip route add blackhole 203.0.113.128/25; ip route add unreachable 198.51.100.0/24")
	set(4)
	set(0)
	for _, a := range []string{"10.9.0.1", "10.9.0.2", "fd00:9::1", "fd00:9::2", "203.0.113.1", "2001:db8:5::1", "10.0.1.77", "::ffff:10.9.0.1"} {
		covers(a, true)
	}
	for _, a := range []string{"10.9.0.3", "fd00:9::3", "203.0.113.200", "198.51.100.1", "192.0.2.1"} {
		covers(a, false)
	}
	// Change hops one way and the other, drop one, both families.
	want[0].Hops = append(want[0].Hops, hop("10.0.2.2", "eth2"))
	want[1].Hops = want[1].Hops[:1]
	want[3].Hops = want[3].Hops[1:]
	set(3)
	set(0)
	want = want[1:]
	set(1)
	set(0)
	covers("10.9.0.1", false)
	covers("203.0.113.1", true)

	// Carrier comes and goes; the routes wait.
	for _, up := range []bool{false, true} {
		if err := port.SetUp(map[string]bool{specs[1].Device: up}); err != nil {
			t.Fatal(err)
		}
		covers("10.9.0.2", up)
		covers("fd00:9::2", up)
		set(0)
	}
	if _, err := n.SetRoutes([]routing.Route{{Prefix: want[0].Prefix, Hops: []routing.NextHop{hop("10.0.1.2", "eth9")}}}); err == nil || !strings.Contains(err.Error(), "eth9") {
		t.Errorf("a route by an interface that is not there: %v", err)
	}
}

// TestAConnectedNetworkTakesARoutesPlace gives an interface an address in the
// network that was behind a router there, and routes by way of that.
func TestAConnectedNetworkTakesARoutesPlace(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	if err := n.Defaults(nil); err != nil {
		t.Fatal(err)
	}
	mustPorts(t, nstest.Spec(n, "eth1"))
	n.Configure(t, "eth1", "10.0.1.1/24", "fd00:1::1/64")
	route := func(to, gateway string) routing.Route {
		return routing.Route{Prefix: netip.MustParsePrefix(to), Hops: []routing.NextHop{{Gateway: netip.MustParseAddr(gateway), Interface: "eth1"}}}
	}
	if _, err := n.SetRoutes([]routing.Route{route("10.0.2.0/24", "10.0.1.2"), route("fd00:2::/64", "fd00:1::2")}); err != nil {
		t.Fatal(err)
	}
	n.Configure(t, "eth1", "10.0.2.1/24", "fd00:2::1/64")
	if _, err := n.SetRoutes([]routing.Route{route("10.9.0.1/32", "10.0.2.2"), route("fd00:9::1/128", "fd00:2::2")}); err != nil {
		t.Errorf("routes by way of a network that is connected now: %v\n%s", err, n.Must(t, "ip -6 route"))
	}
}

// TestManyRoutes sets as many routes as a node of a large network has, and
// holds the cost of setting and reading them to a bound that a request for each
// system call would miss.
func TestRoutesHaveAPreferredSource(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	if err := n.Defaults(nil); err != nil {
		t.Fatal(err)
	}
	mustPorts(t, nstest.Spec(n, "eth1"), nstest.Spec(n, "eth2"))
	n.Configure(t, "eth1", "10.0.1.1/24", "fd00:1::1/64")
	n.Configure(t, "eth2", "10.0.2.1/24", "fd00:2::1/64")
	n.Must(t, "ip addr add 10.7.7.7/32 dev lo; ip addr add fd00:7::7/128 dev lo")
	hop := func(gw, dev string) routing.NextHop {
		return routing.NextHop{Gateway: netip.MustParseAddr(gw), Interface: dev}
	}
	want := []routing.Route{
		{Prefix: netip.MustParsePrefix("10.9.0.1/32"), Hops: []routing.NextHop{hop("10.0.1.2", "eth1"), hop("10.0.2.2", "eth2")}},
		{Prefix: netip.MustParsePrefix("fd00:9::1/128"), Hops: []routing.NextHop{hop("fd00:1::2", "eth1")}},
	}
	v4, v6 := netip.MustParseAddr("10.7.7.7"), netip.MustParseAddr("fd00:7::7")
	for _, c := range []struct {
		sources   []netip.Addr
		changed   int
		preferred bool
	}{{nil, 2, false}, {[]netip.Addr{v4, v6}, 2, true}, {[]netip.Addr{v4, v6}, 0, true}, {[]netip.Addr{v6}, 1, false}} {
		changed, err := n.SetRoutes(want, c.sources...)
		if err != nil || changed != c.changed {
			t.Errorf("sources %v: %d changes, want %d: %v", c.sources, changed, c.changed, err)
		}
		out := n.Must(t, "ip route show 10.9.0.1; ip -6 route show fd00:9::1")
		if preferred := strings.Contains(out, "src 10.7.7.7") && strings.Contains(out, "src fd00:7::7"); preferred != c.preferred {
			t.Errorf("sources %v:\n%s", c.sources, out)
		}
	}
}

func TestManyRoutes(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	mustPorts(t, nstest.Spec(n, "eth1"))
	n.Configure(t, "eth1", "10.0.1.1/24", "fd00:1::1/64")
	const count = 10000
	want := make([]routing.Route, 0, 2*count)
	for i := range count {
		v4 := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
		v6 := netip.AddrFrom16([16]byte{0xfd, 9, 14: byte(i >> 8), 15: byte(i)})
		want = append(want,
			routing.Route{Prefix: netip.PrefixFrom(v4, 32), Hops: []routing.NextHop{{Gateway: netip.MustParseAddr("10.0.1.2"), Interface: "eth1"}}},
			routing.Route{Prefix: netip.PrefixFrom(v6, 128), Hops: []routing.NextHop{{Gateway: netip.MustParseAddr("fd00:1::2"), Interface: "eth1"}}})
	}
	start := time.Now()
	changed, err := n.SetRoutes(want)
	if err != nil || changed != len(want) {
		t.Fatalf("%d routes changed, want %d: %v", changed, len(want), err)
	}
	set := time.Since(start)
	start = time.Now()
	fib, err := n.FIB()
	if err != nil {
		t.Fatal(err)
	}
	read := time.Since(start)
	start = time.Now()
	for _, r := range want {
		if !fib.Covers(r.Prefix.Addr()) {
			t.Fatalf("%v is not covered", r.Prefix)
		}
	}
	each := func(d time.Duration) time.Duration { return d / time.Duration(len(want)) }
	t.Logf("a route: %v to set, %v to read, %v to look up", each(set), each(read), each(time.Since(start)))
	if allocs := testing.AllocsPerRun(1, func() { n.FIB() }); allocs > count/10 {
		t.Errorf("reading %d routes makes %.0f objects", len(want), allocs)
	}
	if changed, err := n.SetRoutes(nil); err != nil || changed != len(want) {
		t.Fatalf("%d routes removed, want %d: %v", changed, len(want), err)
	}
}

func TestDoRunsInside(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	inside, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", n.Pid))
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err = n.Do(func() error {
		got, err := os.Readlink("/proc/thread-self/ns/net")
		if err == nil && got != inside {
			err = fmt.Errorf("ran in %s, want %s", got, inside)
		}
		return errors.Join(err, broken)
	})
	if !errors.Is(err, broken) || err.Error() != broken.Error() {
		t.Error(err)
	}
	if now, _ := os.Readlink("/proc/thread-self/ns/net"); now != own {
		t.Errorf("the caller moved from %s to %s", own, now)
	}
}
