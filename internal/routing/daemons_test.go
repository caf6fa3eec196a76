package routing

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"trellis/internal/vnet"
)

// TestDaemonsConverge runs each protocol under each daemon, and under both side
// by side, on a ring of four nodes: every kernel must learn every loopback in
// both families.
func TestDaemonsConverge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		protocol vnet.Protocol
		daemons  []vnet.Daemon // of the nodes in turn
		within   time.Duration
	}{
		{vnet.OSPF, []vnet.Daemon{vnet.FRR}, 20 * time.Second},
		{vnet.OSPF, []vnet.Daemon{vnet.BIRD}, 20 * time.Second},
		{vnet.OSPF, []vnet.Daemon{vnet.FRR, vnet.BIRD}, 20 * time.Second},
		{vnet.ISIS, []vnet.Daemon{vnet.FRR}, 30 * time.Second},
		{vnet.BGP, []vnet.Daemon{vnet.FRR}, 20 * time.Second},
		{vnet.BGP, []vnet.Daemon{vnet.BIRD}, 20 * time.Second},
		{vnet.BGP, []vnet.Daemon{vnet.FRR, vnet.BIRD}, 20 * time.Second},
		{vnet.RIP, []vnet.Daemon{vnet.FRR}, 30 * time.Second},
		{vnet.RIP, []vnet.Daemon{vnet.BIRD}, 30 * time.Second},
		{vnet.RIP, []vnet.Daemon{vnet.FRR, vnet.BIRD}, 30 * time.Second},
	} {
		name := string(c.protocol)
		for _, d := range c.daemons {
			name += "-" + string(d)
		}
		t.Run(name, func(t *testing.T) {
			for _, d := range c.daemons {
				needDaemon(t, map[vnet.Daemon]string{vnet.FRR: frrBin + "zebra", vnet.BIRD: birdBin}[d])
			}
			t.Parallel()
			d := describe(vnet.Routing{Protocol: c.protocol, Timers: vnet.TimersFast}, ring(4)...)
			for i := range d.Nodes {
				d.Nodes[i].Routing = vnet.Routing{Daemon: c.daemons[i%len(c.daemons)]}
			}
			v := d.complete(t)
			configs := generate(t, v)
			l := newLab(t, v)
			began := time.Now()
			l.start(configs)
			t.Logf("converged %v after the start of the daemons", l.converge(began, c.within).Round(10*time.Millisecond))
		})
	}
}

// TestLANConverges puts four routers on one segment, of both daemons where the
// protocol has both: OSPF and IS-IS elect a designated router there.
func TestLANConverges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		protocol vnet.Protocol
		second   vnet.Daemon
	}{{vnet.OSPF, vnet.BIRD}, {vnet.ISIS, vnet.FRR}, {vnet.BGP, vnet.BIRD}, {vnet.RIP, vnet.BIRD}} {
		t.Run(string(c.protocol), func(t *testing.T) {
			needDaemon(t, frrBin+"zebra")
			needDaemon(t, birdBin)
			t.Parallel()
			d := describe(vnet.Routing{Protocol: c.protocol, Daemon: vnet.FRR, Timers: vnet.TimersFast})
			d.link(vnet.LAN, "r1", "r2", "r3", "r4")
			d.link(vnet.PointToPoint, "r4", "r5")
			d.Node("r2").Routing.Daemon = c.second
			v := d.complete(t)
			l := newLab(t, v)
			began := time.Now()
			l.start(generate(t, v))
			t.Logf("converged %v after the start of the daemons", l.converge(began, 40*time.Second).Round(10*time.Millisecond))
		})
	}
}

// TestSeveralEndsConverge puts routers on one segment by two interfaces each: nobody
// takes itself for a neighbour, and all learn all.
func TestSeveralEndsConverge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		protocol vnet.Protocol
		second   vnet.Daemon
	}{{vnet.OSPF, vnet.BIRD}, {vnet.ISIS, vnet.FRR}, {vnet.BGP, vnet.BIRD}, {vnet.RIP, vnet.BIRD}} {
		t.Run(string(c.protocol), func(t *testing.T) {
			needDaemon(t, frrBin+"zebra")
			needDaemon(t, birdBin)
			t.Parallel()
			d := describe(vnet.Routing{Protocol: c.protocol, Daemon: vnet.FRR, Timers: vnet.TimersFast})
			d.link(vnet.LAN, "r1", "r1", "r2", "r2", "r3")
			d.link(vnet.PointToPoint, "r3", "r4")
			d.Node("r2").Routing.Daemon = c.second
			v := d.complete(t)
			l := newLab(t, v)
			began := time.Now()
			l.start(generate(t, v))
			t.Logf("converged %v after the start of the daemons", l.converge(began, 40*time.Second).Round(10*time.Millisecond))
		})
	}
}

// TestSeveralEndsHaveOneSession checks that two routers with several ends on a segment
// agree on the pair of addresses that BGP goes over, whatever addresses those have.
func TestSeveralEndsHaveOneSession(t *testing.T) {
	p := func(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
	for _, c := range []struct {
		name  string
		addrs [4][]netip.Prefix // of a, a, b, b
		want  string
	}{
		{"one subnet", [4][]netip.Prefix{p("192.0.2.1/24"), p("192.0.2.2/24"), p("192.0.2.3/24"), p("192.0.2.4/24")}, "192.0.2.1 192.0.2.3"},
		{"crossed", [4][]netip.Prefix{p("192.0.2.1/24"), p("198.51.100.1/24"), p("198.51.100.3/24"), p("192.0.2.4/24")}, "192.0.2.1 192.0.2.4"},
		{"one pair", [4][]netip.Prefix{p("192.0.2.1/24"), p("198.51.100.1/24"), p("198.51.100.3/24"), p("203.0.113.1/24")}, "198.51.100.1 198.51.100.3"},
		{"none", [4][]netip.Prefix{p("192.0.2.1/24"), p("192.0.2.2/24"), p("198.51.100.3/24"), p("203.0.113.1/24")}, ""},
	} {
		d := describe(vnet.Routing{Protocol: vnet.BGP})
		lan := d.link(vnet.LAN, "a", "a", "b", "b")
		for i, addrs := range c.addrs {
			lan.Endpoints[i].Addrs = addrs
		}
		rs, err := routers(d.complete(t), Load{})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range rs {
			var got []string
			for _, s := range r.sessions() {
				ends := []string{s.local.String(), s.remote.String()}
				if i > 0 {
					slices.Reverse(ends)
				}
				got = append(got, strings.Join(ends, " "))
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("%s: the sessions of %s are over %q, want %q", c.name, r.Name, got, c.want)
			}
		}
	}
}

// TestAbileneConverges runs the eleven nodes of the backbone under OSPF.
func TestAbileneConverges(t *testing.T) {
	needDaemon(t, frrBin+"zebra")
	v := describe(vnet.Routing{Protocol: vnet.OSPF, Daemon: vnet.FRR, Timers: vnet.TimersFast}, abilene...).complete(t)
	configs := generate(t, v)
	l := newLab(t, v)
	began := time.Now()
	l.start(configs)
	t.Logf("converged %v after the start of the daemons", l.converge(began, 30*time.Second).Round(10*time.Millisecond))
}
