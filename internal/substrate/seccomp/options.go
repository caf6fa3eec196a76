package seccomp

import "golang.org/x/sys/unix"

// levels are the options of sockets that a node's processes may set. What is not here
// is answered with ENOSYS, what is refused by name with ENOPROTOOPT.
var levels = []struct {
	level   uint64
	allowed []block
	refused []uint64
}{
	{unix.SOL_SOCKET, append([]block{
		{0, 32}, {34, 2}, {36, 2}, // up to SO_PEERSEC; PASSSEC, TIMESTAMPNS, MARK, TIMESTAMPING
		{62, 2}, {64, 4}, // BINDTOIFINDEX, the times of 64 bits
	}, ones(unix.SO_RXQ_OVFL, unix.SO_PEEK_OFF, unix.SO_LOCK_FILTER, unix.SO_SELECT_ERR_QUEUE, unix.SO_MAX_PACING_RATE,
		unix.SO_INCOMING_CPU, 75 /* SO_RCVMARK */, 76 /* SO_PASSPIDFD */)...),
		[]uint64{
			unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE, // past rmem_max and wmem_max
			unix.SO_ATTACH_BPF, unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF, // programs
			unix.SO_BUSY_POLL, unix.SO_PREFER_BUSY_POLL, unix.SO_BUSY_POLL_BUDGET, // the processor
			unix.SO_ZEROCOPY, // pinned pages
			unix.SO_TXTIME,   // stamps that leave the node with the frame
			73,               // SO_RESERVE_MEM
		}},
	{unix.SOL_IP, []block{
		{0, 16}, {18, 2}, {20, 4}, {24, 8}, {32, 32}, // without the policies of IPsec and without x_tables (64 and on)
		{200, 8}, {208, 8}, // multicast routing (MRT_INIT and on)
	}, []uint64{unix.IP_IPSEC_POLICY, unix.IP_XFRM_POLICY, 64 /* IPT_SO_SET_REPLACE */, 65 /* IPT_SO_SET_ADD_COUNTERS */}},
	{unix.SOL_IPV6, []block{
		{0, 32}, {33, 1}, {36, 4}, {40, 8}, {48, 16}, {66, 2}, {70, 2}, {72, 8},
		{200, 8}, {208, 8}, // MRT6_INIT and on
	}, []uint64{
		32, // IPV6_FLOWLABEL_MGR: 4,096 labels are the machine's (FL_MAX_SIZE in net/ipv6/ip6_flowlabel.c)
		unix.IPV6_IPSEC_POLICY, unix.IPV6_XFRM_POLICY, 64 /* IP6T_SO_SET_REPLACE */, 65,
	}},
	{unix.SOL_TCP, []block{
		{0, 16}, {16, 2}, {18, 1}, {23, 1}, {24, 4}, {28, 1}, {30, 1}, {32, 2}, {34, 1}, {36, 4}, {40, 4},
	}, []uint64{
		unix.TCP_REPAIR, unix.TCP_REPAIR_QUEUE, unix.TCP_QUEUE_SEQ, unix.TCP_REPAIR_OPTIONS, unix.TCP_REPAIR_WINDOW,
		unix.TCP_ULP, unix.TCP_ZEROCOPY_RECEIVE,
	}},
	{unix.SOL_UDP, ones(unix.UDP_CORK, unix.UDP_NO_CHECK6_TX, unix.UDP_NO_CHECK6_RX, unix.UDP_SEGMENT, unix.UDP_GRO),
		[]uint64{unix.UDP_ENCAP}},
	{unix.SOL_RAW, ones(1 /* ICMP_FILTER */), nil},
	{unix.SOL_ICMPV6, ones(unix.ICMPV6_FILTER), nil},
	{unix.SOL_NETLINK, []block{{0, 16}}, nil},
	{unix.SOL_PACKET, append([]block{{0, 4}, {8, 4}}, // memberships; AUXDATA, ORIGDEV, VERSION, HDRLEN
		// The receive ring is what libpcap cannot do without since 1.10; its size is bounded elsewhere.
		ones(unix.PACKET_RX_RING, unix.PACKET_STATISTICS, unix.PACKET_COPY_THRESH, unix.PACKET_RESERVE,
			unix.PACKET_TIMESTAMP, unix.PACKET_IGNORE_OUTGOING)...),
		[]uint64{
			unix.PACKET_TX_RING, unix.PACKET_FANOUT, unix.PACKET_FANOUT_DATA, // memory that no limit charges
			unix.PACKET_VNET_HDR, 24, // super-packets of the sender's making
			unix.PACKET_QDISC_BYPASS, unix.PACKET_LOSS, unix.PACKET_TX_TIMESTAMP, unix.PACKET_TX_HAS_OFF,
		}},
}
