package interop

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"trellis/internal/bench"
	"trellis/internal/substrate/nstest"
)

// wire joins two uplinks, and looks at every frame that passes.
type wire struct {
	*nstest.Node
	taps [2]int // raw sockets; 0 sees what Trellis's side sends, 1 the peer's; -1: none

	stop chan struct{}
	done sync.WaitGroup

	mu   sync.Mutex
	ours [2]bool // the side is Trellis's: its outer headers are known to the bit
	seen [2]seen
	idle [2]int // polls without a frame, since the last one
}

// seen is what has come from one side since the last look.
type seen struct {
	frames, egre int
	longest      int // outer frame, bytes
	ids          map[uint16]int
	ttls, toss   map[byte]int
	df           map[bool]int
	faults       []string // the first few
	faulty       int
}

// newWire makes the uplinks up0 of two root contexts and what lies between: a
// bridge, as a switch would be.
//
// A frame that XDP sends enters a veth only if the other end receives as a
// network card does, by NAPI: it has a program, or GRO, which would merge what
// the taps should see. So there is a program, and no GRO.
func newWire(t testing.TB, mtu int, own, far *host) *wire {
	t.Helper()
	w := &wire{Node: nstest.NewNode(t), stop: make(chan struct{}), seen: [2]seen{newSeen(), newSeen()}}
	// br_netfilter, where there is one, would throw away malformed packets.
	w.Must(t, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1; ip link set lo up;"+
		"for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $f ] || echo 0 >$f; done;"+
		fmt.Sprintf("ip link add br0 mtu %d type bridge mcast_snooping 0; ip link set br0 up", mtu))
	for i, h := range []*host{own, far} {
		device := fmt.Sprintf("w%d", i)
		w.Must(t, fmt.Sprintf("ip link add %[1]s mtu %[2]d type veth peer name up0 address %[3]s mtu %[2]d netns %[4]d; ip link set %[1]s master br0 up",
			device, mtu, text(h.mac), h.Pid))
		must(t, w.Do(func() error { return w.open(t, i, device) }))
	}
	w.start(t)
	return w
}

// start reads the taps until the test ends; -1 is none.
func (w *wire) start(t testing.TB) {
	for i, fd := range w.taps {
		if fd >= 0 {
			w.done.Go(func() { w.read(i) })
		}
	}
	t.Cleanup(func() {
		close(w.stop)
		w.done.Wait()
		for _, fd := range w.taps {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	})
}

// open puts a program on an end of the wire, and opens its tap.
func (w *wire) open(t testing.TB, i int, device string) error {
	const frags = 1 << 5 // BPF_F_XDP_HAS_FRAGS: jumbo frames too
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, Flags: frags, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		return err
	}
	defer pass.Close()
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: dev.Index, Flags: link.XDPDriverMode})
	if err != nil {
		return err
	}
	t.Cleanup(func() { l.Close() })
	if err := bench.SetReceiveOffload(device, false); err != nil {
		return err
	}
	return w.tap(i, device)
}

// tap opens a raw socket that sees what comes in at a device.
func (w *wire) tap(i int, device string) error {
	dev, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	const all = unix.ETH_P_ALL
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w.taps[i] = fd
	for option, value := range map[int]int{unix.PACKET_IGNORE_OUTGOING: 1, unix.PACKET_VNET_HDR: 1} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, value); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20); err != nil {
		return err
	}
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all>>8 | all<<8&0xff00, Ifindex: dev.Index})
}

// virtio is what the kernel says of a frame beside its bytes: struct
// virtio_net_hdr, in front of it.
const (
	virtioSize      = 10
	virtioNeedsCsum = 1 // in the first byte: a checksum is not filled in yet
)

// read looks at what one side sends until the wire goes.
func (w *wire) read(i int) {
	buf := make([]byte, 1<<17)
	for {
		select {
		case <-w.stop:
			return
		default:
		}
		fds := []unix.PollFd{{Fd: int32(w.taps[i]), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 10); n == 0 || err != nil {
			w.mu.Lock()
			w.idle[i]++
			w.mu.Unlock()
			continue
		}
		n, err := unix.Read(w.taps[i], buf)
		w.mu.Lock()
		w.idle[i] = 0
		switch {
		case errors.Is(err, unix.ENETDOWN): // told once, of a device that was not up yet
		case err != nil:
			w.seen[i].fault("a super-packet, which no wire carries: %v", err)
		case n < virtioSize+ethSize:
			w.seen[i].fault("a frame of %d bytes", n-virtioSize)
		default:
			w.look(i, buf[:virtioSize], buf[virtioSize:n])
		}
		w.mu.Unlock()
	}
}

func (s *seen) fault(format string, args ...any) {
	if s.faulty++; len(s.faults) < 8 {
		s.faults = append(s.faults, fmt.Sprintf(format, args...))
	}
}

// look checks one frame.
func (w *wire) look(i int, virtio, f []byte) {
	s := &w.seen[i]
	s.frames++
	if virtio[0]&virtioNeedsCsum != 0 {
		s.fault("a checksum is not filled in: %x", f[:min(len(f), 96)])
	}
	if virtio[1] != 0 {
		s.fault("a super-packet of %d bytes, which no wire carries: %x", len(f), f[:min(len(f), 96)])
	}
	s.longest = max(s.longest, len(f))
	if !isGRE(f) {
		if err := soundFrame(f); err != nil {
			s.fault("%v: %x", err, f[:min(len(f), 96)])
		}
		return
	}
	o, err := readOuter(f)
	if err == nil && w.ours[i] {
		err = asWeSend(o)
	}
	if err == nil {
		err = soundFrame(o.inner)
	}
	if err != nil {
		s.fault("%v: %x", err, f[:min(len(f), 128)])
		return
	}
	s.egre++
	s.ids[o.id]++
	s.ttls[o.ttl]++
	s.toss[o.tos]++
	s.df[o.df]++
}

// asWeSend checks what the wire format leaves open and Trellis does not.
func asWeSend(o outer) error {
	switch {
	case o.ttl != 64:
		return fmt.Errorf("outer TTL %d", o.ttl)
	case o.tos != 0:
		return fmt.Errorf("outer traffic class %d", o.tos)
	case o.label != 0:
		return fmt.Errorf("outer flow label %d", o.label)
	case !o.ipv6 && !o.df:
		return fmt.Errorf("no DF")
	case !o.ipv6 && o.id >= 1024: // the segments of a super-packet count on from 0
		return fmt.Errorf("outer ID %d", o.id)
	}
	return nil
}

// trust tells of which side the frames are Trellis's, to the bit.
func (w *wire) trust(near, far bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ours = [2]bool{near, far}
}

func newSeen() seen {
	return seen{ids: map[uint16]int{}, ttls: map[byte]int{}, toss: map[byte]int{}, df: map[bool]int{}}
}

// settled waits until the wire is silent for a moment, and gives what has been
// seen of each side. It fails the test if a frame was not sound, or was missed.
func (w *wire) settled(t testing.TB) [2]seen {
	t.Helper()
	w.wait(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, name := range []string{"Trellis", "the peer"} {
		s := w.seen[i]
		for _, f := range s.faults {
			t.Errorf("%s sent %s", name, f)
		}
		if more := s.faulty - len(s.faults); more > 0 {
			t.Errorf("%s sent %d more frames that are not sound", name, more)
		}
		if w.taps[i] < 0 {
			continue
		}
		stats, err := unix.GetsockoptTpacketStats(w.taps[i], unix.SOL_PACKET, unix.PACKET_STATISTICS)
		must(t, err)
		if stats.Drops > 0 {
			t.Errorf("%d frames of %s went by unseen", stats.Drops, name)
		}
	}
	all := w.seen
	w.seen = [2]seen{newSeen(), newSeen()}
	return all
}

func (w *wire) wait(t testing.TB) {
	t.Helper()
	w.mu.Lock()
	w.idle = [2]int{}
	w.mu.Unlock()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		w.mu.Lock()
		silent := true
		for i, fd := range w.taps {
			silent = silent && (fd < 0 || w.idle[i] >= 3)
		}
		w.mu.Unlock()
		if silent {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the wire is never silent")
		}
	}
}

// sound checks all frames since the last look, which must be some in each
// direction.
func (w *wire) sound(t testing.TB) {
	t.Helper()
	all := w.settled(t)
	if all[0].egre == 0 || all[1].egre == 0 && w.taps[1] >= 0 {
		t.Errorf("the wire has seen %d frames of Trellis's and %d of the peer's", all[0].egre, all[1].egre)
	}
	t.Logf("checked %d frames of Trellis's and %d of the peer's, up to %d and %d bytes", all[0].frames, all[1].frames, all[0].longest, all[1].longest)
}
