package netns

import (
	"fmt"
	"hash/maphash"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
	"trellis/test/testenv"
)

func TestSumColumn(t *testing.T) {
	const table = "sk               Eth Pid        Groups   Rmem     Wmem\n000000008fa618d9 0   0          00000000 100      7\n00000000560b0d4d 4   0          00000000 23        0\n"
	for column, want := range map[string]int64{"Rmem": 123, "Wmem": 7, "none": 0} {
		if got := sumColumn([]byte(table), column); got != want {
			t.Errorf("%s: %d, want %d", column, got, want)
		}
	}
	if got := fragments([]byte("RAW6: inuse 0\nFRAG6: inuse 2 memory 4711\n")); got != 4711 {
		t.Errorf("fragments take %d", got)
	}
	if got := ipv6Routes([]byte("0009 0006 000f 00ff 0000 0000 0002\n")); got != 255 {
		t.Errorf("%d routes", got)
	}
}

func FuzzMemoryTables(f *testing.F) {
	f.Add([]byte("sk Rmem\n1 2\n"), []byte{})
	f.Add([]byte("FRAG: inuse 0 memory 0\n"), make([]byte, 24))
	f.Fuzz(func(t *testing.T, table, message []byte) {
		for _, n := range []int64{fragments(table), ipv6Routes(table)} {
			if n < 0 {
				t.Errorf("%q: %d", table, n)
			}
		}
		sumColumn(table, "Rmem")
		parseQueue(message)
		deviceQueues(message)
		wayOf(maphash.MakeSeed(), message)
		if n := ipv4Prefixes(table); n < 0 {
			t.Errorf("%q: %d prefixes", table, n)
		}
	})
}

// TestMemory has the kernel hold things for a namespace: packets that are shaped, or that
// nobody reads, and messages that nobody reads.
func TestMemory(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "makes a network namespace")
	testenv.NeedCommand(t, "tc")
	space := testenv.NewNetNS(t)
	n := &NS{fd: space.FD()}
	before, err := n.Memory(math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	space.IPBatch(t, "link add v0 type veth peer name v1", "link set v0 up", "link set v1 up")
	testenv.Run(t, space.Command("tc", "qdisc", "add", "dev", "v0", "root", "tbf", "rate", "8kbit", "burst", "1600", "limit", "100000000"))
	var sockets []int
	t.Cleanup(func() {
		for _, fd := range sockets {
			unix.Close(fd)
		}
	})
	const frames = 2000
	if err := space.Do(func() error {
		c, err := rtnl.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		v0, err := c.Link(0, "v0")
		if err != nil {
			return err
		}
		v1, err := c.Link(0, "v1")
		if err != nil {
			return err
		}
		reader, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0x0300) // ETH_P_ALL
		if err != nil {
			return err
		}
		sockets = append(sockets, reader)
		listener, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		sockets = append(sockets, listener)
		if err := unix.Bind(listener, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1}); err != nil { // RTMGRP_LINK
			return err
		}
		for i := range 20 {
			var b rtnl.Batch
			b.Begin(unix.RTM_SETLINK, 0, rtnl.LinkHeader(v1.Index, 0, 0))
			b.Uint32(unix.IFLA_MTU, uint32(1400+i))
			if _, err := c.Execute(&b); err != nil {
				return err
			}
		}
		frame := make([]byte, 1000)
		copy(frame, "\x02\x02\x02\x02\x02\x02\x02\x00\x00\x00\x00\x01\x88\xb5")
		for i := range frames {
			if i%50 == 0 { // what waits counts against the sender's buffer
				fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
				if err != nil {
					return err
				}
				sockets = append(sockets, fd)
			}
			to := v0.Index
			if i%50 == 49 { // to the packet socket, without waiting
				to = v1.Index
			}
			if err := unix.Sendto(sockets[len(sockets)-1], frame, 0, &unix.SockaddrLinklayer{Ifindex: to}); err != nil {
				return fmt.Errorf("frame %d: %w", i, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var m Memory
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if m, err = n.Memory(math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		if m.Packets > 0 || time.Now().After(deadline) {
			break
		}
	}
	if m.Queues < 1000*frames/2 || m.Queues > 4000*frames {
		t.Errorf("queues: %d bytes for %d frames of 1,000", m.Queues, frames)
	}
	if m.Netlink < 20*500 || m.Packets < 500 {
		t.Errorf("sockets: %+v", m)
	}
	if m.Fragments != 0 || m.Sum() < m.Queues+m.Netlink+m.Packets {
		t.Errorf("%+v", m)
	}
	if before.Queues != 0 || before.Packets != 0 {
		t.Errorf("an empty namespace holds %+v", before)
	}
	if _, err := os.Stat("/proc/thread-self/net/netlink"); err != nil {
		t.Error(err)
	}
}

// TestMemoryOfTables has a namespace's tables hold things, counts them, and stops when
// it knows enough.
func TestMemoryOfTables(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "makes a network namespace")
	testenv.NeedCommand(t, "tc", "bridge")
	space := testenv.NewNetNS(t)
	n := &NS{fd: space.FD()}
	const each = 300
	lines := []string{"link add b0 type bridge", "link set b0 up"}
	var entries strings.Builder
	for i := range each {
		lines = append(lines,
			fmt.Sprintf("neigh add 10.0.%d.%d lladdr 02:00:00:00:00:01 dev b0 nud permanent", i>>8, i&255),
			fmt.Sprintf("neigh add 10.1.%d.%d lladdr 02:00:00:00:00:01 dev b0 nud stale", i>>8, i&255),
			fmt.Sprintf("nexthop add id %d dev b0", i+1))
		fmt.Fprintf(&entries, "fdb add 02:00:00:00:%02x:%02x dev b0\n", i>>8, i&255)
	}
	space.IPBatch(t, lines...)
	forwarding := space.Command("bridge", "-batch", "-")
	forwarding.Stdin = strings.NewReader(entries.String())
	testenv.Run(t, forwarding)
	testenv.Run(t, space.Command("tc", "qdisc", "add", "dev", "b0", "root", "handle", "1:", "htb"))
	entries.Reset()
	for i := range each {
		fmt.Fprintf(&entries, "class add dev b0 parent 1: classid 1:%x htb rate 1mbit\n", i+1)
	}
	classes := space.Command("tc", "-batch", "-")
	classes.Stdin = strings.NewReader(entries.String())
	testenv.Run(t, classes)
	before, err := n.Memory(math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	space.IPBatch(t, "link add v0 numtxqueues 64 numrxqueues 64 type veth peer name v1 numtxqueues 64 numrxqueues 64")
	m, err := n.Memory(math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ got, size int64 }{
		"neighbours": {m.Neighbours, 2 * neighbourSize}, "forwarding tables": {m.Forwarding, forwardingSize},
		"nexthops": {m.Nexthops, nexthopSize}, "classes": {m.Classes, classSize},
	} {
		if c.got < each*c.size || c.got > (each+20)*c.size {
			t.Errorf("%s: %d bytes, want those of %d", what, c.got, each)
		}
	}
	if m.Resolved < each || m.Resolved > each+20 {
		t.Errorf("%d neighbours take the place of others, want %d", m.Resolved, each)
	}
	if got := m.Devices - before.Devices; got != 4*64*queueSize {
		t.Errorf("256 queues take %d bytes", got)
	}
	if some, err := n.Memory(100 * neighbourSize); err != nil || some.Sum() <= 100*neighbourSize || some.Sum() > m.Sum()/2 {
		t.Errorf("it goes on counting, from %d to %d bytes, with %v", 100*neighbourSize, some.Sum(), err)
	}
}

// TestMemoryOfRoutes has IPv4 routes that differ in their prefixes alone, and others of
// which each has a way of its own, and counts the ways when they matter.
func TestMemoryOfRoutes(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "makes a network namespace")
	space := testenv.NewNetNS(t)
	n := &NS{fd: space.FD()}
	const each = 1000
	lines := []string{"link add b0 type bridge", "link set b0 up"}
	for i := range each {
		lines = append(lines, fmt.Sprintf("route add 10.0.%d.%d dev b0", i>>8, i&255))
	}
	space.IPBatch(t, lines...)
	const little = each / 2 * waySize // half of what the ways of all would take
	m, err := n.Memory(little)
	if err != nil || m.Nexthops == 0 || m.Nexthops > 20*waySize {
		t.Errorf("routes that share one way take %d bytes, %v", m.Nexthops, err)
	}
	lines = nil
	for i := range each {
		lines = append(lines, fmt.Sprintf("route add 10.1.%d.%d dev b0 metric %d", i>>8, i&255, i+1))
	}
	space.IPBatch(t, lines...)
	if m, err = n.Memory(little); err != nil || m.Sum() <= little || m.Nexthops < little/2 {
		t.Errorf("routes with ways of their own take %d bytes, %v", m.Nexthops, err)
	}
	if m, err = n.Memory(math.MaxInt64); err != nil || m.Nexthops != 0 {
		t.Errorf("ways are counted that do not matter: %d bytes, %v", m.Nexthops, err)
	}
}

// TestNeighbourTables reads how full the machine's tables are.
func TestNeighbourTables(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedRoot(t, "enters the machine's first network namespace")
	tables, err := OpenNeighbourTables()
	if err != nil {
		t.Fatal(err)
	}
	before, limit, err := tables.Read()
	if err != nil || limit <= 0 {
		t.Errorf("%d of %d entries, %v", before, limit, err)
	}
	space := testenv.NewNetNS(t)
	lines := []string{"link add b0 type bridge", "link set b0 up"}
	const more = 5000
	for i := range more {
		lines = append(lines, fmt.Sprintf("neigh add 10.0.%d.%d lladdr 02:00:00:00:00:01 dev b0 nud permanent", i>>8, i&255))
	}
	space.IPBatch(t, lines...)
	if after, _, err := tables.Read(); err != nil || after < before+more/2 { // others may lose some
		t.Errorf("from %d to %d entries by %d more, %v", before, after, more, err)
	}
	if err := tables.Close(); err != nil {
		t.Error(err)
	}
}
