/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Whether a node has an IPv4 address: on any of its devices, up or down. Going
 * through all of them takes too long for each packet, so their hashes are kept,
 * as long as the kernel's count of changes is what it was.
 */
#pragma once

#include "maps.h"
#include "node.h"

#define LOCAL_WORDS 16

/* Devices and addresses of a node that are gone through once for a change, and
 * with a packet whose source has the hash of one of them: no longer than the
 * stack takes for it. */
#define LOCAL_STEPS 4096
#define LOCAL_FEW 128

/* The addresses of a node, kept for each port that packets leave by. */
struct local_addresses {
	__u64 netns; /* 0: none yet */
	__u32 changes;
	__u32 steps;    /* more than LOCAL_STEPS: too many */
	__u64 version;  /* odd: they are being written */
	__u64 bits[LOCAL_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32); /* slot of the port */
	__type(value, struct local_addresses);
} local_addresses SEC(".maps");

/* A walk through the addresses of a namespace, a device or address a step. */
struct address_walk {
	__u64 head, device, address; /* kernel addresses; 0: none */
	__u64 bits[LOCAL_WORDS];
	__be32 wanted;
	int found, complete;
	__u32 steps;
};

/* Where the hash of an address is: a word, and a bit of it. */
static __always_inline __u32 address_hash(__be32 address)
{
	return address * 0x9e3779b1U; /* 2^32 by the golden ratio */
}

#define LOCAL_WORD(hash) (((hash) >> 28) & (LOCAL_WORDS - 1))
#define LOCAL_BIT(hash) (1ULL << (((hash) >> 22) & 63))

static long address_walk_step(__u32 step, struct address_walk *w)
{
	w->steps = step;
	if (w->address) {
		struct in_ifaddr *a = KERNEL_AT(struct in_ifaddr, w->address);
		__be32 local = a->ifa_local;
		__u32 hash = address_hash(local);

		w->bits[LOCAL_WORD(hash)] |= LOCAL_BIT(hash);
		w->found |= local == w->wanted;
		w->address = (__u64)a->ifa_next;
	} else if (w->device != w->head) {
		struct net_device *dev = KERNEL_OF(struct net_device, dev_list, w->device);
		struct in_device *in = dev->ip_ptr;

		w->device = (__u64)dev->dev_list.next;
		w->address = in ? (__u64)in->ifa_list : 0;
	} else {
		w->complete = 1;
		return 1;
	}
	return 0;
}

/*
 * keep_addresses keeps what a walk has seen. One writes at a time: of two that mixed
 * theirs, one may have seen fewer addresses than the count of changes then tells. Atomic
 * operations that give a value order what stands before and behind them
 * (Documentation/bpf/standardization/instruction-set.rst, memory-barriers.txt).
 */
static __always_inline void keep_addresses(struct local_addresses *o, const struct address_walk *w, __u64 netns, __u32 changes)
{
	__u64 version = *(volatile __u64 *)&o->version;

	if (version & 1 || __sync_val_compare_and_swap(&o->version, version, version + 1) != version)
		return;
	o->netns = netns;
	o->changes = changes;
	o->steps = w->steps;
	copy(o->bits, w->bits, sizeof(o->bits));
	__sync_lock_test_and_set(&o->version, version + 2);
}

/*
 * behind gives an address that depends on a value, so that no processor reads there
 * before it has read the value.
 */
static __always_inline void *behind(void *address, __u64 value)
{
	asm volatile("%[value] &= 0\n%[address] += %[value]" : [value] "+r"(value), [address] "+r"(address));
	return address;
}

/* What is_local_address finds out from what is kept. */
enum local_answer {
	LOCAL_UNKNOWN,
	LOCAL_NO,
	LOCAL_YES,
};

/* kept_address takes what is kept if it is the namespace's of these changes, and was
 * not written meanwhile. */
static __always_inline enum local_answer kept_address(struct local_addresses *o, __u64 netns, __u32 changes, __u32 hash)
{
	__u64 version = *(volatile __u64 *)&o->version, word, mixed;
	struct local_addresses *then = behind(o, version);
	__u32 steps;

	if (version & 1 || *(volatile __u64 *)&then->netns != netns || *(volatile __u32 *)&then->changes != changes)
		return LOCAL_UNKNOWN;
	steps = *(volatile __u32 *)&then->steps;
	word = *(volatile __u64 *)&then->bits[LOCAL_WORD(hash)];
	mixed = word | steps;
	then = behind(o, mixed);
	if (*(volatile __u64 *)&then->version != version)
		return LOCAL_UNKNOWN;
	if (!(word & LOCAL_BIT(hash)))
		return LOCAL_NO;
	return steps > LOCAL_FEW ? LOCAL_YES : LOCAL_UNKNOWN;
}

/* walk_addresses looks an address up the long way, and keeps what it has seen. */
static __noinline int walk_addresses(struct xdp_md *ctx, __be32 address, __u32 slot)
{
	struct net *net = device_of(ctx)->nd_net.net;
	struct address_walk w = {.wanted = address};
	__u32 changes = net->ipv4.dev_addr_genid.counter;
	struct local_addresses *o;

	w.head = (__u64)net + bpf_core_field_offset(struct net, dev_base_head);
	w.device = (__u64)net->dev_base_head.next;
	bpf_loop(LOCAL_STEPS, address_walk_step, &w, 0);
	if (!w.complete) {
		__builtin_memset(w.bits, 0xff, sizeof(w.bits));
		w.steps = LOCAL_STEPS + 1;
		w.found = 1;
	}
	o = bpf_map_lookup_elem(&local_addresses, &slot);
	if (o)
		keep_addresses(o, &w, net->net_cookie, changes);
	return w.found;
}

/* is_local_address: the node has the address, or it takes too long to find out. */
static __always_inline int is_local_address(struct xdp_md *ctx, struct net *net, __be32 address, __u32 slot)
{
	struct local_addresses *o = bpf_map_lookup_elem(&local_addresses, &slot);
	enum local_answer kept = LOCAL_UNKNOWN;

	if (o)
		kept = kept_address(o, net->net_cookie, net->ipv4.dev_addr_genid.counter, address_hash(address));
	return kept == LOCAL_UNKNOWN ? walk_addresses(ctx, address, slot) : kept == LOCAL_YES;
}
