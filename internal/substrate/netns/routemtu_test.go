package netns_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/nstest"
)

// A route with an MTU is told of when it comes and when it goes, however it does;
// others, and locked MTUs, are not.
func TestWatchMTU(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	n.Must(t, "ip link add d0 type ifb; ip link set d0 up; ip addr add 10.0.0.1/24 dev d0; ip addr add fd00::1/64 dev d0 nodad; ip route add 10.9.9.0/24 via 10.0.0.9")
	e, err := netns.NewRouteEvents()
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan bool, 100)
	w, err := e.WatchMTU(n.NS, func(has bool, err error) {
		if err != nil {
			t.Error(err)
		}
		told <- has
	})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what string, want bool) {
		t.Helper()
		select {
		case has := <-told:
			if now, err := n.RouteMTU(); has != want || now != want || err != nil {
				t.Errorf("%s: told %v, read %v (%v), want %v", what, has, now, err, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: nothing was told", what)
		}
	}
	expect("nothing", false)
	var many strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&many, "route add 11.0.%d.%d/32 via 10.0.0.9\n", i/250, i%250)
	}
	n.Must(t, "ip -batch - <<X\n"+many.String()+"X\nip route add 12.0.0.0/24 via 10.0.0.9 mtu lock 600; ip route add 12.0.1.0/24 via 10.0.0.9 advmss 500")
	for _, c := range []struct{ name, add, del string }{
		{"IPv4", "ip route add 12.0.2.0/24 via 10.0.0.9 mtu 600", "ip route del 12.0.2.0/24"},
		{"IPv6", "ip -6 route add fd00:9::/64 via fd00::9 mtu 1300", "ip -6 route del fd00:9::/64"},
		{"of another table", "ip route add 12.0.3.0/24 via 10.0.0.9 mtu 600 table 77", "ip route flush table 77"},
		{"replaced", "ip route add 12.0.4.0/24 via 10.0.0.9 mtu 600", "ip route replace 12.0.4.0/24 via 10.0.0.9"},
		{"whose interface goes", "ip route add 12.0.5.0/24 via 10.0.0.9 mtu 600", "ip link set d0 down"},
	} {
		n.Must(t, c.add)
		expect("a route "+c.name, true)
		n.Must(t, c.del)
		expect("a route "+c.name+", gone", false)
	}
	n.Must(t, "ip link set d0 up; ip route add 12.0.6.0/24 via 10.0.0.9 mtu 600")
	expect("a route at the end", true)
	w.Close() // while the route is read again every so often
	n.Must(t, "ip route del 12.0.6.0/24; ip route add 12.0.7.0/24 via 10.0.0.9 mtu 600")
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if len(told) != 0 {
		t.Error("more was told than there was")
	}
}
