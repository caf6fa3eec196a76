package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// receiveBuffer holds the replies to a window many times over: a small packet
// is charged with less than 1 KiB.
const receiveBuffer = 256 << 10

// icmpFilter is ICMP_FILTER of linux/icmp.h: a set bit keeps a type out.
const icmpFilter = 1

// echoSocket is a raw ICMP or ICMPv6 socket in a node's namespace.
type echoSocket struct {
	file   *os.File
	raw    syscall.RawConn
	family string
	id     uint16
	nonce  uint64
	packet [2048]byte
	oob    [128]byte
}

// openEchoSocket opens a socket in the namespace ns, bound to the source
// address. The error is EADDRNOTAVAIL where the namespace does not have it.
func openEchoSocket(ns int, family string, source netip.Addr) (*echoSocket, error) {
	s := &echoSocket{family: family}
	s.id, s.nonce = token()
	err := inside(ns, func() error {
		domain, proto := unix.AF_INET, unix.IPPROTO_ICMP
		if family == IPv6 {
			domain, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
		}
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return fmt.Errorf("open a raw %s socket: %w", family, err)
		}
		s.file = os.NewFile(uintptr(fd), "icmp")
		return prepare(fd, family, source)
	})
	if err == nil {
		s.raw, err = s.file.SyscallConn()
	}
	if err != nil {
		if s.file != nil {
			s.file.Close()
		}
		return nil, err
	}
	return s, nil
}

// prepare sets what the socket receives and where it sends from. The filters
// keep out other hosts' requests, which a raw socket would receive as well.
func prepare(fd int, family string, source netip.Addr) error {
	var err error
	if family == IPv4 {
		keep := 1<<icmp4EchoReply | 1<<icmp4Unreachable | 1<<icmp4TimeExceeded | 1<<icmp4Parameter
		err = unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, ^keep)
	} else {
		var block [8]uint32 // struct icmp6_filter (RFC 3542, section 3.2)
		for i := range block {
			block[i] = ^uint32(0)
		}
		for _, typ := range []int{icmp6EchoReply, icmp6Unreachable, icmp6TooBig, icmp6TimeExceeded, icmp6Parameter} {
			block[typ/32] &^= 1 << (typ % 32)
		}
		var b []byte
		for _, word := range block {
			b = binary.NativeEndian.AppendUint32(b, word)
		}
		err = unix.SetsockoptString(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, string(b))
	}
	if err != nil {
		return fmt.Errorf("set the ICMP filter: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
		return fmt.Errorf("set the receive buffer: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("ask for time stamps: %w", err)
	}
	if err := unix.Bind(fd, sockaddr(source)); err != nil {
		return fmt.Errorf("bind to %v: %w", source, err)
	}
	return nil
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

func (s *echoSocket) close() { s.file.Close() }

// wake ends a wait of receive.
func (s *echoSocket) wake() {
	// It fails only on a closed socket, where nobody waits.
	_ = s.file.SetReadDeadline(time.Unix(1, 0))
}

// send sends one request. The error is the kernel's, unwrapped.
func (s *echoSocket) send(to netip.Addr, seq uint16) error {
	var b [echoLen]byte
	echoRequest(b[:], s.family, s.id, seq, s.nonce)
	var sent error
	if err := s.raw.Control(func(fd uintptr) {
		sent = unix.Sendto(int(fd), b[:], unix.MSG_DONTWAIT, sockaddr(to))
	}); err != nil {
		return err
	}
	return sent
}

// receive hands over all answers that are there, each with the kernel's time
// stamp; where there are none, it waits for some until the given time. The
// error is os.ErrDeadlineExceeded where none came.
func (s *echoSocket) receive(until time.Time, take func(answer, time.Time)) error {
	got, failed := 0, error(nil)
	if err := s.raw.Control(func(fd uintptr) {
		got, failed = s.takeAll(int(fd), take)
	}); err != nil || failed != nil || got > 0 {
		return errors.Join(failed, err)
	}
	if err := s.file.SetReadDeadline(until); err != nil {
		return err
	}
	err := s.raw.Read(func(fd uintptr) bool {
		got, failed = s.takeAll(int(fd), take)
		return failed != nil || got > 0
	})
	return errors.Join(failed, err)
}

// takeAll reads what is there, without waiting, and returns how many packets
// that was. It is bounded, so that a flood of foreign ones does not hold it.
func (s *echoSocket) takeAll(fd int, take func(answer, time.Time)) (int, error) {
	got := 0
	for ; got < 1024; got++ {
		n, oobn, _, from, err := unix.Recvmsg(fd, s.packet[:], s.oob[:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return got, nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return got, err
		}
		a, ok := parse(s.packet[:n], s.family, s.id, s.nonce)
		if !ok {
			continue
		}
		if in6, is6 := from.(*unix.SockaddrInet6); is6 {
			a.from = netip.AddrFrom16(in6.Addr)
		}
		at, _ := ancillary(s.oob[:oobn])
		take(a, at)
	}
	return got, nil
}
