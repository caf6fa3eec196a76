/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The policer of the fast path: rate.h tells how it works together with the shaped path. */
#pragma once

#include "rate.h"

/*
 * drained: nothing of a shaped class is on the shaped path any more. The clock is not
 * moved up to the time meanwhile, so the credit is what the class has sent less than it
 * might have.
 */
static __always_inline int drained(const struct rate *r, struct class *c, __u64 now)
{
	__u64 patience = READ(c->patience), clock = READ(c->clock);

	if (clock > now)
		WRITE(c->shaped, now);
	if (clock + r->tolerance > now || r->hold > now)
		return 0;
	if (READ(c->awaited) && (now < patience || now < clock + (PATIENCE << CLOCK_FRACTION)))
		return 0;
	return r->flags & RATE_PATH || now >= patience - ((PATIENCE - LULL) << CLOCK_FRACTION) ||
	       now >= READ(c->shaped) + (OVERDUE << CLOCK_FRACTION);
}

/* go_over has the class of a packet that goes to the node's stack stay on the shaped path. */
static __noinline int go_over(struct xdp_md *ctx, struct class *c, __u64 now)
{
	if (!c)
		return 0;
	WRITE(c->patience, now + (PATIENCE << CLOCK_FRACTION));
	WRITE(c->awaited, print_of(ctx, 1));
	return 0;
}

/*
 * conforms charges a frame that is to leave by a rated port to the port's class, or, if that
 * is over its rate or not yet back, notes that the frame goes over to the shaped path.
 * There, it is charged when it has come through the node's stack.
 */
static __noinline int conforms(struct xdp_md *ctx, __u32 slot, __u64 bytes)
{
	struct class *c = bpf_map_lookup_elem(&classes, &slot);
	struct rate *r = bpf_map_lookup_elem(&rates, &slot);
	__u64 now, cost, clock, seen;

	if (!c || !r || !r->cost)
		return 0;
	now = clock_now();
	if (READ(c->shaped)) {
		if (!drained(r, c, now)) {
			go_over(ctx, c, now);
			return 0;
		}
		WRITE(c->shaped, 0);
	}
	cost = cost_of(r, bytes);
	clock = READ(c->clock);
	for (int i = 0; i < CLOCK_TRIES; i++) {
		if (clock > now + r->tolerance) {
			WRITE(c->shaped, now);
			go_over(ctx, c, now);
			return 0;
		}
		seen = __sync_val_compare_and_swap(&c->clock, clock, (clock > now ? clock : now) + cost);
		if (seen == clock)
			return 1;
		clock = seen;
	}
	/* Others have just moved it up to the time. */
	__sync_fetch_and_add(&c->clock, cost);
	return 1;
}
