package routing

import (
	"testing"
	"time"

	"trellis/internal/vnet"
)

// threeSystems describes three autonomous systems in a row: a ring of three
// routers, a line of four that others' traffic crosses, and a pair; a host is on
// a link of the first.
func threeSystems(igp vnet.Protocol) *described {
	d := describe(vnet.Routing{Protocol: vnet.BGP, IGP: igp, Timers: vnet.TimersFast},
		"a1-a2", "a2-a3", "a3-a1", "b1-b2", "b2-b3", "b3-b4", "c1-c2", "a3-b1", "b4-c1", "a1-h")
	for i := range d.Nodes {
		n := &d.Nodes[i]
		switch n.Name[0] {
		case 'h':
			n.Kind = vnet.Host
		default:
			n.ASN = 65001 + uint32(n.Name[0]-'a')
		}
	}
	return d
}

// TestSystemsConverge runs several autonomous systems with an IGP, internal and
// external BGP: every kernel must learn every loopback of every system.
func TestSystemsConverge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		igp     vnet.Protocol
		daemons []vnet.Daemon
		reflect bool
	}{
		"ospf-frr":       {vnet.OSPF, []vnet.Daemon{vnet.FRR}, false},
		"ospf-bird":      {vnet.OSPF, []vnet.Daemon{vnet.BIRD}, false},
		"ospf-frr-bird":  {vnet.OSPF, []vnet.Daemon{vnet.FRR, vnet.BIRD}, true},
		"isis-reflector": {vnet.ISIS, []vnet.Daemon{vnet.FRR}, true},
	} {
		t.Run(name, func(t *testing.T) {
			needDaemon(t, frrBin+"zebra")
			needDaemon(t, birdBin)
			t.Parallel()
			d := threeSystems(c.igp)
			for i := range d.Nodes {
				if d.Nodes[i].Kind != vnet.Host {
					d.Nodes[i].Routing.Daemon = c.daemons[i%len(c.daemons)]
				}
			}
			d.Node("b2").Routing.RouteReflector = c.reflect
			v := d.complete(t)
			l := newLab(t, v)
			began := time.Now()
			l.start(generate(t, v))
			var nodes []string
			for i := range v.Nodes {
				if v.Nodes[i].Kind != vnet.Host {
					nodes = append(nodes, v.Nodes[i].Name)
				}
			}
			t.Logf("converged %v after the start of the daemons", l.converge(began, 40*time.Second, nodes...).Round(10*time.Millisecond))
			for _, lan := range v.Link("a1-h").Endpoints[0].Addrs {
				l.eventually(10*time.Second, "learn "+lan.Masked().String()+" at c2", func() bool { return l.fib("c2")[lan.Masked()] != nil })
			}
		})
	}
}

// TestAreasConverge runs OSPF in three areas under each daemon.
func TestAreasConverge(t *testing.T) {
	t.Parallel()
	links := []string{"r1-r2", "r2-r3", "r3-r1", "r1-x1", "x1-x2", "r2-y1", "y1-y2"}
	for _, daemon := range []vnet.Daemon{vnet.FRR, vnet.BIRD} {
		t.Run(string(daemon), func(t *testing.T) {
			needDaemon(t, frrBin+"zebra")
			needDaemon(t, birdBin)
			t.Parallel()
			d := describe(vnet.Routing{Protocol: vnet.OSPF, Daemon: daemon, Timers: vnet.TimersFast}, links...)
			for i := range d.Nodes {
				n := &d.Nodes[i]
				n.Routing.Area = map[byte]vnet.Area{'r': "0", 'x': "1", 'y': "2"}[n.Name[0]]
			}
			d.Links[3].Routing.Area, d.Links[5].Routing.Area = "1", "2" // r1 and r2 are at the borders
			v := d.complete(t)
			l := newLab(t, v)
			began := time.Now()
			l.start(generate(t, v))
			t.Logf("converged %v after the start of the daemons", l.converge(began, 40*time.Second).Round(10*time.Millisecond))
		})
	}
}

// TestDefaultRouteIsAnnounced has one router of a line announce a default route
// under each protocol and daemon.
func TestDefaultRouteIsAnnounced(t *testing.T) {
	t.Parallel()
	for _, r := range everyRouting() {
		if r.Timers != vnet.TimersFast {
			continue
		}
		t.Run(nameOf(r), func(t *testing.T) {
			needDaemon(t, map[vnet.Daemon]string{vnet.FRR: frrBin + "zebra", vnet.BIRD: birdBin}[r.Daemon])
			t.Parallel()
			d := describe(r, "r1-r2", "r2-r3")
			d.Node("r1").Routing.DefaultRoute = true
			v := d.complete(t)
			l := newLab(t, v)
			l.start(generate(t, v))
			for _, f := range []family{ipv4, ipv6} {
				l.eventually(30*time.Second, "learn the default route of "+f.String(), func() bool { return l.fib("r3")[f.anywhere()] != nil })
			}
			if l.fib("r1")[ipv4.anywhere()] != nil {
				t.Error("the router that announces the default route has one itself")
			}
		})
	}
}

// TestUnnumberedConverges runs OSPF and IS-IS over a link without addresses of
// its own.
func TestUnnumberedConverges(t *testing.T) {
	t.Parallel()
	for _, p := range []vnet.Protocol{vnet.OSPF, vnet.ISIS} {
		t.Run(string(p), func(t *testing.T) {
			needDaemon(t, frrBin+"zebra")
			t.Parallel()
			d := describe(vnet.Routing{Protocol: p, Timers: vnet.TimersFast}, "r1-r2", "r2-r3", "r3-r1")
			d.Links[0].Addressing, d.Links[1].Addressing = vnet.AddressesUnnumbered, vnet.AddressesUnnumbered
			d.Links[2].Endpoints[0].Cost = 1000
			d.Links[2].Endpoints[1].Cost = 1000
			v := d.complete(t)
			l := newLab(t, v)
			began := time.Now()
			l.start(generate(t, v))
			t.Logf("converged %v after the start of the daemons", l.converge(began, 30*time.Second).Round(10*time.Millisecond))
		})
	}
}
