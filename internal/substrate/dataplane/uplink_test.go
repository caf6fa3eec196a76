package dataplane_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
)

// TestGenericUplinkCarriesAll has an uplink's program behind its driver, with
// the driver's aggregation of what it receives on, as on a card without native
// XDP.
func TestGenericUplinkCarriesAll(t *testing.T) {
	families(t, func(t *testing.T, ipv6 bool) {
		a, b := machinesIn(t, dataplane.Generic)
		na, nb, pa, _ := wireOf(t, a, b, ipv6)
		for _, size := range []int{0, 56, 1352} {
			na.Must(t, fmt.Sprintf("ping -c 3 -i 0.01 -W 2 -M do -s %d 10.0.0.2", size))
			nb.Must(t, fmt.Sprintf("ping -c 3 -i 0.01 -W 2 -M do -s %d fd00::1", size))
		}
		const size = 16 << 20
		transfer(t, na, nb, "10.0.0.2", size)
		transfer(t, nb, na, "fd00::1", size)
		for _, m := range []*machine{a, b} {
			if drops := m.uplinkDrops(t); len(drops) != 0 {
				t.Errorf("the uplink dropped %v", drops)
			}
		}
		if c := a.counters(t, pa); len(c.Drops) != 0 || c.ToNodePackets < size/1400 {
			t.Errorf("counted %+v", c)
		}
	})
}

// TestAutoFallsBack takes an interface whose driver has no native XDP.
func TestAutoFallsBack(t *testing.T) {
	l := newLab(t)
	nstest.Sh(t, "ip link add br0 type bridge; ip link add sl0 type veth peer name wire0; ip link set sl0 master br0; ip link set br0 up; ip link set sl0 up; ip link set wire0 up")
	aggregate(t, "sl0")
	u := dataplane.Uplink{Name: "br0", Index: index(t, "br0"), Addrs: addrs("192.0.2.1"), XDP: dataplane.Native}
	if _, err := l.AttachUplink(u); err == nil || !strings.Contains(err.Error(), "no native XDP") {
		t.Errorf("native XDP on a bridge: %v", err)
	} else {
		t.Log(err)
	}
	if n := contents(t, l.dir); len(n) != 0 {
		t.Errorf("a refused uplink has left %v", n)
	}
	u.XDP = dataplane.Auto
	for range 2 {
		if mode, err := l.AttachUplink(u); err != nil || mode != dataplane.Generic {
			t.Fatalf("mode %v, %v", mode, err)
		}
	}
	for _, device := range []string{"br0", "sl0"} {
		if aggregates(t, device) {
			t.Errorf("%s still aggregates what it receives", device)
		}
	}
	u.XDP = dataplane.Native
	if _, err := l.AttachUplink(u); err == nil {
		t.Error("native XDP was given in place of generic")
	}
	all, err := l.Uplinks()
	if err != nil || len(all) != 1 || all[0].Mode != dataplane.Generic {
		t.Errorf("after a refusal: %+v, %v", all, err)
	}
}

// TestUplinkChanges has addresses come and go, interfaces too, and somebody
// else's program in the way.
func TestUplinkChanges(t *testing.T) {
	l := newLab(t)
	nstest.Sh(t, "ip link add up0 type veth peer name wire0; ip link add eth0.5 type veth peer name wire1; ip link set up0 up; ip link set eth0.5 up")
	uplinkIn := l.program(t, "uplink_in")
	up0 := dataplane.Uplink{Name: "up0", Index: index(t, "up0"), Addrs: addrs("192.0.2.1", "192.0.2.3")}
	dotted := dataplane.Uplink{Name: "eth0.5", Index: index(t, "eth0.5"), Addrs: addrs("192.0.2.3"), XDP: dataplane.Generic}
	attach := func(u dataplane.Uplink, want dataplane.XDPMode) {
		t.Helper()
		if mode, err := l.AttachUplink(u); err != nil || mode != want {
			t.Fatalf("%v, %v", mode, err)
		}
	}
	attach(up0, dataplane.Native)
	attach(dotted, dataplane.Generic)
	// ours tells whether the machine drops stray EGRE to an address as its own.
	ours := func(a string) bool {
		t.Helper()
		verdict, _ := runXDP(t, uplinkIn, egre4(peerMAC, ownMAC, peer4, netip.MustParseAddr(a), gre, inner(60)), 0, up0.Index)
		return verdict == xdpDrop
	}
	for _, a := range []string{"192.0.2.1", "192.0.2.3"} {
		if !ours(a) {
			t.Errorf("%s is not the machine's", a)
		}
	}
	up0.Addrs = addrs("192.0.2.2")
	attach(up0, dataplane.Native)
	for a, want := range map[string]bool{"192.0.2.1": false, "192.0.2.2": true, "192.0.2.3": true} {
		if ours(a) != want {
			t.Errorf("%s is the machine's: %v", a, !want)
		}
	}
	must(t, l.DetachUplink("eth0.5"))
	if ours("192.0.2.3") {
		t.Error("the address of an uplink that is detached is still the machine's")
	}
	// Generic mode in place of native, and back.
	up0.XDP = dataplane.Generic
	attach(up0, dataplane.Generic)
	up0.XDP = dataplane.Auto
	attach(up0, dataplane.Generic)
	up0.XDP = dataplane.Native
	attach(up0, dataplane.Native)

	// The interface goes, and one of its name comes.
	nstest.Sh(t, "ip link del up0; ip link add up0 type veth peer name wire0; ip link set up0 up")
	if all := must2(l.Uplinks()); len(all) != 1 || all[0].Index != 0 {
		t.Errorf("an uplink that is gone: %+v", all)
	}
	up0.Index = index(t, "up0")
	attach(up0, dataplane.Native)
	if all := must2(l.Uplinks()); len(all) != 1 || all[0].Index != up0.Index || !slices.Equal(all[0].Addrs, up0.Addrs) {
		t.Errorf("an uplink that has come back: %+v", all)
	}
	if n := contents(t, l.dir); n["uplinks"] != 1 || n["tunnel_addrs"] != 1 || n["devices"] != 1 {
		t.Errorf("the maps hold %v", n)
	}

	// Another's program stays.
	nstest.Sh(t, "ip link add up2 type veth peer name wire2")
	other := newPlane(t)
	up2 := dataplane.Uplink{Name: "up2", Index: index(t, "up2"), Addrs: addrs("192.0.2.9")}
	_, err := other.AttachUplink(up2)
	must(t, err)
	if _, err := l.AttachUplink(up2); err == nil || !strings.Contains(err.Error(), "another XDP program") {
		t.Errorf("an uplink was taken from another: %v", err)
	}
	for what, u := range map[string]dataplane.Uplink{
		"no address":          {Name: "up0", Index: up0.Index},
		"a group's address":   {Name: "up0", Index: up0.Index, Addrs: addrs("224.0.0.1")},
		"no such interface":   {Name: "up9", Index: 4711, Addrs: addrs("192.0.2.1")},
		"no name":             {Index: up0.Index, Addrs: addrs("192.0.2.1")},
		"a way out of itself": {Name: "../x", Index: up0.Index, Addrs: addrs("192.0.2.1")},
		"a mode not known":    {Name: "up0", Index: up0.Index, Addrs: addrs("192.0.2.1"), XDP: 7},
		"too many addresses":  {Name: "up0", Index: up0.Index, Addrs: slices.Repeat(addrs("192.0.2.1"), 17)},
	} {
		if _, err := l.AttachUplink(u); err == nil {
			t.Errorf("%s was taken", what)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
}

// TestFramesOfSeveralPages are beyond kernels before 6.3.
func TestFramesOfSeveralPages(t *testing.T) {
	for _, c := range []struct {
		release string
		mtu     int
		fine    bool
	}{
		{"6.1.0-25-amd64", 1500, true}, {"6.1.0-25-amd64", 3400, true}, {"6.1.0-25-amd64", 3401, false}, {"6.2.16", 9000, false},
		{"6.3.0", 9000, true}, {"6.12.8", 9216, true}, {"7.0-rc1", 9000, true}, {"unknown", 9000, true},
	} {
		if err := dataplane.Redirectable(c.release, c.mtu); (err == nil) != c.fine {
			t.Errorf("%s, MTU %d: %v", c.release, c.mtu, err)
		}
	}
}

// TestPathOfADetachedUplinkLeadsNowhere: neither into the port that gets its
// place in the maps next, nor past the uplink when that is attached again.
func TestPathOfADetachedUplinkLeadsNowhere(t *testing.T) {
	r := newRouter(t)
	must(t, r.Connect(r.port2, 0, path4(r.uplink)))
	want := must2(r.Read("net"))
	wayOut := func(when string, index int) {
		t.Helper()
		if got := r.EgressDevice(r.port2); got != index {
			t.Errorf("%s: the path leads to device %d, want %d", when, got, index)
		}
	}
	wayOut("connected", r.uplink)
	must(t, r.DetachUplink("up0"))
	wayOut("detached", 0)
	must(t, r.Close())
	r.Dataplane = mustOpen(t, r.dir) // which gives the lowest places out again
	strangers := []*nstest.Node{nstest.NewNode(t), nstest.NewNode(t)}
	for _, n := range strangers {
		r.attach(t, n, "eth1", 1458)
	}
	wayOut("with another's ports made since", 0)
	unjoined := func() uint64 { return r.counters(t, r.port2).Drops[dataplane.DropUnjoined] }
	before := unjoined()
	if verdict, _ := r.forward(r.ipv4("10.0.9.5", 100)); verdict != xdpDrop {
		t.Errorf("verdict %d", verdict)
	}
	if n := unjoined() - before; n != 1 {
		t.Errorf("%d of 1 frame without an uplink are counted", n)
	}
	_, err := r.AttachUplink(dataplane.Uplink{Name: "up0", Index: r.uplink, Addrs: addrs("192.0.2.1")})
	must(t, err)
	wayOut("attached again", r.uplink)
	if verdict, _ := r.forward(r.ipv4("10.0.9.5", 100)); verdict != xdpRedirect {
		t.Errorf("attached again: verdict %d", verdict)
	}
	must(t, r.Close())
	r.Dataplane = mustOpen(t, r.dir)
	wayOut("opened again", r.uplink)
	for _, a := range want {
		if a.Index != r.port2 {
			continue
		}
		if got := must2(r.Read("net")); !slices.ContainsFunc(got, func(g dataplane.Attachment) bool { return g.Path != nil && *g.Path == *a.Path }) {
			t.Errorf("the path %+v is another: %+v", a.Path, got)
		}
	}
}
