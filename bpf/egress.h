/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Egress entries: where a frame goes that leaves by an interface of a node, with
 * the outer header that it needs, and how the fast path finds them.
 */
#pragma once

#include "count.h"
#include "egre.h"
#include "metadata.h"
#include "tap.h"

/* Entries. One is never changed while it may be in use, but replaced by another;
 * so there are more of them than ports. */
#define MAX_EGRESSES (MAX_PORTS + 1024)

/* Places for nodes' interfaces in egress_index. */
#define MAX_EGRESS_INDEX 131072

enum egress_flag {
	EGRESS_ENCAP_OFFLOAD = 1, /* the uplink must be told of the encapsulation: see encap.h */
	EGRESS_TAP = 2,           /* copies are wanted of what leaves by the port, */
	EGRESS_PEER_TAP = 4,      /* and of what arrives at the peer */
	EGRESS_RATED = 8,         /* what leaves has to conform to its rate: see rate.h */
};

/* Of a link between machines, or of one that the fast path may leave by. */
struct egress {
	/* Whose it is: interface indices repeat from namespace to namespace. 0:
	 * not the fast path's. */
	__u64 netns;
	__u32 ifindex;

	enum mode mode;    /* MODE_DIRECT, MODE_EGRE4, MODE_EGRE6 */
	__u32 slot;        /* of the port in counters, rates and classes */
	__u32 device;      /* in devices: the uplink; MODE_DIRECT: the peer, its slot in counters, too */
	__u32 uplink;      /* interface index; 0: MODE_DIRECT */
	__u32 peer_block;  /* MODE_DIRECT: of the peer's node, a hint as in metadata */
	__u32 longest;     /* inner frame, bytes */
	__u32 link_mtu;    /* of the IP packet; for the agent */
	struct outer outer;
	enum egress_flag flags;
};

_Static_assert(sizeof(struct egress) == 112, "the agent shares this layout");

/* Of an interface whose index is beyond its node's block of egress_index. */
struct egress_key {
	__u64 netns;
	__u32 ifindex;
	__u32 pad;
};

_Static_assert(sizeof(struct egress_key) == 16, "the agent shares this layout");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_EGRESSES);
	__type(key, __u32);
	__type(value, struct egress);
} egresses SEC(".maps");

/*
 * The egress entries by node: at the node's block plus an interface index there
 * is the number of the interface's entry. The agent maps this into its memory, so
 * that an entry is replaced by another in one store.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_EGRESS_INDEX);
	__type(key, __u32);
	__type(value, __u64);
} egress_index SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PORTS);
	__type(key, struct egress_key);
	__type(value, __u32);
} egress_overflow SEC(".maps");

/*
 * Ports and uplinks, by slot. An entry means the device that the writer sees, so
 * a program of another network namespace can redirect there.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} devices SEC(".maps");

static __always_inline struct egress *egress_at(__u32 number)
{
	return bpf_map_lookup_elem(&egresses, &number);
}

static __noinline __u32 overflow_egress(__u64 netns, __u32 ifindex)
{
	struct egress_key key = {.netns = netns, .ifindex = ifindex};
	__u32 *number = bpf_map_lookup_elem(&egress_overflow, &key);

	return number ? *number : 0;
}

/*
 * egress_of finds the egress entry of a node's interface, NULL if the fast path
 * cannot leave by it. The block of the metadata is a hint, no more: an entry that
 * is found says whose it is.
 */
static __always_inline struct egress *egress_of(__u32 block, __u64 netns, __u32 ifindex)
{
	__u32 index = block_place(block, ifindex);
	__u64 *number = bpf_map_lookup_elem(&egress_index, &index);
	struct egress *e;

	e = number ? egress_at(*number) : 0;
	if (e && e->netns == netns && e->ifindex == ifindex)
		return e;
	e = egress_at(overflow_egress(netns, ifindex));
	return e && e->netns == netns && e->ifindex == ifindex ? e : 0;
}

/*
 * encap_xdp puts the outer header before the frame. The metadata stays here: what
 * comes next is the underlay. Moves the bounds.
 */
static __always_inline int encap_xdp(struct xdp_md *ctx, const struct egress *e, __u32 inner, enum mode mode)
{
	if (pop_metadata(ctx) || bpf_xdp_adjust_head(ctx, -(int)egre_header(mode)))
		return -1;
	return write_outer((void *)(long)ctx->data, (void *)(long)ctx->data_end, &e->outer, inner, mode);
}

/*
 * transmit sends a frame of the given length, which has its metadata, by an
 * egress entry, and gives the program's verdict. Moves the bounds.
 */
static __always_inline int transmit(struct xdp_md *ctx, const struct egress *e, __u32 length)
{
	struct metadata *m;

	if (e->flags & EGRESS_TAP)
		copy_frame(ctx, e->slot, TAP_FROM_NODE);
	switch (e->mode) {
	case MODE_DIRECT:
		m = metadata_of(ctx);
		if (!m)
			return drop_xdp(e->slot, DROP_UNEDITABLE);
		m->block = e->peer_block;
		m->port = e->device | (e->flags & EGRESS_PEER_TAP) * (METADATA_TAP / EGRESS_PEER_TAP);
		m->ticket = NO_TICKET;
		break;
	case MODE_EGRE4:
		if (encap_xdp(ctx, e, length, MODE_EGRE4))
			return drop_xdp(e->slot, DROP_UNEDITABLE);
		break;
	case MODE_EGRE6:
		if (encap_xdp(ctx, e, length, MODE_EGRE6))
			return drop_xdp(e->slot, DROP_UNEDITABLE);
		break;
	default:
		return drop_xdp(e->slot, DROP_UNJOINED);
	}
	if (bpf_redirect_map(&devices, e->device, XDP_DROP) != XDP_REDIRECT)
		return drop_xdp(e->slot, DROP_UNJOINED);
	count_fast_from(e->slot, length);
	if (e->mode == MODE_DIRECT)
		count_fast_to(e->device, length);
	return XDP_REDIRECT;
}
