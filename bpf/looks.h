/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the fast path has found clear about a node's interfaces since the
 * kernel's last tick. Reading all of it takes some thirty guarded loads, a sixth
 * of what forwarding a packet costs; so it is read once a tick for each
 * interface. Only what is clear is kept: what stands in the way is looked at
 * with every packet, and those are the stack's anyway.
 */
#pragma once

#include "ends.h"

/* Bits of a look: nothing but the FIB decides on what comes in by the interface
 * over IPv4 and IPv6; what leaves by it, no longer than its MTU, goes at once. */
#define LOOK_IN4 1
#define LOOK_IN6 2
#define LOOK_OUT 4

/* One word, so that it is read and written whole: from the top 24 bits of the
 * tick, 16 of whose it is, the MTU, with LOOK_OUT, and the bits. */
#define LOOK_OWNER 24
#define LOOK_TICK 40
#define LOOK_MTU 8

struct look_word {
	__u64 word;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_EGRESS);
	__type(key, __u32); /* as in egress */
	__type(value, struct look_word);
} looks SEC(".maps");

struct look {
	struct look_word *at; /* NULL: nothing is kept */
	__u64 word;           /* of this tick and interface */
};

/*
 * look_at gives what is kept of a node's interface. Whose a word is: interface
 * indices repeat from namespace to namespace, and the base is a hint, so the
 * number of the namespace goes in.
 */
static __always_inline struct look look_at(__u32 base, __u64 netns, __u32 ifindex)
{
	__u32 index = base + ifindex;
	struct look l = {.at = bpf_map_lookup_elem(&looks, &index)};
	__u64 owner = (netns * 31 + ifindex) & 0xffff;

	l.word = bpf_jiffies64() << LOOK_TICK | owner << LOOK_OWNER;
	if (l.at) {
		__u64 kept = *(volatile __u64 *)&l.at->word;

		if (!((kept ^ l.word) >> LOOK_OWNER))
			l.word = kept;
	}
	return l;
}

static __always_inline void keep(struct look *l, __u64 bits)
{
	l->word |= bits;
	if (l->at)
		*(volatile __u64 *)&l->at->word = l->word;
}

static __always_inline int is_clear(const struct look *l, __u64 bit)
{
	return !!(l->word & bit);
}

/* is_free: a frame of the length may leave by the interface. */
static __always_inline int is_free(const struct look *l, __u32 length)
{
	return is_clear(l, LOOK_OUT) && length <= ((l->word >> LOOK_MTU) & 0xffff) + sizeof(struct ethhdr);
}
