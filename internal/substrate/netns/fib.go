package netns

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// FIB is a copy of a node's main routing table, both families, made by whatever
// means: what says whether a packet would leave.
type FIB struct {
	v4, v6 []fibEntry // sorted: longer prefixes first, then by address, then by metric
	routes int        // usable
}

// fibEntry is one route, without what Covers does not ask about.
type fibEntry struct {
	hi, lo uint64 // address, masked; IPv4 in the upper half of hi
	metric uint32
	bits   uint8
	usable bool // unicast; else it rejects
}

// FIB reads the main table in both families: the routes that can be used, and
// those that reject. A unicast route whose next hops are all dead, or leave by
// interfaces without carrier, is as good as none.
func (n *NS) FIB() (*FIB, error) {
	c, err := n.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	f := &FIB{}
	for family, table := range map[uint8]*[]fibEntry{unix.AF_INET: &f.v4, unix.AF_INET6: &f.v6} {
		h := unix.RtMsg{Family: family, Table: unix.RT_TABLE_MAIN}
		err := c.Dump(unix.RTM_GETROUTE, rtnl.Header(&h), nil,
			func() { *table = (*table)[:0] },
			func(body []byte) error {
				if e, ok := parseFIBEntry(body, family); ok {
					*table = append(*table, e)
				}
				return nil
			})
		if err != nil {
			return nil, fmt.Errorf("read a node's FIB: %w", err)
		}
		slices.SortFunc(*table, fibEntry.compare)
		for i := range *table {
			if (*table)[i].usable {
				f.routes++
			}
		}
	}
	return f, nil
}

// Len gives the number of usable routes.
func (f *FIB) Len() int { return f.routes }

// Covers reports whether a packet to a has a route, by longest prefix, then by
// lowest metric: one that rejects (blackhole, unreachable, prohibit, throw)
// covers nothing, nor does what it hides.
func (f *FIB) Covers(a netip.Addr) bool {
	a = a.Unmap()
	table, key := f.v6, fibEntry{}
	if a.Is4() {
		table = f.v4
		key.set(a.AsSlice())
	} else {
		b := a.As16()
		key.set(b[:])
	}
	for i := 0; i < len(table); {
		// One binary search for each prefix length in use.
		bits := table[i].bits
		k := key.masked(bits)
		at, found := slices.BinarySearchFunc(table[i:], k, fibEntry.comparePrefix)
		if found {
			return table[i+at].usable
		}
		rest, _ := slices.BinarySearchFunc(table[i:], bits, func(e fibEntry, bits uint8) int {
			if e.bits >= bits {
				return -1
			}
			return 1
		})
		i += rest
	}
	return false
}

// set stores an address in network order.
func (e *fibEntry) set(addr []byte) {
	switch len(addr) {
	case 4:
		e.hi = uint64(binary.BigEndian.Uint32(addr)) << 32
	case 16:
		e.hi, e.lo = binary.BigEndian.Uint64(addr), binary.BigEndian.Uint64(addr[8:])
	}
}

// masked gives the prefix of a length that e's address lies in. (Go's shifts
// by 64 and more give 0.)
func (e fibEntry) masked(bits uint8) fibEntry {
	e.bits = bits
	if bits <= 64 {
		e.hi, e.lo = e.hi&^(^uint64(0)>>bits), 0
	} else {
		e.lo &^= ^uint64(0) >> (bits - 64)
	}
	return e
}

func (e fibEntry) comparePrefix(o fibEntry) int {
	switch {
	case e.bits != o.bits:
		return int(o.bits) - int(e.bits)
	case e.hi != o.hi:
		return order(e.hi, o.hi)
	}
	return order(e.lo, o.lo)
}

func (e fibEntry) compare(o fibEntry) int {
	if c := e.comparePrefix(o); c != 0 {
		return c
	}
	return order(uint64(e.metric), uint64(o.metric))
}

func order(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// parseFIBEntry reads a route of the main table without leaving garbage: there
// may be a million.
func parseFIBEntry(body []byte, family uint8) (e fibEntry, ok bool) {
	if len(body) < unix.SizeofRtMsg {
		return e, false
	}
	h := (*unix.RtMsg)(unsafe.Pointer(&body[0]))
	if h.Family != family || h.Table != unix.RT_TABLE_MAIN || h.Flags&unix.RTM_F_CLONED != 0 {
		return e, false
	}
	e.bits = h.Dst_len
	alive := h.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) == 0
	for typ, v := range rtnl.Attrs(body[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_DST:
			e.set(v)
		case unix.RTA_PRIORITY:
			e.metric = rtnl.Uint32(v)
		case unix.RTA_MULTIPATH:
			alive = false
			for nh := range nexthops(v) {
				alive = alive || nh.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) == 0
			}
		}
	}
	switch h.Type {
	case unix.RTN_UNICAST:
		e.usable = true
		return e, alive // the kernel passes over dead routes, to shorter prefixes too
	case unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		return e, true
	}
	return e, false
}

// nexthops iterates over the hops of an RTA_MULTIPATH attribute.
func nexthops(v []byte) iter.Seq2[*unix.RtNexthop, []byte] {
	return func(yield func(*unix.RtNexthop, []byte) bool) {
		for len(v) >= unix.SizeofRtNexthop {
			nh := (*unix.RtNexthop)(unsafe.Pointer(&v[0]))
			size := int(nh.Len)
			if size < unix.SizeofRtNexthop || size > len(v) || !yield(nh, v[unix.SizeofRtNexthop:size]) {
				return
			}
			v = v[min((size+3)&^3, len(v)):]
		}
	}
}
