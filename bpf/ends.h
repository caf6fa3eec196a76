/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The ends of links: where a frame goes that leaves by one, and the fast path's
 * way to find it.
 */
#pragma once

#include "count.h"
#include "egre.h"
#include "tap.h"
#include "token.h"

/* Places for ends. One is never changed while it may be in use, but made anew
 * in another place; so there are more of them than ports. */
#define MAX_ENDS (MAX_PORTS + 1024)

/* Places for nodes' interfaces in egress. */
#define MAX_EGRESS 131072

/* Bits of an end. */
enum end_flag {
	END_MARKED = 1,   /* the uplink must be told of the encapsulation: see encap.h */
	END_TAP = 2,      /* copies are wanted of what leaves by the port, */
	END_PEER_TAP = 4, /* and of what arrives at the peer */
};

/* An end of a link between machines, or one that the fast path may leave by. */
struct end {
	/* Whose it is: interface indices repeat from namespace to namespace. 0:
	 * not the fast path's. */
	__u64 netns;
	__u32 ifindex;

	enum mode mode;    /* MODE_DIRECT, MODE_EGRE4, MODE_EGRE6 */
	__u32 slot;        /* of the port in counters */
	__u32 device;      /* in devices: the uplink; MODE_DIRECT: the peer, its slot in counters, too */
	__u32 uplink;      /* interface index; 0: MODE_DIRECT */
	__u32 peer_base;   /* MODE_DIRECT: of the peer's node */
	__u32 longest;     /* inner frame, bytes */
	__u32 link_mtu;    /* of the IP packet; for the agent */
	struct outer outer;
	enum end_flag flags;
};

_Static_assert(sizeof(struct end) == 112, "the agent shares this layout");

/* Where an end is whose interface index is beyond its node's places in egress. */
struct end_key {
	__u64 netns;
	__u32 ifindex;
	__u32 pad;
};

_Static_assert(sizeof(struct end_key) == 16, "the agent shares this layout");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENDS);
	__type(key, __u32);
	__type(value, struct end);
} ends SEC(".maps");

/*
 * The ends by node: at the node's base plus an interface index there is the
 * end's place in ends. The agent maps it into its memory, so that an end is
 * changed for another in one store.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_EGRESS);
	__type(key, __u32);
	__type(value, __u64);
} egress SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PORTS);
	__type(key, struct end_key);
	__type(value, __u32);
} far_egress SEC(".maps");

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

static __always_inline struct end *end_at(__u32 place)
{
	return bpf_map_lookup_elem(&ends, &place);
}

static __noinline __u32 far_end(__u64 netns, __u32 ifindex)
{
	struct end_key key = {.netns = netns, .ifindex = ifindex};
	__u32 *place = bpf_map_lookup_elem(&far_egress, &key);

	return place ? *place : 0;
}

/*
 * end_of finds the end of a node's interface, NULL if the fast path cannot leave
 * by it. The base of the token is a hint, no more: an end that is found says
 * whose it is.
 */
static __always_inline struct end *end_of(__u32 base, __u64 netns, __u32 ifindex)
{
	__u32 index = base + ifindex;
	__u64 *near = bpf_map_lookup_elem(&egress, &index);
	struct end *e;

	e = near ? end_at(*near) : 0;
	if (e && e->netns == netns && e->ifindex == ifindex)
		return e;
	e = end_at(far_end(netns, ifindex));
	return e && e->netns == netns && e->ifindex == ifindex ? e : 0;
}

/*
 * wrap puts the outer header before the frame. The token stays here: what comes
 * next is the underlay. Moves the bounds.
 */
static __always_inline int wrap4(struct xdp_md *ctx, const struct end *e, __u32 inner)
{
	struct cursor c;
	void *header;

	if (take_token(ctx) || bpf_xdp_adjust_head(ctx, -(int)EGRE4_ROOM))
		return -1;
	c = start_of(ctx);
	header = take(&c, EGRE4_ROOM);
	if (!header)
		return -1;
	copy(header, e->outer.bytes, EGRE4_ROOM);
	fill_lengths4(header, &e->outer, inner);
	return 0;
}

static __always_inline int wrap6(struct xdp_md *ctx, const struct end *e, __u32 inner)
{
	struct cursor c;
	void *header;

	if (take_token(ctx) || bpf_xdp_adjust_head(ctx, -(int)EGRE6_ROOM))
		return -1;
	c = start_of(ctx);
	header = take(&c, EGRE6_ROOM);
	if (!header)
		return -1;
	copy(header, e->outer.bytes, EGRE6_ROOM);
	fill_lengths6(header, inner);
	return 0;
}

/* What a program answers that drops a frame on its way out of an end. */
static __always_inline int drop_at(const struct end *e, enum drop_reason why)
{
	count_drop(e->slot, why, 1);
	return XDP_DROP;
}

/*
 * leave sends a frame of the given length, which has its token, out of an end,
 * and gives the program's answer. Moves the bounds.
 */
static __always_inline int leave(struct xdp_md *ctx, const struct end *e, __u32 length)
{
	struct token *t;

	if (e->flags & END_TAP)
		copy_frame(ctx, e->slot, TAP_FROM_NODE);
	switch (e->mode) {
	case MODE_DIRECT:
		t = token_of(ctx);
		if (!t)
			return drop_at(e, DROP_UNEDITABLE);
		t->base = e->peer_base;
		t->tap = e->flags & END_PEER_TAP ? e->device : 0;
		break;
	case MODE_EGRE4:
		if (wrap4(ctx, e, length))
			return drop_at(e, DROP_UNEDITABLE);
		break;
	case MODE_EGRE6:
		if (wrap6(ctx, e, length))
			return drop_at(e, DROP_UNEDITABLE);
		break;
	default:
		return drop_at(e, DROP_UNJOINED);
	}
	if (bpf_redirect_map(&devices, e->device, XDP_DROP) != XDP_REDIRECT)
		return drop_at(e, DROP_UNJOINED);
	count_fast_from(e->slot, length);
	if (e->mode == MODE_DIRECT)
		count_fast_to(e->device, length);
	return XDP_REDIRECT;
}
