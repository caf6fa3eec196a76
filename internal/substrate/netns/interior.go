package netns

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
	"trellis/internal/vnet"
)

// loopback is the name of every namespace's first device.
const loopback = "lo"

// ifaProto is IFA_PROTO (linux/if_addr.h).
const ifaProto = 11

// Interface is an interface of a node.
type Interface struct {
	Name  string
	Index int // as read; Configure goes by the name
	MAC   vnet.MAC
	MTU   int // of the IP packet, bytes
	Up    bool
	// Enslaved, as read: it is a port of a bridge, bond or VRF of the tenant's.
	Enslaved bool
	Addrs    []netip.Prefix // sorted; those that Trellis placed
	// Sysctls are those that Configure sets, by name; never read.
	Sysctls map[string]string
}

// Interior is the inside of a node, as far as Trellis sets it.
type Interior struct {
	Interfaces []Interface    // sorted by name, without lo
	Loopbacks  []netip.Prefix // sorted; addresses of lo that Trellis placed
}

// Read gives the interior as it is: all interfaces, and the addresses that
// Trellis placed. The tenant's own addresses are the tenant's business.
func (n *NS) Read() (Interior, error) {
	c, err := n.dial()
	if err != nil {
		return Interior{}, err
	}
	defer c.Close()
	i, err := inspect(c)
	if err != nil {
		return Interior{}, err
	}
	return i.interior(), nil
}

// address is one address of an interface.
type address struct {
	index  int
	prefix netip.Prefix
	ours   bool
}

// inside is what a namespace holds, of which an Interior is a view.
type inside struct {
	links     []rtnl.Link
	addresses []address
}

func inspect(c *rtnl.Conn) (*inside, error) {
	links, err := c.Links()
	if err != nil {
		return nil, fmt.Errorf("read a node's interfaces: %w", err)
	}
	i := &inside{links: links}
	h := unix.IfAddrmsg{}
	err = c.Dump(unix.RTM_GETADDR, rtnl.Header(&h), nil,
		func() { i.addresses = i.addresses[:0] },
		func(body []byte) error {
			if a, ok := parseAddress(body); ok {
				i.addresses = append(i.addresses, a)
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read a node's addresses: %w", err)
	}
	return i, nil
}

func parseAddress(body []byte) (a address, ok bool) {
	if len(body) < unix.SizeofIfAddrmsg {
		return a, false
	}
	h := (*unix.IfAddrmsg)(unsafe.Pointer(&body[0]))
	a.index = int(h.Index)
	var local, addr netip.Addr
	for typ, v := range rtnl.Attrs(body[unix.SizeofIfAddrmsg:]) {
		switch typ {
		case unix.IFA_LOCAL: // IPv4: this end's, where ADDRESS may be the peer's
			local, _ = netip.AddrFromSlice(v)
		case unix.IFA_ADDRESS:
			addr, _ = netip.AddrFromSlice(v)
		case ifaProto:
			a.ours = len(v) == 1 && v[0] == Protocol
		}
	}
	if local.IsValid() {
		addr = local
	}
	a.prefix = netip.PrefixFrom(addr, int(h.Prefixlen))
	return a, a.prefix.IsValid()
}

func (i *inside) interior() Interior {
	var in Interior
	for k := range i.links {
		l := &i.links[k]
		var addrs []netip.Prefix
		for _, a := range i.addresses {
			if a.index == l.Index && a.ours {
				addrs = append(addrs, a.prefix)
			}
		}
		slices.SortFunc(addrs, netip.Prefix.Compare)
		if l.Name == loopback {
			in.Loopbacks = addrs
			continue
		}
		in.Interfaces = append(in.Interfaces, Interface{Name: l.Name, Index: l.Index, MAC: l.MAC, MTU: l.MTU, Up: l.Up(), Enslaved: l.Master != 0, Addrs: addrs})
	}
	slices.SortFunc(in.Interfaces, func(a, b Interface) int { return cmp.Compare(a.Name, b.Name) })
	return in
}
