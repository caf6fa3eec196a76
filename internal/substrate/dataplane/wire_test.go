package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
)

// frame is an Ethernet frame with a payload of its own kind.
func frame(dst string, etherType uint16, length int) []byte {
	f := make([]byte, max(length, 60))
	fmt.Sscanf(dst, "%02x:%02x:%02x:%02x:%02x:%02x", &f[0], &f[1], &f[2], &f[3], &f[4], &f[5])
	copy(f[6:], []byte{2, 0xaa, 0, 0, 0, 1})
	binary.BigEndian.PutUint16(f[12:], etherType)
	for i := 14; i < len(f); i++ {
		f[i] = byte(i*7) ^ byte(etherType)
	}
	return f
}

// tagged puts VLAN tags between the addresses and the type.
func tagged(f []byte, tags ...uint32) []byte {
	out := append([]byte(nil), f[:12]...)
	for _, tag := range tags {
		out = binary.BigEndian.AppendUint32(out, tag)
	}
	return append(out, f[12:]...)
}

// strangeFrames is what a wire passes and a bridge or a router may not.
func strangeFrames(mtu int) map[string][]byte {
	const ip = 0x88b5 // a local experimental EtherType, so that no stack answers
	frames := map[string][]byte{
		"unicast to nobody":            frame("02:00:00:77:77:77", ip, 60),
		"broadcast":                    frame("ff:ff:ff:ff:ff:ff", ip, 60),
		"STP, an 802.3 length and LLC": frame("01:80:c2:00:00:00", 38, 60),
		"LACP":                         frame("01:80:c2:00:00:02", 0x8809, 124),
		"802.1X":                       frame("01:80:c2:00:00:03", 0x888e, 60),
		"LLDP":                         frame("01:80:c2:00:00:0e", 0x88cc, 200),
		"MAC pause":                    frame("01:80:c2:00:00:01", 0x8808, 60),
		"IS-IS level 1":                frame("01:80:c2:00:00:14", 1497, 1511),
		"OSPF's group":                 frame("01:00:5e:00:00:05", ip, 90),
		"IPv6 all nodes":               frame("33:33:00:00:00:01", ip, 90),
		"ARP, malformed":               frame("ff:ff:ff:ff:ff:ff", 0x0806, 60),
		"IPv4, malformed":              frame("ff:ff:ff:ff:ff:ff", 0x0800, 60),
		"PPPoE discovery":              frame("ff:ff:ff:ff:ff:ff", 0x8863, 60),
		"PPPoE session":                frame("02:00:00:77:77:77", 0x8864, 60),
		"MACsec":                       frame("02:00:00:77:77:77", 0x88e5, 80),
		"MPLS":                         frame("02:00:00:77:77:77", 0x8847, 80),
		"a VLAN tag":                   tagged(frame("02:00:00:77:77:77", ip, 60), 0x81000064),
		"a priority tag":               tagged(frame("02:00:00:77:77:77", ip, 60), 0x8100e000),
		"LLDP in a VLAN":               tagged(frame("01:80:c2:00:00:0e", 0x88cc, 60), 0x81000064),
		"a provider's tag":             tagged(frame("02:00:00:77:77:77", ip, 60), 0x88a80ffd),
		"two tags, full":               tagged(frame("02:00:00:77:77:77", ip, mtu+14), 0x88a80001, 0x81000002),
		"full":                         frame("02:00:00:77:77:77", ip, mtu+14),
	}
	for i := range 16 {
		frames[fmt.Sprintf("link-local group %x", i)] = frame(fmt.Sprintf("01:80:c2:00:00:%02x", i), ip, 64+i)
	}
	return frames
}

// tags is by how much a raw socket must be allowed to exceed the MTU, to send
// what a stack of VLAN devices would: a full packet in two tags.
const tags = 8

// mustPass sends each frame at one tap and has it come out unchanged at others.
func mustPass(t *testing.T, frames map[string][]byte, from *nstest.Tap, to ...*nstest.Tap) {
	t.Helper()
	for name, f := range frames {
		if err := from.Send(f); err != nil {
			t.Errorf("send %s: %v", name, err)
			continue
		}
		for i, tap := range to {
			if tap.Receive(2*time.Second, func(got []byte) bool { return bytes.Equal(got, f) }) == nil {
				t.Errorf("%s did not arrive at receiver %d", name, i)
			}
		}
	}
}

func TestWirePassesEverything(t *testing.T) {
	for _, mtu := range []int{1500, 9216} {
		t.Run(fmt.Sprintf("MTU %d", mtu), func(t *testing.T) {
			l := newLab(t)
			n := nodes(t, 2)
			ports := l.wire(t, n[0], "eth1", n[1], "eth1")
			for i, p := range ports {
				must(t, port.SetMTU(p, mtu))
				n[i].Must(t, fmt.Sprintf("ip link set eth1 mtu %d up", mtu+tags))
			}
			a, b := n[0].Tap(t, "eth1"), n[1].Tap(t, "eth1")
			mustPass(t, strangeFrames(mtu), a, b)
			mustPass(t, strangeFrames(mtu), b, a)
		})
	}
}

// TestWireTellsWhomFramesAreFor: the far node's IP takes what is for its own
// interface, and leaves what is for others, as on a cable.
func TestWireTellsWhomFramesAreFor(t *testing.T) {
	l := newLab(t)
	n := nodes(t, 2)
	l.wire(t, n[0], "eth1", n[1], "eth1")
	n[0].Configure(t, "eth1", "10.0.0.1/24", "fd00::1/64")
	n[1].Configure(t, "eth1", "10.0.0.2/24", "fd00::2/64")
	own := strings.TrimSpace(n[1].Must(t, "ip -o link show eth1 2>/dev/null | sed 's/.*ether //; s/ .*//'"))
	a, b := n[0].Tap(t, "eth1"), n[1].Tap(t, "eth1")
	for _, c := range []struct {
		to   string
		whom uint8
	}{
		{own, unix.PACKET_HOST}, {"02:00:00:77:77:77", unix.PACKET_OTHERHOST},
		{"ff:ff:ff:ff:ff:ff", unix.PACKET_BROADCAST}, {"01:00:5e:00:00:05", unix.PACKET_MULTICAST},
	} {
		f := frame(c.to, 0x88b5, 60)
		must(t, a.Send(f))
		got, whom := b.ReceiveFor(2*time.Second, func(got []byte) bool { return bytes.Equal(got, f) })
		if got == nil || whom != c.whom {
			t.Errorf("to %s: arrived %v, for %d, want %d", c.to, got != nil, whom, c.whom)
		}
	}
	n[0].Must(t, "ping -c1 -W2 10.0.0.2 && ping -c1 -W2 fd00::2 && ping -c1 -W2 ff02::1%eth1")
	n[0].Must(t, "ip neigh replace 10.0.0.2 lladdr 02:00:00:77:77:77 dev eth1 nud permanent")
	if out, err := n[0].Exec(t, "ping -c1 -W1 10.0.0.2"); err == nil {
		t.Error("a node answers what was sent to another's address:", out)
	}
}

func TestLANPassesEverything(t *testing.T) {
	for _, mtu := range []int{1500, 9216} {
		t.Run(fmt.Sprintf("MTU %d", mtu), func(t *testing.T) {
			l := newLab(t)
			// The machine's firewall drops what is bridged, as Docker's does.
			nstest.Sh(t, "nft add table inet fw; nft 'add chain inet fw f { type filter hook forward priority 0; policy drop; }'")
			n := nodes(t, 3)
			l.lan(t, "tblan", mtu, n...)
			var taps []*nstest.Tap
			for _, node := range n {
				node.Must(t, fmt.Sprintf("ip link set eth1 mtu %d up", mtu+tags))
				taps = append(taps, node.Tap(t, "eth1"))
			}
			mustPass(t, strangeFrames(mtu), taps[0], taps[1:]...)
			mustPass(t, strangeFrames(mtu), taps[2], taps[:2]...)
		})
	}
}

// TestLANRunsPastTheFirewall has br_netfilter on, as the kernel's default is,
// and real IP between the nodes.
func TestLANRunsPastTheFirewall(t *testing.T) {
	l := newLab(t)
	nstest.Sh(t, `nft add table inet fw
		nft 'add chain inet fw f { type filter hook forward priority 0; policy drop; }'
		nft 'add chain inet fw p { type filter hook prerouting priority -300; }'
		nft 'add rule inet fw p counter'
		for f in /proc/sys/net/bridge/bridge-nf-call-ip*; do echo 1 > $f; done`)
	n := nodes(t, 2)
	l.lan(t, "tblan", 1500, n...)
	for i, node := range n {
		node.Configure(t, "eth1", fmt.Sprintf("10.0.0.%d/24", i+1), fmt.Sprintf("fd00::%d/64", i+1))
	}
	n[0].Must(t, "ping -c 3 -i 0.05 -W 2 10.0.0.2 && ping -c 3 -i 0.05 -W 2 fd00::2")
	if out := nstest.Sh(t, "nft list chain inet fw p"); !bytes.Contains([]byte(out), []byte("packets 0 ")) {
		t.Errorf("the machine's firewall saw the LAN's packets:\n%s", out)
	}
}

// TestRootContextIsOutOfReach gives the root context addresses, on ports and
// bridge, and finds no way between them and the nodes.
func TestRootContextIsOutOfReach(t *testing.T) {
	l := newLab(t)
	n := nodes(t, 4)
	ports := l.wire(t, n[0], "eth1", n[1], "eth1")
	members := l.lan(t, "tblan", 1500, n[2:]...)
	for i, device := range []string{ports[0], "tblan", members[0]} {
		nstest.Sh(t, fmt.Sprintf("ip link set %s arp on; echo 0 > /proc/sys/net/ipv6/conf/%s/disable_ipv6; ip addr add 10.0.%d.254/24 dev %s; ip -6 addr add fd00:%d::fe/64 dev %s nodad", device, device, i, device, i, device))
	}
	for i, node := range []*nstest.Node{n[0], n[2], n[2]} {
		node.Configure(t, "eth1", fmt.Sprintf("10.0.%d.1/24", i), fmt.Sprintf("fd00:%d::1/64", i))
		mac := "ff:ff:ff:ff:ff:ff"
		for _, family := range []string{"10.0.%d.254", "fd00:%d::fe"} {
			to := fmt.Sprintf(family, i)
			// The neighbour is given: the packet goes out in any case.
			node.Must(t, fmt.Sprintf("ip neigh replace %s lladdr %s dev eth1", to, mac))
			if out, err := node.Exec(t, "ping -c 1 -W 0.2 "+to); err == nil {
				t.Errorf("a node reached the root context at %s:\n%s", to, out)
			}
		}
	}
	// The root context's stack sends, and nothing comes in.
	tap := n[0].Tap(t, "eth1")
	nstest.Sh(t, fmt.Sprintf("ip neigh replace 10.0.0.1 lladdr 02:00:00:00:00:01 dev %s; ping -c 2 -i 0.05 -W 0.2 10.0.0.1 || true", ports[0]))
	if f := tap.Receive(300*time.Millisecond, func(f []byte) bool { return f[12] == 8 && f[13] == 0 }); f != nil {
		t.Errorf("the root context sent into a node: %x", f)
	}
	// Even a member that has lost its bridge, as by an administrator's mistake.
	nstest.Sh(t, fmt.Sprintf("ip link set %s nomaster", members[0]))
	if out, err := n[2].Exec(t, "ping -c 1 -W 0.2 10.0.2.254"); err == nil {
		t.Errorf("a node reached the root context past its bridge:\n%s", out)
	}
	counters, err := l.Counters()
	must(t, err)
	if c := counters[nstest.Index(t, ports[0])]; c.Drops[dataplane.DropFromRoot] < 2 {
		t.Errorf("what the root context sent is not counted: %v", c)
	}
	if c := counters[nstest.Index(t, "tblan")]; c.Drops[dataplane.DropToRoot] < 2 {
		t.Errorf("what the bridge's stack did not get is not counted: %v", c)
	}
}

func TestUnjoinedPortDropsAndCounts(t *testing.T) {
	l := newLab(t)
	n := nodes(t, 2)
	ports := l.wire(t, n[0], "eth1", n[1], "eth1")
	index := nstest.Index(t, ports[0])
	for _, node := range n {
		node.Must(t, "ip link set eth1 up")
	}
	a, b := n[0].Tap(t, "eth1"), n[1].Tap(t, "eth1")
	probe := frame("02:00:00:77:77:77", 0x88b5, 100)
	same := func(f []byte) bool { return bytes.Equal(f, probe) }
	count := func() dataplane.PortCounters {
		t.Helper()
		c, err := l.Counters()
		must(t, err)
		return c[index]
	}
	must(t, l.Unjoin(index))
	before := count()
	must(t, a.Send(probe))
	if b.Receive(200*time.Millisecond, same) != nil {
		t.Error("a frame passed a parted joint")
	}
	if after := count(); after.Drops[dataplane.DropUnjoined] <= before.Drops[dataplane.DropUnjoined] || after.FromNodeBytes < before.FromNodeBytes+100 {
		t.Errorf("the drop was not counted: %v, then %v", before, after)
	}
	must(t, l.Join(dataplane.End{Index: nstest.Index(t, ports[1])}, dataplane.End{Index: index}))
	must(t, a.Send(probe))
	if b.Receive(2*time.Second, same) == nil {
		t.Error("no frame passed the joint that was made again")
	}
	must(t, b.Send(probe))
	if a.Receive(2*time.Second, same) == nil {
		t.Error("no frame came back")
	}
	if after := count(); after.ToNodePackets <= before.ToNodePackets {
		t.Errorf("what came to the node was not counted: %v, then %v", before, after)
	}
}

func TestPulledCableTakesCarrier(t *testing.T) {
	l := newLab(t)
	n := nodes(t, 2)
	ports := l.wire(t, n[0], "eth1", n[1], "eth1")
	carrier := func(want string) {
		t.Helper()
		for _, node := range n {
			node.Must(t, "ip link set eth1 up")
			// The kernel's link watch tells of it, a hundred interfaces a second.
			for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				got := node.Must(t, "ip -o link show eth1")
				if strings.Contains(got, want) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("no %s: %s", want, got)
				}
			}
		}
	}
	carrier("LOWER_UP")
	must(t, port.SetUp(map[string]bool{ports[0]: false, ports[1]: false}))
	carrier("NO-CARRIER")
	must(t, port.SetUp(map[string]bool{ports[0]: true, ports[1]: true}))
	carrier("LOWER_UP")
}
