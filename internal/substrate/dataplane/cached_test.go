package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
)

// filled gives the places of an array that hold anything.
func (l *lab) filled(t testing.TB, name string) (places []uint32) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(l.dir, "@", dataplane.Layout, name), nil)
	must(t, err)
	defer m.Close()
	size := int(m.ValueSize())
	if m.Type() == ebpf.PerCPUArray {
		size *= ebpf.MustPossibleCPU()
	}
	value := make([]byte, size)
	for place := range m.MaxEntries() {
		must(t, lookupBytes(m, place, value))
		if len(bytes.Trim(value, "\x00")) != 0 {
			places = append(places, place)
		}
	}
	return places
}

// lookupBytes reads an entry, of all processors, as it lies in memory.
func lookupBytes(m *ebpf.Map, place uint32, value []byte) error {
	if m.Type() != ebpf.PerCPUArray {
		return m.Lookup(place, &value)
	}
	var each [][]byte
	if err := m.Lookup(place, &each); err != nil {
		return err
	}
	copy(value, bytes.Join(each, nil))
	return nil
}

// TestPreemptible forwards as on a kernel whose programs may be preempted by one another
// (PREEMPT_RT): nothing lies in the FIB cache.
func TestPreemptible(t *testing.T) {
	r, load := newThoroughfare(t)
	r.needFastPath(t)
	must(t, r.Close())
	d, err := dataplane.OpenPreemptible(r.dir)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	r.Dataplane = d
	must(t, r.SetFast("net", r.device(t, r.port), true))
	if places := r.filled(t, "fib_cache"); len(places) != 0 {
		t.Fatalf("the FIB cache has entries before anything was forwarded: %v", places)
	}
	load.start(t)
	load.progress(t, 1000)
	if sent, received := load.finish(t); sent != received {
		t.Errorf("%d of %d frames arrived", received, sent)
	}
	if c := r.counters(t, r.port2); c.FastFromNodePackets < 1000 {
		t.Errorf("counted %+v", c)
	}
	if places := r.filled(t, "fib_cache"); len(places) != 0 {
		t.Errorf("the FIB cache has entries: %v", places)
	}
}

// Where a tc program finds them (struct __sk_buff, linux/bpf.h).
const skbLength, skbStamp = 0, 152

// TestSendTimesEnd has a node say when its frames are to leave (SO_TXTIME), seconds from now. In
// the uplink's queue, which all share, none may wait for it.
func TestSendTimesEnd(t *testing.T) {
	b := newBench(t)
	must(t, b.Connect(b.port, b.port, path4(b.uplink)))
	n := nstest.NewNode(t)
	p, _ := b.attach(t, n, "eth1", 1458)
	path := path4(b.uplink)
	path.Key++
	must(t, b.Connect(p, p, path))
	n.Configure(t, "eth1", "10.0.0.1/24")
	n.Must(t, "ip neigh replace 10.0.0.2 lladdr 02:00:00:00:00:09 dev eth1")

	// Frames of 300 bytes inside, and what of their stamps is left, at the uplink's egress.
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1})
	must(t, err)
	defer seen.Close()
	watch, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, skbLength, asm.Word),
		asm.JLT.Imm(asm.R2, 300, "out"),
		asm.LoadMem(asm.R7, asm.R6, skbStamp, asm.DWord),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, seen.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Add.Imm(asm.R0, 8), asm.StoreXAdd(asm.R0, asm.R7, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), asm.Return(),
	}})
	must(t, err)
	defer watch.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: b.uplink, Program: watch, Attach: ebpf.AttachTCXEgress})
	if err != nil {
		t.Skipf("this kernel has no tcx to look at the uplink with: %v", err)
	}
	defer l.Close()

	must(t, n.Do(func() error { return sendAt(9 * time.Second) }))
	var got struct{ Frames, Stamps uint64 }
	for deadline := time.Now().Add(10 * time.Second); got.Frames < 2; time.Sleep(time.Millisecond) {
		must(t, seen.Lookup(uint32(0), &got))
		if time.Now().After(deadline) {
			t.Fatalf("%d of 2 frames have left", got.Frames)
		}
	}
	if got.Stamps != 0 {
		t.Errorf("their times of leaving add up to %d ns", got.Stamps)
	}
}

// sendAt sends a datagram, and a frame that is not IP, that are to leave so much later.
func sendAt(after time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	eth1, err := net.InterfaceByName("eth1")
	if err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	oob := make([]byte, unix.CmsgSpace(8))
	binary.NativeEndian.PutUint64(oob, uint64(unix.CmsgLen(8)))
	binary.NativeEndian.PutUint32(oob[8:], unix.SOL_SOCKET)
	binary.NativeEndian.PutUint32(oob[12:], unix.SCM_TXTIME)
	binary.NativeEndian.PutUint64(oob[unix.CmsgLen(0):], uint64(now.Nano()+int64(after)))
	for _, s := range []struct {
		domain, kind, protocol int
		to                     unix.Sockaddr
		data                   []byte
	}{
		{unix.AF_INET, unix.SOCK_DGRAM, 0, &unix.SockaddrInet4{Addr: [4]byte{10, 0, 0, 2}, Port: 9}, make([]byte, 300)},
		{unix.AF_PACKET, unix.SOCK_RAW, 0, &unix.SockaddrLinklayer{Ifindex: eth1.Index, Halen: 6}, frame("02:00:00:00:00:09", 0x88b5, 300)},
	} {
		fd, err := unix.Socket(s.domain, s.kind|unix.SOCK_CLOEXEC, s.protocol)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		// struct sock_txtime: a clock, and flags
		if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_TXTIME, string(binary.NativeEndian.AppendUint64(nil, unix.CLOCK_MONOTONIC))); err != nil {
			return err
		}
		if err := unix.Sendmsg(fd, s.data, oob, s.to, 0); err != nil {
			return err
		}
	}
	return nil
}
