package dataplane_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trellis/internal/substrate/bridge"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
)

// lab is a root context with a data plane of its own.
type lab struct {
	*dataplane.Dataplane
	dir string
}

func newLab(t testing.TB) *lab {
	t.Helper()
	nstest.Root(t)
	return newPlane(t)
}

// newPlane is a data plane of its own, of whatever root context.
func newPlane(t testing.TB) *lab {
	t.Helper()
	l := &lab{dir: filepath.Join(t.TempDir(), "bpf")}
	if err := dataplane.Mount(l.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dataplane.Unmount(l.dir); err != nil {
			t.Error(err)
		}
	})
	l.Dataplane = mustOpen(t, l.dir)
	return l
}

func mustOpen(t testing.TB, dir string) *dataplane.Dataplane {
	t.Helper()
	open := dataplane.Open
	if os.Getenv(withoutTCX) != "" {
		open = dataplane.OpenWithoutTCX
	}
	d, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wire makes a point-to-point link between interfaces of two nodes and gives its
// ports' names.
func (l *lab) wire(t testing.TB, a *nstest.Node, aName string, b *nstest.Node, bName string) [2]string {
	t.Helper()
	specs := []port.Spec{nstest.Spec(a, aName), nstest.Spec(b, bName)}
	must(t, port.Create(specs))
	var index [2]int
	for i, s := range specs {
		index[i] = nstest.Index(t, s.Device)
		must(t, l.Attach("net", s.Device, index[i], dataplane.Port))
	}
	must(t, l.Join(dataplane.End{Index: index[0], MAC: specs[0].MAC}, dataplane.End{Index: index[1], MAC: specs[1].MAC}))
	must(t, port.SetUp(map[string]bool{specs[0].Device: true, specs[1].Device: true}))
	return [2]string{specs[0].Device, specs[1].Device}
}

// lan makes a LAN of the nodes' interfaces eth1 and gives its ports' names.
func (l *lab) lan(t testing.TB, name string, mtu int, nodes ...*nstest.Node) []string {
	t.Helper()
	must(t, bridge.Ensure(bridge.Bridge{Name: name, Alias: "trellis:test:net/@" + name, Group: 0x7e000001, MTU: mtu}))
	must(t, l.Attach("net", name, nstest.Index(t, name), dataplane.Bridge))
	up := map[string]bool{name: true}
	var ports []string
	for _, n := range nodes {
		s := nstest.Spec(n, "eth1")
		s.MTU = mtu
		must(t, port.Create([]port.Spec{s}))
		must(t, l.Attach("net", s.Device, nstest.Index(t, s.Device), dataplane.Member))
		must(t, bridge.SetPort(name, s.Device))
		up[s.Device] = true
		ports = append(ports, s.Device)
	}
	must(t, port.SetUp(up))
	for _, n := range nodes {
		n.Must(t, "ip link set eth1 up")
	}
	// The bridge hears of a carrier a moment later.
	for deadline := time.Now().Add(5 * time.Second); strings.Count(nstest.Sh(t, "bridge link"), "state forwarding") < len(nodes); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the bridge's ports do not forward:\n%s", nstest.Sh(t, "bridge link"))
		}
	}
	return ports
}

// nodes makes n nodes with the defaults of Trellis.
func nodes(t testing.TB, n int) []*nstest.Node {
	t.Helper()
	var made []*nstest.Node
	for range n {
		node := nstest.NewNode(t)
		must(t, node.Defaults(nil))
		made = append(made, node)
	}
	return made
}

// chain makes a chain of two hosts with routers between, with addresses and
// routes of both families, and gives the far host's addresses.
func (l *lab) chain(t testing.TB, routers int) (made []*nstest.Node, v4, v6 string) {
	t.Helper()
	made = nodes(t, routers+2)
	for i := range routers + 1 {
		l.wire(t, made[i], "right", made[i+1], "left")
	}
	return made, address(t, made), fmt.Sprintf("fd00:%x::2", routers)
}

// address gives a chain its addresses and routes; it returns the far host's.
func address(t testing.TB, made []*nstest.Node) string {
	t.Helper()
	last := len(made) - 1
	for i, n := range made {
		if i < last {
			n.Configure(t, "right", fmt.Sprintf("10.0.%d.1/24", i), fmt.Sprintf("fd00:%x::1/64", i))
		}
		if i > 0 {
			n.Configure(t, "left", fmt.Sprintf("10.0.%d.2/24", i-1), fmt.Sprintf("fd00:%x::2/64", i-1))
		}
		for net := range last {
			switch {
			case net > i:
				n.Must(t, fmt.Sprintf("ip route add 10.0.%d.0/24 via 10.0.%d.2; ip -6 route add fd00:%x::/64 via fd00:%x::2", net, i, net, i))
			case net < i-1:
				n.Must(t, fmt.Sprintf("ip route add 10.0.%d.0/24 via 10.0.%d.1; ip -6 route add fd00:%x::/64 via fd00:%x::1", net, i-1, net, i-1))
			}
		}
	}
	return fmt.Sprintf("10.0.%d.2", last-1)
}
