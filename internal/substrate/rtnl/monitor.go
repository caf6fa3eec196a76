package rtnl

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrOverrun says that the kernel had more to tell than the socket could hold:
// some notifications are lost, and what they were about must be read anew.
var ErrOverrun = errors.New("notifications of netlink were lost")

// Monitor receives what the kernel notifies of. It stays in the network
// namespace that it was opened in.
type Monitor struct {
	file *os.File
	raw  syscall.RawConn
	buf  []byte
}

// Listen opens a Monitor of the given RTNLGRP_* groups in the calling thread's
// network namespace.
func Listen(groups ...int) (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("open a netlink socket", err)
	}
	m := &Monitor{file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, readBuffer)}
	if err := m.setUp(fd, groups); err != nil {
		return nil, errors.Join(fmt.Errorf("set up a netlink socket for notifications: %w", err), m.Close())
	}
	return m, nil
}

func (m *Monitor) setUp(fd int, groups []int) (err error) {
	if m.raw, err = m.file.SyscallConn(); err != nil {
		return err
	}
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer),
	)
	for _, g := range groups {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g))
	}
	return err
}

// Close ends the Monitor, and a Receive that waits; that one's error is
// [os.ErrClosed].
func (m *Monitor) Close() error { return m.file.Close() }

// Wait returns when there is something to receive; the error is [os.ErrClosed].
func (m *Monitor) Wait() error {
	if m.raw.Read(func(fd uintptr) bool {
		// Asked of the socket, not remembered: somebody may have polled meanwhile.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 && err == nil
	}) != nil {
		return os.ErrClosed
	}
	return nil
}

// SetBuffer sets how many bytes of notifications may wait, as the kernel counts
// them: 2 to 4 KiB each.
func (m *Monitor) SetBuffer(bytes int) error {
	var err error
	if controlled := m.control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bytes)
	}); controlled != nil {
		err = controlled
	}
	return os.NewSyscallError("set the buffer of a netlink socket", err)
}

// Poll hands what has come to fn, as Receive does, and does not wait: false if
// there is nothing more. It may be called beside a [Monitor.Wait], not beside
// another Poll or Receive.
func (m *Monitor) Poll(fn func(typ uint16, body []byte)) (more bool, err error) {
	if m.control(func(fd uintptr) { more, err = Poll(int(fd), m.buf, fn) }) != nil {
		return false, os.ErrClosed
	}
	return more, err
}

// Poll is [Monitor.Poll] of a netlink socket of the caller's, with a buffer that
// each notification fits into.
func Poll(fd int, buf []byte, fn func(typ uint16, body []byte)) (more bool, err error) {
	n, from, err := recvfrom(fd, buf)
	if err == unix.EAGAIN {
		return false, nil
	}
	return true, received(buf[:max(n, 0)], from, err, fn)
}

// Receive waits for notifications and hands each to fn: its type (RTM_*), and
// its body (fixed header and attributes), valid only during the call. The error
// is [ErrOverrun] where some are lost; receiving may go on after it.
func (m *Monitor) Receive(fn func(typ uint16, body []byte)) error {
	var (
		n    int
		from unix.Sockaddr
		err  error
	)
	if m.raw.Read(func(fd uintptr) bool {
		n, from, err = recvfrom(int(fd), m.buf)
		return err != unix.EAGAIN
	}) != nil { // of all errors, the one there is
		return os.ErrClosed
	}
	return received(m.buf[:max(n, 0)], from, err, fn)
}

func recvfrom(fd int, buf []byte) (n int, from unix.Sockaddr, err error) {
	for {
		n, from, err = unix.Recvfrom(fd, buf, 0)
		if err != unix.EINTR {
			return n, from, err
		}
	}
}

// received hands the messages of a datagram to fn.
func received(p []byte, from unix.Sockaddr, err error, fn func(typ uint16, body []byte)) error {
	switch {
	case err == unix.ENOBUFS:
		return ErrOverrun
	case err != nil:
		return os.NewSyscallError("receive from netlink", err)
	}
	if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
		return nil // not from the kernel; see Conn.receive
	}
	return messages(p, func(msg message) (bool, error) {
		fn(msg.typ, msg.body)
		return false, nil
	})
}

func (m *Monitor) control(f func(fd uintptr)) error { return m.raw.Control(f) }
