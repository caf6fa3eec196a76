package interop

import (
	"net/netip"
	"path/filepath"
	"testing"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/tunnel"
)

// trellis is Trellis's data plane in a root context. All that these tests ask
// of it goes through here.
type trellis struct {
	own, other *host
	underlay   underlay
	plane      *dataplane.Dataplane
	uplink     int
	mode       dataplane.XDPMode // of the uplink
}

func newTrellis(t testing.TB, own, other *host, u underlay) *trellis {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "bpf")
	must(t, dataplane.Mount(dir))
	t.Cleanup(func() {
		if err := dataplane.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	plane, err := dataplane.Open(dir)
	must(t, err)
	t.Cleanup(func() { plane.Close() })
	s := &trellis{own: own, other: other, underlay: u, plane: plane}
	own.address(t, "up0")
	s.uplink = index(t, own.Node, "up0")
	must(t, own.Do(func() (err error) {
		s.mode, err = plane.AttachUplink(dataplane.Uplink{Name: "up0", Index: s.uplink, Addrs: []netip.Addr{own.addr4, own.addr6}, XDP: u.xdp})
		return err
	}))
	return s
}

// network is the VNet of the tests' ports.
const network = "net"

// end is a link's end on Trellis's side.
type end struct {
	device string // the port
	index  int
}

func (s *trellis) link(t testing.TB, n *nstest.Node, name string, key uint32, mtu int) {
	t.Helper()
	s.port(t, n, name, key, mtu)
}

// port is link, and gives the end.
func (s *trellis) port(t testing.TB, n *nstest.Node, name string, key uint32, mtu int) end {
	t.Helper()
	spec := nstest.Spec(n, name)
	spec.MTU = mtu
	must(t, s.own.Do(func() error { return port.Create([]port.Spec{spec}) }))
	e := end{device: spec.Device, index: index(t, s.own.Node, spec.Device)}
	inner := dataplane.FarEnd{Node: network + "/" + name, NS: n.NS, Index: index(t, n, name)}
	must(t, s.own.Do(func() error {
		if err := s.plane.Attach(network, e.device, e.index, dataplane.Port); err != nil {
			return err
		}
		if err := s.plane.AttachFarEnd(network, e.device, inner); err != nil {
			return err
		}
		if err := s.plane.Connect(e.index, 0, tunnel.Path{
			Endpoints: tunnel.Endpoints{Local: s.own.addr(s.underlay), Remote: s.other.addr(s.underlay)},
			Key:       key,
			MTU:       mtu,
			Route:     tunnel.Route{Uplink: s.uplink, Source: s.own.mac, NextHop: s.other.mac, MTU: s.underlay.mtu},
		}); err != nil {
			return err
		}
		return port.SetUp(map[string]bool{e.device: true})
	}))
	n.Must(t, "ip link set "+name+" up")
	return e
}

// setFast turns forwarding on a node's behalf on or off for what arrives at an end.
func (s *trellis) setFast(t testing.TB, e end, on bool) {
	t.Helper()
	must(t, s.own.Do(func() error { return s.plane.SetFast(network, e.device, on) }))
}

// needFast skips the test where the kernel has no fast path.
func (s *trellis) needFast(t testing.TB) {
	t.Helper()
	if err := s.plane.FastPathSupported(); err != nil {
		t.Skipf("needs a kernel with the fast path: %v", err)
	}
}

// counters reads the counters of an end.
func (s *trellis) counters(t testing.TB, e end) dataplane.PortCounters {
	t.Helper()
	all, err := s.plane.Counters()
	must(t, err)
	return all[e.index]
}

// fastPackets tells how many packets left by the ends without the node's stack.
func (s *trellis) fastPackets(t testing.TB, ends ...end) (n uint64) {
	t.Helper()
	for _, e := range ends {
		n += s.counters(t, e).FastFromNodePackets
	}
	return n
}

// portDrops tells how many packets the ports have dropped for a reason.
func (s *trellis) portDrops(t testing.TB, why dataplane.DropReason) (n uint64) {
	t.Helper()
	all, err := s.plane.Counters()
	must(t, err)
	for _, c := range all {
		n += c.Drops[why]
	}
	return n
}

// drops reads what the uplink has dropped, by reason.
func (s *trellis) drops(t testing.TB) map[dataplane.DropReason]uint64 {
	t.Helper()
	var ups []dataplane.UplinkState
	must(t, s.own.Do(func() (err error) { ups, err = s.plane.Uplinks(); return err }))
	if len(ups) != 1 {
		t.Fatalf("%d uplinks, want one", len(ups))
	}
	return ups[0].Drops
}
