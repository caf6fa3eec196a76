/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Counting what the kernel's stack carries: at ports, bridges, and their members. */
#pragma once

#include "count.h"
#include "tcx.h"

/*
 * How many frames of the wire an skb stands for: one, or the segments of a
 * super-packet. (Bytes are counted as they are; a super-packet's headers once.)
 */
static __always_inline __u64 frames(const struct __sk_buff *skb)
{
	__u32 segments = skb->gso_segs;

	return segments ? segments : 1;
}

static __always_inline void count_from(const struct __sk_buff *skb, __u32 slot)
{
	struct traffic *c = counters_of(slot);

	if (c) {
		c->from_packets += frames(skb);
		c->from_bytes += skb->len;
	}
}

static __always_inline void count_to(const struct __sk_buff *skb, __u32 slot)
{
	struct traffic *c = counters_of(slot);

	if (c) {
		c->to_packets += frames(skb);
		c->to_bytes += skb->len;
	}
}

/* drop gives the verdict of a tcx program on what it drops. */
static __always_inline int drop(const struct __sk_buff *skb, __u32 slot, enum drop_reason why)
{
	count_drop(slot, why, frames(skb));
	return TCX_VERDICT_DROP;
}

/* The entry of the device that a frame is at. */
static __always_inline struct port *port_of(const struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;

	for (int i = 0; i < INDEX_TRIES; i++) {
		__u32 *number = bpf_map_lookup_elem(&port_index, &ifindex);
		struct port *p;

		if (!number)
			break;
		p = bpf_map_lookup_elem(&ports, number);
		if (p && p->index == ifindex)
			return p;
	}
	return 0;
}
