package dataplane_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/safchain/ethtool"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
)

// machine is a root context with an uplink.
type machine struct {
	*lab
	do           func(func() error) error // in the root context
	uplink       int
	mac          vnet.MAC
	addr4, addr6 netip.Addr
}

// machines makes two machines on an underlay: the test's own root context, and
// another.
func machines(t testing.TB) (a, b *machine) { return machinesIn(t, dataplane.Native) }

// machinesIn has their uplinks run XDP in a mode.
func machinesIn(t testing.TB, mode dataplane.XDPMode) (a, b *machine) {
	t.Helper()
	here := newLab(t)
	far := nstest.NewNode(t)
	if mode == dataplane.Native {
		nstest.Sh(t, fmt.Sprintf("ip link add up0 address %s type veth peer name up0 address %s netns %d", text(ownMAC), text(peerMAC), far.Pid))
	} else {
		// A switch between them: an skb that a program has redirected, and that no
		// stack has received since, is not shown to a program in generic mode.
		sw := nstest.NewNode(t)
		sw.Must(t, "ip link add sw type bridge; ip link set sw up")
		for i, mac := range []vnet.MAC{peerMAC, ownMAC} { // the other's first, while the name is free here
			nstest.Sh(t, fmt.Sprintf("ip link add up0 address %s type veth peer name p%d netns %d", text(mac), i, sw.Pid))
			if i == 0 {
				nstest.Sh(t, fmt.Sprintf("ip link set up0 netns %d", far.Pid))
			}
			sw.Must(t, fmt.Sprintf("ip link set p%d master sw; ip link set p%d up", i, i))
		}
	}
	nstest.Sh(t, "ip link set up0 up")
	far.Must(t, "ip link set up0 up")
	a = &machine{lab: here, do: func(f func() error) error { return f() }, mac: ownMAC, addr4: own4, addr6: own6}
	b = &machine{lab: newPlane(t), do: far.Do, mac: peerMAC, addr4: peer4, addr6: peer6}
	for _, m := range []*machine{a, b} {
		must(t, m.do(func() error {
			i, err := net.InterfaceByName("up0")
			if err != nil {
				return err
			}
			m.uplink = i.Index
			aggregate(t, "up0") // as a card does
			got, err := m.AttachUplink(dataplane.Uplink{Name: "up0", Index: i.Index, Addrs: []netip.Addr{m.addr4, m.addr6}, XDP: mode})
			if err == nil && got != mode {
				err = fmt.Errorf("XDP runs in %v mode, not %v", got, mode)
			}
			return err
		}))
	}
	return a, b
}

func text(m vnet.MAC) string { return net.HardwareAddr(m[:]).String() }

// aggregate turns a device's aggregation of what it receives on.
func aggregate(t testing.TB, device string) {
	t.Helper()
	e, err := ethtool.NewEthtool()
	must(t, err)
	defer e.Close()
	must(t, e.Change(device, map[string]bool{"rx-gro": true}))
}

// aggregates tells whether it is on.
func aggregates(t testing.TB, device string) bool {
	t.Helper()
	e, err := ethtool.NewEthtool()
	must(t, err)
	defer e.Close()
	return must2(e.Features(device))["rx-gro"]
}

// attach makes a node's interface on a machine and gives its port.
func (m *machine) attach(t testing.TB, n *nstest.Node, name string, mtu int) (index int) {
	t.Helper()
	s := nstest.Spec(n, name)
	s.MTU = mtu
	must(t, m.do(func() error {
		if err := port.Create([]port.Spec{s}); err != nil {
			return err
		}
		i, err := net.InterfaceByName(s.Device)
		if err != nil {
			return err
		}
		index = i.Index
		var inner int
		if err := n.Do(func() error {
			i, err := net.InterfaceByName(name)
			if err == nil {
				inner = i.Index
			}
			return err
		}); err != nil {
			return err
		}
		if err := m.Attach("net", s.Device, index, dataplane.Port); err != nil {
			return err
		}
		if err := m.AttachFarEnd("net", s.Device, dataplane.FarEnd{Node: "net/n", NS: n.NS, Index: inner}); err != nil {
			return err
		}
		return port.SetUp(map[string]bool{s.Device: true})
	}))
	return index
}

// pathTo is the way of a link from m to another machine.
func (m *machine) pathTo(other *machine, ipv6 bool, key uint32, mtu int) tunnel.Path {
	p := tunnel.Path{
		Endpoints: tunnel.Endpoints{Local: m.addr4, Remote: other.addr4},
		Key:       key,
		MTU:       mtu,
		Route:     tunnel.Route{Uplink: m.uplink, Source: m.mac, NextHop: other.mac, MTU: 1500},
	}
	if ipv6 {
		p.Local, p.Remote = m.addr6, other.addr6
	}
	return p
}

// link2 joins two nodes of two machines and gives the ports.
func link2(t testing.TB, a *machine, na *nstest.Node, aName string, b *machine, nb *nstest.Node, bName string, ipv6 bool, key uint32, mtu int) (int, int) {
	t.Helper()
	pa, pb := a.attach(t, na, aName, mtu), b.attach(t, nb, bName, mtu)
	must(t, a.Connect(pa, 0, a.pathTo(b, ipv6, key, mtu)))
	must(t, b.Connect(pb, 0, b.pathTo(a, ipv6, key, mtu)))
	return pa, pb
}

// host makes a node with the defaults of Trellis.
func host(t testing.TB) *nstest.Node {
	t.Helper()
	n := nstest.NewNode(t)
	must(t, n.Defaults(nil))
	return n
}

// fast turns the fast path at the node's end of a port on or off.
func (m *machine) fast(t testing.TB, index int, on bool) {
	t.Helper()
	m.lab.needFastPath(t) // here, since what runs inside is no goroutine of the test's
	must(t, m.do(func() error { m.lab.fast(t, index, on); return nil }))
}
