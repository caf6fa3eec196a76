package tunnel

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/vnet"
)

// machine is a root context with an uplink.
type machine struct {
	*Tunnel
	do           func(func() error) error // in the root context
	uplink       int
	mac          vnet.MAC
	addr4, addr6 netip.Addr
}

// machines makes two machines on an underlay: the test's own root context, and
// another.
func machines(t testing.TB) (a, b *machine) {
	t.Helper()
	nstest.Root(t)
	far := nstest.NewNode(t)
	nstest.Sh(t, fmt.Sprintf("ip link add up0 address %s type veth peer name up0 address %s netns %d; ip link set up0 up", text(ownMAC), text(peerMAC), far.Pid))
	far.Must(t, "ip link set up0 up")
	a = &machine{do: func(f func() error) error { return f() }, mac: ownMAC, addr4: own4, addr6: own6}
	b = &machine{do: far.Do, mac: peerMAC, addr4: peer4, addr6: peer6}
	for _, m := range []*machine{a, b} {
		m.Tunnel = mustOpen(t)
		must(t, m.do(func() error {
			i, err := net.InterfaceByName("up0")
			if err != nil {
				return err
			}
			m.uplink = i.Index
			return m.AttachUplink(Uplink{Index: i.Index, Addrs: []netip.Addr{m.addr4, m.addr6}})
		}))
	}
	return a, b
}

func text(m vnet.MAC) string { return net.HardwareAddr(m[:]).String() }

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
		if err := m.AttachPort(Port{Index: index, Node: n.NS, NodeIndex: inner}); err != nil {
			return err
		}
		return port.SetUp(map[string]bool{s.Device: true})
	}))
	return index
}

// pathTo is the way of a link from m to another machine.
func (m *machine) pathTo(other *machine, ipv6 bool, key uint32, mtu int) Path {
	p := Path{
		Uplink: m.uplink, Source: m.mac, NextHop: other.mac, Local: m.addr4, Remote: other.addr4,
		Key: key, UnderlayMTU: 1500, LinkMTU: mtu,
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
	must(t, a.Connect(pa, a.pathTo(b, ipv6, key, mtu)))
	must(t, b.Connect(pb, b.pathTo(a, ipv6, key, mtu)))
	return pa, pb
}

// host makes a node with the defaults of Trellis.
func host(t testing.TB) *nstest.Node {
	t.Helper()
	n := nstest.NewNode(t)
	must(t, n.Defaults(nil))
	return n
}
