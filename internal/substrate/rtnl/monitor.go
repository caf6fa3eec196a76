package rtnl

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrOverrun says that the kernel had more to tell than the socket could hold:
// some notifications are lost, and what they were about must be read anew.
var ErrOverrun = errors.New("notifications of netlink were lost")

// Monitor receives what the kernel notifies of. It stays in the network
// namespace that it was opened in.
type Monitor struct {
	file *os.File
	raw  interface {
		Read(func(fd uintptr) bool) error
	}
	buf []byte
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

// Receive waits for notifications and hands each to fn: its type (RTM_*), and
// its body (fixed header and attributes), valid only during the call. The error
// is [ErrOverrun] where some are lost; receiving may go on after it.
func (m *Monitor) Receive(fn func(typ uint16, body []byte)) error {
	var (
		n    int
		from unix.Sockaddr
		err  error
	)
	waiting := m.raw.Read(func(fd uintptr) bool {
		n, from, err = unix.Recvfrom(int(fd), m.buf, 0)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	switch {
	case waiting != nil: // of all errors, the one there is
		return os.ErrClosed
	case err == unix.ENOBUFS:
		return ErrOverrun
	case err != nil:
		return os.NewSyscallError("receive from netlink", err)
	}
	if sa, ok := from.(*unix.SockaddrNetlink); !ok || sa.Pid != 0 {
		return nil // not from the kernel; see Conn.receive
	}
	return messages(m.buf[:n], func(msg message) (bool, error) {
		fn(msg.typ, msg.body)
		return false, nil
	})
}

// Filter has the kernel drop what a classic BPF program, run over each message
// from its header on, gives 0 for.
func (m *Monitor) Filter(program []unix.SockFilter) error {
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	var err error
	if controlled := m.control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &fprog)
	}); controlled != nil {
		err = controlled
	}
	if err != nil {
		return fmt.Errorf("filter the notifications of netlink: %w", err)
	}
	return nil
}

func (m *Monitor) control(f func(fd uintptr)) error {
	raw, err := m.file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(f)
}
