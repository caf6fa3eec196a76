package dataplane_test

import (
	"bytes"
	"maps"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/tunnel"
)

// Verdicts of XDP (linux/bpf.h) and tc (linux/pkt_cls.h).
const (
	xdpDrop, xdpPass, xdpRedirect = 1, 2, 4
	tcDrop, tcRedirect            = 2, 7
)

// bench is a data plane with an uplink and a port, whose programs are run by
// hand.
type bench struct {
	*lab
	uplink, port int
	nodeIndex    int
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{lab: newLab(t)}
	b.uplink = b.veth(t)
	b.port, b.nodeIndex = b.attach(t, nstest.NewNode(t), "eth1", 1458)
	return b
}

// veth makes an uplink that is one end of a veth pair, and gives its index.
func (l *lab) veth(t testing.TB) int {
	t.Helper()
	nstest.Sh(t, "ip link add up0 type veth peer name wire0; ip link set up0 up; ip link set wire0 up")
	i := index(t, "up0")
	mode, err := l.AttachUplink(dataplane.Uplink{Name: "up0", Index: i, Addrs: []netip.Addr{own4, own6}})
	must(t, err)
	if mode != dataplane.Native {
		t.Fatalf("a veth runs XDP in %v mode", mode)
	}
	return i
}

// attach makes a virtual interface and attaches both ends.
func (l *lab) attach(t testing.TB, n *nstest.Node, name string, mtu int) (index, nodeIndex int) {
	t.Helper()
	s := nstest.Spec(n, name)
	s.MTU = mtu
	must(t, port.Create([]port.Spec{s}))
	index, nodeIndex = nstest.Index(t, s.Device), indexIn(t, n, name)
	must(t, l.Attach("net", s.Device, index, dataplane.Port))
	must(t, l.AttachFarEnd("net", s.Device, dataplane.FarEnd{Node: "net/n", NS: n.NS, Index: nodeIndex}))
	must(t, port.SetUp(map[string]bool{s.Device: true}))
	return index, nodeIndex
}

// device gives the name of a port.
func (l *lab) device(t testing.TB, index int) string {
	t.Helper()
	all, err := l.Read("net")
	must(t, err)
	for _, a := range all {
		if a.Index == index {
			return a.Device
		}
	}
	t.Fatalf("there is no port %d", index)
	return ""
}

// needFastPath skips the test where there is none.
func (l *lab) needFastPath(t testing.TB) {
	t.Helper()
	if err := l.FastPathSupported(); err != nil {
		t.Skip("needs the fast path: ", err)
	}
}

// fast turns the fast path at the node's end of a port on or off.
func (l *lab) fast(t testing.TB, index int, on bool) {
	t.Helper()
	l.needFastPath(t)
	must(t, l.SetFast("net", l.device(t, index), on))
}

// program gives a program of the data plane.
func (l *lab) program(t testing.TB, name string) *ebpf.Program {
	t.Helper()
	p, err := ebpf.LoadPinnedProgram(filepath.Join(l.dir, "@", name), nil)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// counters gives those of a port.
func (l *lab) counters(t testing.TB, index int) dataplane.PortCounters {
	t.Helper()
	all, err := l.Counters()
	must(t, err)
	return all[index]
}

// uplinkDrops gives what the one uplink has dropped.
func (l *lab) uplinkDrops(t testing.TB) map[dataplane.DropReason]uint64 {
	t.Helper()
	all, err := l.Uplinks()
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("the uplinks are %v, want one", all)
	}
	return all[0].Drops
}

// xdpContext is struct xdp_md.
type xdpContext struct{ Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32 }

// runXDP runs a program on a frame, whose first meta bytes are metadata, at a
// device (0: any).
func runXDP(t testing.TB, p *ebpf.Program, frame []byte, meta, device int) (uint32, []byte) {
	t.Helper()
	verdict, out, err := tryXDP(p, frame, meta, device)
	must(t, err)
	return verdict, out
}

// tryXDP does so, or says why the kernel does not take the frame for a test run.
func tryXDP(p *ebpf.Program, frame []byte, meta, device int) (verdict uint32, out []byte, err error) {
	opts := ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, 70000),
		Context: xdpContext{Data: uint32(meta), DataEnd: uint32(len(frame)), Ingress: uint32(device)},
	}
	verdict, err = p.Run(&opts)
	return verdict, opts.DataOut, err
}

// runTC runs a program on a frame at a device.
func runTC(t testing.TB, p *ebpf.Program, frame []byte, device int) (uint32, []byte) {
	t.Helper()
	verdict, out, err := tryTC(p, frame, device)
	must(t, err)
	return verdict, out
}

// tryTC does so, or says why the kernel does not take the frame for a test run.
func tryTC(p *ebpf.Program, frame []byte, device int) (verdict uint32, out []byte, err error) {
	context := make([]byte, 192) // struct __sk_buff
	copy(context[40:], le32(device))
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, 70000), Context: context}
	verdict, err = p.Run(&opts)
	return verdict, opts.DataOut, err
}

func TestEncapsulatesByteForByte(t *testing.T) {
	t.Run("plain", func(t *testing.T) { encapsulates(t, newBench(t)) })
	t.Run("marked", func(t *testing.T) {
		b := newBench(t)
		must(t, b.Mark(b.uplink))
		encapsulates(t, b)
	})
}

func encapsulates(t *testing.T, b *bench) {
	portIn := b.program(t, "port_in")
	arp := unhex(t, "ffffffffffff 020000000008 0806 0001 0800 06 04 0001 020000000008 0a000001 000000000000 0a000002")
	// Written out in full once, so that it does not hang on this test's builders.
	want := unhex(t, `02000000ee02 02000000ee01 0800
		45 00 0046 0000 4000 40 2f b685 c0000201 c0000202
		2000 6558 01020304`)
	want = append(want, arp...)
	must(t, b.Connect(b.port, 0, path4(b.uplink)))
	verdict, got := runTC(t, portIn, arp, b.port)
	if verdict != tcRedirect || !bytes.Equal(got, want) {
		t.Errorf("verdict %d,\n%x, want\n%x", verdict, got, want)
	}
	tagged := func(f []byte, tags ...byte) []byte { return join(f[:12], tags, f[12:]) }
	for _, f := range [][]byte{
		inner(14), inner(60), inner(1472), arp, tagged(arp, 0x81, 0, 0, 100), tagged(inner(60), 0x88, 0xa8, 0, 1, 0x81, 0, 0, 2),
		join(inner(12), be16(38), make([]byte, 46)), // 802.3, as IS-IS and STP
		join(inner(12), []byte{8, 0, 0x45, 0, 0, 46}, make([]byte, 46)),
		join(inner(12), []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 17, 64}, make([]byte, 52)),
		tagged(join(inner(12), []byte{8, 0, 0x45, 0, 0, 46}, make([]byte, 46)), 0x81, 0, 0, 100),
	} {
		for _, direction := range []struct {
			path tunnel.Path
			want []byte
		}{
			{path4(b.uplink), egre4(ownMAC, peerMAC, own4, peer4, gre, f)},
			{path6(b.uplink), egre6(ownMAC, peerMAC, own6, peer6, gre, f)},
		} {
			if direction.path.Local.Is6() && len(f) > 1452 {
				continue
			}
			must(t, b.Connect(b.port, 0, direction.path))
			verdict, got := runTC(t, portIn, f, b.port)
			if verdict != tcRedirect || !bytes.Equal(got, direction.want) {
				t.Errorf("%d bytes over %v: verdict %d,\n%x, want\n%x", len(f), direction.path.Local, verdict, got, direction.want)
			}
		}
	}
}

func TestRefusesToSend(t *testing.T) {
	b := newBench(t)
	portIn := b.program(t, "port_in")
	expect := func(p *ebpf.Program, frame []byte, why dataplane.DropReason) {
		t.Helper()
		before := b.counters(t, b.port)
		if verdict, _ := runTC(t, p, frame, b.port); verdict != tcDrop {
			t.Errorf("verdict %d, want a drop for %v", verdict, why)
		}
		before.Drops[why]++
		if after := b.counters(t, b.port); !maps.Equal(after.Drops, before.Drops) {
			t.Errorf("counted %v, want %v", after.Drops, before.Drops)
		}
	}
	expect(portIn, inner(60), dataplane.DropUnjoined)
	must(t, b.Connect(b.port, 0, path4(b.uplink)))
	expect(portIn, inner(1473), dataplane.DropLong)
	expect(b.program(t, "port_out"), inner(60), dataplane.DropFromRoot)
	must(t, b.Unjoin(b.port))
	expect(portIn, inner(60), dataplane.DropUnjoined)
}

func TestDecapsulatesByteForByte(t *testing.T) {
	b := newBench(t)
	uplinkIn := b.program(t, "uplink_in")
	for _, path := range []tunnel.Path{path4(b.uplink), path6(b.uplink)} {
		must(t, b.Connect(b.port, 0, path))
		for _, f := range [][]byte{inner(14), inner(42), inner(60), inner(path.MTU + 14), inner(path.MTU + 18)} {
			frame := egre4(peerMAC, ownMAC, peer4, own4, gre, f)
			if path.Local.Is6() {
				frame = egre6(peerMAC, ownMAC, peer6, own6, gre, f)
			}
			ignored := bytes.Clone(frame) // bits that are for others
			at := bytes.Index(ignored, gre[:4])
			ignored[at] |= 0x03
			ignored[at+1] |= 0xf8
			if verdict, got := runXDP(t, uplinkIn, ignored, 0, b.uplink); verdict != xdpRedirect || !bytes.HasSuffix(got, f) {
				t.Errorf("%d bytes from %v with bits 6 to 12 set: verdict %d, %x", len(f), path.Remote, verdict, got)
			}
			for _, padding := range []int{0, 7} {
				verdict, got := runXDP(t, uplinkIn, join(frame, make([]byte, padding)), 0, b.uplink)
				if want := join(b.metadata(b.port), f); verdict != xdpRedirect || !bytes.Equal(unticketed(got), want) {
					t.Errorf("%d bytes from %v with %d of padding: verdict %d,\n%x, want\n%x", len(f), path.Remote, padding, verdict, got, want)
				}
			}
		}
	}
	c := b.counters(t, b.port)
	if want := uint64(6*(14+42+60+1472+1476) - 3*40); c.ToNodePackets != 30 || c.ToNodeBytes != want || c.FastToNodePackets != 30 || len(c.Drops) != 0 {
		t.Errorf("counted %+v, want 30 packets with %d bytes", c, want)
	}
}

func TestDropsWhatIsMalformed(t *testing.T) {
	b := newBench(t)
	uplinkIn := b.program(t, "uplink_in")
	must(t, b.Connect(b.port, 0, path4(b.uplink)))
	other := path6(b.uplink)
	b4 := func(payload ...[]byte) []byte { return egre4(peerMAC, ownMAC, peer4, own4, payload...) }
	b6 := func(payload ...[]byte) []byte { return egre6(peerMAC, ownMAC, peer6, own6, payload...) }
	f := inner(60)
	edit := func(frame []byte, at int, value ...byte) []byte {
		frame = append([]byte(nil), frame...)
		copy(frame[at:], value)
		return frame
	}
	edit4 := func(at int, value ...byte) []byte { // and the checksum again
		frame := edit(b4(gre, f), at, value...)
		sum4(frame[14:])
		return frame
	}
	ether := func(header ...byte) []byte { return join(header, f) }
	with6 := func(next byte, header ...byte) []byte { // an extension header before GRE
		frame := b6(header, gre, f)
		frame[20] = next
		return frame
	}
	options := join(b4(gre, f)[:34], []byte{1, 1, 1, 1}, gre, f)
	options[14] = 0x46
	copy(options[16:], be16(24+8+60))
	sum4(options[14:])
	table := []struct {
		name  string
		frame []byte
		why   dataplane.DropReason
	}{
		{"another key", b4(ether(0x20, 0, 0x65, 0x58, 1, 2, 3, 5)), dataplane.DropUnknownPeer},
		{"another source", egre4(peerMAC, ownMAC, netip.MustParseAddr("192.0.2.9"), own4, gre, f), dataplane.DropUnknownPeer},
		{"the key over the other family", b6(gre, f), dataplane.DropUnknownPeer},
		{"version 1", b4(ether(0x20, 1, 0x65, 0x58, 1, 2, 3, 4)), dataplane.DropVersion},
		{"PPTP", b4(ether(0x30, 0x81, 0x88, 0x0b, 1, 2, 3, 4)), dataplane.DropVersion},
		{"no key", b4(ether(0, 0, 0x65, 0x58)), dataplane.DropKeyless},
		{"a checksum instead of a key", b4(ether(0x80, 0, 0x65, 0x58, 0, 0, 0, 0)), dataplane.DropKeyless},
		{"a checksum", b4(ether(0xa0, 0, 0x65, 0x58, 0, 0, 0, 0, 1, 2, 3, 4)), dataplane.DropFlags},
		{"routing", b4(ether(0x60, 0, 0x65, 0x58, 1, 2, 3, 4)), dataplane.DropFlags},
		{"a sequence number", b4(ether(0x30, 0, 0x65, 0x58, 1, 2, 3, 4, 0, 0, 0, 1)), dataplane.DropFlags},
		{"bit 4", b4(ether(0x28, 0, 0x65, 0x58, 1, 2, 3, 4)), dataplane.DropFlags},
		{"bit 5", b4(ether(0x24, 0, 0x65, 0x58, 1, 2, 3, 4)), dataplane.DropFlags},
		{"IPv4 inside", b4(ether(0x20, 0, 8, 0, 1, 2, 3, 4)), dataplane.DropProtocol},
		{"more fragments", edit4(20, 0x20, 0), dataplane.DropFragment},
		{"a later fragment", edit4(20, 0, 1), dataplane.DropFragment},
		{"IPv6, a fragment", with6(44, 47, 0, 0, 1, 0, 0, 0, 1), dataplane.DropFragment},
		{"options", options, dataplane.DropOptions},
		{"IPv6, hop-by-hop options", with6(0, 47, 0, 1, 4, 0, 0, 0, 0), dataplane.DropOptions},
		{"IPv6, routing", with6(43, 47, 0, 4, 0, 0, 0, 0, 0), dataplane.DropOptions},
		{"IPv6, destination options", with6(60, 47, 0, 1, 4, 0, 0, 0, 0), dataplane.DropOptions},
		{"a wrong checksum", edit(b4(gre, f), 24, 0), dataplane.DropChecksum},
		{"longer than the frame", edit4(16, be16(20+8+61)...), dataplane.DropLength},
		{"IPv6, longer than the frame", edit(b6(gre, f), 18, be16(8+61)...), dataplane.DropLength},
		{"GRE cut short", b4(gre[:7]), dataplane.DropRunt},
		{"IPv6, GRE cut short", b6(gre[:4]), dataplane.DropRunt},
		{"nothing inside", b4(gre), dataplane.DropRunt},
		{"13 bytes inside", b4(gre, f[:13]), dataplane.DropRunt},
		{"IPv6, 13 bytes inside", b6(gre, f[:13]), dataplane.DropRunt},
	}
	for _, c := range table {
		before := b.uplinkDrops(t)
		if verdict, _ := runXDP(t, uplinkIn, c.frame, 0, b.uplink); verdict != xdpDrop {
			t.Errorf("%s: verdict %d, want a drop", c.name, verdict)
		}
		before[c.why]++
		if after := b.uplinkDrops(t); !maps.Equal(before, after) {
			t.Errorf("%s: counted %v, want %v", c.name, after, before)
		}
		// Not for an address of ours, it is the host's to judge.
		elsewhere := append([]byte(nil), c.frame...)
		if elsewhere[12] == 8 {
			elsewhere[33] ^= 0x80
			if c.why != dataplane.DropChecksum {
				sum4(elsewhere[14:])
			}
		} else {
			elsewhere[53] ^= 0x80
		}
		if verdict, _ := runXDP(t, uplinkIn, elsewhere, 0, b.uplink); verdict != xdpPass {
			t.Errorf("%s, to elsewhere: verdict %d, want a pass", c.name, verdict)
		}
	}
	must(t, b.Connect(b.port, 0, other))
	if verdict, _ := runXDP(t, uplinkIn, b4(gre, f), 0, b.uplink); verdict != xdpDrop {
		t.Error("a stale pair is still let in")
	}
	if verdict, _ := runXDP(t, uplinkIn, b6(gre, inner(1457)), 0, b.uplink); verdict != xdpDrop {
		t.Error("an over-long frame is let in")
	}
	if c := b.counters(t, b.port); c.Drops[dataplane.DropLong] != 1 {
		t.Errorf("an over-long frame is counted as %v", c.Drops)
	}
}

func TestLeavesTheRestToTheHost(t *testing.T) {
	b := newBench(t)
	uplinkIn := b.program(t, "uplink_in")
	must(t, b.Connect(b.port, 0, path4(b.uplink)))
	gre4 := egre4(peerMAC, ownMAC, peer4, own4, gre, inner(60))
	udp := append([]byte(nil), gre4...)
	udp[23] = 17
	arp := append([]byte(nil), gre4...)
	arp[13] = 6
	version := append([]byte(nil), gre4...)
	version[14] = 0x55
	tcp6 := egre6(peerMAC, ownMAC, peer6, own6, make([]byte, 40))
	tcp6[20] = 6
	hop6 := egre6(peerMAC, ownMAC, peer6, own6, []byte{58, 0, 5, 2, 0, 0, 1, 0}, make([]byte, 40))
	hop6[20] = 0 // as MLD
	for name, frame := range map[string][]byte{"UDP": udp, "ARP": arp, "IPv4 of version 5": version, "TCP": tcp6, "MLD": hop6, "cut": gre4[:30]} {
		verdict, got := runXDP(t, uplinkIn, frame, 0, b.uplink)
		if verdict != xdpPass || !bytes.Equal(got, frame) {
			t.Errorf("%s: verdict %d, %x", name, verdict, got)
		}
	}
	if drops := b.uplinkDrops(t); len(drops) != 0 {
		t.Errorf("counted %v", drops)
	}
}

func TestConnectRefuses(t *testing.T) {
	b := newBench(t)
	must(t, b.Connect(b.port, 0, path4(b.uplink)))
	second, _ := b.attach(t, nstest.NewNode(t), "eth1", 1458)
	for name, edit := range map[string]func(*tunnel.Path){
		"a key twice":         func(*tunnel.Path) {},
		"two families":        func(p *tunnel.Path) { p.Local = own6 },
		"no address":          func(p *tunnel.Path) { p.Remote = netip.Addr{} },
		"an uplink not there": func(p *tunnel.Path) { p.Route.Uplink = 9999 },
		"no MTU":              func(p *tunnel.Path) { p.Key++; p.MTU = 0 },
		"no room underneath":  func(p *tunnel.Path) { p.Key++; p.Route.MTU = 42 },
	} {
		p := path4(b.uplink)
		edit(&p)
		if err := b.Connect(second, 0, p); err == nil {
			t.Errorf("%s was taken", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	must(t, b.Remove("net", b.device(t, b.port)))
	must(t, b.Connect(second, 0, path4(b.uplink)))
}
