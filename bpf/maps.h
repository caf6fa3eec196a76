/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The maps, shared by all programs and pinned by the agent.
 *
 * They outlive the programs: a new build of Trellis replaces the programs and
 * keeps the maps. So their layout is a promise; whoever changes it changes
 * layoutVersion in dataplane/pins.go too.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "drop.h"

/* The most devices that an instance has programs on, less one. */
#define MAX_PORTS 32768

/* What happens to the frames that come in at a device. */
enum mode {
	MODE_UNJOINED = 0, /* dropped */
	MODE_DIRECT = 1,   /* handed to the peer's node */
	MODE_SHAPED = 2,   /* sent out of the peer, by way of its qdisc */
	MODE_SWITCHED = 3, /* left to the bridge */
};

/* One device: where its frames go, and where they are counted. */
struct port {
	__u32 peer; /* interface index */
	enum mode mode;
	__u32 slot; /* of the device in counters */
	__u32 peer_slot;
};

/* One device's counters on one CPU, a cache line. */
struct traffic {
	__u64 from_packets, from_bytes; /* what the node sent */
	__u64 to_packets, to_bytes;     /* what went its way */
	__u64 drops[DROP_REASONS];
};

_Static_assert(sizeof(struct port) == 16, "the agent shares this layout");
_Static_assert(sizeof(struct traffic) == 64, "the agent shares this layout");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32); /* interface index */
	__type(value, struct port);
} ports SEC(".maps");

/* Slot 0 counts for devices that have no entry in ports. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32); /* slot */
	__type(value, struct traffic);
} counters SEC(".maps");
