package dataplane_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/nstest"
)

// inNamespace runs what it is sent on a thread in this thread's network namespace, to
// which the devices belong that a test run names: the fuzzer calls from threads of its own.
func inNamespace(f *testing.F) func(func()) {
	f.Helper()
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		f.Fatal(err)
	}
	defer ns.Close()
	work, done := make(chan func()), make(chan struct{})
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the test
		ready <- unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		for w := range work {
			w()
			done <- struct{}{}
		}
	}()
	if err := <-ready; err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { close(work) })
	return func(w func()) { work <- w; <-done }
}

// frameLimit is the longest frame that is tried: what fits a page with its headroom.
const frameLimit = 3000

// FuzzUplinkFrames: what the underlay sends is the host's own and left alone, or GRE to
// an address of ours; and what enters a node is the frame that its tunnel's peer has
// sent, by the key of that tunnel.
func FuzzUplinkFrames(f *testing.F) {
	b := newBench(f)
	uplinkIn := b.program(f, "uplink_in")
	must(f, b.Connect(b.port, 0, path4(b.uplink)))
	second, _ := b.attach(f, nstest.NewNode(f), "eth1", 1438)
	other := path6(b.uplink)
	other.Key++
	must(f, b.Connect(second, 0, other))
	gre6 := bytes.Clone(gre)
	gre6[7]++
	f.Add(egre4(peerMAC, ownMAC, peer4, own4, gre, inner(60)))
	f.Add(egre6(peerMAC, ownMAC, peer6, own6, gre6, inner(60)))
	f.Add(egre4(peerMAC, ownMAC, peer4, own4, gre, inner(1476)))
	f.Add(join(egre4(peerMAC, ownMAC, peer4, own4, gre, inner(42)), make([]byte, 7)))
	marked := egre4(peerMAC, ownMAC, peer4, own4, gre, join(inner(12), unhex(f, "0800 4502 0014 0000 0000 4011 0000 0a000001 0a000002")))
	marked[15] = 3 // congestion experienced
	sum4(marked[14:])
	f.Add(marked)
	fragment := egre6(peerMAC, ownMAC, peer6, own6, []byte{47, 0, 0, 1, 0, 0, 0, 1}, gre6, inner(60))
	fragment[20] = 44
	f.Add(fragment)
	do := inNamespace(f)
	meta4, meta6 := b.metadata(b.port), b.metadata(second)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > frameLimit {
			return // the kernel takes none shorter
		}
		var verdict uint32
		var out []byte
		var err error
		do(func() { verdict, out, err = tryXDP(uplinkIn, frame, 0, b.uplink) })
		if err != nil {
			t.Fatal(err)
		}
		four := binary.BigEndian.Uint16(frame[12:]) == 0x0800 && len(frame) >= 34 && bytes.Equal(frame[30:34], own4.AsSlice())
		six := binary.BigEndian.Uint16(frame[12:]) == 0x86dd && len(frame) >= 54 && bytes.Equal(frame[38:54], own6.AsSlice())
		switch verdict {
		case xdpPass:
			if !bytes.Equal(out, frame) {
				t.Errorf("the host gets\n%x for\n%x", out, frame)
			}
		case xdpDrop:
			if !four && !six {
				t.Errorf("what is not for us is dropped: %x", frame)
			}
		case xdpRedirect:
			var want, meta []byte
			switch {
			case four && bytes.Equal(frame[26:30], peer4.AsSlice()) && frame[23] == 47 && bytes.Equal(frame[36:42], gre[2:]):
				want, meta = frame[42:14+binary.BigEndian.Uint16(frame[16:])], meta4
			case six && bytes.Equal(frame[22:38], peer6.AsSlice()) && frame[20] == 47 && bytes.Equal(frame[56:62], gre6[2:]):
				want, meta = frame[62:54+binary.BigEndian.Uint16(frame[18:])], meta6
			default:
				t.Fatalf("a node gets %x", frame)
			}
			if len(out) != len(meta)+len(want) || !bytes.HasPrefix(unticketed(out), meta) {
				t.Fatalf("a node gets\n%x of\n%x", out, frame)
			}
			// A mark of congestion and the checksum with it may differ (RFC 6040).
			for i, c := range out[len(meta):] {
				if c != want[i] && (i < 14 || i > 14+18+12) {
					t.Fatalf("byte %d of\n%x differs, sent\n%x", i, out[len(meta):], want)
				}
			}
		default:
			t.Errorf("verdict %d for %x", verdict, frame)
		}
	})
}

// FuzzNodeFrames: whatever a node sends leaves by its own link as it is, behind the
// header that the substrate has written, or does not leave.
func FuzzNodeFrames(f *testing.F) {
	b := newBench(f)
	portIn := b.program(f, "port_in")
	must(f, b.Connect(b.port, 0, path4(b.uplink)))
	f.Add(inner(14))
	f.Add(inner(1472))
	f.Add(join(inner(12), unhex(f, "0800 4503 0014 0000 0000 4011 0000 0a000001 0a000002")))
	f.Add(join(inner(12), unhex(f, "8100 0064 88a8 0001 86dd 6000 0000 0000 3b40"), make([]byte, 32)))
	f.Add(join(inner(12), unhex(f, "0800 4500 0064 0000 4000 402f 0000 0a000001 0a000002 2000 6558 01020304"), inner(60)))
	f.Add(join(inner(12), be16(38), make([]byte, 46)))
	do := inNamespace(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > frameLimit {
			return
		}
		var verdict uint32
		var out []byte
		var err error
		do(func() { verdict, out, err = tryTC(portIn, frame, b.port) })
		if errors.Is(err, unix.EINVAL) {
			return // IP that is shorter than its header (bpf_prog_test_run_skb, net/bpf/test_run.c)
		}
		if err != nil {
			t.Fatal(err)
		}
		switch verdict {
		case tcDrop:
		case tcRedirect:
			want := egre4(ownMAC, peerMAC, own4, peer4, gre, frame)
			if len(out) == len(want) {
				// What the outer header takes from the inner one is its ECN field (RFC 6040).
				want[15] = out[15] & 3
				sum4(want[14:])
			}
			if !bytes.Equal(out, want) {
				t.Errorf("left as\n%x, want\n%x", out, want)
			}
		default:
			t.Errorf("verdict %d for %x", verdict, frame)
		}
	})
}
