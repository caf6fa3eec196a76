/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The FIB cache: what the FIB has answered for a flow since the kernel's last
 * tick. A lookup, with the neighbour's, is a fourth of what a hop costs; most
 * packets ask what the one before them has. An entry goes with the tick, with the
 * next change of the node's routes, rules or addresses that the kernel counts,
 * and with whichever flow has the same place.
 */
#pragma once

#include "fib.h"
#include "node.h"

/* Entries of each CPU, a power of two. */
#define FIB_CACHE_BITS 12

/* A query of the FIB, and its words. */
union fib_query {
	struct bpf_fib_lookup fib;
	__u64 word[8];
};

#define FIB_KEY_WORDS 6 /* up to the addresses; what follows is the answer's */

/* What of a query's first word the answer may depend on: all but tot_len or,
 * where routes are not spread by ports, family and protocol alone. (Rules may ask
 * for ports; where there are any, nothing is cached.) */
#define FIB_KEY_PORTS bpf_be64_to_cpu(0xffffffffffff0000ULL)
#define FIB_KEY_NO_PORTS bpf_be64_to_cpu(0xffff000000000000ULL)

struct fib_entry {
	__u64 tick;  /* 0: none */
	__u64 netns; /* whose, by its cookie */
	__u64 key[FIB_KEY_WORDS];
	__u32 changes; /* the kernel's count of them */
	__u32 ifindex; /* to leave by */
	__u16 smac[ETH_ALEN / 2], dmac[ETH_ALEN / 2];
	__u16 mtu; /* of the route and of the device, bytes of the IP packet */
	__u16 pad[5];
};

_Static_assert(sizeof(struct fib_entry) == 96, "an entry is a whole number of words");
_Static_assert(__builtin_offsetof(struct bpf_fib_lookup, tot_len) == 6, "the end of the first word");
_Static_assert(__builtin_offsetof(struct bpf_fib_lookup, ipv6_dst) == 32, "the last of the key's words");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << FIB_CACHE_BITS);
	__type(key, __u32);
	__type(value, struct fib_entry);
} fib_cache SEC(".maps");

/* What only tells whether the kernel is built with PREEMPT_RT, where a spinlock may
 * sleep and is none of these (include/linux/spinlock_types.h). */
struct raw_spinlock {
	int raw_lock;
};

struct spinlock {
	struct raw_spinlock rlock;
} OF_KERNEL;

/*
 * With PREEMPT_RT a program may be preempted by another on its CPU (where softirqs take no
 * lock of the CPU's: Linux 6.18, commit 3253cb49cbad), which would change the entry that the
 * first has looked at. So there nothing is cached. The verifier leaves the rest out.
 */
static __always_inline int fib_caches(void)
{
	struct spinlock *lock = 0;

	return bpf_core_field_exists(lock->rlock);
}

/* What is compared besides the query. */
struct fib_context {
	__u64 tick;    /* when: before the FIB is asked */
	__u64 netns;   /* cookie */
	__u64 first;   /* the query's first word, as far as it counts */
	__u32 changes; /* the kernel's count of them */
};

static __always_inline int spreads_by_ports4(struct net *net)
{
	return bpf_core_field_exists(net->ipv4.sysctl_fib_multipath_hash_policy) && net->ipv4.sysctl_fib_multipath_hash_policy;
}

/*
 * fib_query_of fills the query of a frame that a node has received, whose interface is in it
 * already, and what of the kernel's counts belongs to it. c is behind the Ethernet header; length
 * is what the frame has there. It returns why the frame is the stack's, or STACK_NONE.
 */
static __always_inline enum stack_reason fib_query_of(struct cursor *c, const struct ethhdr *eth, struct net *net, __u32 length, union fib_query *q, struct fib_context *in)
{
	enum stack_reason why;

	if (type_of(eth) == bpf_htons(ETH_P_IP)) {
		why = query_ipv4(c, &q->fib, length);
		in->changes = net->ipv4.rt_genid.counter;
		in->first = q->word[0] & (spreads_by_ports4(net) ? FIB_KEY_PORTS : FIB_KEY_NO_PORTS);
		return why;
	}
	if (type_of(eth) == bpf_htons(ETH_P_IPV6)) {
		why = query_ipv6(c, &q->fib, length);
		in->changes = net->ipv6.fib6_sernum.counter;
		in->first = q->word[0] & (net->ipv6.sysctl.multipath_hash_policy ? FIB_KEY_PORTS : FIB_KEY_NO_PORTS);
		return why;
	}
	return STACK_NOT_IP;
}

/* fib_entry_of gives the place for the answer to a query. */
static __always_inline struct fib_entry *fib_entry_of(const union fib_query *q, const struct fib_context *in)
{
	/* Odd factors, each of which mixes another word into the upper bits: the
	 * golden ratio's, and the constants of xxHash64. */
	__u64 hash = (q->word[2] ^ in->netns) * 0x9e3779b97f4a7c15ULL + q->word[3] * 0xc2b2ae3d27d4eb4fULL +
		     q->word[4] * 0x165667b19e3779f9ULL + q->word[5] * 0x85ebca77c2b2ae63ULL +
		     (in->first ^ q->word[1] << 20) * 0x27d4eb2f165667c5ULL;
	__u32 place = hash >> (64 - FIB_CACHE_BITS);

	return bpf_map_lookup_elem(&fib_cache, &place);
}

/* fib_hit: the same was asked in this tick, and nothing has changed. A packet that
 * is longer than its route's MTU asks again. */
static __always_inline int fib_hit(const struct fib_entry *f, const union fib_query *q, const struct fib_context *in)
{
	__u64 differ = (f->tick ^ in->tick) | (f->netns ^ in->netns) | (f->changes ^ in->changes) |
		       (f->key[0] ^ in->first);

#pragma unroll
	for (int i = 1; i < FIB_KEY_WORDS; i++)
		differ |= f->key[i] ^ q->word[i];
	return !differ && q->fib.tot_len <= f->mtu;
}

/*
 * fib_lookup asks the FIB, writes the answer to its place, where it holds for this
 * packet alone until it is validated, and returns the helper's code. The answer
 * overwrites the query.
 */
static __always_inline long fib_lookup(struct xdp_md *ctx, struct fib_entry *f, union fib_query *q, const struct fib_context *in)
{
	const __u16 *smac = (const __u16 *)q->fib.smac, *dmac = (const __u16 *)q->fib.dmac;
	long code;

	f->tick = 0;
	f->netns = in->netns;
	f->changes = in->changes;
	f->key[0] = in->first;
#pragma unroll
	for (int i = 1; i < FIB_KEY_WORDS; i++)
		f->key[i] = q->word[i];
	code = bpf_fib_lookup(ctx, &q->fib, sizeof(q->fib), 0);
	if (code != BPF_FIB_LKUP_RET_SUCCESS)
		return code;
	f->ifindex = q->fib.ifindex;
	f->mtu = q->fib.mtu_result;
#pragma unroll
	for (int i = 0; i < ETH_ALEN / 2; i++) {
		f->smac[i] = smac[i];
		f->dmac[i] = dmac[i];
	}
	return BPF_FIB_LKUP_RET_SUCCESS;
}

/*
 * fib_validate lets the packets after this one take the answer. It is called when nothing else
 * has been found to decide on packets of the flow: so an entry tells that, too, of this
 * tick (cut_through.h counts on it). mtu is that of the device that they leave by.
 */
static __always_inline void fib_validate(struct fib_entry *f, const struct fib_context *in, __u16 mtu)
{
	if (f->mtu > mtu)
		f->mtu = mtu;
	f->tick = in->tick;
}
