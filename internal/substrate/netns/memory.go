package netns

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// Memory is what the kernel holds for a network namespace, in bytes, that no cgroup is
// charged with.
type Memory struct {
	Queues    int64 // packets in queueing disciplines
	Netlink   int64 // messages in netlink sockets that nobody has read yet
	Packets   int64 // packets in packet sockets that nobody has read yet
	Fragments int64 // fragments of packets whose others have not arrived
	Routes    int64 // IPv6 routes, beyond freeRoutes
	// Neighbours are the entries of ARP and neighbour discovery, Forwarding those of
	// bridges and VXLAN devices.
	Neighbours, Forwarding int64
	Devices                int64 // queues of devices
	Classes                int64 // of queueing disciplines
	Nexthops               int64 // nexthop objects, and ways of IPv4 routes
	// Resolved counts the neighbours that take a place in the tables that all
	// namespaces share: not those that are permanent.
	Resolved int
}

// Sum is all of it.
func (m Memory) Sum() int64 {
	return m.Queues + m.Netlink + m.Packets + m.Fragments + m.Routes + m.Neighbours + m.Forwarding + m.Devices + m.Classes + m.Nexthops
}

// What the kernel takes for things, in bytes. The last five are by what the slabs grew,
// without what a cgroup was charged with, for 10,000s of each on Linux 6.18.
const (
	packetHead     = 256 // struct sk_buff
	packetTail     = 384 // headroom and struct skb_shared_info, beside the data
	ipv6RouteSize  = 512 // struct fib6_info and its nexthop
	neighbourSize  = 512 // struct neighbour, in a slab of powers of two
	forwardingSize = 160 // struct net_bridge_fdb_entry and its place in the hash; of VXLAN's 290
	queueSize      = 640 // struct netdev_queue or netdev_rx_queue with its directory in sysfs
	classSize      = 3200
	nexthopSize    = 352
	waySize        = 272 // struct fib_info: what IPv4 routes share that differ in their prefix alone
)

// freeRoutes is what IPv6 routes may take in any namespace, in bytes: a part of it is
// charged to a cgroup, and whole tables of the Internet are an honest use.
const freeRoutes = 64 << 20

// mostWays bounds how many ways are told from each other.
const mostWays = 1 << 20

// packetMemory is what packets take that have so many bytes together: the data of each
// lies in a slab of the next power of two (kmalloc).
func packetMemory(packets, bytes int64) int64 {
	if packets <= 0 {
		return bytes
	}
	slab := int64(512)
	for slab < bytes/packets+packetTail && slab < 1<<20 {
		slab *= 2
	}
	return packets * (slab + packetHead)
}

// Memory reads what the namespace takes, until it is known to be more than enough,
// in bytes. It costs time in the number of its devices and of the entries that are
// counted, and in that of the neighbours and netlink sockets of the whole machine.
func (n *NS) Memory(enough int64) (m Memory, err error) {
	var prefixes int64
	err = n.Do(func() error {
		for _, read := range []struct {
			file string
			into func([]byte)
		}{
			{"netlink", func(b []byte) { m.Netlink = sumColumn(b, "Rmem") }},
			{"packet", func(b []byte) { m.Packets = sumColumn(b, "Rmem") }},
			{"sockstat", func(b []byte) { m.Fragments += fragments(b) }},
			{"sockstat6", func(b []byte) { m.Fragments += fragments(b) }},
			{"fib_triestat", func(b []byte) { prefixes = ipv4Prefixes(b) }},
			{"rt6_stats", func(b []byte) { m.Routes = max(0, ipv6Routes(b)*ipv6RouteSize-freeRoutes) }},
		} {
			b, err := os.ReadFile("/proc/thread-self/net/" + read.file)
			if errors.Is(err, fs.ErrNotExist) {
				continue // a kernel without IPv6
			}
			if err != nil {
				return err
			}
			read.into(b)
		}
		c, err := rtnl.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		return m.count(c, prefixes, enough)
	})
	if err != nil && !errors.Is(err, errEnough) {
		return Memory{}, fmt.Errorf("read what the kernel holds for a node: %w", err)
	}
	return m, nil
}

// sumColumn sums a column of a table of /proc/net, by its head.
func sumColumn(table []byte, column string) (sum int64) {
	at := -1
	for line := range bytes.Lines(table) {
		f := bytes.Fields(line)
		if at < 0 {
			for i, name := range f {
				if string(name) == column {
					at = i
				}
			}
			if at < 0 {
				return 0
			}
			continue
		}
		if at < len(f) {
			if v, err := strconv.ParseInt(string(f[at]), 10, 64); err == nil && v > 0 {
				sum += v
			}
		}
	}
	return sum
}

// fragments reads the line "FRAG: inuse 0 memory 0" of /proc/net/sockstat, or that of
// sockstat6.
func fragments(b []byte) int64 {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 5 && bytes.HasPrefix(f[0], []byte("FRAG")) {
			if v, err := strconv.ParseInt(string(f[4]), 10, 64); err == nil && v > 0 {
				return v
			}
		}
	}
	return 0
}

// ipv6Routes reads the fourth number of /proc/net/rt6_stats (rt6_stats_seq_show in
// net/ipv6/route.c), which is hexadecimal.
func ipv6Routes(b []byte) int64 {
	f := bytes.Fields(b)
	if len(f) < 4 {
		return 0
	}
	v, err := strconv.ParseInt(string(f[3]), 16, 64)
	if err != nil || v < 0 {
		return 0
	}
	return v
}

// errEnough ends the counting.
var errEnough = errors.New("it is more than enough")

// count adds what route netlink tells, until the sum is more than enough: errEnough,
// with the socket amid a dump. Dumps are read once, since a node that changes its
// tables all the time would have none end as it began.
// prefixes is how many of IPv4 there are.
func (m *Memory) count(c *rtnl.Conn, prefixes, enough int64) error {
	dump := func(typ uint16, header []byte, each func(body []byte)) error {
		err := c.DumpOnce(typ, header, func(body []byte) error {
			each(body)
			if m.Sum() > enough {
				return errEnough
			}
			return nil
		})
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENODEV) {
			return nil // a kernel without such a table; a device that has gone
		}
		return err
	}
	// What waits in a class waits in its parents, too.
	byDevice := map[int32]int64{}
	var withClasses []int32
	all := tcMsg{}
	if err := dump(unix.RTM_GETQDISC, rtnl.Header(&all), func(body []byte) {
		q, ok := parseQueue(body)
		if !ok {
			return
		}
		if q.size > byDevice[q.device] {
			m.Queues += q.size - byDevice[q.device]
			byDevice[q.device] = q.size
		}
		if q.classes && !slices.Contains(withClasses, q.device) {
			withClasses = append(withClasses, q.device)
		}
	}); err != nil {
		return err
	}
	if err := dump(unix.RTM_GETLINK, rtnl.LinkHeader(0, 0, 0), func(body []byte) { m.Devices += deviceQueues(body) * queueSize }); err != nil {
		return err
	}
	if err := dump(unix.RTM_GETNEIGH, rtnl.NeighbourHeader(unix.AF_UNSPEC, 0, 0), func(body []byte) {
		if n, ok := rtnl.ParseNeighbour(body); ok {
			m.Neighbours += neighbourSize
			if n.State&unix.NUD_PERMANENT == 0 {
				m.Resolved++
			}
		}
	}); err != nil {
		return err
	}
	if err := dump(unix.RTM_GETNEIGH, rtnl.NeighbourHeader(unix.AF_BRIDGE, 0, 0), func([]byte) { m.Forwarding += forwardingSize }); err != nil {
		return err
	}
	if err := dump(unix.RTM_GETNEXTHOP, rtnl.Header(&nhMsg{}), func([]byte) { m.Nexthops += nexthopSize }); err != nil {
		return err
	}
	if prefixes*waySize > enough-m.Sum() { // there may be as many ways, and they matter
		seen := map[uint64]bool{}
		seed := maphash.MakeSeed()
		if err := dump(unix.RTM_GETROUTE, rtnl.Header(&rtMsg{Family: unix.AF_INET}), func(body []byte) {
			if way := wayOf(seed, body); !seen[way] && len(seen) < mostWays {
				seen[way] = true
				m.Nexthops += waySize
			}
		}); err != nil {
			return err
		}
	}
	for _, device := range withClasses {
		if err := dump(unix.RTM_GETTCLASS, rtnl.Header(&tcMsg{Index: device}), func([]byte) { m.Classes += classSize }); err != nil {
			return err
		}
	}
	return nil
}

// rtMsg is struct rtmsg.
type rtMsg struct {
	Family, DstLen, SrcLen, TOS, Table, Protocol, Scope, Type uint8
	Flags                                                     uint32
}

// wayOf gives what tells the struct fib_info of a route from others' (fib_find_info in
// net/ipv4/fib_semantics.c), by a message about the route: all but the prefix.
func wayOf(seed maphash.Seed, body []byte) uint64 {
	if len(body) < unix.SizeofRtMsg {
		return 0
	}
	var h maphash.Hash
	h.SetSeed(seed)
	h.Write(body[5:8]) // protocol, scope, type
	for typ, v := range rtnl.Attrs(body[unix.SizeofRtMsg:]) {
		if typ != unix.RTA_DST && typ != unix.RTA_CACHEINFO {
			h.WriteByte(byte(typ))
			h.Write(v)
		}
	}
	return h.Sum64()
}

// ipv4Prefixes reads how many prefixes the tables of IPv4 hold, from
// /proc/net/fib_triestat (trie_show_stats in net/ipv4/fib_trie.c).
func ipv4Prefixes(b []byte) (n int64) {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 2 && string(f[0]) == "Prefixes:" {
			if v, err := strconv.ParseInt(string(f[1]), 10, 64); err == nil && v > 0 {
				n += v
			}
		}
	}
	return n
}

// nhMsg is struct nhmsg (linux/nexthop.h).
type nhMsg struct {
	Family, Scope, Protocol, _ uint8
	Flags                      uint32
}

// deviceQueues reads how many queues a device has, from a message about it.
func deviceQueues(body []byte) (n int64) {
	if len(body) < unix.SizeofIfInfomsg {
		return 0
	}
	for typ, v := range rtnl.Attrs(body[unix.SizeofIfInfomsg:]) {
		if (typ == unix.IFLA_NUM_TX_QUEUES || typ == unix.IFLA_NUM_RX_QUEUES) && len(v) == 4 {
			n += int64(rtnl.Uint32(v))
		}
	}
	return n
}

// queue is what a message about a queueing discipline says: the device, the memory of
// what waits, and whether it is of a kind that may have any number of classes.
type queue struct {
	device  int32
	size    int64
	classes bool
}

// parseQueue reads a message about a queueing discipline.
func parseQueue(body []byte) (q queue, ok bool) {
	if len(body) < int(unsafe.Sizeof(tcMsg{})) {
		return q, false
	}
	q.device = (*tcMsg)(unsafe.Pointer(&body[0])).Index
	for typ, v := range rtnl.Attrs(body[unsafe.Sizeof(tcMsg{}):]) {
		switch typ {
		case unix.TCA_KIND:
			q.classes = slices.Contains(classful, rtnl.Text(v))
		case unix.TCA_STATS2:
			for typ, v := range rtnl.Attrs(v) {
				if typ == tcaStatsQueue && len(v) >= 8 { // struct gnet_stats_queue: packets, bytes, …
					q.size = max(q.size, packetMemory(int64(rtnl.Uint32(v)), int64(rtnl.Uint32(v[4:]))))
				}
			}
		}
	}
	return q, true
}

// classful are the queueing disciplines whose classes are the user's to make.
var classful = []string{"htb", "hfsc", "drr", "qfq", "cbq"}

// tcaStatsQueue is TCA_STATS_QUEUE (linux/gen_stats.h).
const tcaStatsQueue = 3
