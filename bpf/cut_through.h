/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Cut-through: an uplink forwards for a node what the node's end would forward
 * without asking anybody. Each packet that goes by the node has node_in note where
 * the kernel keeps its device; for those behind it the uplink looks at the same caches, by the
 * same key, as node_in would, and if all of them say yes it edits the frame where it
 * lies. So the veth pair, the second program and one of two redirects fall away.
 *
 * Nothing is found out here: whatever is not cached, in this tick of the kernel's, goes
 * by the node, which finds it out. So cut-through is off a tick, at the latest, after node_in no
 * longer runs, and at once when the agent says so.
 */
#pragma once

#include "egress.h"
#include "fib_cache.h"
#include "node.h"
#include "policy_cache.h"

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

/* Records of each CPU, a power of two. Ports that have one in common push each other's
 * device out. */
#define CUT_RECORDS 4096

/*
 * What a CPU knows of a port that frames arrive by. The address is a hint: the device may
 * have gone, and its memory be another's. What lies there now is compared with the
 * port's cut_end; a cookie is given out once.
 *
 * Tickets keep the order. A frame that goes by the node has the next ticket of this CPU, and
 * node_in notes that of the last frame that stayed on the fast path. While the two
 * differ, a frame is in the queue of the veth pair, has gone to the node's stack or is lost, and
 * the next one goes by the node, too. Once they are the same, all that this CPU has sent there came
 * through on this CPU, and left for its uplink when node_in's poll ended (xdp_do_flush):
 * before this CPU polls an uplink. node_in on another CPU has other tickets.
 */
struct cut_record {
	__u64 device; /* kernel address of the net_device; 0: none */
	__u32 sent, seen; /* tickets */
	__u32 uplink; /* interface index: what comes by another has not been seen to get there */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, CUT_RECORDS);
	__type(key, __u32); /* the slot's lower bits */
	__type(value, struct cut_record);
} cut_records SEC(".maps");

/* A ticket's lower bits are the CPU (NR_CPUS is at most this), so that no two CPUs have the same. */
#define TICKET_STEP 8192

static __always_inline struct cut_record *cut_record_of(__u32 slot)
{
	__u32 place = slot & (CUT_RECORDS - 1);

	return bpf_map_lookup_elem(&cut_records, &place);
}

/* cut_send gives the ticket of a frame that goes by the node. */
static __always_inline __u32 cut_send(__u32 slot, __u32 uplink)
{
	struct cut_record *r = cut_record_of(slot);

	if (!r)
		return NO_TICKET;
	if (!r->sent)
		r->sent = bpf_get_smp_processor_id() & (TICKET_STEP - 1);
	r->sent += TICKET_STEP;
	r->uplink = uplink;
	return r->sent;
}

/* cut_see notes a frame that the fast path forwards, and the device that it came in at. */
static __always_inline void cut_see(__u32 slot, __u32 ticket, struct net_device *dev)
{
	struct cut_record *r;

	if (ticket == NO_TICKET)
		return;
	r = cut_record_of(slot);
	if (r) {
		r->device = (__u64)dev;
		r->seen = ticket;
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
	struct cut_record *r = cut_record_of(slot);
	struct policy_entry p;
	struct net_device *dev;
	union fib_query q = {};
	struct fib_context in;
	struct fib_entry *f;
	struct egress *e;
	struct ethhdr *eth;
	struct net *net;
	__u64 netns;
	int ipv4;
	void *ip;

	if (!fib_caches() || !end || !r || r->sent != r->seen || r->uplink != ctx->ingress_ifindex)
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
	ipv4 = type_of(eth) == bpf_htons(ETH_P_IP);
	p = policy_of(block, netns, q.fib.ifindex);
	if (!policy_cached(&p, ipv4 ? POLICY_RX4 : POLICY_RX6))
		return BY_THE_NODE;
	in.tick = bpf_jiffies64();
	in.netns = netns;
	f = fib_entry_of(&q, &in);
	if (!f || !fib_hit(f, &q, &in))
		return BY_THE_NODE;
	e = egress_of(block, netns, f->ifindex);
	if (!e || e->flags & ~EGRESS_ENCAP_OFFLOAD || inner > e->longest)
		return BY_THE_NODE;
	if (e->mode != MODE_EGRE4 && e->mode != MODE_EGRE6)
		return BY_THE_NODE;
	p = policy_of(block, netns, f->ifindex);
	if (!tx_cached(&p, inner))
		return BY_THE_NODE;

	if (ipv4)
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
