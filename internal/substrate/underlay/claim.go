package underlay

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/tunnel"
)

// Whoever has seen a tunnel's key can forge a router's word that its packets are too large. So
// the word is a claim, and the path is asked itself before anything is lowered, in the manner of
// RFC 8899: by echoes of the sizes in question between the tunnel's ends, not to be fragmented. An
// answer to a larger one than the claim allows refutes it; how much does fit is searched for then.
//
// Every machine of Trellis answers echoes, unless its owner's firewall is against it. Of one that
// answers none, not even of the claimed size, nothing can be found out: there the claim is believed.

const (
	// A size is tried so often, so far apart, and given up so long after the last: less than
	// RFC 8899's seconds (section 5.1.1), since packets are lost meanwhile.
	echoTries, echoEvery, echoLast = 3, 300 * time.Millisecond, 600 * time.Millisecond
	// sizesAtOnce are tried in one round of a search.
	sizesAtOnce = 16
	// claimRest is how long no other claim about a path is heard after one.
	claimRest = time.Second
)

// claim is what a router is said to have said of a path.
type claim struct {
	ends tunnel.Endpoints
	mtu  int // this fits, bytes
	big  int // this does not, and would by what is known
}

// verdict is what of a claim is believed.
type verdict struct {
	mtu     int  // what fits
	checked bool // the path has answered
}

// hear has a claim checked, unless another about the path is, or was a moment ago.
func (u *Underlay) hear(ctx context.Context, c claim) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if rest, ok := u.claims[c.ends]; ok && (rest.IsZero() || time.Now().Before(rest)) {
		return
	}
	u.claims[c.ends] = time.Time{}
	u.running.Add(1) // the caller has one
	go func() {
		defer u.running.Done()
		v, err := u.checkClaim(ctx, c)
		if ctx.Err() == nil {
			u.decide(c, v, err)
		}
	}()
}

// decide lowers a path's size, or does not.
func (u *Underlay) decide(c claim, v verdict, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.claims[c.ends] = time.Now().Add(claimRest)
	attrs := []any{"from", c.ends.Local, "to", c.ends.Remote, "claimed", c.mtu}
	switch {
	case v.mtu >= c.big:
		u.warn("a message says that packets to a host are too large, which is false: the host answers larger ones; whoever sent it knows a tunnel's key", attrs...)
		return
	case err != nil:
		u.warn("a path is said to be narrow, which could not be checked, and is believed", append(attrs, "err", err)...)
	case !v.checked:
		u.warn("a path is said to be narrow, and is believed: the host at its end answers no echo", attrs...)
	case v.mtu > c.mtu:
		u.warn("a path is narrow, but not as narrow as a message says", append(attrs, "mtu", v.mtu)...)
	}
	if now, ok := u.states[c.ends]; !ok || now.Err != nil || v.mtu >= now.Route.MTU {
		return
	}
	u.narrow[c.ends] = narrow{mtu: v.mtu, until: time.Now().Add(keepNarrow)}
	u.wake()
}

func (u *Underlay) warn(message string, attrs ...any) {
	if u.log != nil {
		u.log.Warn(message, attrs...)
	}
}

// checkClaim asks a path. After an error, the claim stands.
func (u *Underlay) checkClaim(ctx context.Context, c claim) (verdict, error) {
	e, err := u.openEcho(c.ends)
	if err != nil {
		return verdict{mtu: c.mtu}, err
	}
	defer e.Close()
	fits, err := e.try(ctx, []int{c.mtu, c.mtu + 1, c.big}, c.big)
	if err != nil || fits == 0 {
		return verdict{mtu: c.mtu}, err
	}
	for too := c.big; fits > c.mtu && too-fits > 1; {
		step := max(1, (too-fits)/(sizesAtOnce+1))
		var sizes []int
		for size := fits + step; size < too && len(sizes) < sizesAtOnce; size += step {
			sizes = append(sizes, size)
		}
		best, err := e.try(ctx, sizes, 0)
		if err != nil {
			return verdict{mtu: fits, checked: true}, err
		}
		if i := slices.Index(sizes, best); i+1 < len(sizes) { // else nothing above was tried
			too = sizes[i+1]
		}
		fits = max(fits, best)
	}
	return verdict{mtu: fits, checked: true}, nil
}

// echo asks the far end of a tunnel for echoes.
type echo struct {
	*os.File
	is4   bool
	token [8]byte // so that nobody else can answer
	next  uint16
}

func (u *Underlay) openEcho(ends tunnel.Endpoints) (*echo, error) {
	e := &echo{is4: ends.Local.Is4()}
	rand.Read(e.token[:])
	var fd int
	err := u.ns.Do(func() (err error) {
		fd, err = openEchoSocket(ends)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a socket for echoes from %v to %v: %w", ends.Local, ends.Remote, err)
	}
	e.File = os.NewFile(uintptr(fd), "echo")
	return e, nil
}

func openEchoSocket(ends tunnel.Endpoints) (fd int, err error) {
	const typ = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	if ends.Local.Is4() {
		if fd, err = unix.Socket(unix.AF_INET, typ, unix.IPPROTO_ICMP); err != nil {
			return 0, err
		}
		var pass uint32 = 1 << echoReply
		err = errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_RAW, icmpFilter, int(int32(^pass))),
			// DF, whatever the kernel has learned of the path.
			unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE),
		)
	} else {
		if fd, err = unix.Socket(unix.AF_INET6, typ, unix.IPPROTO_ICMPV6); err != nil {
			return 0, err
		}
		var f unix.ICMPv6Filter
		for i := range f.Data {
			f.Data[i] = ^uint32(0)
		}
		f.Data[echo6Reply/32] &^= 1 << (echo6Reply % 32)
		err = errors.Join(
			unix.SetsockoptICMPv6Filter(fd, unix.SOL_ICMPV6, unix.ICMPV6_FILTER, &f),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1),
		)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(ends.Local))
	}
	if err == nil {
		err = unix.Connect(fd, sockaddr(ends.Remote)) // nobody else's answers are heard
	}
	if err != nil {
		unix.Close(fd)
	}
	return fd, err
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

const (
	echoRequest, echoReply   = 8, 0 // RFC 792
	echo6Request, echo6Reply = 128, 129
	echoHead                 = 8
)

// try asks for echoes of some sizes, of IP packets, and gives the largest that was answered; 0:
// none was. An answer of the size enough ends it.
func (e *echo) try(ctx context.Context, sizes []int, enough int) (best int, err error) {
	bySequence := map[uint16]int{}
	for attempt := range echoTries {
		wait := echoEvery
		if attempt == echoTries-1 {
			wait = echoLast
		}
		for _, size := range sizes {
			if size > best {
				e.next++
				bySequence[e.next] = size
				e.send(e.next, size) // what fails here, as on a link that is down, is not answered
			}
		}
		if best, err = e.receive(ctx, time.Now().Add(wait), bySequence, best, cmp.Or(enough, slices.Max(sizes))); err != nil || best >= slices.Max(sizes) {
			return best, err
		}
	}
	return best, nil
}

func (e *echo) send(sequence uint16, size int) {
	b := make([]byte, max(echoHead+len(e.token), size-e.header()))
	b[0] = echo6Request // the kernel fills in the checksum
	binary.BigEndian.PutUint16(b[6:], sequence)
	copy(b[echoHead:], e.token[:])
	if e.is4 {
		b[0] = echoRequest
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	e.Write(b)
}

// header is the size of an IP header.
func (e *echo) header() int {
	if e.is4 {
		return 20
	}
	return 40
}

// receive takes answers in until a time, or until one is of the size enough, and gives the largest.
func (e *echo) receive(ctx context.Context, until time.Time, bySequence map[uint16]int, best, enough int) (int, error) {
	if err := e.SetReadDeadline(until); err != nil {
		return best, err
	}
	stop := context.AfterFunc(ctx, func() { e.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b := make([]byte, 1<<16)
	for best < enough {
		n, err := e.Read(b)
		switch {
		case ctx.Err() != nil:
			return best, ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return best, nil
		case err != nil:
			if time.Now().After(until) {
				return best, nil
			}
			continue // what a router said of one that was sent
		}
		if size, ok := e.parse(b[:n], bySequence); ok {
			best = max(best, size)
		}
	}
	return best, nil
}

// parse gives the size of the packet that an answer is to.
func (e *echo) parse(b []byte, bySequence map[uint16]int) (size int, ok bool) {
	if e.is4 { // with its IP header
		if len(b) < 20 || len(b) < int(b[0]&15)*4 {
			return 0, false
		}
		b = b[int(b[0]&15)*4:]
	}
	if len(b) < echoHead+len(e.token) || [8]byte(b[echoHead:]) != e.token {
		return 0, false
	}
	size, ok = bySequence[binary.BigEndian.Uint16(b[6:])]
	// All that was sent has come back: it was not cut on its way.
	return size, ok && len(b) >= size-e.header()
}
