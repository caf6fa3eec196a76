/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps of the paths across machines, and counting in them. */
#pragma once

#include <linux/in6.h>

#include "egre.h"

#define MAX_ENDS 32768

/*
 * Why a frame is dropped. The numbers index counters. What the uplink cannot
 * charge to a port it counts in slot 0.
 */
enum tunnel_drop {
	TUNNEL_UNKNOWN = 0,   /* no peer of ours has this address and key */
	TUNNEL_VERSION = 1,   /* of GRE, not 0 */
	TUNNEL_KEYLESS = 2,   /* no key */
	TUNNEL_FLAGS = 3,     /* checksum, routing, sequence or reserved bits */
	TUNNEL_PROTOCOL = 4,  /* GRE, but not of Ethernet */
	TUNNEL_FRAGMENT = 5,  /* the outer packet is a fragment */
	TUNNEL_OPTIONS = 6,   /* the outer packet has options or extension headers */
	TUNNEL_CHECKSUM = 7,  /* the outer IPv4 header's is wrong */
	TUNNEL_LENGTH = 8,    /* the outer packet says it is longer than it is */
	TUNNEL_RUNT = 9,      /* too short for GRE and an Ethernet header */
	TUNNEL_LONG = 10,     /* longer than the link, or the path, carries */
	TUNNEL_UNJOINED = 11, /* the port has no other end */
	TUNNEL_ROOT = 12,     /* the root context's stack sent it into a network */
	TUNNEL_TAGS = 13,     /* more VLAN tags than MAX_TAGS */
	TUNNEL_NESTED = 14,   /* a super-packet of the node's own tunnel */
	TUNNEL_EDIT = 15,     /* could not be edited: no room, or no memory */
	TUNNEL_DROPS,
};

/* What a frame that comes from the underlay must show to get in. */
struct arrival_key {
	struct in6_addr remote, local; /* IPv4 as ::ffff:a.b.c.d */
	__be32 key;
};

struct arrival {
	__u32 port; /* interface index in the root context */
	__u32 slot;
	__u32 longest; /* inner frame, bytes */
};

enum end_kind {
	END_NONE = 0,  /* dropped */
	END_LOCAL = 1, /* the link's other end is on this machine */
	END_EGRE4 = 2,
	END_EGRE6 = 3,
};

/* One end of a link: where what the node sends there goes. */
struct end {
	__u32 device; /* interface index: the neighbour's port, or the uplink */
	enum end_kind kind;
	__u32 slot;
	__u32 peer_slot; /* END_LOCAL: of the neighbour's port */
	__u32 longest;   /* inner frame, bytes */
	struct outer outer;
};

/* A node's interface, by what its node cannot choose for another's. */
struct end_key {
	__u64 netns; /* cookie of the network namespace */
	__u32 ifindex;
	__u32 pad;
};

/* One port's counters on one CPU. */
struct tunnel_traffic {
	__u64 in_packets, in_bytes;       /* to the node */
	__u64 stack_packets, stack_bytes; /* from the node's stack */
	__u64 fast_packets, fast_bytes;   /* from the node's fast path */
	__u64 drops[TUNNEL_DROPS];
};

_Static_assert(sizeof(struct arrival_key) == 36, "the room shares this layout");
_Static_assert(sizeof(struct arrival) == 12, "the room shares this layout");
_Static_assert(sizeof(struct end) == 88, "the room shares this layout");
_Static_assert(sizeof(struct end_key) == 16, "the room shares this layout");
_Static_assert(sizeof(struct tunnel_traffic) == 176, "the room shares this layout");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_ENDS);
	__type(key, struct arrival_key);
	__type(value, struct arrival);
} arrivals SEC(".maps");

/* The addresses that this machine's tunnels end at. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 64);
	__type(key, struct in6_addr);
	__type(value, __u32);
} locals SEC(".maps");

/*
 * Ports and uplinks, by interface index in the root context. An entry means the
 * device that the writer sees under the index, so a program of another network
 * namespace can redirect there.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, MAX_ENDS);
	__type(key, __u32);
	__type(value, __u32);
} devices SEC(".maps");

/* Link ends for the fast path. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_ENDS);
	__type(key, struct end_key);
	__type(value, struct end);
} fast_ends SEC(".maps");

/* Link ends for the stack path, by the port's interface index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_ENDS);
	__type(key, __u32);
	__type(value, struct end);
} stack_ends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_ENDS);
	__type(key, __u32); /* slot */
	__type(value, struct tunnel_traffic);
} tunnel_counters SEC(".maps");

static __always_inline struct tunnel_traffic *traffic_of(__u32 slot)
{
	return bpf_map_lookup_elem(&tunnel_counters, &slot);
}

static __always_inline void count_in(__u32 slot, __u32 packets, __u32 bytes)
{
	struct tunnel_traffic *t = traffic_of(slot);

	if (t) {
		t->in_packets += packets;
		t->in_bytes += bytes;
	}
}

static __always_inline void count_fast(__u32 slot, __u32 bytes)
{
	struct tunnel_traffic *t = traffic_of(slot);

	if (t) {
		t->fast_packets++;
		t->fast_bytes += bytes;
	}
}

static __always_inline void count_stack(__u32 slot, __u32 packets, __u32 bytes)
{
	struct tunnel_traffic *t = traffic_of(slot);

	if (t) {
		t->stack_packets += packets;
		t->stack_bytes += bytes;
	}
}

static __always_inline void count_drop(__u32 slot, enum tunnel_drop why, __u32 packets)
{
	struct tunnel_traffic *t = traffic_of(slot);

	if (t)
		t->drops[why] += packets;
}
