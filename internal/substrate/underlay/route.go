package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"trellis/internal/tunnel"
	"unsafe"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// fibRoute is what the FIB says of the way to an address.
type fibRoute struct {
	uplink int
	next   netip.Addr
	mtu    int // the route's own; 0: none
}

// route asks the kernel for the route that a packet between the ends takes.
func (u *Underlay) route(e tunnel.Endpoints) (fibRoute, error) {
	if !u.isLocal(e.Local) {
		return fibRoute{}, fmt.Errorf("%v is no address of this machine, so nothing can be sent from it to %v; add it to an uplink, or correct the configuration", e.Local, e.Remote)
	}
	r, expires, err := u.lookUp(e, 0)
	if err == nil && expires {
		// What the kernel has learned from routers for its own sockets is in the
		// answer, and more easily forged than what is believed here (mtu.go): ask
		// what the administrator has set.
		var set fibRoute
		set, _, err = u.lookUp(e, unix.RTM_F_FIB_MATCH)
		r.mtu = set.mtu
	}
	var errno unix.Errno
	switch {
	case err == nil:
		return r, nil
	case errors.As(err, &errno):
		switch errno {
		case unix.ENETUNREACH, unix.EHOSTUNREACH:
			return r, fmt.Errorf("there is no route to %v; add one (ip route add %v via …)", e.Remote, e.Remote)
		case unix.EINVAL:
			return r, fmt.Errorf("a route of this machine discards packets to %v", e.Remote)
		case unix.EACCES:
			return r, fmt.Errorf("a route of this machine prohibits packets to %v", e.Remote)
		}
	}
	return r, fmt.Errorf("look up the route to %v: %w", e.Remote, err)
}

// errLocal is what lookUp says of this machine's own addresses.
var errLocal = errors.New("it is an address of this machine itself; a peer must be another one")

// rtaCacheinfo is struct rta_cacheinfo (linux/rtnetlink.h).
type rtaCacheinfo struct {
	ClntRef, LastUse uint32
	Expires          int32
	Error, Used      uint32
	ID, TS, TSAge    uint32
}

// lookUp asks once. expires tells that the answer holds what was learned.
// Without a local end it asks for packets from any address.
func (u *Underlay) lookUp(e tunnel.Endpoints, flags uint32) (r fibRoute, expires bool, err error) {
	bits := uint8(e.Remote.BitLen())
	h := unix.RtMsg{Family: rtnl.Family(e.Remote), Dst_len: bits, Flags: flags}
	if e.Local.IsValid() {
		h.Src_len = bits
	}
	var b rtnl.Batch
	b.Begin(unix.RTM_GETROUTE, 0, rtnl.Header(&h))
	b.Bytes(unix.RTA_DST, e.Remote.AsSlice())
	if e.Local.IsValid() {
		b.Bytes(unix.RTA_SRC, e.Local.AsSlice())
	}
	body, err := u.conn.Get(&b)
	if err != nil {
		return r, false, err
	}
	if len(body) < unix.SizeofRtMsg {
		return r, false, unix.EBADMSG
	}
	switch (*unix.RtMsg)(unsafe.Pointer(&body[0])).Type {
	case unix.RTN_UNICAST:
	case unix.RTN_LOCAL:
		return r, false, errLocal
	case unix.RTN_PROHIBIT:
		return r, false, unix.EACCES
	default:
		return r, false, unix.EHOSTUNREACH
	}
	r.next = e.Remote
	for typ, v := range rtnl.Attrs(body[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_OIF:
			r.uplink = int(rtnl.Uint32(v))
		case unix.RTA_GATEWAY:
			r.next, _ = netip.AddrFromSlice(v)
		case unix.RTA_VIA: // of the other family: __kernel_sa_family_t, address
			if len(v) > 2 {
				r.next, _ = netip.AddrFromSlice(v[2:])
			}
		case unix.RTA_METRICS:
			for typ, v := range rtnl.Attrs(v) {
				if typ == unix.RTAX_MTU {
					r.mtu = int(rtnl.Uint32(v))
				}
			}
		case unix.RTA_CACHEINFO:
			if len(v) >= int(unsafe.Sizeof(rtaCacheinfo{})) {
				expires = (*rtaCacheinfo)(unsafe.Pointer(&v[0])).Expires != 0
			}
		}
	}
	if !r.next.IsValid() {
		return r, false, unix.EBADMSG
	}
	return r, expires, nil
}

// routeRelevant tells whether a route may be that of a tunnel: one by an uplink,
// or by no interface of its own (several next hops, a prohibition).
func (u *Underlay) routeRelevant(body []byte) bool {
	if len(body) < unix.SizeofRtMsg {
		return true
	}
	for typ, v := range rtnl.Attrs(body[unix.SizeofRtMsg:]) {
		if typ == unix.RTA_OIF {
			return u.isUplink(int(rtnl.Uint32(v)))
		}
	}
	return true
}

// isUplink reports whether the index is, or was when last looked up, that of a
// way. The route that makes a new one usable comes with its address or its state.
func (u *Underlay) isUplink(index int) bool {
	if index == loopback {
		return true
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	l, err := u.conn.Link(index, "")
	return err != nil || u.uplinks[l.Name]
}
