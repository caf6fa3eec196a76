/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Why a packet leaves the fast path for the node's stack. Each has a counter of
 * its own for each port; the numbers index it, so they stay what they are. Whoever
 * stays on the fast path pays nothing for it.
 */
#pragma once

#include "maps.h"
#include "metadata.h"

enum stack_reason {
	STACK_NONE = 0, /* it stays on the fast path */
	STACK_OFF = 1,  /* the fast path is off at the node's interface */

	/* Of the frame: */
	STACK_MAC = 2,       /* for a group's or another's MAC address */
	STACK_NOT_IP = 3,    /* ARP, VLAN-tagged, IS-IS, ... */
	STACK_MALFORMED = 4, /* a wrong checksum or length, or cut */
	STACK_OPTIONS = 5,   /* IPv4 options, IPv6 extension headers */
	STACK_FRAGMENT = 6,  /* of IPv4; IPv6's are extension headers */
	STACK_TTL = 7,       /* ends here */
	STACK_ADDRESS = 8,   /* multicast, loopback, link-local, ... */
	STACK_TRANSPORT = 9, /* ICMP but echoes, AH, a header that is cut */

	/* Of what the node's root has set up: */
	STACK_NETFILTER = 10,
	STACK_TC = 11,     /* a program, filter or qdisc at an interface */
	STACK_MASTER = 12, /* the interface is in a bridge, bond or VRF, or has a macvlan */
	STACK_SYSCTL = 13, /* rp_filter, forwarding, multipath hash policy, ... */
	STACK_IPSEC = 14,
	STACK_RULES = 15, /* routing rules that the lookup cannot follow */

	/* Of the FIB: */
	STACK_LOCAL = 16,       /* for the node itself, or no route */
	STACK_UNREACHABLE = 17, /* a route says so: blackhole, unreachable, prohibit */
	STACK_FORWARDING = 18,  /* the interface does not forward */
	STACK_ENCAP_ROUTE = 19, /* the route encapsulates */
	STACK_NEIGHBOUR = 20,   /* its address is not resolved */
	STACK_MTU = 21,         /* longer than the route, link or device carries */
	STACK_REDIRECT = 22,    /* it leaves by the interface that it came by */
	STACK_SOURCE = 23,      /* its source is the node's own address, or not routed */
	STACK_LOOKUP = 24,      /* the lookup failed */

	/* Of the interface that it leaves by: */
	STACK_EGRESS = 25, /* of a LAN, delayed or lossy, or the node's own */
	STACK_DOWN = 26,   /* down, or without carrier */
	STACK_RATE = 27,   /* its rate is used up, or was and its queue has not drained: rate.h */
	STACK_REASONS,
};

/* Packets of one port, of all CPUs; room for reasons to come. */
struct stack_counts {
	__u64 packets[32];
};

_Static_assert(STACK_REASONS * sizeof(__u64) <= sizeof(struct stack_counts), "every reason has its counter");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32); /* slot */
	__type(value, struct stack_counts);
} stack_exits SEC(".maps");

/*
 * to_stack gives a frame of a port to the node's stack, and the program's verdict.
 * The stack takes metadata for a reason not to merge.
 */
static __noinline __attribute__((unused)) int to_stack(struct xdp_md *ctx, __u32 slot, enum stack_reason why)
{
	struct stack_counts *exits = bpf_map_lookup_elem(&stack_exits, &slot);

	if (exits && why < STACK_REASONS)
		__sync_fetch_and_add(&exits->packets[why], 1);
	pop_metadata(ctx);
	return XDP_PASS;
}
