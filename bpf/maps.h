/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The maps, shared by all programs and pinned by the agent.
 *
 * They outlive the programs: a new build of Trellis replaces the programs and
 * keeps the maps. So their layout is a promise; whoever changes it changes
 * layoutVersion in dataplane/pins.go too. Those of egress are in egress.h, those of
 * uplinks and tunnels in uplink.bpf.c, caches in the files of their names.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "drop.h"

/* The most devices that an instance has programs on, less one. */
#define MAX_PORTS 65536

/* What happens to the frames that come in at a device. */
enum mode {
	MODE_UNJOINED = 0, /* dropped */
	MODE_DIRECT = 1,   /* handed to the peer's node */
	MODE_SHAPED = 2,   /* sent out of the peer, by way of its qdisc */
	MODE_SWITCHED = 3, /* left to the bridge */
	MODE_EGRE4 = 4,    /* sent to another machine, over IPv4 */
	MODE_EGRE6 = 5,    /* over IPv6 */
};

/* The most entries of the array ports: one is never changed while it may be read, but
 * replaced by another, so there are more of them than ports. */
#define MAX_PORT_ENTRIES (MAX_PORTS + 1024)

/* How often an entry is looked for whose number turns out to be another's: the
 * memory of a hash's replaced value may be another key's at once (htab_elem_free,
 * kernel/bpf/hashtab.c), so what decides about tenants lies in arrays, in entries
 * that name their owner. */
#define INDEX_TRIES 3

/* One device: where its frames go, and where they are counted. */
struct port {
	/* The far end of its veth pair, where it can take XDP frames; ifindex 0:
	 * it cannot. netns is the cookie of its network namespace, 0 if it is in
	 * the root context. */
	__u64 netns;
	__u32 ifindex;

	__u32 peer; /* interface index; of EGRE, where arriving frames go; 0: here */
	enum mode mode;
	__u32 slot; /* of the device in counters, drops and devices */
	__u32 peer_slot; /* of EGRE: of the port that peer is, whose class leaves here; 0: none */
	__u32 egress; /* the number of its entry in egresses; 0: none */
	__u32 block;  /* of the node, in egress_index: its first place; 0: none */
	__u32 block_size;
	__u64 peer_mac; /* of the peer's node, in the first six bytes in memory; 0: not known */
	__u32 index; /* interface index of the device: whose the entry is */
	__u32 pad;
};

/* One device's counters on one CPU, a cache line. */
struct traffic {
	__u64 from_packets, from_bytes; /* what the node's stack sent */
	__u64 to_packets, to_bytes;     /* what went to its stack as skbs */
	__u64 fast_from_packets, fast_from_bytes; /* what was sent on its behalf */
	__u64 fast_to_packets, fast_to_bytes;     /* what went its way as XDP frames */
};

/* Dropped frames of one device, of all CPUs; room for reasons to come. */
struct dropped {
	__u64 packets[24];
};

_Static_assert(sizeof(struct port) == 56, "the agent shares this layout");
_Static_assert(sizeof(struct traffic) == 64, "the agent shares this layout");
_Static_assert(DROP_REASONS * sizeof(__u64) <= sizeof(struct dropped), "every reason has its counter");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32); /* interface index */
	__type(value, __u32); /* number of the device's entry in ports */
} port_index SEC(".maps");

/* A number is given out again when no program runs any more that may have read it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORT_ENTRIES);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

/* Slot 0 counts for devices that have no entry in ports. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32); /* slot */
	__type(value, struct traffic);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32); /* slot */
	__type(value, struct dropped);
} drops SEC(".maps");
