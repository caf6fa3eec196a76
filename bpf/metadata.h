/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What frames of the fast path carry from XDP program to XDP program, in XDP
 * metadata. It tells a complete frame, checksums and all, from an skb that
 * reaches a node's end by its driver: that one may lack a checksum, which nobody
 * would fill in any more. A veth shows no metadata with an skb.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define METADATA_MAGIC 0x74726c66

struct metadata {
	__u32 magic;
	__u32 block; /* where egress_index may have the node's interfaces: a hint, see block_place */
	__u32 port;  /* the slot of the port that the frame arrives by, and METADATA_TAP */
	__u32 ticket; /* of a frame that comes from an uplink: see cut_record */
};

#define NO_TICKET 0

#define METADATA_TAP (1U << 31) /* copies are wanted of what arrives by the port */

/* Of a block: the first of its places, and above it the logarithm of how many they are. */
#define BLOCK_BASE 0x00ffffff
#define BLOCK_ORDER 24

/* block_place gives the place of an interface in its node's block, 0 if it has none. */
static __always_inline __u32 block_place(__u32 block, __u32 ifindex)
{
	return ifindex >> (block >> BLOCK_ORDER & 31) ? 0 : (block & BLOCK_BASE) + ifindex;
}

/* The frame's metadata, NULL if it has none of ours. */
static __always_inline struct metadata *metadata_of(const struct xdp_md *ctx)
{
	struct metadata *m = (void *)(long)ctx->data_meta;

	return (void *)(m + 1) <= (void *)(long)ctx->data && m->magic == METADATA_MAGIC ? m : 0;
}

/* push_metadata returns 0, or -1 if there is no room. Moves the bounds. */
static __always_inline int push_metadata(struct xdp_md *ctx, __u32 block, __u32 port, __u32 ticket)
{
	struct metadata *m;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*m)))
		return -1;
	m = (void *)(long)ctx->data_meta;
	if ((void *)(m + 1) > (void *)(long)ctx->data)
		return -1;
	*m = (struct metadata){METADATA_MAGIC, block, port, ticket};
	return 0;
}

/* Moves the bounds. */
static __always_inline int pop_metadata(struct xdp_md *ctx)
{
	return bpf_xdp_adjust_meta(ctx, sizeof(struct metadata));
}
