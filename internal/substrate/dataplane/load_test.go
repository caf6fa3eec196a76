package dataplane_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
	"trellis/test/testenv"
)

// load sends a frame out of one device, over and over, and counts those that
// come in at another, which end there. Sender and receiver share a window of
// frames that are on their way, so that no queue overflows: however fast it
// runs, what does not arrive is lost.
type load struct {
	counts *ebpf.Map // one struct {sent, received, highest, late uint64}
	sender *ebpf.Program
	length int
	sink   link.Link
	stop   atomic.Bool
	done   chan error
}

const window = 96

// magic is at the end of each frame that counts; before it, the frame's number.
const magic = 0x7472656c6c697321

// newLoad makes a load of the calling thread's network namespace. The frame is
// cut to a multiple of 8, and gets its number and the magic at its end.
func newLoad(t testing.TB, frame []byte, out, in int, arriving int) *load {
	t.Helper()
	l := &load{length: len(frame) &^ 7, done: make(chan error, 1)}
	var err error
	l.counts, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 32, MaxEntries: 1})
	must(t, err)
	t.Cleanup(func() { l.counts.Close() })
	look := asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, l.counts.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
	}
	send := append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, look...)
	send = append(send,
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.LoadMem(asm.R2, asm.R0, 8, asm.DWord),
		asm.Mov.Reg(asm.R3, asm.R1), asm.Sub.Reg(asm.R3, asm.R2),
		asm.JSGE.Imm(asm.R3, window, "out"),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R6, 4, asm.Word), // data_end
		asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Imm(asm.R4, int32(l.length)),
		asm.JGT.Reg(asm.R4, asm.R3, "out"),
		asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord), asm.Mov.Reg(asm.R5, asm.R1),
	)
	for at := 0; at < l.length; at += 8 {
		word := binary.LittleEndian.Uint64(frame[at:])
		if at == l.length-16 {
			send = append(send, asm.StoreMem(asm.R2, int16(at), asm.R5, asm.DWord))
			continue
		}
		if at == l.length-8 {
			word = magic
		}
		send = append(send, asm.LoadImm(asm.R1, int64(word), asm.DWord), asm.StoreMem(asm.R2, int16(at), asm.R1, asm.DWord))
	}
	send = append(send,
		asm.Mov.Imm(asm.R1, int32(out)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call(), asm.Return(),
		asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("out"), asm.Return(),
	)
	receive := append(asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.LoadMem(asm.R3, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2), asm.Add.Imm(asm.R4, int32(arriving)),
		asm.JNE.Reg(asm.R4, asm.R3, "out"),
		asm.JGT.Reg(asm.R4, asm.R3, "out"),
		asm.LoadMem(asm.R4, asm.R2, int16(arriving-8), asm.DWord),
		asm.LoadImm(asm.R3, magic, asm.DWord),
		asm.JNE.Reg(asm.R4, asm.R3, "out"),
		asm.LoadMem(asm.R6, asm.R2, int16(arriving-16), asm.DWord),
	}, look...)
	receive = append(receive,
		asm.LoadMem(asm.R1, asm.R0, 16, asm.DWord),
		asm.JGT.Reg(asm.R6, asm.R1, "next"),
		asm.LoadMem(asm.R1, asm.R0, 24, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R0, 24, asm.R1, asm.DWord),
		asm.Ja.Label("count"),
		asm.StoreMem(asm.R0, 16, asm.R6, asm.DWord).WithSymbol("next"),
		asm.Add.Imm(asm.R0, 8).WithSymbol("count"), asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, xdpDrop), asm.Return(),
		asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("out"), asm.Return(),
	)
	l.sender = mustLoad(t, "send", send)
	l.sink, err = link.AttachXDP(link.XDPOptions{Program: mustLoad(t, "receive", receive), Interface: in, Flags: link.XDPDriverMode})
	must(t, err)
	t.Cleanup(func() { l.sink.Close() })
	return l
}

func mustLoad(t testing.TB, name string, code asm.Instructions) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.XDP, License: "GPL", Instructions: code})
	if err != nil {
		t.Fatalf("%s: %+v", name, err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// start sends from a thread of its own in the calling thread's network
// namespace, until stopped.
func (l *load) start(t testing.TB) {
	t.Helper()
	here, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		defer unix.Close(here)
		err := unix.Setns(here, unix.CLONE_NEWNET)
		for err == nil && !l.stop.Load() {
			_, err = l.sender.Run(&ebpf.RunOptions{Data: make([]byte, l.length), Repeat: 1 << 18, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, BatchSize: 32})
		}
		l.done <- err
	}()
}

// finish stops sending, and gives what was sent and what of it arrived.
func (l *load) finish(t testing.TB) (sent, received uint64) {
	t.Helper()
	l.stop.Store(true)
	must(t, <-l.done)
	for deadline := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		sent, received = l.count(t)
		if sent == received || time.Now().After(deadline) {
			return sent, received
		}
	}
}

func (l *load) count(t testing.TB) (sent, received uint64) {
	t.Helper()
	c := l.read(t)
	return c.Sent, c.Received
}

// loadCounts are what a load counts: Late are frames that came behind one that was sent later.
type loadCounts struct{ Sent, Received, Highest, Late uint64 }

func (l *load) read(t testing.TB) (c loadCounts) {
	t.Helper()
	must(t, l.counts.Lookup(uint32(0), &c))
	return c
}

// progress waits until n more frames have arrived, the load being on.
func (l *load) progress(t testing.TB, n uint64) {
	t.Helper()
	_, before := l.count(t)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, now := l.count(t); now >= before+n {
			return
		}
		if time.Now().After(deadline) {
			sent, received := l.count(t)
			t.Fatalf("of %d frames, %d arrived, and no more come", sent, received)
		}
	}
}

// thoroughfare is a router between two tunnels, with a load through it: it comes
// in by one uplink and leaves by the other.
type thoroughfare struct {
	*router
	in, out tunnel.Path
	uplink2 int
}

const outKey = 0x0a0b0c0d

func newThoroughfare(t testing.TB) (*thoroughfare, *load) {
	t.Helper()
	r := &thoroughfare{router: newStackRouter(t)}
	nstest.Sh(t, "ip link add up1 type veth peer name wire1; ip link set up1 up; ip link set wire1 up")
	r.uplink2 = index(t, "up1")
	_, err := r.AttachUplink(dataplane.Uplink{Name: "up1", Index: r.uplink2, Addrs: addrs("198.51.100.1")})
	must(t, err)
	r.in, r.out = path4(r.uplink), path4(r.uplink2)
	r.out.Key, r.out.Local, r.out.Remote = outKey, addrs("198.51.100.1")[0], addrs("198.51.100.2")[0]
	r.out.Route.NextHop = vnet.MAC{2, 0, 0, 0, 0xee, 3}
	r.connect(t)
	inside := r.ipv4("10.0.9.5", 62)
	frame := egre4(peerMAC, ownMAC, peer4, own4, gre, inside)
	return r, newLoad(t, frame, index(t, "wire0"), index(t, "wire1"), len(frame))
}

func (r *thoroughfare) connect(t testing.TB) {
	t.Helper()
	must(t, r.Connect(r.port, 0, r.in))
	must(t, r.Connect(r.port2, 0, r.out))
}

// TestNothingIsLost restarts the service and replaces the programs, at full load
// through the fast path, and misses no frame.
func TestNothingIsLost(t *testing.T) {
	testenv.Measures(t)
	r, load := newThoroughfare(t)
	ports, fast := []string{r.device(t, r.port), r.device(t, r.port2)}, r.FastPathSupported() == nil
	must(t, r.Close())
	load.start(t)
	load.progress(t, 1000)
	const rounds = 12
	for range rounds {
		must(t, otherBuild(t, r.dir).Close())
		must(t, os.Remove(filepath.Join(r.dir, "@", dataplane.Layout, "fib_cache"))) // which that build does not have yet
		load.progress(t, 100)
		d := mustOpen(t, r.dir)
		load.progress(t, 100)
		// All that an agent does again when it has started.
		r.Dataplane = d
		for i, name := range []string{"up0", "up1"} {
			u := []dataplane.Uplink{{Index: r.uplink, Addrs: append(addrs("192.0.2.77"), own4, own6)}, {Index: r.uplink2, Addrs: addrs("198.51.100.1")}}[i]
			u.Name = name
			_, err := d.AttachUplink(u)
			must(t, err)
		}
		for i, name := range ports {
			must(t, d.Attach("net", name, []int{r.port, r.port2}[i], dataplane.Port))
			must(t, d.AttachFarEnd("net", name, dataplane.FarEnd{NS: r.n.NS, Index: indexIn(t, r.n, fmt.Sprintf("eth%d", i+1))}))
		}
		r.connect(t)
		load.progress(t, 100)
		if fast {
			must(t, d.SetFast("net", ports[0], false))
			load.progress(t, 100)
			must(t, d.SetFast("net", ports[0], true))
		}
		must(t, d.Close())
	}
	r.Dataplane = mustOpen(t, r.dir)
	sent, received := load.finish(t)
	c := r.counters(t, r.port2)
	t.Logf("%d frames, %d of them on the fast path, over %d rounds", sent, c.FastFromNodePackets, rounds)
	if sent != received || sent < 10000 {
		t.Errorf("%d of %d frames arrived; drops %v, uplinks %+v", received, sent, c.Drops, must2(r.Uplinks()))
	}
	if fast && (c.FastFromNodePackets == 0 || c.FastFromNodePackets == c.FromNodePackets) {
		t.Errorf("not both paths were on the way: %+v", c)
	}
}

func must2[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
