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

static __always_inline void count_drop(__u32 slot, enum drop_reason why, __u64 packets)
{
	struct dropped *d = bpf_map_lookup_elem(&drops, &slot);

	if (d)
		__sync_fetch_and_add(&d->packets[why], packets);
}
