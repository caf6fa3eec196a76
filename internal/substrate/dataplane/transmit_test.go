package dataplane_test

import (
	"testing"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/vnet"
	"trellis/test/testenv"
)

// TestLeavesByAnyUplink has frames come in by an uplink with native XDP and leave by one whose
// driver cannot send what XDP redirects: a bridge. All arrive, by the node's stack.
func TestLeavesByAnyUplink(t *testing.T) {
	testenv.Measures(t)
	r := &thoroughfare{router: newRouter(t)}
	nstest.Sh(t, `ip link add br0 type bridge; ip link add up1 type veth peer name wire1; ip link set up1 master br0
		ip link set br0 up; ip link set up1 up; ip link set wire1 up; ethtool -K br0 tx off >/dev/null; ethtool -K up1 tx off >/dev/null`)
	r.uplink2 = index(t, "br0")
	mode, err := r.AttachUplink(dataplane.Uplink{Name: "br0", Index: r.uplink2, Addrs: addrs("198.51.100.1")})
	must(t, err)
	if mode != dataplane.Generic {
		t.Fatalf("a bridge runs XDP in %v mode", mode)
	}
	for _, u := range must2(r.Uplinks()) {
		if u.Transmits != (u.Name == "up0") {
			t.Errorf("%+v", u)
		}
	}
	r.in, r.out = path4(r.uplink), path4(r.uplink2)
	r.out.Key, r.out.Local, r.out.Remote = outKey, addrs("198.51.100.1")[0], addrs("198.51.100.2")[0]
	r.out.Route.NextHop = vnet.MAC{2, 0, 0, 0, 0xee, 3}
	r.connect(t)
	frame := egre4(peerMAC, ownMAC, peer4, own4, gre, r.ipv4("10.0.9.5", 62))
	load := newLoad(t, frame, index(t, "wire0"), index(t, "wire1"), len(frame))
	load.start(t)
	load.progress(t, 1000)
	if sent, received := load.finish(t); sent != received {
		t.Errorf("%d of %d frames arrived", received, sent)
	}
	in, out := r.counters(t, r.port), r.counters(t, r.port2)
	if out.FastFromNodePackets != 0 || out.FromNodePackets < 1000 || in.Stack[dataplane.StackEgress] < 1000 {
		t.Errorf("counted %+v, %+v", in, out)
	}
	must(t, r.Close())
	r.Dataplane = mustOpen(t, r.dir)
	if verdict, _ := r.forward(r.ipv4("10.0.9.5", 100)); verdict != xdpPass {
		t.Errorf("after a restart: verdict %d", verdict)
	}
}
