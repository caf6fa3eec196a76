// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The fast path: at a node's end, forwarding on the node's behalf by the node's
 * own FIB. It may be faster than the node's stack, never different from it, so
 * whatever it is unsure of goes there.
 */
#include "token.h"
#include "node.h"
#include "tunnel.h"
#include "fib.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* To the node's stack, which takes the metadata for a reason not to merge. */
static __always_inline int to_stack(struct xdp_md *ctx)
{
	take_token(ctx);
	return XDP_PASS;
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
	memcpy(header, e->outer.bytes, EGRE4_ROOM);
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
	memcpy(header, e->outer.bytes, EGRE6_ROOM);
	fill_lengths6(header, inner);
	return 0;
}

SEC("xdp.frags")
int node_in(struct xdp_md *ctx)
{
	struct bpf_fib_lookup q = {.ifindex = ctx->ingress_ifindex};
	__u32 length = bpf_xdp_get_buff_len(ctx);
	struct end_key key = {};
	struct net_device *dev;
	struct ethhdr *eth;
	struct cursor c;
	struct end *e;
	void *ip;

	if (!has_token(ctx))
		return XDP_PASS;
	dev = device_of(ctx);
	c = start_of(ctx);
	eth = take_eth(&c);
	if (!eth || !is_to(eth, dev))
		return to_stack(ctx);
	ip = c.at;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if (!ask_ipv4(&c, &q, length - sizeof(*eth)))
			return to_stack(ctx);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		if (!ask_ipv6(&c, &q, length - sizeof(*eth)))
			return to_stack(ctx);
	} else {
		return to_stack(ctx);
	}
	/*
	 * Success alone: no route, blackhole, unreachable, prohibit, local
	 * delivery, forwarding off, no neighbour, too long for the route's MTU
	 * and encapsulating routes are the stack's. So is a way back by which the
	 * packet came, which earns its sender a redirect.
	 */
	if (bpf_fib_lookup(ctx, &q, sizeof(q), 0) != BPF_FIB_LKUP_RET_SUCCESS || q.ifindex == ctx->ingress_ifindex)
		return to_stack(ctx);
	key.netns = netns_of(dev);
	key.ifindex = q.ifindex;
	e = bpf_map_lookup_elem(&fast_ends, &key);
	if (!e)
		return to_stack(ctx);
	if (length > e->longest) {
		count_drop(e->slot, TUNNEL_LONG, 1);
		return XDP_DROP;
	}

	if (q.family == AF_INET)
		hop_ipv4(ip);
	else
		((struct ipv6hdr *)ip)->hop_limit--;
	memcpy(eth->h_dest, q.dmac, ETH_ALEN);
	memcpy(eth->h_source, q.smac, ETH_ALEN);
	if ((e->kind == END_EGRE4 && wrap4(ctx, e, length)) || (e->kind == END_EGRE6 && wrap6(ctx, e, length))) {
		count_drop(e->slot, TUNNEL_EDIT, 1);
		return XDP_DROP;
	}
	count_fast(e->slot, length);
	if (e->kind == END_LOCAL)
		count_in(e->peer_slot, 1, length);
	return bpf_redirect_map(&devices, e->device, 0);
}

/* Where the fast path is off. A veth without any program takes no XDP frames. */
SEC("xdp.frags")
int node_pass(struct xdp_md *ctx)
{
	if (has_token(ctx))
		take_token(ctx);
	return XDP_PASS;
}
