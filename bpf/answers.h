/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the FIB has said of a flow since the kernel's last tick. A look-up, with
 * the neighbour's, is a fourth of what a hop costs; most packets ask what the one
 * before them has. An answer goes with the tick, with the next change of the
 * node's routes, rules or addresses that the kernel counts, and with whichever
 * flow has the same place.
 */
#pragma once

#include "fib.h"
#include "node.h"

/* Places of each CPU, a power of two. */
#define ANSWERS_BITS 12

/* A question to the FIB, and its words. */
union question {
	struct bpf_fib_lookup fib;
	__u64 word[8];
};

#define QUESTION_WORDS 6 /* up to the addresses; what follows is the answer's */

/* What of a question's first word the answer may depend on: all but tot_len or,
 * where routes are not spread by ports, family and protocol alone. (Rules may ask
 * for ports; where there are any, no answer is kept.) */
#define ASKS_PORTS bpf_be64_to_cpu(0xffffffffffff0000ULL)
#define ASKS_NO_PORTS bpf_be64_to_cpu(0xffff000000000000ULL)

struct answer {
	__u64 tick;  /* 0: none */
	__u64 netns; /* whose, by its cookie */
	__u64 asked[QUESTION_WORDS];
	__u32 changes; /* the kernel's count of them */
	__u32 ifindex; /* to leave by */
	__u16 smac[ETH_ALEN / 2], dmac[ETH_ALEN / 2];
	__u16 mtu; /* of the way, bytes of the IP packet */
	__u16 pad[5];
};

_Static_assert(sizeof(struct answer) == 96, "a place is a whole number of words");
_Static_assert(__builtin_offsetof(struct bpf_fib_lookup, tot_len) == 6, "the end of the first word");
_Static_assert(__builtin_offsetof(struct bpf_fib_lookup, ipv6_dst) == 32, "the last of the words that are asked");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << ANSWERS_BITS);
	__type(key, __u32);
	__type(value, struct answer);
} answers SEC(".maps");

/* What is compared besides the question. */
struct asker {
	__u64 tick;    /* when: before the FIB is asked */
	__u64 netns;   /* cookie */
	__u64 first;   /* the question's first word, as far as it counts */
	__u32 changes; /* the kernel's count of them */
};

/* answer_at gives the place for the answer to a question. */
static __always_inline struct answer *answer_at(const union question *q, const struct asker *by)
{
	/* Odd factors, each of which mixes another word into the upper bits: the
	 * golden ratio's, and the constants of xxHash64. */
	__u64 hash = (q->word[2] ^ by->netns) * 0x9e3779b97f4a7c15ULL + q->word[3] * 0xc2b2ae3d27d4eb4fULL +
		     q->word[4] * 0x165667b19e3779f9ULL + q->word[5] * 0x85ebca77c2b2ae63ULL +
		     (by->first ^ q->word[1] << 20) * 0x27d4eb2f165667c5ULL;
	__u32 place = hash >> (64 - ANSWERS_BITS);

	return bpf_map_lookup_elem(&answers, &place);
}

/* is_answered: the question was asked in this tick, and nothing has changed. A
 * packet that is longer than its way's MTU asks again. */
static __always_inline int is_answered(const struct answer *a, const union question *q, const struct asker *by)
{
	__u64 differ = (a->tick ^ by->tick) | (a->netns ^ by->netns) | (a->changes ^ by->changes) |
		       (a->asked[0] ^ by->first);

#pragma unroll
	for (int i = 1; i < QUESTION_WORDS; i++)
		differ |= a->asked[i] ^ q->word[i];
	return !differ && q->fib.tot_len <= a->mtu;
}

/*
 * ask asks the FIB, writes the answer to its place and returns whether there is
 * one. It holds for this packet alone until it is kept. The answer overwrites
 * the question.
 */
static __always_inline int ask(struct xdp_md *ctx, struct answer *a, union question *q, const struct asker *by)
{
	const __u16 *smac = (const __u16 *)q->fib.smac, *dmac = (const __u16 *)q->fib.dmac;

	a->tick = 0;
	a->netns = by->netns;
	a->changes = by->changes;
	a->asked[0] = by->first;
#pragma unroll
	for (int i = 1; i < QUESTION_WORDS; i++)
		a->asked[i] = q->word[i];
	if (bpf_fib_lookup(ctx, &q->fib, sizeof(q->fib), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return 0;
	a->ifindex = q->fib.ifindex;
	a->mtu = q->fib.mtu_result;
#pragma unroll
	for (int i = 0; i < ETH_ALEN / 2; i++) {
		a->smac[i] = smac[i];
		a->dmac[i] = dmac[i];
	}
	return 1;
}

static __always_inline void keep_answer(struct answer *a, const struct asker *by)
{
	a->tick = by->tick;
}
