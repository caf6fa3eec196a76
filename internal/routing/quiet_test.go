package routing

import (
	"net/netip"
	"testing"
	"time"

	"trellis/internal/vnet"
)

// TestLargeNetworksDoNotAnnounceLinks runs OSPF as a network of hundreds of
// routers does: loopbacks and links with hosts are reached, and in IPv6 there
// is no route to a link between two routers.
func TestLargeNetworksDoNotAnnounceLinks(t *testing.T) {
	t.Parallel()
	needDaemon(t, frrBin+"zebra")
	d := describe(vnet.Routing{Protocol: vnet.OSPF, Timers: vnet.TimersFast}, "r1-r2", "r2-r3", "r3-r4", "r4-h")
	d.Node("h").Kind = vnet.Host
	v := d.complete(t)
	rs, err := routers(v, Load{})
	if err != nil {
		t.Fatal(err)
	}
	configs := map[string]Config{}
	for i := range rs {
		rs[i].net.quietLinks = true
		daemons, err := daemons(&rs[i])
		if err != nil {
			t.Fatal(err)
		}
		configs[rs[i].Name] = Config{Daemons: daemons}
	}
	l := newLab(t, v)
	l.start(configs)
	l.converge(time.Now(), 20*time.Second, "r1", "r2", "r3", "r4")
	link := func(i int) netip.Prefix {
		for _, a := range v.Links[i].Endpoints[0].Addrs {
			if a.Addr().Is6() {
				return a.Masked()
			}
		}
		t.Fatalf("link %d has no IPv6", i)
		return netip.Prefix{}
	}
	l.eventually(10*time.Second, "learn the host's link", func() bool { return l.fib("r1")[link(3)] != nil })
	if l.fib("r1")[link(2)] != nil {
		t.Errorf("r1 has a route to the link %s of r3 and r4", link(2))
	}
}
