package underlay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
	"trellis/internal/tunnel"
)

// Interface is an uplink's interface as it is.
type Interface struct {
	Name     string
	Index    int // 0: there is none of the name
	Up       bool
	Carrier  bool
	Ethernet bool
	MTU      int          // bytes of the IP packet
	Addrs    []netip.Addr // usable by others than its neighbours; IPv4 first, in the kernel's order
}

func (i Interface) same(o Interface) bool {
	return i.Index == o.Index && i.Up == o.Up && i.Carrier == o.Carrier && i.MTU == o.MTU && slices.Equal(i.Addrs, o.Addrs)
}

// Interfaces gives the interfaces of the uplinks, by name, as last looked at;
// one that is not there too.
func (u *Underlay) Interfaces() map[string]Interface {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make(map[string]Interface, len(u.interfaces))
	for name, i := range u.interfaces {
		all[name] = i
	}
	return all
}

// IsLocal reports whether an address is the machine's own.
func (u *Underlay) IsLocal(a netip.Addr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.isLocal(a)
}

func (u *Underlay) isLocal(a netip.Addr) bool {
	_, _, err := u.lookUp(tunnel.Endpoints{Remote: a}, 0)
	return errors.Is(err, errLocal)
}

// localWithin bounds what Open waits for addresses to become the machine's own.
const localWithin = time.Second

// inspect looks at the interfaces of the uplinks, and tells whether an address is
// not the machine's own yet: the kernel shows an IPv6 address as soon as it is added,
// and takes packets for it when a work queue has got to it, duplicates looked for
// or not (addrconf_dad_work, net/ipv6/addrconf.c). Such a one is left out.
func (u *Underlay) inspect() (all map[string]Interface, pending bool, err error) {
	all = make(map[string]Interface, len(u.uplinks))
	for name := range u.uplinks {
		l, err := u.conn.Link(0, name)
		switch {
		case errors.Is(err, unix.ENODEV):
			all[name] = Interface{Name: name}
			continue
		case err != nil:
			return nil, false, fmt.Errorf("look at the interface %s: %w", name, err)
		}
		i := Interface{Name: name, Index: l.Index, Up: l.Up(), Carrier: l.Carrier(), Ethernet: l.Type == unix.ARPHRD_ETHER, MTU: l.MTU}
		if i.Addrs, err = u.addresses(l.Index); err != nil {
			return nil, false, fmt.Errorf("read the addresses of %s: %w", name, err)
		}
		if i.Up {
			i.Addrs = slices.DeleteFunc(i.Addrs, func(a netip.Addr) bool {
				later := a.Is6() && !u.isLocal(a)
				pending = pending || later
				return later
			})
		}
		all[name] = i
	}
	return all, pending, nil
}

// addresses reads the addresses of an interface that packets can be sent from.
func (u *Underlay) addresses(index int) (addrs []netip.Addr, err error) {
	const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY
	h := unix.IfAddrmsg{Index: uint32(index)}
	err = u.conn.Dump(unix.RTM_GETADDR, rtnl.Header(&h), nil, func() { addrs = addrs[:0] }, func(body []byte) error {
		if len(body) < unix.SizeofIfAddrmsg {
			return nil
		}
		h := (*unix.IfAddrmsg)(unsafe.Pointer(&body[0]))
		flags := uint32(h.Flags)
		var local, addr netip.Addr
		for typ, v := range rtnl.Attrs(body[unix.SizeofIfAddrmsg:]) {
			switch typ {
			case unix.IFA_LOCAL:
				local, _ = netip.AddrFromSlice(v)
			case unix.IFA_ADDRESS:
				addr, _ = netip.AddrFromSlice(v)
			case unix.IFA_FLAGS:
				flags = rtnl.Uint32(v)
			}
		}
		if local.IsValid() {
			addr = local
		}
		if int(h.Index) != index || !addr.IsValid() || h.Scope != unix.RT_SCOPE_UNIVERSE || addr.Is6() && flags&unusable != 0 {
			return nil
		}
		addrs = append(addrs, addr)
		return nil
	})
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) })
	return addrs, err
}
