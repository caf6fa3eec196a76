package equal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/kernel"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/rcu"
	"trellis/internal/substrate/shaper"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
)

// iface is an interface of a router. Frames come in at those that cross the
// underlay, and leave by any.
type iface struct {
	name string
	mtu  int
	kind string // egre4, egre6, local
	mac  vnet.MAC
}

var ifaces = []iface{
	{"eth1", 1500, "egre4", vnet.MAC{2, 0, 0, 0, 0xa0, 1}},
	{"eth2", 1400, "egre4", vnet.MAC{2, 0, 0, 0, 0xa0, 2}},
	{"eth3", 1300, "egre6", vnet.MAC{2, 0, 0, 0, 0xa0, 3}},
	{"eth4", 1500, "local", vnet.MAC{2, 0, 0, 0, 0xa0, 4}},
}

// underlayMTU is more than any link takes.
const underlayMTU = 1600

var (
	ownMAC  = vnet.MAC{2, 0, 0, 0, 0xee, 1}
	peerMAC = vnet.MAC{2, 0, 0, 0, 0xee, 2}
	uplink4 = netip.MustParseAddr("192.0.2.1")
	wire4   = netip.MustParseAddr("192.0.2.2")
	uplink6 = netip.MustParseAddr("2001:db8:ffff::1")
	wire6   = netip.MustParseAddr("2001:db8:ffff::2")
)

// space is a network namespace of its own, until it is closed.
type space struct {
	*netns.NS
	hold *exec.Cmd
}

func newSpace() (*space, error) {
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ns, err := netns.OfPid(cmd.Process.Pid)
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, err
	}
	return &space{ns, cmd}, nil
}

func (s *space) close() {
	s.NS.Close()
	s.hold.Process.Kill()
	s.hold.Wait()
}

// run runs a program in the namespace and gives what it prints.
func (s *space) run(stdin string, name string, args ...string) (string, error) {
	var out []byte
	err := s.Do(func() (err error) {
		cmd := exec.Command(name, args...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err = cmd.CombinedOutput()
		return err
	})
	return string(out), err
}

// must runs a shell command that has to succeed.
func (s *space) must(t testing.TB, command string) {
	t.Helper()
	if out, err := s.run("", "sh", "-ec", command); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// tap is a raw socket that sees what comes in at a device.
type tap struct{ fd, index int }

func (s *space) tap(device string) (*tap, error) {
	p := &tap{fd: -1}
	err := s.Do(func() (err error) {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		p.index = i.Index
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(p.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
			unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20),
			unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: p.index}),
		)
	})
	if err != nil {
		p.close()
		return nil, fmt.Errorf("open a raw socket at %s: %w", device, err)
	}
	return p, nil
}

func (p *tap) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
}

// take gives each of the frames that wait to a function, and their number.
func (p *tap) take(each func(frame []byte)) (n int) {
	var buf [65536]byte
	for {
		length, _, err := unix.Recvfrom(p.fd, buf[:], 0)
		if err != nil {
			return n
		}
		each(buf[:length])
		n++
	}
}

// noGRO keeps the kernel from merging what comes in at a device, which XDP has
// turned on.
func (s *space) noGRO(device string) error {
	return s.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return e.Change(device, map[string]bool{"rx-gro": false})
	})
}

// lab is a machine with an uplink to a wire.
type lab struct {
	plane  *dataplane.Dataplane
	dir    string
	uplink int
	wire   *space
	at     *tap // the wire's end
	pass   *ebpf.Program
	keep   link.Link
	keys   uint32
	made   int
	t      testing.TB

	complaints map[string]int // of the tools, in worlds
}

func newLab(t testing.TB) *lab {
	t.Helper()
	nstest.Root(t)
	expedited, err := rcu.Expedite()
	must(t, err)
	t.Cleanup(func() { must(t, expedited()) })
	l := &lab{t: t, dir: filepath.Join(t.TempDir(), "bpf"), keys: 0x1000}
	must(t, dataplane.Mount(l.dir))
	t.Cleanup(func() { dataplane.Unmount(l.dir) })
	l.plane, err = dataplane.Open(l.dir)
	must(t, err)
	t.Cleanup(func() { l.plane.Close() })
	if err := l.plane.FastPathSupported(); err != nil {
		release, unknown := kernel.Release()
		must(t, unknown)
		if v, ok := kernel.Parse(release); !ok || v.Major > 6 || v.Minor >= 2 {
			t.Fatal(err)
		}
		t.Skip("this kernel has no fast path: ", err)
	}
	l.wire, err = newSpace()
	must(t, err)
	t.Cleanup(l.wire.close)
	nstest.Sh(t, fmt.Sprintf(`ip link add up0 mtu %[1]d address %[2]v type veth peer name wire0 mtu %[1]d netns %[3]d
		sysctl -qw net.ipv6.conf.all.disable_ipv6=1; ip link set up0 up`, underlayMTU, hardware(ownMAC), l.wire.hold.Process.Pid))
	l.wire.must(t, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1; ip link set wire0 arp off up")
	// A veth takes XDP frames if its peer has a program.
	l.pass, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	must(t, err)
	t.Cleanup(func() { l.pass.Close() })
	must(t, l.wire.Do(func() error {
		i, err := net.InterfaceByName("wire0")
		if err != nil {
			return err
		}
		l.keep, err = link.AttachXDP(link.XDPOptions{Program: l.pass, Interface: i.Index, Flags: link.XDPDriverMode})
		return err
	}))
	t.Cleanup(func() { l.keep.Close() })
	must(t, l.wire.noGRO("wire0"))
	i, err := net.InterfaceByName("up0")
	must(t, err)
	l.uplink = i.Index
	_, err = l.plane.AttachUplink(dataplane.Uplink{Name: "up0", Index: i.Index, Addrs: []netip.Addr{uplink4, uplink6}})
	must(t, err)
	l.at, err = l.wire.tap("wire0")
	must(t, err)
	t.Cleanup(l.at.close)
	return l
}

func hardware(m vnet.MAC) net.HardwareAddr { return m[:] }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// router is one of the two.
type router struct {
	*space
	fast      bool
	neighbour *space
	ports     []int    // by iface: interface index in the root context
	devices   []string // and name
	keys      []uint32
	next      *tap // the neighbour's end of eth4
	tenant    *tap // the far end of ten0
	log       string
}

// pair is a fast and a slow router in the same world.
type pair struct {
	*lab
	name    string // of their VNet
	routers [2]*router
	names   map[uint32]string // the interface that a key stands for
}

// prelude is what every router holds besides.
const prelude = `
ip link add ten0 address 02:00:00:00:a0:05 type veth peer name ten1
ip link set ten1 arp off up
ip addr add 10.5.0.1/24 dev ten0
ip addr add fd05::1/64 dev ten0 nodad
ip link set ten0 up
ip addr add 10.255.0.1/32 dev lo
ip addr add fd0f::1/128 dev lo
ip link set lo up
`

func (l *lab) newRouter(network string, fast bool) (r *router, err error) {
	r = &router{fast: fast}
	if r.space, err = newSpace(); err != nil {
		return nil, err
	}
	if r.neighbour, err = newSpace(); err != nil {
		return r, err
	}
	if err := r.Defaults(map[string]string{
		"net.ipv4.icmp_ratelimit": "0", "net.ipv6.icmp.ratelimit": "0",
		"net.ipv4.icmp_msgs_per_sec": "1000000", "net.ipv4.icmp_msgs_burst": "1000000",
		"net.ipv4.conf.default.send_redirects": "0", "net.ipv4.conf.all.send_redirects": "0",
		"net.ipv6.conf.default.router_solicitations": "0",
	}); err != nil {
		return r, err
	}
	specs := make([]port.Spec, 0, len(ifaces)+1)
	kind := fmt.Sprintf("%ds", l.made)
	if fast {
		kind = fmt.Sprintf("%df", l.made)
	}
	for i, f := range ifaces {
		specs = append(specs, port.Spec{
			Device: fmt.Sprintf("tr%s%d", kind, i+1), Alias: "trellis:equal:" + network + "/" + kind + ":" + f.name, Group: 0x7e000001,
			Name: f.name, MAC: f.mac, MTU: f.mtu, Node: r.FD(),
		})
	}
	specs = append(specs, port.Spec{
		Device: "trn" + kind, Alias: "trellis:equal:" + network + "/n" + kind + ":eth1", Group: 0x7e000001,
		Name: "eth1", MAC: vnet.MAC{2, 0, 0, 0, 0xcc, 1}, MTU: 1500, Node: r.neighbour.FD(),
	})
	if err := port.Create(specs); err != nil {
		return r, err
	}
	up := map[string]bool{}
	for i, s := range specs {
		space, name := r.space, s.Name
		if i == len(ifaces) {
			space = r.neighbour
		}
		outer, err := net.InterfaceByName(s.Device)
		if err != nil {
			return r, err
		}
		var inner int
		if err := space.Do(func() error {
			i, err := net.InterfaceByName(name)
			if err == nil {
				inner = i.Index
			}
			return err
		}); err != nil {
			return r, err
		}
		if err := l.plane.Attach(network, s.Device, outer.Index, dataplane.Port); err != nil {
			return r, err
		}
		if err := l.plane.AttachFarEnd(network, s.Device, dataplane.FarEnd{Node: network + "/" + kind, NS: space.NS, Index: inner}); err != nil {
			return r, err
		}
		if err := space.noGRO(name); err != nil {
			return r, err
		}
		r.ports, r.devices, up[s.Device] = append(r.ports, outer.Index), append(r.devices, s.Device), true
	}
	for i, f := range ifaces {
		p := tunnel.Path{
			Endpoints: tunnel.Endpoints{Local: uplink4, Remote: wire4},
			MTU:       f.mtu,
			Route:     tunnel.Route{Uplink: l.uplink, Source: ownMAC, NextHop: peerMAC, MTU: underlayMTU},
		}
		switch f.kind {
		case "local":
			if err := l.plane.Join(dataplane.End{Index: r.ports[i]}, dataplane.End{Index: r.ports[len(ifaces)]}); err != nil {
				return r, err
			}
		case "egre6":
			p.Local, p.Remote = uplink6, wire6
			fallthrough
		case "egre4":
			l.keys++
			p.Key = l.keys
			from, to := r.ports[i], 0
			if l.made%2 == 0 { // every other world's links have a rate
				if from, err = l.rate(network, r.ports[i], specs[i]); err != nil {
					return r, err
				}
				to = r.ports[i]
			}
			if err := l.plane.Connect(from, to, p); err != nil {
				return r, err
			}
		}
		r.keys = append(r.keys, p.Key)
		if fast {
			if err := l.plane.SetFast(network, r.devices[i], true); err != nil {
				return r, err
			}
		}
	}
	if err := port.SetUp(up); err != nil {
		return r, err
	}
	if out, err := r.neighbour.run("", "sh", "-ec", "sysctl -qw net.ipv6.conf.all.disable_ipv6=1; ip link set eth1 arp off up"); err != nil {
		return r, fmt.Errorf("%w: %s", err, out)
	}
	if out, err := r.run(strings.ReplaceAll(prelude, "\nip ", "\n"), "ip", "-batch", "-"); err != nil {
		return r, fmt.Errorf("%w: %s", err, out)
	}
	if err := r.noGRO("ten1"); err != nil {
		return r, err
	}
	if r.next, err = r.neighbour.tap("eth1"); err != nil {
		return r, err
	}
	r.tenant, err = r.tap("ten1")
	return r, err
}

// rate gives what a router sends by a port a rate that it stays below, by a qdisc on the way to
// where the path is to begin: that is the device whose index it gives.
func (l *lab) rate(network string, from int, s port.Spec) (behind int, err error) {
	const rate = 10_000_000_000
	if err := port.CreateHelpers([]port.Helper{{Device: s.Device, Alias: s.Alias, Group: s.Group, MTU: s.MTU}}); err != nil {
		return 0, err
	}
	shaped, member := port.HelperNames(s.Device)
	var ends []int
	for _, name := range []string{shaped, member} {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return 0, err
		}
		if err := l.plane.Attach(network, name, i.Index, dataplane.Port); err != nil {
			return 0, err
		}
		ends = append(ends, i.Index)
	}
	if err := shaper.Set(shaped, vnet.Shape{Rate: rate}); err != nil {
		return 0, err
	}
	burst, queue := shaper.Bounds(rate, s.MTU)
	to := dataplane.End{Index: ends[0], Shaped: true, Rate: dataplane.Rate{Bits: rate, Burst: burst, Queue: queue, MTU: s.MTU}}
	if err := l.plane.Join(dataplane.End{Index: from}, to); err != nil {
		return 0, err
	}
	return ends[1], port.SetUp(map[string]bool{shaped: true, member: true})
}

// newPair makes the two routers and puts them into the world.
func (l *lab) newPair(w world) (*pair, error) {
	l.made++
	p := &pair{lab: l, name: fmt.Sprintf("w%d", l.made), names: map[uint32]string{}}
	var errs [2]error
	for i := range p.routers { // one after the other: the data plane is for one caller
		if p.routers[i], errs[i] = l.newRouter(p.name, i == 0); errs[i] != nil {
			break
		}
		for k, key := range p.routers[i].keys {
			p.names[key] = ifaces[k].name
		}
	}
	if err := errors.Join(errs[:]...); err != nil {
		p.close()
		return nil, err
	}
	var wait sync.WaitGroup
	for _, r := range p.routers {
		wait.Go(func() { r.log = r.apply(w) })
	}
	wait.Wait()
	if a, b := p.routers[0].log, p.routers[1].log; a != b {
		p.close()
		return nil, fmt.Errorf("the routers do not take the world alike:\n%s\nand\n%s", a, b)
	}
	if err := p.watched(); err != nil {
		p.close()
		return nil, err
	}
	p.gather(20 * time.Millisecond) // what coming up has sent
	return p, nil
}

// watched does what the agent does for the one thing that the fast path cannot
// see.
func (p *pair) watched() error {
	fast := p.routers[0]
	has, err := fast.RouteMTU()
	if err != nil || !has {
		return err
	}
	for i := range ifaces {
		if err := p.plane.SetFast(p.name, fast.devices[i], false); err != nil {
			return err
		}
	}
	return nil
}

func (p *pair) close() {
	var devices []string
	for _, r := range p.routers {
		if r == nil {
			continue
		}
		for _, t := range []*tap{r.next, r.tenant} {
			if t != nil {
				t.close()
			}
		}
		for _, device := range r.devices {
			shaped, _ := port.HelperNames(device)
			devices = append(devices, device, shaped) // with its other end, where there is one
		}
	}
	if err := errors.Join(port.Delete(devices...), p.plane.Remove(p.name)); err != nil {
		p.t.Error(err)
	}
	for _, r := range p.routers {
		if r == nil {
			continue
		}
		if r.neighbour != nil {
			r.neighbour.close()
		}
		if r.space != nil {
			r.close()
		}
	}
}

// put sends a frame in at an interface of a router.
func (p *pair) put(r *router, s shot) error {
	outer := egre4(r.keys[s.in], s.frame)
	if ifaces[s.in].kind == "egre6" {
		outer = egre6(r.keys[s.in], s.frame)
	}
	if s.congested {
		if outer[12] == 8 {
			outer[15] |= 3
			sum4(outer[14:34])
		} else {
			outer[15] |= 3 << 4
		}
	}
	outer = append(outer, make([]byte, min(s.padding, underlayMTU+14-len(outer)))...)
	for {
		err := unix.Sendto(p.at.fd, outer, 0, &unix.SockaddrLinklayer{Ifindex: p.at.index, Halen: 6})
		switch {
		case errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EAGAIN):
			time.Sleep(time.Millisecond)
		case err != nil:
			return fmt.Errorf("send a frame of %d bytes: %w", len(outer), err)
		default:
			return nil
		}
	}
}

func egre4(key uint32, frame []byte) []byte {
	f := make([]byte, 0, 42+len(frame))
	f = append(append(append(f, ownMAC[:]...), peerMAC[:]...), 8, 0)
	f = append(f, 0x45, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(28+len(frame)))
	f = append(f, 0, 0, 0x40, 0, 64, 47, 0, 0)
	f = append(append(f, wire4.AsSlice()...), uplink4.AsSlice()...)
	sum4(f[14:34])
	f = append(f, 0x20, 0, 0x65, 0x58)
	return append(binary.BigEndian.AppendUint32(f, key), frame...)
}

func egre6(key uint32, frame []byte) []byte {
	f := make([]byte, 0, 62+len(frame))
	f = append(append(append(f, ownMAC[:]...), peerMAC[:]...), 0x86, 0xdd)
	f = append(f, 0x60, 0, 0, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(8+len(frame)))
	f = append(f, 47, 64)
	f = append(append(f, wire6.AsSlice()...), uplink6.AsSlice()...)
	f = append(f, 0x20, 0, 0x65, 0x58)
	return append(binary.BigEndian.AppendUint32(f, key), frame...)
}

// out is what came out: by router, what came how often.
type out [2]outputs

// gather collects what the routers have sent until nothing comes any more.
func (p *pair) gather(quiet time.Duration) out {
	o := out{{}, {}}
	last := time.Now()
	for time.Since(last) < quiet {
		n := p.at.take(func(f []byte) {
			key, inner, ok := decapsulated(f)
			name := p.names[key]
			if !ok || name == "" {
				return
			}
			which := 1
			for _, k := range p.routers[0].keys {
				if k == key {
					which = 0
				}
			}
			o[which].add(name, inner)
		})
		for i, r := range p.routers {
			n += r.next.take(func(f []byte) { o[i].add("eth4", f) })
			n += r.tenant.take(func(f []byte) { o[i].add("ten0", f) })
		}
		if n > 0 {
			last = time.Now()
		} else {
			time.Sleep(quiet / 8)
		}
	}
	return o
}

// decapsulated takes the outer header off.
func decapsulated(f []byte) (key uint32, inner []byte, ok bool) {
	at := 42
	switch {
	case len(f) >= 42 && f[12] == 8 && f[13] == 0 && f[23] == 47:
	case len(f) >= 62 && f[12] == 0x86 && f[13] == 0xdd && f[20] == 47:
		at = 62
	default:
		return 0, nil, false
	}
	return binary.BigEndian.Uint32(f[at-4:]), f[at:], true
}

// cutThrough tells how many packets of a router's fast path the uplink has forwarded by itself: they are
// counted at the port, and never were at the node's end.
func (p *pair) cutThrough(r *router) (n uint64, err error) {
	counters, err := p.plane.Counters()
	if err != nil {
		return 0, err
	}
	received, err := r.received()
	if err != nil {
		return 0, err
	}
	for i, f := range ifaces {
		if f.kind != "local" {
			n += counters[r.ports[i]].ToNodePackets - received[f.name]
		}
	}
	return n, nil
}

// received gives how many packets the interfaces of a router have received.
func (r *router) received() (packets map[string]uint64, err error) {
	packets = map[string]uint64{}
	var text []byte
	if err := r.Do(func() error { text, err = os.ReadFile("/proc/thread-self/net/dev"); return err }); err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		name, fields, ok := strings.Cut(line, ":")
		if f := strings.Fields(fields); ok && len(f) > 1 {
			if packets[strings.TrimSpace(name)], err = strconv.ParseUint(f[1], 10, 64); err != nil {
				return nil, err
			}
		}
	}
	return packets, nil
}

// fastPackets tells how many packets a router's fast path has forwarded.
func (p *pair) fastPackets(r *router) (n uint64) {
	p.t.Helper()
	counters, err := p.plane.Counters()
	must(p.t, err)
	for _, index := range r.ports[:len(ifaces)] {
		n += counters[index].FastFromNodePackets
	}
	return n
}
