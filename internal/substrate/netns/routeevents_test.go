package netns_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/nstest"
)

// The first change of a node's routes is told, and no other until the watch is
// armed again; whether routes or the carrier change.
func TestRouteEvents(t *testing.T) {
	nstest.Root(t)
	e, err := netns.NewRouteEvents()
	if err != nil {
		t.Fatal(err)
	}
	n, other := nstest.NewNode(t), nstest.NewNode(t)
	n.Must(t, "ip link add d0 type ifb; ip link set d0 up; ip addr add 10.0.0.1/24 dev d0; ip addr add fd00::1/64 dev d0 nodad")
	told := make(chan string, 100)
	watch := func(n *nstest.Node, name string) *netns.RouteWatch {
		t.Helper()
		w, err := e.Watch(n.NS, func() { told <- name })
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	w, quiet := watch(n, "n"), watch(other, "other")
	expect := func(what string) {
		t.Helper()
		select {
		case name := <-told:
			if name != "n" {
				t.Errorf("%s: told of %s", what, name)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: nothing was told", what)
		}
	}
	arm := func() {
		t.Helper()
		if err := w.Arm(); err != nil {
			t.Fatal(err)
		}
	}
	var many strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&many, "route add 11.0.%d.%d/32 via 10.0.0.9\n", i/250, i%250)
	}
	n.Must(t, "ip -batch - <<X\n"+many.String()+"X\n")
	expect("many routes")
	arm()
	for _, command := range []string{
		"ip route add 12.0.0.0/24 via 10.0.0.9",
		"ip -6 route add fd00:9::/64 via fd00::9",
		"ip link set d0 down",
	} {
		n.Must(t, command)
		expect(command)
		arm()
	}
	w.Close()
	quiet.Close()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if len(told) > 2 { // the kernel may have tidied up after each arm
		t.Errorf("%d more were told than there were", len(told))
	}
}

// A watch that is armed while routes come and go on other cores tells of the next
// change afterwards: whatever of theirs the kernel could not queue.
func TestRouteEventsAfterMany(t *testing.T) {
	nstest.Root(t)
	e, err := netns.NewRouteEvents()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	n := nstest.NewNode(t)
	n.Must(t, "ip link add d0 type ifb; ip link set d0 up; ip addr add 10.0.0.1/24 dev d0; ip addr add fd00::1/64 dev d0 nodad")
	told := make(chan bool, 1)
	w, err := e.Watch(n.NS, func() {
		select {
		case told <- true:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	routes := func(version, prefix string) string {
		var b strings.Builder
		for range 50 {
			for i := range 10 {
				fmt.Fprintf(&b, "route add "+prefix+"\n", i)
			}
			for i := range 10 {
				fmt.Fprintf(&b, "route del "+prefix+"\n", i)
			}
		}
		return "ip -" + version + " -batch - <<X\n" + b.String() + "X\n"
	}
	batches := []string{routes("4", "11.0.%d.0/24 via 10.0.0.9"), routes("6", "fd00:%d::/64 via fd00::9")}
	for round := range 5 {
		var churn sync.WaitGroup
		for _, batch := range batches {
			churn.Go(func() {
				if out, err := n.Exec(t, batch); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
		ended := make(chan struct{})
		go func() {
			churn.Wait()
			close(ended)
		}()
		for over := false; !over; {
			select {
			case <-ended:
				over = true
			default:
			}
			if err := w.Arm(); err != nil {
				t.Fatal(err)
			}
		}
		select { // of the last ones
		case <-told:
		case <-time.After(100 * time.Millisecond):
		}
		if err := w.Arm(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-told:
		default:
		}
		n.Must(t, fmt.Sprintf("ip route add 12.0.%d.0/24 via 10.0.0.9", round))
		select {
		case <-told:
		case <-time.After(5 * time.Second):
			t.Fatalf("round %d: nothing was told of a route that came after many", round)
		}
	}
}
