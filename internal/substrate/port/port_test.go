package port_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/bridge"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/vnet"
)

func states(t *testing.T) map[string]port.State {
	t.Helper()
	list, err := port.List("test")
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]port.State{}
	for _, s := range list {
		byName[s.Device] = s
	}
	return byName
}

func TestCreateAndDelete(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	s := nstest.Spec(n, "eth1")
	s.MTU = 9216
	if err := port.Create([]port.Spec{s}); err != nil {
		t.Fatal(err)
	}
	if err := port.CreateHelpers([]port.Helper{{Device: s.Device, Alias: s.Alias, Group: s.Group, MTU: 1500}}); err != nil {
		t.Fatal(err)
	}
	if err := bridge.Ensure(bridge.Bridge{Name: "tbx", Alias: "trellis:test:net/@x", Group: s.Group, MTU: 1500}); err != nil {
		t.Fatal(err)
	}
	_, member := port.HelperNames(s.Device)
	if err := bridge.SetPort("tbx", member); err != nil {
		t.Fatal(err)
	}
	got := states(t)
	if p := got[s.Device]; len(got) != 4 || p.Kind != port.KindPort || p.Up || p.MTU != 9216 || p.Alias != s.Alias || p.Group != s.Group || p.Index == 0 {
		t.Errorf("made %+v, one of %d", p, len(got))
	}
	if h := got[member]; h.Kind != port.KindHelper || h.Master != "tbx" || h.MTU != 1500 {
		t.Errorf("made %+v", h)
	}
	if b := got["tbx"]; b.Kind != port.KindBridge || b.MTU != 1500 {
		t.Errorf("made %+v", b)
	}
	if err := bridge.Ensure(bridge.Bridge{Name: "tbx", Alias: "trellis:test:net/@x", Group: s.Group, MTU: 1400}); err != nil {
		t.Errorf("set a bridge right: %v", err)
	}
	if b := states(t)["tbx"]; b.MTU != 1400 {
		t.Errorf("the bridge's MTU is %d", b.MTU)
	}
	small := nstest.Spec(n, "eth2")
	small.MTU = 576
	if err := port.Create([]port.Spec{small}); err != nil || states(t)[small.Device].MTU != 576 {
		t.Errorf("a port too small for IPv6: %v", err)
	}
	inner := n.Must(t, "ip -d link show eth1")
	for _, want := range []string{"mtu 9216", s.MAC.String(), "state DOWN"} {
		if !strings.Contains(inner, want) {
			t.Errorf("the inner end lacks %q:\n%s", want, inner)
		}
	}
	if err := port.SetUp(map[string]bool{s.Device: true}); err != nil {
		t.Fatal(err)
	}
	if out := nstest.Sh(t, "ip -o addr show dev "+s.Device); out != "" {
		t.Errorf("the port has an address: %s", out)
	}
	if others, err := port.List("other"); err != nil || len(others) != 0 {
		t.Errorf("another instance sees %v, %v", others, err)
	}
	if err := port.Delete(s.Device, "nosuchdevice"); err != nil {
		t.Error(err)
	}
	if _, err := n.Exec(t, "ip link show eth1"); err == nil {
		t.Error("the inner end outlived its port")
	}
	if err := port.DeleteGroup(s.Group); err != nil {
		t.Error(err)
	}
	if err := port.DeleteGroup(s.Group); err != nil {
		t.Errorf("a group without members: %v", err)
	}
	if left := states(t); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if err := port.DeleteGroup(0); err == nil {
		t.Error("the default group was deleted")
	}
}

// The machine's IPv6 keeps a route for each of its devices that IPv6 is on, and
// walks them all when a carrier comes or goes.
func TestDevicesOfTheRootContextHaveNoIPv6(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	s, small := nstest.Spec(n, "eth1"), nstest.Spec(n, "eth2")
	small.MTU = 576 // too small for IPv6, until it is enlarged
	tunnel := port.Tunnel{Device: "tzx", Alias: "trellis:test:net/@x>host", Group: s.Group, MTU: 1500}
	if err := errors.Join(
		port.Create([]port.Spec{s, small}),
		port.CreateHelpers([]port.Helper{{Device: s.Device, Alias: s.Alias, Group: s.Group, MTU: 1500}}),
		port.CreateTunnels([]port.Tunnel{tunnel}),
		bridge.Ensure(bridge.Bridge{Name: "tbx", Alias: "trellis:test:net/@x", Group: s.Group, MTU: 1500}),
	); err != nil {
		t.Fatal(err)
	}
	up := map[string]bool{}
	for device := range states(t) {
		up[device] = true
	}
	if err := errors.Join(port.SetUp(up), port.SetMTU(small.Device, 1500), bridge.SetPort("tbx", s.Device)); err != nil {
		t.Fatal(err)
	}
	for device := range up {
		if out := nstest.Sh(t, "cat /proc/sys/net/ipv6/conf/"+device+"/disable_ipv6"); strings.TrimSpace(out) != "1" {
			t.Errorf("%s: disable_ipv6 is %s", device, out)
		}
	}
	if out := nstest.Sh(t, "ip -6 route show table all"); len(up) != 7 || out != "" {
		t.Errorf("%d devices, and the routes\n%s", len(up), out)
	}
}

func TestNameClashesTouchNothing(t *testing.T) {
	nstest.Root(t)
	n := nstest.NewNode(t)
	a, b := nstest.Spec(n, "eth1"), nstest.Spec(n, "eth2")
	nstest.Sh(t, fmt.Sprintf("ip link add %s type ifb", b.Device))
	err := port.Create([]port.Spec{a, b})
	if !errors.Is(err, unix.EEXIST) || !strings.Contains(err.Error(), "is not Trellis's") || !strings.Contains(err.Error(), b.Device) {
		t.Errorf("a clash with the machine's device: %v", err)
	}
	if len(states(t)) != 0 {
		t.Error("half of it was made")
	}
	if out := nstest.Sh(t, "ip link show "+b.Device); strings.Contains(out, "alias") {
		t.Errorf("the machine's device was marked as ours: %s", out)
	}
	if err := bridge.Ensure(bridge.Bridge{Name: b.Device, Alias: "trellis:test:net/@x", MTU: 1500}); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a bridge by the name of the machine's device: %v", err)
	}
	if err := port.Create([]port.Spec{a, a}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("one device twice: %v", err)
	}

	// A clash inside the node: the others are made, this one is named.
	n.Must(t, "ip link add eth1 type ifb")
	c := nstest.Spec(n, "eth3")
	err = port.Create([]port.Spec{a, c})
	if err == nil || !strings.Contains(err.Error(), "eth1") || strings.Contains(err.Error(), "eth3") {
		t.Errorf("a clash inside the node: %v", err)
	}
	if got := states(t); len(got) != 1 || got[c.Device].Index == 0 {
		t.Errorf("made %v", got)
	}
	if err := port.Create([]port.Spec{c}); !errors.Is(err, unix.EEXIST) || strings.Contains(err.Error(), "is not Trellis's") {
		t.Errorf("our own device again: %v", err)
	}
	long := nstest.Spec(n, "eth4")
	long.Device, long.MAC = "a-name-that-is-too-long", vnet.MAC{2}
	if err := port.Create([]port.Spec{long}); err == nil {
		t.Error("a name that is too long was accepted")
	}
}

// TestTunnels makes the pair that stands on a bridge for another machine.
func TestTunnels(t *testing.T) {
	nstest.Root(t)
	const group = 0x7e000009
	tunnel := port.Tunnel{Device: "txabc", Alias: "trellis:test:net/@x>beta", Group: group, MTU: 1458}
	if err := bridge.Ensure(bridge.Bridge{Name: "tbx", Alias: "trellis:test:net/@x", Group: group, MTU: 1458}); err != nil {
		t.Fatal(err)
	}
	if err := port.CreateTunnels([]port.Tunnel{tunnel}); err != nil {
		t.Fatal(err)
	}
	member := port.TunnelMember("txabc")
	if err := bridge.SetIsolated("tbx", member); err != nil {
		t.Fatal(err)
	}
	got := states(t)
	if s := got["txabc"]; s.Kind != port.KindTunnel || s.MTU != 1458 || s.Alias != tunnel.Alias || s.Up {
		t.Errorf("the outer end is %+v", s)
	}
	if s := got[member]; s.Kind != port.KindHelper || s.Master != "tbx" || !s.Isolated {
		t.Errorf("the inner end is %+v", s)
	}
	if s := got["tbx"]; s.Kind != port.KindBridge {
		t.Errorf("the bridge is %+v", s)
	}
	if err := port.DeleteGroup(group); err != nil || len(states(t)) > 0 {
		t.Errorf("left: %v, %v", states(t), err)
	}
}
