// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The fast path: at a node's end, forwarding on the node's behalf by the node's
 * own FIB. It may be faster than the node's stack, never different from it, so
 * whatever it is unsure of goes there.
 */
#include "answers.h"
#include "ends.h"
#include "fib.h"
#include "node.h"
#include "policy.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* To the node's stack, which takes the metadata for a reason not to merge. */
static __always_inline int to_stack(struct xdp_md *ctx)
{
	take_token(ctx);
	return XDP_PASS;
}

/* readdress writes the addresses that the FIB has found, which lie in a row. */
static __always_inline void readdress(struct ethhdr *eth, const struct answer *a)
{
	word16 *to = (word16 *)eth;

#pragma unroll
	for (int i = 0; i < ETH_ALEN / 2; i++) {
		to[i] = a->dmac[i];
		to[i + ETH_ALEN / 2] = a->smac[i];
	}
}

SEC("xdp.frags")
int node_in(struct xdp_md *ctx)
{
	union question q = {.fib.ifindex = ctx->ingress_ifindex};
	__u32 length = bpf_xdp_get_buff_len(ctx);
	struct token *token = token_of(ctx);
	enum entrance in = ENTERS_CLEAR;
	struct net_device *dev;
	struct answer *a;
	struct asker by;
	struct ethhdr *eth;
	struct cursor c;
	struct net *net;
	struct look l;
	struct end *e;
	__u32 base, tap;
	__u64 netns;
	int asked;
	void *ip;

	if (!token)
		return XDP_PASS;
	base = token->base;
	tap = token->tap;
	dev = device_of(ctx);
	net = dev->nd_net.net;
	netns = net->net_cookie;
	c = start_of(ctx);
	eth = take_eth(&c);
	if (!eth || !is_to(eth, dev))
		return to_stack(ctx);
	ip = c.at;
	l = look_at(base, netns, q.fib.ifindex);
	if (type_of(eth) == bpf_htons(ETH_P_IP)) {
		if (!ask_ipv4(&c, &q.fib, length - sizeof(*eth)))
			return to_stack(ctx);
		if (!is_clear(&l, LOOK_IN4))
			in = enters_ipv4(ctx, &l);
		by.changes = net->ipv4.rt_genid.counter;
		by.first = q.word[0] & (spreads_by_ports4(net) ? ASKS_PORTS : ASKS_NO_PORTS);
	} else if (type_of(eth) == bpf_htons(ETH_P_IPV6)) {
		if (!ask_ipv6(&c, &q.fib, length - sizeof(*eth)))
			return to_stack(ctx);
		if (!is_clear(&l, LOOK_IN6))
			in = enters_ipv6(ctx, &l, q.fib.l4_protocol);
		by.changes = net->ipv6.fib6_sernum.counter;
		by.first = q.word[0] & (net->ipv6.sysctl.multipath_hash_policy ? ASKS_PORTS : ASKS_NO_PORTS);
	} else {
		return to_stack(ctx);
	}
	if (in == ENTERS_NOT)
		return to_stack(ctx);
	/*
	 * Success alone: no route, blackhole, unreachable, prohibit, local
	 * delivery, forwarding off, no neighbour, too long for the route's MTU
	 * and encapsulating routes are the stack's. So is a way back by which the
	 * packet came, which earns its sender a redirect.
	 */
	by.tick = bpf_jiffies64();
	by.netns = netns;
	a = answer_at(&q, &by);
	if (!a)
		return to_stack(ctx);
	asked = in != ENTERS_CLEAR || !is_answered(a, &q, &by);
	if (asked && (!ask(ctx, a, &q, &by) || a->ifindex == ctx->ingress_ifindex))
		return to_stack(ctx);
	e = end_of(base, netns, a->ifindex);
	/* A frame with padding, which the stack takes off, may be too long but for it. */
	if (!e || length > e->longest)
		return to_stack(ctx);
	l = look_at(base, netns, a->ifindex);
	if (!is_free(&l, length) && !exits(ctx, &l, a->ifindex, length))
		return to_stack(ctx);

	/* Not by the answer's family: an IPv4 packet may have an IPv6 next hop (RFC 8950). */
	if (type_of(eth) == bpf_htons(ETH_P_IP)) {
		if (asked && !source_valid(ctx, net, &q.fib, ip, e->slot, in == ENTERS_CLEAR))
			return to_stack(ctx);
		if (tap)
			copy_frame(ctx, tap, TAP_TO_NODE);
		hop_ipv4(ip);
	} else {
		if (tap)
			copy_frame(ctx, tap, TAP_TO_NODE);
		((struct ipv6hdr *)ip)->hop_limit--;
	}
	if (asked && in == ENTERS_CLEAR)
		keep_answer(a, &by);
	readdress(eth, a);
	return leave(ctx, e, length);
}

/* Where the fast path is off. A veth without any program takes no XDP frames. */
SEC("xdp.frags")
int node_pass(struct xdp_md *ctx)
{
	if (token_of(ctx))
		take_token(ctx);
	return XDP_PASS;
}
