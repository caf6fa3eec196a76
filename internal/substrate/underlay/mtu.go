package underlay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A router that cannot pass a packet on because it is too large says so to its
// sender, and how large it may be: RFC 1191 (IPv4, the outer packets have DF
// set) and RFC 8201 (IPv6). Tunnels have no socket that would hear it, so it is
// heard here.
//
// A stranger must not be able to lower anything. Such a message quotes the
// packet that it is about; it is heard only if that is an EGRE packet of a
// tunnel in use: outer addresses and key, 32 bits that nobody off the path knows.
// It must be longer than what is said to fit, and that must be less than what
// is known. Then the path itself is asked: see claim.go.

const (
	// keepNarrow is how long a lower size is believed: RFC 1191 section 6.3,
	// RFC 8201 section 4.
	keepNarrow = 10 * time.Minute
	// The least that a path can be lowered to: what every host must be able to
	// receive (RFC 791), and IPv6's least MTU (RFC 8200 section 5).
	least4, least6 = 576, 1280

	icmpUnreachable, icmpNeedsFragment = 3, 4 // RFC 792
	icmp6TooBig                        = 2    // RFC 4443
	icmpFilter                         = 1    // ICMP_FILTER (linux/icmp.h), at SOL_RAW
)

// narrow is what was learned of a path.
type narrow struct {
	mtu   int
	until time.Time
}

// listener hears ICMP of one family.
type listener struct {
	*os.File
	is4 bool
}

// listen opens a socket for each family that the kernel has.
func listen() ([]*listener, error) {
	var all []*listener
	for _, is4 := range []bool{true, false} {
		fd, err := listenOne(is4)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			for _, l := range all {
				l.Close()
			}
			return nil, fmt.Errorf("open a socket for ICMP: %w", err)
		}
		all = append(all, &listener{File: os.NewFile(uintptr(fd), "icmp"), is4: is4})
	}
	return all, nil
}

func listenOne(is4 bool) (fd int, err error) {
	const typ = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if is4 {
		if fd, err = unix.Socket(unix.AF_INET, typ, unix.IPPROTO_ICMP); err == nil {
			var pass uint32 = 1 << icmpUnreachable
			err = unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, int(int32(^pass)))
		}
	} else {
		if fd, err = unix.Socket(unix.AF_INET6, typ, unix.IPPROTO_ICMPV6); err == nil {
			var f unix.ICMPv6Filter
			for i := range f.Data {
				f.Data[i] = ^uint32(0)
			}
			f.Data[0] &^= 1 << icmp6TooBig
			err = unix.SetsockoptICMPv6Filter(fd, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, &f)
		}
	}
	if err != nil && fd > 0 {
		unix.Close(fd)
	}
	return fd, err
}

// receiveICMP takes in what routers say until the listener is closed.
func (u *Underlay) receiveICMP(ctx context.Context, l *listener) {
	defer u.running.Done()
	buf := make([]byte, 2048)
	for {
		n, err := l.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			continue // an error of an earlier message; reading goes on
		}
		t, size, mtu, ok := parseTooBig(buf[:n], l.is4)
		if !ok {
			continue
		}
		if c, ok := u.claimOf(t, size, mtu); ok {
			u.hear(ctx, c)
		}
	}
}

// parseTooBig reads a message: the tunnel and the size of the packet that it
// quotes, and the size that fits; 0: an old router does not tell.
func parseTooBig(b []byte, is4 bool) (t Tunnel, size, mtu int, ok bool) {
	if !is4 { // the kernel has taken the IPv6 header off, and verified the checksum
		if len(b) < 8+40+8 || b[0] != icmp6TooBig || b[1] != 0 {
			return t, 0, 0, false
		}
		mtu = int(min(binary.BigEndian.Uint32(b[4:]), 1<<16))
		q := b[8:]
		if q[0]>>4 != 6 || q[6] != unix.IPPROTO_GRE {
			return t, 0, 0, false
		}
		size = 40 + int(binary.BigEndian.Uint16(q[4:]))
		t.Local, t.Remote = netip.AddrFrom16([16]byte(q[8:24])), netip.AddrFrom16([16]byte(q[24:40]))
		t.Key, ok = greKey(q[40:])
		return t, size, mtu, ok
	}
	if len(b) < 20 {
		return t, 0, 0, false
	}
	head := int(b[0]&15) * 4
	if head < 20 || len(b) < head+8+20+8 {
		return t, 0, 0, false
	}
	b = b[head:]
	if b[0] != icmpUnreachable || b[1] != icmpNeedsFragment || checksum(b) != 0 {
		return t, 0, 0, false
	}
	mtu = int(binary.BigEndian.Uint16(b[6:]))
	q := b[8:]
	if q[0] != 0x45 || q[9] != unix.IPPROTO_GRE { // the outer header has no options
		return t, 0, 0, false
	}
	size = int(binary.BigEndian.Uint16(q[2:]))
	t.Local, t.Remote = netip.AddrFrom4([4]byte(q[12:16])), netip.AddrFrom4([4]byte(q[16:20]))
	t.Key, ok = greKey(q[20:])
	return t, size, mtu, ok
}

// greKey reads the key of an EGRE header: key present and nothing else,
// Ethernet inside.
func greKey(b []byte) (uint32, bool) {
	if len(b) < 8 || binary.BigEndian.Uint32(b) != 0x20006558 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b[4:]), true
}

// plateaus are the sizes of common links: where a router does not tell, the next
// lower one is tried (RFC 1191 section 7.1).
var plateaus = []int{32000, 17914, 8166, 4352, 2002, 1492, 1006, 576}

// claimOf gives what a message says of a tunnel's path; false: nothing that could be heeded.
func (u *Underlay) claimOf(t Tunnel, size, mtu int) (claim, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.inUse(t) {
		return claim{}, false
	}
	now, ok := u.states[t.Endpoints]
	if !ok || now.Err != nil {
		return claim{}, false
	}
	least := least6
	if t.Local.Is4() {
		least = least4
	}
	for i := 0; mtu == 0 && i < len(plateaus); i++ {
		if plateaus[i] < size {
			mtu = plateaus[i]
		}
	}
	if mtu < least || mtu >= size || mtu >= now.Route.MTU {
		return claim{}, false
	}
	return claim{ends: t.Endpoints, mtu: mtu, big: min(size, now.Route.MTU)}, true
}

func (u *Underlay) inUse(t Tunnel) bool {
	for _, tunnels := range u.used {
		for _, have := range tunnels {
			if have == t {
				return true
			}
		}
	}
	return false
}

// checksum is the Internet checksum (RFC 1071); 0 over a message that is whole.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
