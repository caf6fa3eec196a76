/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The policy cache: which interfaces of nodes had nothing but the FIB deciding on
 * their packets when the fast path last looked, in this tick of the kernel's.
 * Reading all of it takes some thirty guarded loads, a sixth of what forwarding a
 * packet costs; so it is read once a tick for each interface. Only clear ones are
 * cached: what stands in the way is read with every packet, and those are the
 * stack's anyway.
 */
#pragma once

#include "egress.h"

/* Nothing but the FIB decides on what is received over IPv4 and IPv6; what is
 * transmitted, no longer than the interface's MTU, goes at once. */
#define POLICY_RX4 1
#define POLICY_RX6 2
#define POLICY_TX 4

/* From the top: 40 bits of the tick, the MTU (with POLICY_TX), and the bits above. */
#define POLICY_TICK 24
#define POLICY_MTU 8

/* Halves of two writers' words do not fit together, and are nobody's. */
struct policy_word {
	__u64 word;
	__u64 check; /* the word and its owner, by exclusive or */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_EGRESS_INDEX);
	__type(key, __u32); /* as in egress_index */
	__type(value, struct policy_word);
} policy_cache SEC(".maps");

struct policy_entry {
	struct policy_word *at; /* NULL: nothing is cached */
	__u64 word;             /* of this tick and interface */
	__u64 owner;
};

/*
 * policy_of gives what is cached of a node's interface, if that has a place in the
 * node's block. Whose a word is: interface indices repeat from namespace to namespace,
 * and the block is a hint. The owner is a number that no other interface has: multiples
 * of the golden ratio lie further apart than indices, for 2^31 namespaces.
 */
static __always_inline struct policy_entry policy_of(__u32 block, __u64 netns, __u32 ifindex)
{
	__u32 place = block_place(block, ifindex);
	struct policy_entry p = {
		.at = place ? bpf_map_lookup_elem(&policy_cache, &place) : 0,
		.word = bpf_jiffies64() << POLICY_TICK,
		.owner = netns * 0x9e3779b97f4a7c15ULL + ifindex,
	};

	if (p.at) {
		__u64 cached = *(volatile __u64 *)&p.at->word, check = *(volatile __u64 *)&p.at->check;

		if (!((cached ^ p.word) >> POLICY_TICK) && (cached ^ check) == p.owner)
			p.word = cached;
	}
	return p;
}

static __always_inline void cache_policy(struct policy_entry *p, __u64 bits)
{
	p->word |= bits;
	if (p->at) {
		*(volatile __u64 *)&p->at->word = p->word;
		*(volatile __u64 *)&p->at->check = p->word ^ p->owner;
	}
}

static __always_inline int policy_cached(const struct policy_entry *p, __u64 bit)
{
	return !!(p->word & bit);
}

/* tx_mtu gives the MTU of an interface that packets may leave by, the largest if it is not cached: that
 * is more than a route's can be. */
static __always_inline __u16 tx_mtu(const struct policy_entry *p)
{
	return policy_cached(p, POLICY_TX) ? p->word >> POLICY_MTU : 0xffff;
}

/* tx_cached: a frame of the length may leave by the interface. */
static __always_inline int tx_cached(const struct policy_entry *p, __u32 length)
{
	return policy_cached(p, POLICY_TX) && length <= tx_mtu(p) + sizeof(struct ethhdr);
}
