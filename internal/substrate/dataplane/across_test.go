package dataplane_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
)

// families are the two of the underlay.
func families(t *testing.T, test func(t *testing.T, ipv6 bool)) {
	for name, ipv6 := range map[string]bool{"over IPv4": false, "over IPv6": true} {
		t.Run(name, func(t *testing.T) { test(t, ipv6) })
	}
}

// wire is a link across two machines between two hosts, with addresses.
func wire(t testing.TB, ipv6 bool) (a, b *machine, na, nb *nstest.Node, pa, pb int) {
	t.Helper()
	a, b = machines(t)
	na, nb, pa, pb = wireOf(t, a, b, ipv6)
	return a, b, na, nb, pa, pb
}

func wireOf(t testing.TB, a, b *machine, ipv6 bool) (na, nb *nstest.Node, pa, pb int) {
	t.Helper()
	na, nb = host(t), host(t)
	pa, pb = link2(t, a, na, "eth1", b, nb, "eth1", ipv6, 77, 1400)
	na.Configure(t, "eth1", "10.0.0.1/24", "fd00::1/64")
	nb.Configure(t, "eth1", "10.0.0.2/24", "fd00::2/64")
	return na, nb, pa, pb
}

func TestPingAcross(t *testing.T) {
	families(t, func(t *testing.T, ipv6 bool) {
		_, _, na, nb, _, _ := wire(t, ipv6)
		for _, size := range []int{0, 56, 1352} {
			na.Must(t, fmt.Sprintf("ping -c 3 -i 0.01 -W 2 -M do -s %d 10.0.0.2", size))
			nb.Must(t, fmt.Sprintf("ping -c 3 -i 0.01 -W 2 -M do -s %d fd00::1", size))
		}
		if out, err := na.Exec(t, "ping -c 1 -W 1 -M do -s 1373 10.0.0.2"); err == nil || !strings.Contains(out, "1400") {
			t.Errorf("the node's stack did not refuse a packet over the link's MTU: %s", out)
		}
	})
}

// Frames of every kind cross as they are: no IP, no EtherType at all, tags.
func TestEveryFrameAcross(t *testing.T) {
	families(t, func(t *testing.T, ipv6 bool) {
		_, _, na, nb, _, _ := wire(t, ipv6)
		tagged := func(f []byte, tags ...byte) []byte { return join(f[:12], tags, f[12:]) }
		to := func(mac string, f []byte) []byte {
			m, err := net.ParseMAC(mac)
			must(t, err)
			return join(m, f[6:])
		}
		isis := join(inner(12), be16(1397), make([]byte, 1397))
		frames := map[string][]byte{
			"no IP": inner(60), "the shortest": inner(14), "the longest": inner(1414),
			"IS-IS":                to("01:80:c2:00:00:14", isis),
			"STP":                  to("01:80:c2:00:00:00", join(inner(12), be16(38), make([]byte, 46))),
			"LLDP":                 to("01:80:c2:00:00:0e", join(inner(12), []byte{0x88, 0xcc}, make([]byte, 100))),
			"a VLAN tag":           tagged(inner(60), 0x81, 0, 0, 100),
			"a VLAN tag, full":     tagged(inner(1414), 0x81, 0, 0xef, 0xff),
			"a priority tag":       tagged(inner(60), 0x81, 0, 0xe0, 0),
			"a provider's tag":     tagged(inner(60), 0x88, 0xa8, 0, 1),
			"two tags":             tagged(inner(100), 0x88, 0xa8, 0, 1, 0x81, 0, 0, 2),
			"three tags":           tagged(inner(100), 0x81, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3),
			"IPv4 in a VLAN":       tagged(join(inner(12), []byte{8, 0, 0x45, 0, 0, 46}, make([]byte, 46)), 0x81, 0, 0, 100),
			"IPv4, malformed":      join(inner(12), []byte{8, 0}, make([]byte, 46)),
			"ARP, malformed":       to("ff:ff:ff:ff:ff:ff", join(inner(12), []byte{8, 6}, make([]byte, 46))),
			"MPLS":                 join(inner(12), []byte{0x88, 0x47}, make([]byte, 60)),
			"EGRE inside, as data": egre4(peerMAC, ownMAC, peer4, own4, gre, inner(60)),
		}
		ta, tb := na.Tap(t, "eth1"), nb.Tap(t, "eth1")
		for name, f := range frames {
			for _, way := range []struct{ from, to *nstest.Tap }{{ta, tb}, {tb, ta}} {
				must(t, way.from.Send(f))
				if way.to.Receive(2*time.Second, func(got []byte) bool { return bytes.Equal(got, f) }) == nil {
					t.Errorf("%s did not arrive as it was sent", name)
				}
			}
		}
	})
}

// stat reads a figure of /proc/net/snmp in a node.
func stat(t testing.TB, n *nstest.Node, protocol, name string) string {
	t.Helper()
	lines := strings.Split(n.Must(t, "cat /proc/net/snmp"), "\n")
	for i, line := range lines[:len(lines)-1] {
		names, values := strings.Fields(line), strings.Fields(lines[i+1])
		if len(names) > 0 && names[0] == protocol+":" && len(values) == len(names) {
			for k := range names {
				if names[k] == name {
					return values[k]
				}
			}
		}
	}
	t.Fatalf("there is no %s %s", protocol, name)
	return ""
}

// transfer sends bytes over TCP between two nodes and compares what arrives.
func transfer(t testing.TB, from, to *nstest.Node, address string, size int) {
	t.Helper()
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	var l net.Listener
	must(t, to.Do(func() (err error) { l, err = net.Listen("tcp", net.JoinHostPort(address, "0")); return err }))
	defer l.Close()
	var c net.Conn
	must(t, from.Do(func() (err error) { c, err = net.DialTimeout("tcp", l.Addr().String(), 5*time.Second); return err }))
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	go func() {
		c.Write(data) // a failure shows in what arrives
		c.(*net.TCPConn).CloseWrite()
	}()
	s, err := l.Accept()
	must(t, err)
	defer s.Close()
	must(t, s.SetDeadline(time.Now().Add(30*time.Second)))
	sum := sha256.New()
	n, err := io.Copy(sum, s)
	must(t, err)
	if want := sha256.Sum256(data); !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Errorf("%d of %d bytes arrived at %s, and not the same", n, size, address)
	}
	for _, node := range []*nstest.Node{from, to} {
		if bad := stat(t, node, "Tcp", "InCsumErrors"); bad != "0" {
			t.Errorf("%s segments had wrong checksums", bad)
		}
	}
}

// Offloads are on in the nodes, as a container has them: super-packets and
// partial checksums leave the stack, whole frames arrive.
func TestTCPAcross(t *testing.T) {
	families(t, func(t *testing.T, ipv6 bool) { tcpAcross(t, ipv6, false) })
	t.Run("told of the encapsulation", func(t *testing.T) {
		families(t, func(t *testing.T, ipv6 bool) { tcpAcross(t, ipv6, true) })
	})
}

func tcpAcross(t *testing.T, ipv6, marked bool) {
	a, b := machines(t)
	if marked {
		for _, m := range []*machine{a, b} {
			must(t, m.Mark(m.uplink))
		}
	}
	na, nb, pa, _ := wireOf(t, a, b, ipv6)
	const size = 32 << 20
	transfer(t, na, nb, "10.0.0.2", size)
	transfer(t, nb, na, "fd00::1", size)
	c := a.counters(t, pa)
	if c.FromNodePackets < size/1400 || c.ToNodePackets < size/1400 || c.FastFromNodePackets != 0 || len(c.Drops) != 0 {
		t.Errorf("counted %+v", c)
	}
	// Every segment's outer header was sound.
	for _, m := range []*machine{a, b} {
		if drops := m.uplinkDrops(t); len(drops) != 0 {
			t.Errorf("the uplink dropped %v", drops)
		}
	}
	// Super-packets stayed whole on the way to the port: headers count once.
	if headers := c.FromNodeBytes - size; headers > c.FromNodePackets*40 {
		t.Errorf("%d bytes of headers for %d packets: the node's stack segments by itself", headers, c.FromNodePackets)
	}
}

// A super-packet of UDP (UDP_SEGMENT) arrives as its datagrams.
func TestUDPSegmentsAcross(t *testing.T) {
	families(t, func(t *testing.T, ipv6 bool) {
		_, _, na, nb, _, _ := wire(t, ipv6)
		for _, address := range []string{"10.0.0.2", "fd00::2"} {
			nb.Must(t, "ping -c 1 -W 2 "+strings.NewReplacer(".2", ".1", "::2", "::1").Replace(address))
			var server, client *net.UDPConn
			must(t, nb.Do(func() (err error) {
				server, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address)})
				return err
			}))
			defer server.Close()
			must(t, na.Do(func() (err error) {
				client, err = net.DialUDP("udp", nil, server.LocalAddr().(*net.UDPAddr))
				return err
			}))
			defer client.Close()
			raw, err := client.SyscallConn()
			must(t, err)
			const segment, full = 1001, 20
			must(t, errors.Join(raw.Control(func(fd uintptr) {
				err = os.NewSyscallError("UDP_SEGMENT", unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, segment))
			}), err))
			data := make([]byte, segment*full+17)
			rand.NewChaCha8([32]byte{2}).Read(data)
			_, err = client.Write(data)
			must(t, err)
			must(t, server.SetDeadline(time.Now().Add(5*time.Second)))
			buf := make([]byte, 2000)
			for i := range full + 1 {
				n, err := server.Read(buf)
				if err != nil {
					t.Fatalf("datagram %d to %s: %v", i, address, err)
				}
				if want := data[i*segment : min((i+1)*segment, len(data))]; !bytes.Equal(buf[:n], want) {
					t.Errorf("datagram %d to %s is not as sent: %d bytes", i, address, n)
				}
			}
		}
	})
}

// a ─EGRE─ r1 ─ r2 ─ r3 ─EGRE─ c: the routers forward from hop to hop without
// their stacks.
func TestChainStaysOnTheFastPath(t *testing.T) {
	families(t, func(t *testing.T, ipv6 bool) {
		here, there := machines(t)
		nodes := make([]*nstest.Node, 5)
		for i := range nodes {
			nodes[i] = host(t)
		}
		_, first := link2(t, here, nodes[0], "right", there, nodes[1], "left", ipv6, 1, 1400)
		lefts, rights := []int{first}, []int(nil)
		for i := 1; i < 3; i++ {
			right, left := there.attach(t, nodes[i], "right", 1400), there.attach(t, nodes[i+1], "left", 1400)
			must(t, there.Join(dataplane.End{Index: right}, dataplane.End{Index: left}))
			lefts, rights = append(lefts, left), append(rights, right)
		}
		last, _ := link2(t, there, nodes[3], "right", here, nodes[4], "left", ipv6, 2, 1400)
		rights = append(rights, last)
		for i, n := range nodes {
			if i < 4 {
				n.Configure(t, "right", fmt.Sprintf("10.0.%d.1/24", i), fmt.Sprintf("fd00:%d::1/64", i))
			}
			if i > 0 {
				n.Configure(t, "left", fmt.Sprintf("10.0.%d.2/24", i-1), fmt.Sprintf("fd00:%d::2/64", i-1))
			}
			for net := range 4 {
				switch {
				case net > i:
					n.Must(t, fmt.Sprintf("ip route add 10.0.%d.0/24 via 10.0.%d.2; ip -6 route add fd00:%d::/64 via fd00:%d::2", net, i, net, i))
				case net < i-1:
					n.Must(t, fmt.Sprintf("ip route add 10.0.%d.0/24 via 10.0.%d.1; ip -6 route add fd00:%d::/64 via fd00:%d::1", net, i-1, net, i-1))
				}
			}
		}
		for i := range lefts {
			there.fast(t, lefts[i], true)
			there.fast(t, rights[i], true)
		}
		far := []struct{ address, ttl string }{{"10.0.3.2", "ttl=61"}, {"fd00:3::2", "ttl=61"}}
		for _, f := range far { // neighbours get known by the stack's way
			nodes[0].Must(t, "ping -c 3 -i 0.1 -W 2 "+f.address)
		}
		before := make([]dataplane.PortCounters, 3)
		for i, p := range rights {
			before[i] = there.counters(t, p)
		}
		for _, f := range far {
			out := nodes[0].Must(t, "ping -c 100 -i 0.002 -W 2 "+f.address)
			if strings.Count(out, f.ttl) != 100 {
				t.Errorf("not every echo of %s passed three routers: %s", f.address, out)
			}
		}
		for i, p := range rights {
			after := there.counters(t, p)
			// A few of ND and MLD are the stack's by right.
			fast := after.FastFromNodePackets - before[i].FastFromNodePackets
			if stack := after.FromNodePackets - before[i].FromNodePackets - fast; fast != 200 || stack > 10 {
				t.Errorf("router %d forwarded %d of 200 packets fast, and %d by its stack", i+1, fast, stack)
			}
		}
		transfer(t, nodes[0], nodes[4], "10.0.3.2", 8<<20)
		transfer(t, nodes[4], nodes[0], "fd00:0::1", 8<<20)
		if out := nodes[0].Must(t, "traceroute -n -q 1 -w 1 10.0.3.2 2>&1 || ping -c 1 -W 1 -t 2 10.0.3.2 || true"); !strings.Contains(out, "10.0.1.2") {
			t.Errorf("the second router tells nothing of a TTL that ends there: %s", out)
		}
		for _, p := range append(lefts, rights...) {
			there.fast(t, p, false)
		}
		before[0] = there.counters(t, rights[0])
		nodes[0].Must(t, "ping -c 5 -i 0.01 -W 2 10.0.3.2")
		if after := there.counters(t, rights[0]); after.FastFromNodePackets != before[0].FastFromNodePackets || after.FromNodePackets < before[0].FromNodePackets+5 {
			t.Errorf("the fast path is not off: %+v, then %+v", before[0], after)
		}
	})
}
