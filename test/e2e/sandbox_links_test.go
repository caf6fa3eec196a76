package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/test/testenv"
)

// TestLinksAcrossMachines joins nodes of three hosts by links and LANs, over
// each family.
func TestLinksAcrossMachines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, underlay string
		mtu            int // of links that nobody gave one
		remote         func(netip.Addr) bool
	}{
		{"over IPv4 and IPv6", `{ipv4: 198.51.100.0/24, ipv6: "2001:db8:1::/64"}`, 1458, netip.Addr.Is4},
		{"over IPv6 alone", `{ipv6: "fd00:7::/64", mtu: 1600}`, 1500, netip.Addr.Is6},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := testenv.StartSandbox(t, testenv.SandboxOptions{Underlay: c.underlay})
			if out := s.Must("up", "--dry-run", write(t, "mesh.yaml", mesh)); !strings.Contains(out, "connect") || strings.Contains(out, "when there is a way") {
				t.Errorf("a dry run knows of no ways:\n%s", out)
			}
			s.Must("up", write(t, "mesh.yaml", mesh))
			s.Must("ping", "mesh")
			v := show(t, s, "mesh")
			for node, want := range map[string]string{"a": "alpha", "b": "beta", "b2": "beta", "c": "gamma"} {
				if got := v.places()[node]; got != want {
					t.Errorf("node %s is on %s, want %s", node, got, want)
				}
			}
			for name, want := range map[string]int{"ab": c.mtu, "ca": c.mtu, "shaped": c.mtu, "seg": c.mtu, "inside": 1500, "narrow": 1400} {
				for _, e := range v.link(t, name).Ends {
					if e.MTU != want {
						t.Errorf("the MTU of %s at %s is %d, want %d", name, e.Node, e.MTU, want)
					}
					if name == "inside" {
						if len(e.Paths) != 0 {
							t.Errorf("a link inside one host has the paths %+v", e.Paths)
						}
						continue
					}
					for _, p := range e.Paths {
						if a, err := netip.ParseAddr(p.Remote); err != nil || !c.remote(a) || p.State != "up" || p.Key == 0 {
							t.Errorf("%s at %s has the path %+v, %v", name, e.Node, p, err)
						}
					}
					if len(e.Paths) == 0 {
						t.Errorf("%s at %s has no path", name, e.Node)
					}
				}
			}
			for _, node := range []string{"b", "c"} {
				t.Run("full frames from a to "+node, func(t *testing.T) { fullFrames(t, s, v, "a", node) })
			}
			t.Run("TCP", func(t *testing.T) { bulk(t, v, "ab"); bulk(t, v, "seg") })
			t.Run("a rate holds", func(t *testing.T) { rateHolds(t, s, v) })
			t.Run("a LAN is one wire", func(t *testing.T) { oneWire(t, s, v) })
			t.Run("one end of a LAN is pulled", func(t *testing.T) { oneEnd(t, s, v) })
			if !t.Failed() {
				s.Must("down", "mesh")
				for _, h := range s.Hosts {
					bare(t, s, h.Name)
				}
			}
		})
	}
}

// mesh has a link of every kind between and inside hosts.
const mesh = `name: mesh
routing: static
nodes: {a: {on: alpha}, b: {on: beta}, b2: {on: beta}, c: {on: gamma}}
links:
  - {name: ab, endpoints: [a, b]}
  - {name: ca, endpoints: [c, a]}
  - {name: inside, endpoints: [b, b2]}
  - {name: shaped, endpoints: [a, c], rate: 10mbit}
  - {name: narrow, endpoints: [b2, c], mtu: 1400}
  - {name: seg, type: lan, endpoints: [a, b, b2, c]}
`

// TestRecabledLink gives an interface another neighbour with the old one's
// address, in its own host and across hosts: the next packet must reach it.
func TestRecabledLink(t *testing.T) {
	t.Parallel()
	text := `name: cables
routing: static
nodes: {a: {on: alpha}, b: {on: alpha}, c: {on: alpha}, d: {on: beta}, e: {on: beta}, sw: {on: alpha}}
links:
  - {name: near, endpoints: [{node: a, interface: n0, addresses: ["192.0.2.0/31", "2001:db8::/127"]}, {node: b, interface: n0, addresses: ["192.0.2.1/31", "2001:db8::1/127"]}]}
  - {name: far, endpoints: [{node: a, interface: f0, addresses: ["198.51.100.0/31", "2001:db8::2/127"]}, {node: d, interface: f0, addresses: ["198.51.100.1/31", "2001:db8::3/127"]}]}
  - {name: lan, type: lan, endpoints: [{node: a, interface: l0, addresses: [203.0.113.1/24]}, {node: b, interface: l0, addresses: [203.0.113.2/24]}]}
  - {name: spare, type: lan, endpoints: [{node: c, interface: l0, addresses: [100.64.0.2/24]}, {node: sw, interface: l0, addresses: [100.64.0.9/24]}]}
  - {name: b-c, endpoints: ["b:x0", "c:x0"]}
  - {name: d-e, endpoints: ["d:x0", "e:x0"]}
`
	s := testenv.StartSandbox(t, testenv.SandboxOptions{Hosts: []string{"alpha", "beta"}})
	s.Must("up", write(t, "cables.yaml", text))
	reach := func(t *testing.T, name string) {
		t.Helper()
		for _, addr := range []string{"192.0.2.1", "2001:db8::1", "198.51.100.1", "2001:db8::3", "203.0.113.2"} {
			// Two of them: the kernel puts one off while it asks for the neighbour.
			if out, stderr, code := s.Trellis("exec", "cables/a", "--", "ping", "-c2", "-i0.3", "-W1", addr); code != 0 {
				t.Errorf("%s: %s does not answer: %s%s", name, addr, out, stderr)
			}
		}
	}
	reach(t, "as made")
	for _, step := range []struct {
		name  string
		edits []string // pairs of old and new
	}{
		{"point to point in one host", []string{"{node: b, interface: n0,", "{node: c, interface: n0,"}},
		{"point to point across hosts", []string{"{node: d, interface: f0,", "{node: e, interface: f0,"}},
		{"into the own host", []string{"{node: e, interface: f0,", "{node: c, interface: f0,"}},
		{"out of it again", []string{"{node: c, interface: f0,", "{node: d, interface: f0,"}},
		{"from LAN to LAN", []string{
			"{node: a, interface: l0, addresses: [203.0.113.1/24]}, {node: b, interface: l0, addresses: [203.0.113.2/24]}",
			"{node: sw, interface: l0, addresses: [100.64.0.9/24]}, {node: b, interface: l0, addresses: [100.64.0.2/24]}",
			"{node: c, interface: l0, addresses: [100.64.0.2/24]}, {node: sw, interface: l0, addresses: [100.64.0.9/24]}",
			"{node: c, interface: l0, addresses: [203.0.113.2/24]}, {node: a, interface: l0, addresses: [203.0.113.1/24]}",
		}},
	} {
		before := show(t, s, "cables")
		next := strings.NewReplacer(step.edits...).Replace(text)
		if next == text {
			t.Fatalf("%s: nothing to edit in\n%s", step.name, text)
		}
		text = next
		s.Must("up", write(t, "cables.yaml", text))
		reach(t, step.name)
		if after := show(t, s, "cables"); !maps.Equal(before.pids(), after.pids()) {
			t.Errorf("%s: nodes were restarted: %v, then %v", step.name, before.pids(), after.pids())
		}
	}
}

// TestShapedLinksTakeAnotherMTU changes the MTU of links whose frames pass a pair
// of devices on their way: full packets must pass, whether it grows or shrinks.
func TestShapedLinksTakeAnotherMTU(t *testing.T) {
	t.Parallel()
	s := testenv.StartSandbox(t, testenv.SandboxOptions{Hosts: []string{"alpha", "beta"}})
	for _, mtu := range []int{1300, 1400, 1350} {
		s.Must("up", write(t, "shaped.yaml", fmt.Sprintf(`name: shaped
nodes: {a: {on: alpha}, b: {on: alpha}, c: {on: beta}}
links:
  - {name: far, rate: 100mbit, mtu: %[1]d, endpoints: [{node: a, interface: f0, addresses: [198.51.100.1/24]}, {node: c, interface: f0, addresses: [198.51.100.2/24]}]}
  - {name: lan, type: lan, rate: 100mbit, mtu: %[1]d, endpoints: [{node: a, interface: l0, addresses: [203.0.113.1/24]}, {node: b, interface: l0, addresses: [203.0.113.2/24]}, {node: c, interface: l0, addresses: [203.0.113.3/24]}]}
`, mtu)))
		for _, to := range []string{"198.51.100.2", "203.0.113.2", "203.0.113.3"} {
			args := []string{"exec", "shaped/a", "--", "ping", "-c2", "-i0.3", "-W2", "-M", "do", "-s", fmt.Sprint(mtu - 28), to}
			if out, stderr, code := s.Trellis(args...); code != 0 {
				t.Errorf("MTU %d: a full packet to %s does not pass: %s%s", mtu, to, out, stderr)
			}
		}
	}
}

// addr gives the address of a node on a link, of one family.
func (v shown) addr(t *testing.T, link, node string, v4 bool) netip.Addr {
	t.Helper()
	for _, e := range v.link(t, link).Ends {
		for _, text := range e.Addrs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				t.Fatal(err)
			}
			if e.Node == node && p.Addr().Is4() == v4 && !p.Addr().IsLinkLocalUnicast() {
				return p.Addr()
			}
		}
	}
	t.Fatalf("%s has no address on %s", node, link)
	return netip.Addr{}
}

// fullFrames sends packets of the links' whole MTU, and of one byte more.
func fullFrames(t *testing.T, s *testenv.Sandbox, v shown, from, to string) {
	for _, l := range v.Links {
		ends := map[string]int{}
		for _, e := range l.Ends {
			ends[e.Node] = e.MTU
		}
		if ends[from] == 0 || ends[to] == 0 {
			continue
		}
		for _, v4 := range []bool{true, false} {
			header := map[bool]int{true: 28, false: 48}[v4]
			target := v.addr(t, l.Name, to, v4).String()
			for size, want := range map[int]int{ends[from]: 0, ends[from] + 1: 1} {
				_, _, code := s.Trellis("exec", v.Name+"/"+from, "--", "ping", "-M", "do", "-c1", "-W5", "-s", fmt.Sprint(size-header), target)
				if code != want {
					t.Errorf("a packet of %d bytes over %s to %s: exit status %d, want %d", size, l.Name, target, code, want)
				}
			}
		}
	}
}

// bulk moves data by TCP over a link, from a to b, in both families. Every
// checksum must be right.
func bulk(t *testing.T, v shown, link string) {
	t.Helper()
	const size = 16 << 20
	for _, v4 := range []bool{true, false} {
		before := badChecksums(t, v.pid(t, "b"))
		var listener net.Listener
		if err := inside(v.pid(t, "b"), func() (err error) {
			listener, err = net.Listen("tcp", netip.AddrPortFrom(v.addr(t, link, "b", v4), 0).String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		go func() {
			_ = inside(v.pid(t, "a"), func() error {
				c, err := net.DialTimeout("tcp", listener.Addr().String(), 20*time.Second)
				if err != nil {
					return err
				}
				defer c.Close()
				_, err = c.Write(make([]byte, size))
				return err
			})
		}()
		began := time.Now()
		if err := listener.(*net.TCPListener).SetDeadline(began.Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		c, err := listener.Accept()
		if err != nil {
			t.Fatalf("nobody connects over %s: %v", link, err)
		}
		defer c.Close()
		if err := c.SetDeadline(began.Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, c); n != size {
			t.Errorf("over %s %d of %d bytes arrive in %v: %v", link, n, size, time.Since(began), err)
		}
		if wrong := badChecksums(t, v.pid(t, "b")) - before; wrong != 0 {
			t.Errorf("over %s %d segments have wrong checksums", link, wrong)
		}
	}
}

// badChecksums counts the TCP segments with wrong checksums that a node has had
// (InCsumErrors of /proc/net/snmp).
func badChecksums(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/snmp", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[0] == "Tcp:" && f[1] != "RtoAlgorithm" {
			n, err := strconv.Atoi(f[len(f)-1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no statistics of TCP in %s", b)
	return 0
}

// rateHolds sends faster than a link across hosts allows.
func rateHolds(t *testing.T, s *testenv.Sandbox, v shown) {
	const rate = 10e6 / 8 // bytes a second
	for _, way := range [][2]string{{"a", "c"}, {"c", "a"}} {
		target := net.UDPAddrFromAddrPort(netip.AddrPortFrom(v.addr(t, "shaped", way[1], true), 9))
		var in, out *net.UDPConn
		if err := errors.Join(
			inside(v.pid(t, way[1]), func() (err error) { in, err = net.ListenUDP("udp4", target); return err }),
			inside(v.pid(t, way[0]), func() (err error) { out, err = net.DialUDP("udp4", nil, target); return err }),
		); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b := make([]byte, 1400)
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = out.Write(b) // full queues are the point
				}
			}
		}()
		b := make([]byte, 2000)
		receive := func(d time.Duration) (n int) {
			deadline := time.Now().Add(d)
			if err := in.SetReadDeadline(deadline); err != nil {
				t.Fatal(err)
			}
			for time.Now().Before(deadline) {
				m, err := in.Read(b)
				if err != nil {
					break
				}
				n += m + 28 + 14
			}
			return n
		}
		receive(500 * time.Millisecond) // the burst
		// A machine with other things to do may send less for a while, never more.
		const measured = 2 * time.Second
		got := 0.0
		for i := 0; i < 5 && got < 0.9*rate; i++ {
			got = float64(receive(measured)) / measured.Seconds()
		}
		close(stop)
		<-ended
		in.Close()
		out.Close()
		if got < 0.9*rate || got > 1.1*rate {
			t.Errorf("from %s to %s %.0f bytes a second arrive, want %.0f", way[0], way[1], got, rate)
		}
	}
}

// lanPort is a node on the LAN, with a tap.
type lanPort struct {
	*tap
	name string
	mac  net.HardwareAddr
}

// oneEnd pulls an end of the LAN: its node is reached by nobody there, on its own
// host and on others, and all others reach each other.
func oneEnd(t *testing.T, s *testenv.Sandbox, v shown) {
	for _, pulled := range []string{"b", "c"} {
		s.Must("link", "set", "mesh", "seg", pulled, "--down")
		for _, pair := range [][2]string{{"a", "b"}, {"b2", "b"}, {"a", "c"}, {"b2", "c"}, {"a", "b2"}} {
			addr := v.addr(t, "seg", pair[1], true).String()
			if got, want := pings(s, "mesh/"+pair[0], addr), pair[1] != pulled; got != want {
				t.Errorf("with %s pulled, %s answers %s: %v", pulled, pair[1], pair[0], got)
			}
		}
		for _, e := range strings.Fields(carriersOn(t, s, v, "seg")) {
			if node, carrier, _ := strings.Cut(e, ":"); (carrier == "1") != (node != pulled) {
				t.Errorf("with %s pulled, the carrier is %s", pulled, e)
			}
		}
		s.Must("link", "set", "mesh", "seg", pulled, "--up")
	}
	s.Must("ping", "mesh")
}

// oneWire sends frames over a LAN on three hosts.
func oneWire(t *testing.T, s *testenv.Sandbox, v shown) {
	ports := map[string]*lanPort{}
	for _, e := range v.link(t, "seg").Ends {
		p := &lanPort{tap: openTap(t, v.pid(t, e.Node), e.Name), name: e.Node}
		if err := inside(v.pid(t, e.Node), func() error {
			i, err := net.InterfaceByName(e.Name)
			if err == nil {
				p.mac = i.HardwareAddr
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		ports[e.Node] = p
	}
	everybody := []string{"a", "b", "b2", "c"}
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	serial := 0
	// arrives sends a frame and fails the test unless exactly these nodes get it,
	// once each.
	arrives := func(from string, dst, src net.HardwareAddr, kind uint16, want ...string) {
		t.Helper()
		serial++
		mark := []byte(fmt.Sprintf("frame %d of this test", serial))
		for _, p := range ports {
			p.received(t)
		}
		ports[from].send(t, ethernet(dst, src, kind, append(mark, make([]byte, 40)...)))
		got := map[string]int{}
		look := func() {
			for name, p := range ports {
				for _, f := range p.received(t) {
					if bytes.Contains(f, mark) {
						got[name]++
					}
				}
			}
		}
		for deadline := time.Now().Add(20 * time.Second); len(got) < len(want) && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			look()
		}
		time.Sleep(50 * time.Millisecond) // what should not come
		look()
		for _, name := range everybody {
			expected := 0
			if slices.Contains(want, name) {
				expected = 1
			}
			if got[name] != expected {
				t.Errorf("frame %d from %s (to %v, type %04x) came to %s %d times, want %d", serial, from, dst, kind, name, got[name], expected)
			}
		}
	}
	const test = 0x88b5 // for local experiments (IEEE 802)
	arrives("a", broadcast, ports["a"].mac, test, "b", "b2", "c")
	arrives("b2", broadcast, ports["b2"].mac, test, "a", "b", "c")
	// Spanning tree and LLDP go as on a wire.
	arrives("a", net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0}, ports["a"].mac, 0x0026, "b", "b2", "c")
	arrives("c", net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x0e}, ports["c"].mac, 0x88cc, "a", "b", "b2")
	arrives("b", net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 2}, ports["b"].mac, 0x8809, "a", "b2", "c")
	// What has been heard is known; a MAC that moves is followed at once.
	wanderer := net.HardwareAddr{2, 0xaa, 0, 0, 0, 1}
	arrives("c", wanderer, ports["c"].mac, test, "a", "b", "b2")
	for _, at := range []string{"a", "b", "b2", "c", "a"} {
		others := slices.DeleteFunc(slices.Clone(everybody), func(n string) bool { return n == at })
		arrives(at, broadcast, wanderer, test, others...)
		for _, from := range others {
			arrives(from, wanderer, ports[from].mac, test, at)
		}
	}
	t.Run("copied once for each host", func(t *testing.T) {
		var wire *tap
		if err := s.Do("fabric", func() error {
			fd, err := packetSocket("alpha")
			wire = &tap{fd: fd}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(wire.fd)
		mark := []byte("a broadcast, seen on the underlay")
		ports["a"].send(t, ethernet(broadcast, ports["a"].mac, test, append(mark, make([]byte, 40)...)))
		copies := 0
		look := func() bool {
			copies += marked(wire.received(t), mark)
			return copies >= 2
		}
		eventually(t, 20*time.Second, "alpha sends a copy to each of the other hosts", look)
		time.Sleep(50 * time.Millisecond) // what should not come
		look()
		if copies != 2 {
			t.Errorf("alpha sends %d copies to two other hosts", copies)
		}
	})
}

// TestAPathThatShrinksIsNoticed narrows the underlay under a link.
func TestAPathThatShrinksIsNoticed(t *testing.T) {
	t.Parallel()
	for name, underlay := range map[string]string{"IPv4": `{ipv4: 192.0.2.0/24}`, "IPv6": `{ipv6: "2001:db8::/64"}`} {
		t.Run(name, func(t *testing.T) {
			s := testenv.StartSandbox(t, testenv.SandboxOptions{Hosts: []string{"alpha", "beta"}, Underlay: underlay})
			s.Must("up", write(t, "x.yaml", "name: x\nrouting: static\nnodes: {a: {on: alpha}, b: {on: beta}}\nlinks: [{name: ab, endpoints: [a, b]}]\n"))
			v := show(t, s, "x")
			to := v.addr(t, "ab", "b", true).String()
			size := v.link(t, "ab").Ends[0].MTU
			send := func(bytes int) bool {
				_, _, code := s.Trellis("exec", "x/a", "--", "ping", "-M", "do", "-c1", "-W1", "-s", fmt.Sprint(bytes-28), to)
				return code == 0
			}
			if !send(size) {
				t.Fatalf("a packet of %d bytes does not pass", size)
			}
			s.Sandbox("mtu", "beta", "1380")
			if send(size) {
				t.Error("a packet passes that is longer than the path allows")
			}
			if !send(1280) {
				t.Error("a packet does not pass that is short enough for the path")
			}
			eventually(t, 20*time.Second, "the path is shown with its MTU", func() bool {
				send(size)
				l := show(t, s, "x").link(t, "ab")
				for _, e := range l.Ends {
					if e.Node == "a" && len(e.Paths) == 1 && e.Paths[0].MTU == 1380 {
						return strings.Contains(l.Message+e.Paths[0].Message, "1380")
					}
				}
				return false
			})
			eventually(t, 20*time.Second, "packets that are too long are counted", func() bool {
				send(size)
				dropped := decode[struct {
					Links []struct {
						Ends []struct{ DropsByReason map[string]uint64 }
					}
				}](t, s.Must("show", "x", "-o", "json"))
				total := uint64(0)
				for _, e := range dropped.Links[0].Ends {
					total += e.DropsByReason["too-long"]
				}
				return total != 0
			})
		})
	}
}
