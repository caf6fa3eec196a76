package seccomp

import "golang.org/x/sys/unix"

// levels are the protocols whose options a node's processes may set. Which options of
// those, the programs of package confine say, at no cost to each node: a runtime keeps
// a copy of the profile for each. Those of packet sockets are here besides, since with
// them a node had memory that no limit charges.
var levels = []struct {
	level   uint64
	allowed []block
}{
	{unix.SOL_SOCKET, nil},
	{unix.SOL_IP, nil},
	{unix.SOL_IPV6, nil},
	{unix.SOL_TCP, nil},
	{unix.SOL_UDP, nil},
	{unix.SOL_RAW, nil},
	{unix.SOL_ICMPV6, nil},
	{unix.SOL_NETLINK, nil},
	{unix.SOL_PACKET, append([]block{{0, 4}, {8, 4}}, // memberships; AUXDATA, ORIGDEV, VERSION, HDRLEN
		// The receive ring is what libpcap cannot do without since 1.10; confine bounds its
		// size. Left out are rings to send by, fan-out, and super-packets of the sender's making.
		ones(unix.PACKET_RX_RING, unix.PACKET_STATISTICS, unix.PACKET_COPY_THRESH, unix.PACKET_RESERVE,
			unix.PACKET_TIMESTAMP, unix.PACKET_IGNORE_OUTGOING)...)},
}
