package netns

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	Routes    int64 // IPv6 routes
}

// Sum is all of it.
func (m Memory) Sum() int64 { return m.Queues + m.Netlink + m.Packets + m.Fragments + m.Routes }

// What the kernel takes for things, in bytes.
const (
	packetHead    = 256 // struct sk_buff
	packetTail    = 384 // headroom and struct skb_shared_info, beside the data
	ipv6RouteSize = 512 // struct fib6_info and its nexthop
)

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

// Memory reads what the namespace takes. It costs time in the number of its devices,
// and in that of the netlink sockets of the whole machine.
func (n *NS) Memory() (m Memory, err error) {
	err = n.Do(func() error {
		for _, read := range []struct {
			file string
			into func([]byte)
		}{
			{"netlink", func(b []byte) { m.Netlink = sumColumn(b, "Rmem") }},
			{"packet", func(b []byte) { m.Packets = sumColumn(b, "Rmem") }},
			{"sockstat", func(b []byte) { m.Fragments += fragments(b) }},
			{"sockstat6", func(b []byte) { m.Fragments += fragments(b) }},
			{"rt6_stats", func(b []byte) { m.Routes = ipv6Routes(b) * ipv6RouteSize }},
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
		m.Queues, err = queued(c)
		return err
	})
	if err != nil {
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

// queued sums what waits in the queueing disciplines of a namespace's devices. What
// waits in a class waits in its parents, too.
func queued(c *rtnl.Conn) (sum int64, err error) {
	byDevice := map[int32]int64{}
	h := tcMsg{}
	err = c.Dump(unix.RTM_GETQDISC, rtnl.Header(&h), nil, func() { clear(byDevice) }, func(body []byte) error {
		if index, bytes, ok := parseQueued(body); ok {
			byDevice[index] = max(byDevice[index], bytes)
		}
		return nil
	})
	for _, n := range byDevice {
		sum += n
	}
	return sum, err
}

// parseQueued reads a message about a queueing discipline: the device, and the memory of
// what waits.
func parseQueued(body []byte) (device int32, size int64, ok bool) {
	if len(body) < int(unsafe.Sizeof(tcMsg{})) {
		return 0, 0, false
	}
	device = (*tcMsg)(unsafe.Pointer(&body[0])).Index
	for typ, v := range rtnl.Attrs(body[unsafe.Sizeof(tcMsg{}):]) {
		if typ != unix.TCA_STATS2 {
			continue
		}
		for typ, v := range rtnl.Attrs(v) {
			if typ == tcaStatsQueue && len(v) >= 8 { // struct gnet_stats_queue: packets, bytes, …
				size = max(size, packetMemory(int64(rtnl.Uint32(v)), int64(rtnl.Uint32(v[4:]))))
			}
		}
	}
	return device, size, true
}

// tcaStatsQueue is TCA_STATS_QUEUE (linux/gen_stats.h).
const tcaStatsQueue = 3
