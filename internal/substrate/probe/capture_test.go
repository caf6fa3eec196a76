package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/test/testenv"
)

// wire makes two namespaces joined by a veth pair, eth1 in both.
func wire(t *testing.T) (a, b *testenv.NetNS) {
	t.Helper()
	testenv.NeedRoot(t, "makes network namespaces")
	testenv.NeedCommand(t, "ip", "nsenter")
	a, b = testenv.NewNetNS(t), testenv.NewNetNS(t)
	a.IPBatch(t,
		"link add eth1 type veth peer name eth1 netns "+b.Path(),
		"link set eth1 addrgenmode none",
		"link set eth1 up")
	b.IPBatch(t, "link set eth1 addrgenmode none", "link set eth1 up")
	return a, b
}

// inject sends frames into an interface.
func inject(t *testing.T, ns *testenv.NetNS, iface string, frames ...[]byte) {
	t.Helper()
	tp, err := openTap(ns.FD(), iface)
	if err != nil {
		t.Fatal(err)
	}
	defer tp.file.Close()
	for _, f := range frames {
		if _, err := tp.file.Write(f); err != nil {
			t.Fatalf("send a frame: %v", err)
		}
	}
}

// frame is a test frame (EtherType 0x88b5, for experiments) of a length.
func frame(tag byte, length int) []byte {
	f := append([]byte("\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01\x88\xb5"), bytes.Repeat([]byte{tag}, length-14)...)
	return f
}

// lockedBuffer is a buffer that one goroutine writes and another looks into.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}

// start captures in the background until stop, which returns Capture's error.
func start(t *testing.T, ns *testenv.NetNS, snaplen uint32, count uint64, w io.Writer) (wait func() error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() { ended <- Capture(ctx, ns.FD(), "eth1", snaplen, count, w) }()
	return func() error {
		select {
		case err := <-ended:
			return err
		case <-time.After(10 * time.Second):
			t.Fatal("the capture does not end")
			return nil
		}
	}, cancel
}

// eventually waits until the buffer has n bytes.
func eventually(t *testing.T, b *lockedBuffer, n int) []byte {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		if got := b.bytes(); len(got) >= n {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %d bytes of %d came", len(b.bytes()), n)
		}
	}
}

// tcpdump reads a pcap file the way a user would.
func tcpdump(t *testing.T, pcap []byte) []string {
	t.Helper()
	testenv.NeedCommand(t, "tcpdump")
	cmd := exec.Command("tcpdump", "-enr", "-", "-tt", "--nano")
	cmd.Stdin = bytes.NewReader(pcap)
	lines := strings.Split(testenv.Run(t, cmd), "\n")
	// What it cannot decode it dumps, on indented lines.
	return slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "\t") })
}

func TestCaptureIsLiveAndReadableByTcpdump(t *testing.T) {
	a, b := wire(t)
	var out lockedBuffer
	wait, stop := start(t, a, 0, 0, &out)
	eventually(t, &out, pcapFileHeader) // the header comes before any frame
	inject(t, a, "eth1", frame('o', 60))
	inject(t, b, "eth1", frame('i', 100))
	got := eventually(t, &out, pcapFileHeader+2*pcapFrameHeader+160)
	stop()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	if magic := binary.NativeEndian.Uint32(got); magic != 0xa1b23c4d {
		t.Errorf("magic %#x", magic)
	}
	lines := tcpdump(t, got)
	if len(lines) != 2 {
		t.Fatalf("tcpdump read %q", lines)
	}
	for i, length := range []int{60, 100} {
		if !strings.Contains(lines[i], fmt.Sprintf("02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype Unknown (0x88b5), length %d", length)) {
			t.Errorf("frame %d reads %q", i, lines[i])
		}
		var sec, nsec int64
		if _, err := fmt.Sscanf(lines[i], "%d.%d ", &sec, &nsec); err != nil {
			t.Fatal(err)
		}
		if age := time.Since(time.Unix(sec, nsec)); age < 0 || age > time.Minute {
			t.Errorf("frame %d was stamped %v ago", i, age)
		}
	}
}

func TestCaptureCutsFramesAndSaysTheirLength(t *testing.T) {
	a, b := wire(t)
	var out lockedBuffer
	wait, _ := start(t, a, 20, 1, &out)
	eventually(t, &out, pcapFileHeader)
	inject(t, b, "eth1", frame('x', 1000))
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	got := out.bytes()[pcapFileHeader:]
	if len(got) != pcapFrameHeader+20 || !bytes.Equal(got[pcapFrameHeader:], frame('x', 20)) {
		t.Errorf("wrote % x", got)
	}
	if kept, length := binary.NativeEndian.Uint32(got[8:]), binary.NativeEndian.Uint32(got[12:]); kept != 20 || length != 1000 {
		t.Errorf("says %d of %d bytes", kept, length)
	}
}

func TestCapturePutsVLANTagsBack(t *testing.T) {
	a, b := wire(t)
	var out lockedBuffer
	wait, _ := start(t, a, 0, 2, &out)
	eventually(t, &out, pcapFileHeader)
	plain := frame('v', 64)
	tagged := func(tpid, tci uint16) []byte {
		f := bytes.Clone(plain[:12])
		f = binary.BigEndian.AppendUint16(f, tpid)
		f = binary.BigEndian.AppendUint16(f, tci)
		return append(f, plain[12:]...)
	}
	want := [][]byte{tagged(0x8100, 0xa123), tagged(0x88a8, 7)}
	// On reception the kernel takes the tag out of the frame (skb_vlan_untag).
	inject(t, b, "eth1", want...)
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	rest := out.bytes()[pcapFileHeader:]
	for i, w := range want {
		if got := rest[pcapFrameHeader:][:len(w)]; !bytes.Equal(got, w) {
			t.Errorf("frame %d:\ngot  % x\nwant % x", i, got[:24], w[:24])
		}
		if kept, length := binary.NativeEndian.Uint32(rest[8:]), binary.NativeEndian.Uint32(rest[12:]); kept != 68 || length != 68 {
			t.Errorf("frame %d says %d of %d bytes", i, kept, length)
		}
		rest = rest[pcapFrameHeader+len(w):]
	}
	if lines := tcpdump(t, out.bytes()); !strings.Contains(lines[0], "vlan 291, p 5") || !strings.Contains(lines[1], "802.1Q-QinQ (0x88a8)") {
		t.Errorf("tcpdump reads %q", lines)
	}
}

func TestCaptureNamesTheInterfacesThereAre(t *testing.T) {
	a, _ := wire(t)
	err := Capture(t.Context(), a.FD(), "eth9", 0, 0, io.Discard)
	want := "capture on eth9: no such interface; the node has lo, eth1"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestCaptureSurvivesDownAndEndsWithTheInterface(t *testing.T) {
	a, b := wire(t)
	var out lockedBuffer
	wait, _ := start(t, a, 0, 0, &out)
	eventually(t, &out, pcapFileHeader)
	a.IPBatch(t, "link set eth1 down")
	time.Sleep(50 * time.Millisecond)
	a.IPBatch(t, "link set eth1 up")
	inject(t, b, "eth1", frame('u', 60))
	eventually(t, &out, pcapFileHeader+pcapFrameHeader+60)
	a.IPBatch(t, "link del eth1")
	if err := wait(); err == nil || !strings.Contains(err.Error(), "the interface is gone") {
		t.Errorf("error %v", err)
	}
}

func TestCaptureOfAnInterfaceThatIsDownEndsWithIt(t *testing.T) {
	a, _ := wire(t)
	a.IPBatch(t, "link set eth1 down")
	var out lockedBuffer
	wait, _ := start(t, a, 0, 0, &out)
	eventually(t, &out, pcapFileHeader)
	a.IPBatch(t, "link del eth1")
	if err := wait(); err == nil || !strings.Contains(err.Error(), "the interface is gone") {
		t.Errorf("error %v", err)
	}
}

func TestCaptureReportsMissedFrames(t *testing.T) {
	a, b := wire(t)
	r, w := io.Pipe()
	wait, stop := start(t, a, 0, 0, w)
	if _, err := io.ReadFull(r, make([]byte, pcapFileHeader)); err != nil {
		t.Fatal(err)
	}
	// Nobody reads on. Each frame is charged with a few KiB at least.
	burst := make([][]byte, captureBuffer/1024)
	for i := range burst {
		burst[i] = frame('d', 1400)
	}
	inject(t, b, "eth1", burst...)
	stop()
	go io.Copy(io.Discard, r)
	err := wait()
	var dropped *DropError
	if !errors.As(err, &dropped) || dropped.Missed == 0 || dropped.Missed >= uint64(len(burst)) {
		t.Errorf("error %v", err)
	}
}

func TestCaptureTellsThatWritingFailed(t *testing.T) {
	a, b := wire(t)
	r, w := io.Pipe()
	wait, _ := start(t, a, 0, 0, w)
	if _, err := io.ReadFull(r, make([]byte, pcapFileHeader)); err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	r.CloseWithError(full)
	inject(t, b, "eth1", frame('f', 60))
	if err := wait(); !errors.Is(err, full) {
		t.Errorf("error %v, want the writer's", err)
	}
}

func TestAncillaryWithoutAnything(t *testing.T) {
	for _, oob := range [][]byte{nil, {1, 2, 3}, bytes.Repeat([]byte{0xff}, unix.SizeofCmsghdr)} {
		if at, tag := ancillary(oob); tag != nil || time.Since(at) > time.Minute {
			t.Errorf("% x: %v, % x", oob, at, tag)
		}
	}
}

// TestCaptureOfMoreSources has frames that no packet socket sees.
func TestCaptureOfMoreSources(t *testing.T) {
	a, b := wire(t)
	at := time.Unix(1700000000, 5)
	source := func(n int, missed uint64, fails error) Source {
		return func(ctx context.Context, each func(time.Time, int, []byte)) (uint64, error) {
			for range n {
				each(at, 100, frame('x', 60))
			}
			if fails == nil {
				<-ctx.Done()
			}
			return missed, fails
		}
	}
	t.Run("among the interface's own", func(t *testing.T) {
		var out lockedBuffer
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Capture(ctx, b.FD(), "eth1", 50, 0, &out, source(3, 0, nil)) }()
		for deadline := time.Now().Add(5 * time.Second); len(out.bytes()) < pcapFileHeader+3*(pcapFrameHeader+50); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes are written", len(out.bytes()))
			}
		}
		inject(t, a, "eth1", frame('y', 60))
		for deadline := time.Now().Add(5 * time.Second); !bytes.Contains(out.bytes(), []byte("yyyy")); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the interface's own frame is not written")
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		first := out.bytes()[pcapFileHeader:]
		if got := binary.NativeEndian.Uint32(first[8:]); got != 50 {
			t.Errorf("%d bytes of the first frame are kept, want 50", got)
		}
		if got := binary.NativeEndian.Uint32(first[12:]); got != 100 || binary.NativeEndian.Uint32(first) != 1700000000 {
			t.Errorf("the first frame was %d bytes long, at %d", got, binary.NativeEndian.Uint32(first))
		}
	})
	t.Run("count", func(t *testing.T) {
		var out bytes.Buffer
		if err := Capture(t.Context(), b.FD(), "eth1", 0, 4, &out, source(2, 0, nil), source(9, 0, nil)); err != nil {
			t.Fatal(err)
		}
		if want := pcapFileHeader + 4*(pcapFrameHeader+60); out.Len() != want {
			t.Errorf("%d bytes are written, want %d", out.Len(), want)
		}
	})
	t.Run("missed", func(t *testing.T) {
		var missed *DropError
		if err := Capture(t.Context(), b.FD(), "eth1", 0, 1, io.Discard, source(1, 7, nil)); !errors.As(err, &missed) || missed.Missed != 7 {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a source that fails", func(t *testing.T) {
		broken := errors.New("broken")
		if err := Capture(t.Context(), b.FD(), "eth1", 0, 0, io.Discard, source(1, 0, broken)); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
}
