/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Cut-through: an uplink forwards for a node what the node's end would forward
 * without asking anybody. Each packet that goes by the node has node_in note where
 * the kernel keeps its device; for those behind it the uplink looks into the FIB cache, by the
 * same key as node_in would, and if all is clear it edits the frame where it lies. So
 * the veth pair, the second program and one of two redirects fall away.
 *
 * Nothing is found out here. An entry of the FIB cache was made in this tick of the kernel's, after
 * node_in had found that nothing but the FIB decides on what comes in by the one
 * interface and leaves by the other; whatever has none goes by the node. So cut-through is off
 * a tick, at the latest, after node_in finds something or no longer runs, and at once when
 * the agent says so.
 */
#pragma once

#include "egress.h"
#include "fib_cache.h"
#include "node.h"

/* Which node's end a port leads to, while the fast path is on there; by slot. The
 * agent maps this into its memory. It writes netns 0, none, before anything else. */
struct cut_end {
	__u64 netns; /* cookie; 0: nothing is cut through */
	__u32 ifindex;
	__u32 pad;
};

_Static_assert(sizeof(struct cut_end) == 16, "the agent shares this layout");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32); /* slot */
	__type(value, struct cut_end);
} cut_ends SEC(".maps");

/* Records, a power of two. Queues that have one in common push each other's device out. */
#define CUT_RECORD_BITS 12

/*
 * What is known of a port that frames arrive by, for one receive queue of the uplinks. The address
 * is a hint: the device may have gone, and its memory be another's. What lies there now is compared
 * with the port's cut_end; a cookie is given out once.
 *
 * Tickets keep the order. A frame that goes by the node has its record's next ticket, and node_in notes
 * that of the last frame that stayed on the fast path, and on which CPU. While that is not the last
 * that was given out, a frame is in the queue of the veth pair, has gone to the node's stack or is lost,
 * and the next one goes by the node, too. When it is, all that the queue has sent there came through, and has left for
 * its uplink when the poll ended in which node_in ran (xdp_do_flush): on this CPU, before it polls the
 * queue again. A queue that is polled by another CPU than before finds another CPU noted.
 */
struct cut_record {
	__u64 device; /* kernel address of the net_device; 0: none */
	__u64 seen;   /* ticket, and above it the CPU */
	__u32 sent;   /* tickets given out */
	__u32 uplink; /* interface index: what comes by another has not been seen to get there */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << CUT_RECORD_BITS);
	__type(key, __u32); /* cut_place */
	__type(value, struct cut_record);
} cut_records SEC(".maps");

/* A ticket says of which record it is, and above that, how many of it there were. */
static __always_inline __u32 cut_ticket(__u32 place, __u32 sent)
{
	return sent << CUT_RECORD_BITS | place;
}

/* cut_place gives the record of a port's slot and of the receive queue that a frame came by. */
static __always_inline __u32 cut_place(const struct xdp_md *ctx, __u32 slot)
{
	__u32 queue = (ctx->ingress_ifindex << 10 ^ ctx->rx_queue_index) * 0x9e3779b1U; /* 2^32 by the golden ratio */

	return (slot ^ queue >> (32 - CUT_RECORD_BITS)) & ((1 << CUT_RECORD_BITS) - 1);
}

static __always_inline __u64 cut_seen(__u32 ticket)
{
	return (__u64)bpf_get_smp_processor_id() << 32 | ticket;
}

/* cut_send gives the ticket of a frame that goes by the node. */
static __always_inline __u32 cut_send(struct xdp_md *ctx, __u32 slot)
{
	__u32 place = cut_place(ctx, slot);
	struct cut_record *r = bpf_map_lookup_elem(&cut_records, &place);

	if (!r)
		return NO_TICKET;
	r->uplink = ctx->ingress_ifindex;
	/* By an atomic operation, since another queue may have the same record. */
	return cut_ticket(place, __sync_fetch_and_add(&r->sent, 1) + 1);
}

/* cut_see notes a frame that the fast path forwards, and the device that it came in at. */
static __always_inline void cut_see(__u32 ticket, struct net_device *dev)
{
	__u32 place = ticket & ((1 << CUT_RECORD_BITS) - 1);
	struct cut_record *r;

	if (ticket == NO_TICKET)
		return;
	r = bpf_map_lookup_elem(&cut_records, &place);
	if (r) {
		r->device = (__u64)dev;
		r->seen = cut_seen(ticket);
	}
}

/* What comes next for a frame that an uplink looks at. Others: the program's verdict. */
#define BY_THE_NODE -1

/*
 * cut_encap puts the outer header of an egress entry in the place of the one that the frame
 * has, of mode arrived. It returns 0, or -1 if there is no room. Moves the bounds.
 */
static __always_inline int cut_encap(struct xdp_md *ctx, const struct egress *e, __u32 inner, enum mode arrived, enum mode leaves)
{
	int more = (int)egre_header(leaves) - (int)egre_header(arrived);

	if (more && bpf_xdp_adjust_head(ctx, -more))
		return -1;
	return write_outer((void *)(long)ctx->data, (void *)(long)ctx->data_end, &e->outer, inner, leaves);
}

/*
 * cut_through forwards a frame with its outer header on, of mode arrived, that came by a port's
 * tunnel, or gives BY_THE_NODE. c is at the inner frame, which has the given length. Moves the
 * bounds unless it is BY_THE_NODE.
 */
static __always_inline int cut_through(struct xdp_md *ctx, struct cursor c, __u32 slot, __u32 block, __u32 inner, enum mode arrived)
{
	struct cut_end *end = bpf_map_lookup_elem(&cut_ends, &slot);
	__u32 place = cut_place(ctx, slot);
	struct cut_record *r = bpf_map_lookup_elem(&cut_records, &place);
	struct net_device *dev;
	union fib_query q = {};
	struct fib_context in;
	struct fib_entry *f;
	struct egress *e;
	struct ethhdr *eth;
	struct net *net;
	__u64 netns;
	void *ip;

	if (!fib_caches() || !end || !r)
		return BY_THE_NODE;
	if (r->seen != cut_seen(cut_ticket(place, r->sent)) || r->uplink != ctx->ingress_ifindex)
		return BY_THE_NODE;
	netns = *(volatile __u64 *)&end->netns;
	q.fib.ifindex = *(volatile __u32 *)&end->ifindex;
	dev = KERNEL_AT(struct net_device, r->device);
	net = dev->nd_net.net;
	if (!netns || net->net_cookie != netns || (__u32)dev->ifindex != q.fib.ifindex)
		return BY_THE_NODE;
	/* What the pair would not carry: with one of its ends down there is no carrier. */
	if (!has_carrier(dev) || inner > dev->mtu + sizeof(*eth))
		return BY_THE_NODE;
	eth = parse_eth(&c);
	if (!eth || !is_to(eth, dev))
		return BY_THE_NODE;
	ip = c.at;
	if (fib_query_of(&c, eth, net, inner - sizeof(*eth), &q, &in))
		return BY_THE_NODE;
	in.tick = bpf_jiffies64();
	in.netns = netns;
	f = fib_entry_of(&q, &in);
	/* With padding, which the stack takes off, a frame may be too long but for it. */
	if (!f || !fib_hit(f, &q, &in) || inner > f->mtu + sizeof(*eth))
		return BY_THE_NODE;
	e = egress_of(block, netns, f->ifindex);
	if (!e || e->flags & ~EGRESS_ENCAP_OFFLOAD || inner > e->longest)
		return BY_THE_NODE;
	if (e->mode != MODE_EGRE4 && e->mode != MODE_EGRE6)
		return BY_THE_NODE;

	if (type_of(eth) == bpf_htons(ETH_P_IP))
		hop_ipv4(ip);
	else
		((struct ipv6hdr *)ip)->hop_limit--;
	readdress(eth, f->smac, f->dmac);
	count_fast_to(slot, inner);
	if (e->mode == MODE_EGRE4 ? cut_encap(ctx, e, inner, arrived, MODE_EGRE4) : cut_encap(ctx, e, inner, arrived, MODE_EGRE6))
		return drop_xdp(e->slot, DROP_UNEDITABLE);
	if (bpf_redirect_map(&devices, e->device, XDP_DROP) != XDP_REDIRECT)
		return drop_xdp(e->slot, DROP_UNJOINED);
	count_fast_from(e->slot, inner);
	return XDP_REDIRECT;
}
