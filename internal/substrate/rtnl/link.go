package rtnl

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Link is what the kernel says of a network device.
type Link struct {
	Index  int
	Flags  uint32 // IFF_*
	Name   string
	Alias  string
	Kind   string // "veth", "bridge", …; empty for hardware and lo
	Qdisc  string
	Group  uint32
	MTU    int
	Master int // interface index; 0: none
	Peer   int // of a veth, the other end; of a VLAN and the like, the device below (IFLA_LINK): interface index in its namespace; 0: none
	MAC    [6]byte
	Type   uint16 // ARPHRD_*
	// PeerElsewhere: the peer, or the device below, lies in another network namespace.
	PeerElsewhere bool
	// Isolated, of a bridge's port: it exchanges no frame with other such ports.
	Isolated bool
}

// Up reports whether the device is set up, with or without carrier.
func (l *Link) Up() bool { return l.Flags&unix.IFF_UP != 0 }

// Carrier reports whether the device is up and has a carrier.
func (l *Link) Carrier() bool { return l.Flags&unix.IFF_LOWER_UP != 0 && l.Up() }

// LinkHeader gives the fixed header of a link message. flags are IFF_* to be
// set as given where change has a bit.
func LinkHeader(index int, flags, change uint32) []byte {
	m := unix.IfInfomsg{Family: unix.AF_UNSPEC, Index: int32(index), Flags: flags, Change: change}
	return Header(&m)
}

// Header gives the bytes of a netlink header struct.
func Header[T any](m *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(m)), unsafe.Sizeof(*m))
}

// Links dumps the devices of the socket's network namespace, without their
// counters. In a namespace with the ends of many veth pairs this is expensive: for
// each device whose peer lies in another namespace the kernel looks that one's id
// up linearly (peernet2id), so the cost grows with pairs times namespaces.
func (c *Conn) Links() ([]Link, error) {
	var links []Link
	var mask Batch
	mask.Uint32(unix.IFLA_EXT_MASK, filterSkipStats)
	err := c.Dump(unix.RTM_GETLINK, LinkHeader(0, 0, 0), mask.buf,
		func() { links = links[:0] },
		func(body []byte) error {
			links = append(links, ParseLink(body))
			return nil
		})
	return links, err
}

// Link reads one device by its index or, where that is 0, by its name. That
// there is none is ENODEV.
func (c *Conn) Link(index int, name string) (Link, error) {
	var b Batch
	b.Begin(unix.RTM_GETLINK, 0, LinkHeader(index, 0, 0))
	if index == 0 {
		b.String(unix.IFLA_IFNAME, name)
	}
	body, err := c.Get(&b)
	if err != nil {
		return Link{}, err
	}
	return ParseLink(body), nil
}

// filterSkipStats is RTEXT_FILTER_SKIP_STATS (linux/rtnetlink.h, kernel 5.11,
// commit 7e4a8d5a93f6): no counters, a third of a message.
const filterSkipStats = 1 << 3

// LinksNamed reads those of the devices that exist, by name, in one go.
func (c *Conn) LinksNamed(names ...string) (map[string]Link, error) {
	links := make(map[string]Link, len(names))
	var b Batch
	for len(names) > 0 {
		// Each answer waits in the socket's buffer.
		n := min(len(names), answersAtOnce)
		b.Reset()
		for _, name := range names[:n] {
			b.Begin(unix.RTM_GETLINK, 0, LinkHeader(0, 0, 0))
			b.Uint32(unix.IFLA_EXT_MASK, filterSkipStats)
			b.String(unix.IFLA_IFNAME, name)
		}
		failed, err := c.execute(&b, func(_ int, body []byte) {
			l := ParseLink(body)
			links[l.Name] = l
		})
		if err != nil {
			return nil, err
		}
		for _, f := range failed {
			if !errors.Is(f.Err, unix.ENODEV) {
				return nil, fmt.Errorf("read the device %s: %w", names[f.Index], f.Err)
			}
		}
		names = names[n:]
	}
	return links, nil
}

// Names gives the interface index of each device by name.
func (c *Conn) Names() (map[string]int, error) {
	links, err := c.Links()
	if err != nil {
		return nil, err
	}
	names := make(map[string]int, len(links))
	for i := range links {
		names[links[i].Name] = links[i].Index
	}
	return names, nil
}

// ParseLink reads the body of a link message.
func ParseLink(body []byte) Link {
	if len(body) < unix.SizeofIfInfomsg {
		return Link{}
	}
	h := (*unix.IfInfomsg)(unsafe.Pointer(&body[0]))
	l := Link{Index: int(h.Index), Flags: h.Flags, Type: h.Type}
	for typ, v := range Attrs(body[unix.SizeofIfInfomsg:]) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = Text(v)
		case unix.IFLA_IFALIAS:
			l.Alias = Text(v)
		case unix.IFLA_QDISC:
			l.Qdisc = Text(v)
		case unix.IFLA_GROUP:
			l.Group = Uint32(v)
		case unix.IFLA_MTU:
			l.MTU = int(Uint32(v))
		case unix.IFLA_LINK:
			l.Peer = int(Uint32(v))
		case unix.IFLA_LINK_NETNSID:
			l.PeerElsewhere = true
		case unix.IFLA_MASTER:
			l.Master = int(Uint32(v))
		case unix.IFLA_ADDRESS:
			copy(l.MAC[:], v)
		case unix.IFLA_LINKINFO:
			for typ, v := range Attrs(v) {
				switch typ {
				case unix.IFLA_INFO_KIND:
					l.Kind = Text(v)
				case unix.IFLA_INFO_SLAVE_DATA:
					l.slave(v)
				}
			}
		}
	}
	return l
}

// slave reads what a bridge says of its port. Other masters' attributes of that
// number are of no interest: Trellis asks of its own bridges' ports alone.
func (l *Link) slave(v []byte) {
	for typ, v := range Attrs(v) {
		if typ == unix.IFLA_BRPORT_ISOLATED {
			l.Isolated = len(v) == 1 && v[0] != 0
		}
	}
}
