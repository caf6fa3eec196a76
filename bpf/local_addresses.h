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

/* No namespace's cookie: the addresses are being written. */
#define LOCAL_BUSY (~0ULL)

/* The addresses of a node, kept for each port that packets leave by. */
struct local_addresses {
	__u64 netns; /* 0: none yet */
	__u32 changes;
	__u32 steps; /* more than LOCAL_STEPS: too many */
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
	/* One writes at a time: of two that mixed theirs, one may have seen fewer
	 * addresses than the count of changes then tells. */
	if (o && __sync_lock_test_and_set(&o->netns, LOCAL_BUSY) != LOCAL_BUSY) {
		o->changes = changes;
		o->steps = w.steps;
		__builtin_memcpy(o->bits, w.bits, sizeof(o->bits));
		__sync_lock_test_and_set(&o->netns, net->net_cookie);
	}
	return w.found;
}

/* is_local_address: the node has the address, or it takes too long to find out. */
static __always_inline int is_local_address(struct xdp_md *ctx, struct net *net, __be32 address, __u32 slot)
{
	struct local_addresses *o = bpf_map_lookup_elem(&local_addresses, &slot);
	__u32 hash = address_hash(address);

	if (o && o->netns == net->net_cookie && o->changes == (__u32)net->ipv4.dev_addr_genid.counter) {
		if (!(o->bits[LOCAL_WORD(hash)] & LOCAL_BIT(hash)))
			return 0;
		if (o->steps > LOCAL_FEW)
			return 1;
	}
	return walk_addresses(ctx, address, slot);
}
