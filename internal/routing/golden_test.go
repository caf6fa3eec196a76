package routing

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"trellis/internal/vnet"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func itoa(n int) string { return strconv.Itoa(n) }

func writeFile(t testing.TB, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// everyRouting lists all protocols that a daemon speaks, under each daemon and
// with both sets of timers.
func everyRouting() []vnet.Routing {
	var list []vnet.Routing
	for _, timers := range []vnet.Timers{vnet.TimersDefault, vnet.TimersFast} {
		for _, p := range []vnet.Protocol{vnet.OSPF, vnet.ISIS, vnet.BGP, vnet.RIP} {
			for _, d := range []vnet.Daemon{vnet.FRR, vnet.BIRD} {
				if p != vnet.ISIS || d != vnet.BIRD {
					list = append(list, vnet.Routing{Protocol: p, Daemon: d, Timers: timers})
				}
			}
		}
	}
	return list
}

func nameOf(r vnet.Routing) string {
	return string(r.Protocol) + "-" + string(r.Daemon) + "-" + string(r.Timers)
}

// sample describes a small network with one of everything: a point-to-point
// link with a cost, one without IPv6, a LAN with a host, and a link to a host
// alone.
func sample(r vnet.Routing) *described {
	d := describe(r, "a-b", "a-c")
	d.Links[0].Endpoints[0].Cost = 7
	d.link(vnet.LAN, "a", "b", "c", "host").Name = "lan"
	d.link(vnet.PointToPoint, "a", "host").Name = "stub"
	d.Node("host").Routing.Protocol = vnet.None
	for i := range d.Nodes {
		n := &d.Nodes[i]
		n.ASN = uint32(65001 + i)
		n.Loopbacks = []netip.Addr{netip.AddrFrom4([4]byte{10, 255, 0, byte(i + 1)}), netip.MustParseAddr(fmt.Sprintf("fd00:ff::%d", i+1))}
	}
	for i := range d.Links {
		for j := range d.Links[i].Endpoints {
			e := &d.Links[i].Endpoints[j]
			e.Addrs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i + 1), byte(j + 1)}), 24)}
			if i != 1 {
				e.Addrs = append(e.Addrs, netip.MustParsePrefix(fmt.Sprintf("fd00:%d::%d/64", i+1, j+1)))
			}
		}
	}
	return d
}

// TestGolden compares what node a of the sample network gets with
// testdata/PROTOCOL-DAEMON-TIMERS.conf; go test -run Golden -update rewrites the
// files.
func TestGolden(t *testing.T) {
	for _, r := range everyRouting() {
		t.Run(nameOf(r), func(t *testing.T) {
			compareGolden(t, nameOf(r), sample(r).generate(t)["a"].Daemons)
		})
	}
}

// TestGoldenSystems compares what a border router of the three systems gets, with
// a route reflector and a default route, under each daemon.
func TestGoldenSystems(t *testing.T) {
	for _, daemon := range []vnet.Daemon{vnet.FRR, vnet.BIRD} {
		d := threeSystems(vnet.OSPF)
		d.Routing.Daemon = daemon
		d.Node("b1").Routing.RouteReflector = true
		d.Node("b1").Routing.DefaultRoute = true
		d.Links[3].Routing.Area = "7"
		d.Links[4].Routing.Passive = true
		compareGolden(t, "systems-"+string(daemon), d.generate(t)["b1"].Daemons)
	}
}

// TestTimersFitTheLoad checks which timers networks of several sizes get on
// machines of several sizes.
func TestTimersFitTheLoad(t *testing.T) {
	v := describe(frrOSPFFast, ring(4)...).complete(t)
	for _, c := range []struct {
		load Load
		want string
	}{
		{Load{}, ""},
		{Load{Routers: 11, Busiest: 11, Cores: 2}, ""},
		{Load{Routers: 50, Busiest: 50, Cores: 2}, ""},
		{Load{Routers: 754, Busiest: 4, Cores: 64}, ""},
		{Load{Routers: 100, Busiest: 100, Cores: 2}, "100 routers on 2 cores: hello 2 s, dead 16 s, routes calculated 0.26 s after a change, then every 1 s at most"},
		{Load{Routers: 101, Busiest: 101, Cores: 2}, "101 routers on 2 cores: hello 2 s, dead 16 s, routes calculated 0.26 s after a change, then every 1 s at most"},
		{Load{Routers: 754, Busiest: 754, Cores: 2}, "754 routers on 2 cores: hello 16 s, dead 128 s, routes calculated 15 s after a change, then every 60 s at most"},
		{Load{Routers: 754, Busiest: 377, Cores: 16}, "377 routers on 16 cores: hello 1 s, dead 4 s, routes calculated 1 s after a change, then every 4.1 s at most"},
	} {
		if got := DescribeTimers(v, c.load); got != c.want {
			t.Errorf("%+v: %q, want %q", c.load, got, c.want)
		}
	}
	placement := map[string]string{"r1": "a", "r2": "a", "r3": "a", "r4": "b"}
	if got, want := NewLoad(v, placement, map[string]float64{"a": 2, "b": 0.5}), (Load{Routers: 4, Busiest: 1, Cores: 0.5}); got != want {
		t.Errorf("load %+v, want %+v", got, want)
	}
}

// TestNamedTimers checks that timers that the description names are the ones
// that are written.
func TestNamedTimers(t *testing.T) {
	r := frrOSPFFast
	r.Intervals = vnet.Intervals{Hello: 20 * time.Second, Dead: 80 * time.Second, SPF: [3]time.Duration{5 * time.Second, 10 * time.Second, time.Minute}}
	text := fileOf(sample(r).generate(t)["a"].Daemons, "/etc/frr/ospfd.conf")
	for _, want := range []string{"timers throttle spf 5000 10000 60000\n", "hello-interval 20\n", "dead-interval 80\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestHostsHaveGateways checks where hosts send what is not for their links, and
// that routers have routes to them.
func TestHostsHaveGateways(t *testing.T) {
	d := describe(vnet.Routing{Protocol: vnet.Static}, "r1-r2")
	d.link(vnet.LAN, "h1", "h2", "r2", "r3").Name = "lan"
	d.link(vnet.PointToPoint, "h2", "h3")
	for _, h := range []string{"h1", "h2", "h3"} {
		d.Node(h).Kind = vnet.Host
	}
	v := d.complete(t)
	configs, err := Generate(v, Load{})
	if err != nil {
		t.Fatal(err)
	}
	lan := v.Link("lan").Endpoints
	for _, h := range []string{"h1", "h2"} {
		routes := configs[h].Routes
		if len(routes) != 2 || routes[0].Prefix != ipv4.anywhere() || routes[1].Prefix != ipv6.anywhere() {
			t.Fatalf("%s has the routes %v, want two default routes", h, routes)
		}
		for i, r := range routes {
			if want := lan[2].Addrs[i].Addr(); len(r.Hops) != 1 || r.Hops[0].Gateway != want {
				t.Errorf("%s sends to %v, want the first router, r2, at %s", h, r.Hops, want)
			}
		}
	}
	if routes := configs["h3"].Routes; len(routes) != 0 {
		t.Errorf("h3, beside a host alone, has the routes %v", routes)
	}
	if n := v.Node("h1"); len(n.Loopbacks) != 0 {
		t.Errorf("host h1 has loopbacks %v", n.Loopbacks)
	}
	found := 0
	for _, r := range configs["r1"].Routes {
		for _, a := range lan[0].Addrs {
			if r.Prefix == a.Masked() {
				found++
			}
		}
	}
	if found != 2 {
		t.Errorf("r1 has %d routes to the hosts' LAN, want 2", found)
	}
}

// compareGolden compares all files and services with one golden file.
func compareGolden(t *testing.T, name string, d Daemons) {
	t.Helper()
	var b strings.Builder
	for _, f := range d.Files {
		b.WriteString("==> " + f.Path + "\n" + string(f.Content))
	}
	for _, s := range d.Services {
		b.WriteString("==> service " + s.Name + "\n")
		b.WriteString(strings.Join(append(s.Env[:len(s.Env):len(s.Env)], s.Argv...), " ") + "\n")
		if s.After != "" {
			b.WriteString("after " + s.After + "\n")
		}
		if s.Ready != "" {
			b.WriteString("ready by " + s.Ready + "\n")
		}
		if s.Loads {
			b.WriteString("loads the others\n")
		}
		if s.Optional {
			b.WriteString("where there is such a program\n")
		}
	}
	file := filepath.Join("testdata", name+".conf")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, file, []byte(b.String()))
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("%s has changed; if that is meant, run go test -run %s -update.\nnow:\n%s", file, t.Name(), got)
	}
}

// TestAnycastIsAnnounced: lo is, also by a node that has no loopback address of its own.
func TestAnycastIsAnnounced(t *testing.T) {
	for _, c := range []struct {
		routing vnet.Routing
		want    []string
	}{
		{vnet.Routing{Protocol: vnet.OSPF, Daemon: vnet.FRR}, []string{"interface lo\n ip ospf area 0", "ipv6 ospf6 area 0"}},
		{vnet.Routing{Protocol: vnet.ISIS, Daemon: vnet.FRR}, []string{"interface lo\n ip router isis", " ipv6 router isis"}},
		{vnet.Routing{Protocol: vnet.RIP, Daemon: vnet.FRR}, []string{"network lo"}},
		{vnet.Routing{Protocol: vnet.OSPF, Daemon: vnet.BIRD}, []string{"stubnet 192.0.2.9/32;", "stubnet 2001:db8::9/128;"}},
	} {
		d := describe(c.routing, "a-b")
		d.Node("a").Anycast = []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}
		v := d.complete(t)
		v.Node("a").Loopbacks = nil
		text := ""
		for _, f := range generate(t, v)["a"].Daemons.Files {
			text += string(f.Content)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", nameOf(c.routing), want, text)
			}
		}
	}
}
