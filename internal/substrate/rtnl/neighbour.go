package rtnl

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Attributes and flags of neighbours that golang.org/x/sys lacks
// (linux/neighbour.h).
const (
	NDAProtocol = 12
	NDAFlagsExt = 15
	ExtManaged  = 1 << 0 // NTF_EXT_MANAGED, in NDAFlagsExt
)

// Neighbour is an entry of the kernel's neighbour table.
type Neighbour struct {
	Index    int // of the interface
	Addr     netip.Addr
	State    uint16 // NUD_*
	MAC      [6]byte
	Managed  bool  // the kernel keeps it resolved
	Protocol uint8 // who has placed it
}

// ndMsg is struct ndmsg.
type ndMsg struct {
	Family      uint8
	_           uint8
	_           uint16
	Index       int32
	State       uint16
	Flags, Type uint8
}

// NeighbourHeader gives the fixed header of a neighbour message. flags are NTF_*.
func NeighbourHeader(family uint8, index int, flags uint8) []byte {
	m := ndMsg{Family: family, Index: int32(index), Flags: flags}
	return Header(&m)
}

// ParseNeighbour reads the body of a neighbour message; false if it is not about
// an IP address.
func ParseNeighbour(body []byte) (n Neighbour, ok bool) {
	if len(body) < int(unsafe.Sizeof(ndMsg{})) {
		return n, false
	}
	h := (*ndMsg)(unsafe.Pointer(&body[0]))
	n.Index, n.State = int(h.Index), h.State
	for typ, v := range Attrs(body[unsafe.Sizeof(ndMsg{}):]) {
		switch typ {
		case unix.NDA_DST:
			n.Addr, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			copy(n.MAC[:], v)
		case NDAProtocol:
			if len(v) == 1 {
				n.Protocol = v[0]
			}
		case NDAFlagsExt:
			n.Managed = Uint32(v)&ExtManaged != 0
		}
	}
	return n, n.Addr.IsValid() && (h.Family == unix.AF_INET || h.Family == unix.AF_INET6)
}

// Family gives the address family of an address, AF_INET or AF_INET6.
func Family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
