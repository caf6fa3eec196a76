package forward

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"trellis/internal/bench"
)

// userPriority is the real-time priority (SCHED_FIFO) of a forwarder in user
// space. It shares its core with the generator, a kernel loop that yields after
// each batch; so a forwarder that is woken by a batch runs before the next one
// is generated, and what it costs is in the rate, as it is for the kernel's own
// forwarding.
const userPriority = 1

// forwarder is a router in user space that runs on a thread of its own.
type forwarder struct {
	stop   atomic.Bool
	done   chan error
	closed func() error
}

// start runs serve, which returns soon after stop is set, on a core.
func startForwarder(core int, serve func(stop *atomic.Bool) error, closed func() error) (*forwarder, error) {
	f := &forwarder{done: make(chan error, 1), closed: closed}
	ready := make(chan error)
	bench.OnThread(func() {
		err := pinThread(core)
		if err == nil {
			err = realTime(userPriority)
		}
		ready <- err
		if err == nil {
			f.done <- serve(&f.stop)
		}
	})
	if err := <-ready; err != nil {
		return nil, errors.Join(err, closed())
	}
	return f, nil
}

// Close ends the forwarder and tells what ended it before, if anything did.
func (f *forwarder) Close() error {
	f.stop.Store(true)
	return errors.Join(<-f.done, f.closed())
}

// realTime gives the calling thread a real-time priority.
func realTime(priority int) error {
	err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(priority)}, 0)
	if err != nil {
		return fmt.Errorf("give the forwarder in user space real-time priority: %w", err)
	}
	return nil
}

// userTable is the FIB of a forwarder in user space. It answers for router 0's
// addresses, which are none of the cards' own, so that the machine's stack drops
// its copies of the frames at once.
func userTable(routes int) *table {
	t := &table{}
	h := hop{src: outPortMAC(0), dst: sinkMAC}
	t.add(sinkNet, h)
	others(routes, func(p netip.Prefix) { t.add(p, h) })
	return t
}

// wait is how long a forwarder in user space sleeps at the most until it looks
// whether it has to stop, ms.
const wait = 50

// userPacket forwards between the cards by packet sockets, with a system call to
// receive and one to send each packet, as PL-VINI's routers did.
func userPacket(r *rig) error {
	rx, err := packetSocket(inCard, unix.ETH_P_IP)
	if err != nil {
		return err
	}
	tx, err := packetSocket(outCard, 0)
	if err != nil {
		return errors.Join(err, unix.Close(rx))
	}
	fib := userTable(r.sc.Routes)
	f, err := startForwarder(r.core, func(stop *atomic.Bool) error {
		buf := make([]byte, 2048)
		for !stop.Load() {
			n, err := read(rx, buf)
			switch {
			case err == unix.EAGAIN:
				if err := await(rx); err != nil {
					return err
				}
			case err != nil:
				return fmt.Errorf("receive from %s: %w", inCard, err)
			case fib.forward(buf[:n]):
				// A full queue is a drop like any.
				if err := write(tx, buf[:n]); err != nil && err != unix.ENOBUFS && err != unix.EAGAIN {
					return fmt.Errorf("send to %s: %w", outCard, err)
				}
			}
		}
		return nil
	}, func() error { return errors.Join(unix.Close(rx), unix.Close(tx)) })
	if err == nil {
		r.hold(f)
	}
	return err
}

// packetSocket opens a packet socket at a device; with protocol 0 it receives
// nothing.
func packetSocket(device string, protocol uint16) (int, error) {
	const room = 4 << 20 // bytes of received packets
	l, err := netlink.LinkByName(device)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, missing(fmt.Errorf("open a packet socket: %w", err), "packet sockets", "load the module af_packet")
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: l.Attrs().Index}))
	if err != nil {
		return 0, errors.Join(fmt.Errorf("bind a packet socket to %s: %w", device, err), unix.Close(fd))
	}
	return fd, nil
}

// read and write do not tell Go's scheduler, since they do not block: what is
// measured is the system calls.

func read(fd int, b []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func write(fd int, b []byte) error {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return errno
	}
	return nil
}

// await waits until there is something to receive, and no longer than wait.
func await(fd int) error {
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, wait)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for packets: %w", err)
	}
	return nil
}
