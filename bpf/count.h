/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Counting frames and drops. */
#pragma once

#include "maps.h"

static __always_inline struct traffic *counters_of(__u32 slot)
{
	return bpf_map_lookup_elem(&counters, &slot);
}

/* XDP frames, which are no super-packets. */
static __always_inline void count_fast_from(__u32 slot, __u32 bytes)
{
	struct traffic *c = counters_of(slot);

	if (c) {
		c->fast_from_packets++;
		c->fast_from_bytes += bytes;
	}
}

static __always_inline void count_fast_to(__u32 slot, __u32 bytes)
{
	struct traffic *c = counters_of(slot);

	if (c) {
		c->fast_to_packets++;
		c->fast_to_bytes += bytes;
	}
}

/* count_drop is how every drop of every program is counted; it returns 0. */
static __noinline int count_drop(__u32 slot, enum drop_reason why, __u64 packets)
{
	struct dropped *d = bpf_map_lookup_elem(&drops, &slot);

	if (d && why < DROP_REASONS)
		__sync_fetch_and_add(&d->packets[why], packets);
	return 0;
}

/* drop_xdp gives the verdict of an XDP program on a frame that it drops. */
static __always_inline int drop_xdp(__u32 slot, enum drop_reason why)
{
	count_drop(slot, why, 1);
	return XDP_DROP;
}
