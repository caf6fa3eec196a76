/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the shaped path does for the policer of the fast path: see rate.h. */
#pragma once

#include "encap.h"
#include "rate.h"

/* come_through notes that an skb of a class is where its two ways meet. */
static __always_inline void come_through(struct __sk_buff *skb, struct class *c)
{
	__u64 awaited = READ(c->awaited);

	if (awaited && print_of(skb, 0) == awaited)
		__sync_val_compare_and_swap(&c->awaited, awaited, 0);
}

/*
 * charge moves the clock of a port's class on by what the port sends to its qdisc, bytes of
 * frames on the wire.
 */
static __noinline int charge(struct __sk_buff *skb, __u32 slot, __u64 bytes)
{
	struct class *c = bpf_map_lookup_elem(&classes, &slot);
	struct rate *r = bpf_map_lookup_elem(&rates, &slot);
	__u64 now, cost, clock, next, least, most, seen;

	if (!c || !r || !r->cost)
		return 0;
	now = clock_now();
	cost = cost_of(r, bytes);
	least = READ(c->shaped) ? now - r->tolerance : now;
	most = now + r->depth;
	clock = READ(c->clock);
	for (int i = 0; i < CLOCK_TRIES; i++) {
		next = (clock > least ? clock : least) + cost;
		seen = __sync_val_compare_and_swap(&c->clock, clock, next < most ? next : most);
		if (seen == clock)
			break;
		clock = seen;
	}
	if (!(r->flags & RATE_PATH))
		come_through(skb, c);
	return 0;
}

/* leave_by_path: an skb of a class, by the slot of its port, leaves the qdisc's other end by a path. */
static __noinline int leave_by_path(struct __sk_buff *skb, __u32 slot)
{
	struct class *c = bpf_map_lookup_elem(&classes, &slot);

	if (c)
		come_through(skb, c);
	return 0;
}
