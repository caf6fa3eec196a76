package probe

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	// maxFrame holds any frame, super-packets of segmentation offload
	// included (up to 64 KiB; BIG TCP ones come up to 512 KiB and are cut here).
	maxFrame = 256 << 10
	// captureBuffer bridges the times when the writer is slow, in bytes as the
	// kernel charges them: some ten thousand small frames.
	captureBuffer = 16 << 20
	// liveEvery is how long a frame of another source may wait to be written.
	liveEvery  = 50 * time.Millisecond
	vlanTag    = 4
	vlanOffset = 12 // of a tag: after both MAC addresses
)

// DropError tells that a capture is not complete: the reader was too slow and
// the kernel threw frames away. What was written is a valid pcap file.
type DropError struct {
	Interface        string
	Captured, Missed uint64 // frames
}

func (e *DropError) Error() string {
	return fmt.Sprintf("capture on %s: %d frames written, %d missed: the reader was too slow; a smaller snapshot length helps",
		e.Interface, e.Captured, e.Missed)
}

// Source gives frames that pass the interface and that its packet sockets do not
// see: it calls each, from one goroutine, until ctx ends, and then returns how
// many it has missed. data is the first of length bytes, its own to keep.
type Source func(ctx context.Context, each func(at time.Time, length int, data []byte)) (missed uint64, err error)

// Capture writes the frames that an interface receives and sends to w, as a
// pcap file with nanosecond time stamps. The namespace ns is a file descriptor,
// and stays the caller's. VLAN tags that the kernel keeps beside the frame are
// put back into it; the interface is not made promiscuous; an outgoing frame is
// seen before offloads, so it may be longer than the MTU and its checksum
// unfinished.
//
// At most snaplen bytes of each frame are written; 0 means whole frames. The
// capture ends without an error after count frames, unless count is 0, and when
// ctx is cancelled. Whatever has arrived is written before it waits for more,
// and the file's header at once, so that a reader sees frames live. Frames of
// more sources are written among the interface's own as they come, a twentieth
// of a second later at most.
//
// The error is a [*DropError] where frames are missing in the file, an error
// that lists the interfaces where there is none of that name, and w's own error
// where writing failed. An interface that vanishes ends the capture.
func Capture(ctx context.Context, ns int, iface string, snaplen uint32, count uint64, w io.Writer, more ...Source) error {
	if snaplen == 0 || snaplen > maxFrame {
		snaplen = maxFrame
	}
	t, err := openTap(ns, iface)
	if err != nil {
		return fmt.Errorf("capture on %s: %w", iface, err)
	}
	defer t.file.Close()
	stop := context.AfterFunc(ctx, func() {
		// It fails only on a closed socket, where nobody waits.
		_ = t.file.SetReadDeadline(time.Unix(1, 0))
	})
	defer stop()

	out := &file{w: bufio.NewWriterSize(w, 64<<10), snaplen: int(snaplen), count: count}
	err = out.begin()
	ended := out.join(ctx, more, func() { _ = t.file.SetReadDeadline(time.Unix(1, 0)) })
	if err == nil {
		err = t.copyTo(ctx, out)
	}
	missed, others := ended()
	switch {
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		err = nil
	case err != nil:
		err = fmt.Errorf("capture on %s: %w", iface, err)
	}
	if err == nil && others != nil {
		err = fmt.Errorf("capture on %s: %w", iface, others)
	}
	if flushed := out.flush(); err == nil && flushed != nil {
		err = fmt.Errorf("capture on %s: %w", iface, flushed)
	}
	own, counted := t.missed()
	switch {
	case err != nil:
		return err
	case counted != nil:
		return fmt.Errorf("capture on %s: %w", iface, counted)
	case missed+own > 0:
		return &DropError{Interface: iface, Captured: out.captured, Missed: missed + own}
	}
	return nil
}

// file is the pcap file that several sources write to.
type file struct {
	snaplen int
	count   uint64 // frames to write; 0: no limit

	mu       sync.Mutex
	w        *bufio.Writer
	captured uint64
	err      error // of writing
}

// begin writes the file's header.
func (f *file) begin() error {
	if _, err := f.w.Write(appendPcapHeader(nil, uint32(f.snaplen))); err != nil {
		return err
	}
	return f.w.Flush()
}

func (f *file) flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = f.w.Flush()
	}
	return f.err
}

// full reports whether all frames are written that were asked for, or can be.
func (f *file) full() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err != nil || f.count != 0 && f.captured >= f.count
}

// fail ends the writing.
func (f *file) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

// frame writes one frame, in parts, unless the file is full.
func (f *file) frame(at time.Time, length int, parts ...[]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil || f.count != 0 && f.captured >= f.count {
		return f.err
	}
	f.captured++
	f.err = writeParts(f.w, at, length, f.snaplen, parts...)
	return f.err
}

// join has the sources write to the file, and calls enough when that is full.
// ended ends them and tells what they have missed.
func (f *file) join(ctx context.Context, sources []Source, enough func()) (ended func() (uint64, error)) {
	ctx, cancel := context.WithCancel(ctx)
	var missed atomic.Uint64
	var g errgroup.Group
	for _, source := range sources {
		g.Go(func() error {
			n, err := source(ctx, func(at time.Time, length int, data []byte) {
				if f.frame(at, length, data) != nil || f.full() {
					enough()
				}
			})
			missed.Add(n)
			if err != nil {
				f.fail(err)
				enough()
			}
			return err
		})
	}
	if len(sources) > 0 {
		g.Go(func() error {
			tick := time.NewTicker(liveEvery)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
					if f.flush() != nil {
						enough()
					}
				}
			}
		})
	}
	return func() (uint64, error) {
		cancel()
		err := g.Wait()
		return missed.Load(), err
	}
}

// tap is a packet socket on one interface.
type tap struct {
	file  *os.File
	raw   syscall.RawConn
	index int
}

// openTap opens a packet socket in the namespace. It receives nothing until it
// is bound to the interface, so no frame of another one gets in.
func openTap(ns int, iface string) (*tap, error) {
	t := &tap{}
	err := inside(ns, func() error {
		link, err := net.InterfaceByName(iface)
		if err != nil {
			return unknownInterface(err)
		}
		t.index = link.Index
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open a packet socket: %w", err)
		}
		t.file = os.NewFile(uintptr(fd), iface)
		for _, o := range []struct{ level, name, value int }{
			{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer},
			{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1},
			{unix.SOL_PACKET, unix.PACKET_AUXDATA, 1},
		} {
			if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
				return fmt.Errorf("prepare the packet socket: %w", err)
			}
		}
		all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: t.index}); err != nil {
			return fmt.Errorf("bind the packet socket: %w", err)
		}
		return nil
	})
	if err == nil {
		t.raw, err = t.file.SyscallConn()
	}
	if err != nil {
		if t.file != nil {
			t.file.Close()
		}
		return nil, err
	}
	return t, nil
}

// unknownInterface says which interfaces there are. It runs in the namespace.
func unknownInterface(cause error) error {
	links, err := net.Interfaces()
	if err != nil {
		return errors.Join(cause, err)
	}
	names := make([]string, len(links))
	for i, l := range links {
		names[i] = l.Name
	}
	return fmt.Errorf("no such interface; the node has %s", strings.Join(names, ", "))
}

// errDown tells that the interface was set down: frames come again when it is up.
var errDown = errors.New("interface down")

// copyTo writes frame after frame. It flushes whenever there is nothing more to
// read at once.
func (t *tap) copyTo(ctx context.Context, out *file) error {
	frame := make([]byte, out.snaplen)
	for !out.full() {
		err := t.next(out, frame)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errDown), errors.Is(err, os.ErrDeadlineExceeded):
			if out.full() {
				return nil
			}
			// An interface that is deleted goes down first, and the socket does
			// not hear of the rest: look now and then.
			gone, err := t.gone()
			if err != nil {
				return err
			}
			if gone {
				return errors.New("the interface is gone")
			}
			if err := t.file.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				return err
			}
		default:
			return err
		}
	}
	return nil
}

// next writes the next frame.
func (t *tap) next(out *file, frame []byte) error {
	var failed error
	var oob [256]byte
	err := t.raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, _, _, err := unix.Recvmsg(int(fd), frame, oob[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				failed = out.flush()
				return failed != nil
			case errors.Is(err, unix.ENETDOWN):
				failed = errDown
			case err != nil:
				failed = err
			default:
				failed = writeFrame(out, frame[:min(n, len(frame))], n, oob[:oobn])
			}
			return true
		}
	})
	return errors.Join(failed, err)
}

// gone reports whether the interface has left the namespace: the kernel then
// takes the socket off it (net/packet/af_packet.c, packet_notifier).
func (t *tap) gone() (bool, error) {
	var bound unix.Sockaddr
	var failed error
	if err := t.raw.Control(func(fd uintptr) { bound, failed = unix.Getsockname(int(fd)) }); err != nil {
		return false, err
	}
	if failed != nil {
		return false, failed
	}
	ll, ok := bound.(*unix.SockaddrLinklayer)
	return !ok || ll.Ifindex != t.index, nil
}

// writeFrame writes one frame of length bytes, of which got are the first, with
// the VLAN tag that came beside it.
func writeFrame(out *file, got []byte, length int, oob []byte) error {
	at, tag := ancillary(oob)
	if tag == nil || len(got) < vlanOffset {
		return out.frame(at, length, got)
	}
	return out.frame(at, length+vlanTag, got[:vlanOffset], tag, got[vlanOffset:])
}

func writeParts(out *bufio.Writer, at time.Time, length, snaplen int, parts ...[]byte) error {
	kept := 0
	for _, p := range parts {
		kept += len(p)
	}
	left := min(kept, snaplen)
	var header [pcapFrameHeader]byte
	if _, err := out.Write(appendFrameHeader(header[:0], at, left, length)); err != nil {
		return err
	}
	for _, p := range parts {
		p = p[:min(len(p), left)]
		left -= len(p)
		if _, err := out.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// missed is how many frames the kernel could not queue.
func (t *tap) missed() (uint64, error) {
	var n uint64
	var failed error
	err := t.raw.Control(func(fd uintptr) {
		stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err != nil {
			failed = fmt.Errorf("read the number of missed frames: %w", err)
			return
		}
		n = uint64(stats.Drops)
	})
	return n, errors.Join(failed, err)
}
