package netns

import (
	"fmt"
	"os"
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
		parseQueued(message)
	})
}

// TestMemory has the kernel hold things for a namespace: packets that are shaped, or that
// nobody reads, and messages that nobody reads.
func TestMemory(t *testing.T) {
	testenv.NeedRoot(t, "makes a network namespace")
	testenv.NeedCommand(t, "tc")
	space := testenv.NewNetNS(t)
	n := &NS{fd: space.FD()}
	before, err := n.Memory()
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
		if m, err = n.Memory(); err != nil {
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
