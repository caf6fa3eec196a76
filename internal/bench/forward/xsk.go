package forward

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AF_XDP (Documentation/networking/af_xdp.rst): frames lie in memory shared with
// the kernel (UMEM), and four rings hand them over. Here a frame goes fill →
// receive at the one card, → transmit → completion at the other, and is filled
// in again.
const (
	xskFrames    = 1024 // in the UMEM, and places in each ring: a power of two
	xskFrameSize = 2048
)

// ring is one ring of a socket. Entries between consumer and producer belong to
// whoever consumes.
type ring[T any] struct {
	memory             []byte
	producer, consumer *uint32 // shared with the kernel
	entries            unsafe.Pointer
}

func (q *ring[T]) at(i uint32) *T {
	var t T
	return (*T)(unsafe.Add(q.entries, uintptr(i&(xskFrames-1))*unsafe.Sizeof(t)))
}

// put appends an entry; the ring has room, since it has a place for each frame.
func (q *ring[T]) put(v T) {
	p := atomic.LoadUint32(q.producer)
	*q.at(p) = v
	atomic.StoreUint32(q.producer, p+1)
}

// take removes the first entry.
func (q *ring[T]) take() (v T, ok bool) {
	c := atomic.LoadUint32(q.consumer)
	if c == atomic.LoadUint32(q.producer) {
		return v, false
	}
	v = *q.at(c)
	atomic.StoreUint32(q.consumer, c+1)
	return v, true
}

func (q *ring[T]) empty() bool {
	return atomic.LoadUint32(q.consumer) == atomic.LoadUint32(q.producer)
}

// mapRing sizes and maps a ring of a socket.
func mapRing[T any](fd, option int, page int64) (q ring[T], err error) {
	var t T
	if err := unix.SetsockoptInt(fd, unix.SOL_XDP, option, xskFrames); err != nil {
		return q, fmt.Errorf("make a ring: %w", err)
	}
	got, err := xskOffsets(fd)
	if err != nil {
		return q, err
	}
	offsets := map[int]unix.XDPRingOffset{
		unix.XDP_RX_RING: got.Rx, unix.XDP_TX_RING: got.Tx, unix.XDP_UMEM_FILL_RING: got.Fr, unix.XDP_UMEM_COMPLETION_RING: got.Cr,
	}[option]
	q.memory, err = unix.Mmap(fd, page, int(offsets.Desc)+xskFrames*int(unsafe.Sizeof(t)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return q, fmt.Errorf("map a ring: %w", err)
	}
	base := unsafe.Pointer(&q.memory[0])
	q.producer = (*uint32)(unsafe.Add(base, offsets.Producer))
	q.consumer = (*uint32)(unsafe.Add(base, offsets.Consumer))
	q.entries = unsafe.Add(base, offsets.Desc)
	return q, nil
}

func xskOffsets(fd int) (o unix.XDPMmapOffsets, err error) {
	size := uint32(unsafe.Sizeof(o))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, uintptr(unsafe.Pointer(&o)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return o, fmt.Errorf("ask where the rings are: %w", errno)
	}
	return o, nil
}

// xsk is a pair of AF_XDP sockets over one UMEM: one receives, one sends.
type xsk struct {
	rx, tx     int
	umem       []byte
	fill       ring[uint64]
	received   ring[unix.XDPDesc]
	transmit   ring[unix.XDPDesc]
	completion ring[uint64]
	unused     [][]byte // rings that the kernel wants and nobody uses
}

// openXSK opens the sockets at the first queues of two devices, in copy mode: a
// veth has no other.
func openXSK(in, out int) (x *xsk, err error) {
	x = &xsk{rx: -1, tx: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.close())
		}
	}()
	if x.umem, err = unix.Mmap(-1, 0, xskFrames*xskFrameSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
		return x, fmt.Errorf("allocate the UMEM: %w", err)
	}
	for _, fd := range []*int{&x.rx, &x.tx} {
		if *fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return x, missing(fmt.Errorf("open an AF_XDP socket: %w", err), "AF_XDP sockets", "take one with CONFIG_XDP_SOCKETS")
		}
	}
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&x.umem[0]))), Len: uint64(len(x.umem)), Size: xskFrameSize}
	if _, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(x.rx), unix.SOL_XDP, unix.XDP_UMEM_REG, uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0); errno != 0 {
		return x, fmt.Errorf("register the UMEM: %w", errno)
	}
	if x.fill, err = mapRing[uint64](x.rx, unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_PGOFF_FILL_RING); err != nil {
		return x, err
	}
	unused, err := mapRing[uint64](x.rx, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_UMEM_PGOFF_COMPLETION_RING)
	if err != nil {
		return x, err
	}
	x.unused = append(x.unused, unused.memory)
	if x.received, err = mapRing[unix.XDPDesc](x.rx, unix.XDP_RX_RING, unix.XDP_PGOFF_RX_RING); err != nil {
		return x, err
	}
	if unused, err = mapRing[uint64](x.tx, unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_PGOFF_FILL_RING); err != nil {
		return x, err
	}
	x.unused = append(x.unused, unused.memory)
	if x.completion, err = mapRing[uint64](x.tx, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_UMEM_PGOFF_COMPLETION_RING); err != nil {
		return x, err
	}
	if x.transmit, err = mapRing[unix.XDPDesc](x.tx, unix.XDP_TX_RING, unix.XDP_PGOFF_TX_RING); err != nil {
		return x, err
	}
	for i := range uint64(xskFrames) {
		x.fill.put(i * xskFrameSize)
	}
	if err := unix.Bind(x.rx, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(in)}); err != nil {
		return x, fmt.Errorf("bind the receiving AF_XDP socket: %w", err)
	}
	if err := unix.Bind(x.tx, &unix.SockaddrXDP{Flags: unix.XDP_SHARED_UMEM, Ifindex: uint32(out), SharedUmemFD: uint32(x.rx)}); err != nil {
		return x, fmt.Errorf("bind the sending AF_XDP socket (needs Linux 5.10): %w", err)
	}
	return x, nil
}

// serve forwards until it is told to stop.
func (x *xsk) serve(fib *table, stop *atomic.Bool) error {
	for !stop.Load() {
		for {
			frame, ok := x.completion.take()
			if !ok {
				break
			}
			x.fill.put(frame &^ (xskFrameSize - 1))
		}
		sent := false
		for range batch {
			d, ok := x.received.take()
			if !ok {
				break
			}
			if fib.forward(x.umem[d.Addr : d.Addr+uint64(d.Len)]) {
				x.transmit.put(d)
				sent = true
			} else {
				x.fill.put(d.Addr &^ (xskFrameSize - 1))
			}
		}
		if sent || !x.transmit.empty() {
			// The kernel sends a part and says EAGAIN where there is more.
			_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(x.tx), 0, 0, unix.MSG_DONTWAIT, 0, 0)
			if errno != 0 && errno != unix.EAGAIN && errno != unix.EBUSY && errno != unix.ENOBUFS {
				return fmt.Errorf("send by AF_XDP: %w", errno)
			}
		} else if err := await(x.rx); err != nil {
			return err
		}
	}
	return nil
}

func (x *xsk) close() error {
	var err error
	for _, fd := range []int{x.tx, x.rx} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	for _, m := range append(x.unused, x.fill.memory, x.received.memory, x.transmit.memory, x.completion.memory, x.umem) {
		if m != nil {
			err = errors.Join(err, unix.Munmap(m))
		}
	}
	return err
}

// userXDP forwards between the cards by AF_XDP sockets.
func userXDP(r *rig) error {
	in, err := netlink.LinkByName(inCard)
	if err != nil {
		return err
	}
	out, err := netlink.LinkByName(outCard)
	if err != nil {
		return err
	}
	x, err := openXSK(in.Attrs().Index, out.Attrs().Index)
	if err != nil {
		return err
	}
	fib := userTable(r.sc.Routes)
	f, err := startForwarder(r.core, func(stop *atomic.Bool) error { return x.serve(fib, stop) }, x.close)
	if err != nil {
		return err
	}
	r.hold(f)
	var programs socketsObjects
	if err := loadSocketsObjects(&programs, nil); err != nil {
		return fmt.Errorf("load the program that hands frames to AF_XDP: %w", err)
	}
	r.hold(&programs)
	if err := programs.Sockets.Update(uint32(0), uint32(x.rx), ebpf.UpdateAny); err != nil {
		return fmt.Errorf("hand frames of %s to the socket: %w", inCard, err)
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: programs.ToSocket, Interface: in.Attrs().Index, Flags: link.XDPDriverMode})
	if err != nil {
		return fmt.Errorf("attach the program that hands frames to AF_XDP to %s: %w", inCard, err)
	}
	r.hold(l)
	return nil
}
