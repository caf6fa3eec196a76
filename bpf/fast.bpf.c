// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The fast path: at a node's end, forwarding on the node's behalf by the node's
 * own FIB. It may be faster than the node's stack, never different from it, so
 * whatever it is unsure of goes there.
 */
#include "cut_through.h"
#include "egress.h"
#include "fib_cache.h"
#include "node.h"
#include "police.h"
#include "policy.h"
#include "stack.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("xdp.frags")
int node_in(struct xdp_md *ctx)
{
	union fib_query q = {.fib.ifindex = ctx->ingress_ifindex};
	__u32 length = bpf_xdp_get_buff_len(ctx);
	struct metadata *meta = metadata_of(ctx);
	struct policy_entry p;
	struct net_device *dev;
	struct fib_context in;
	struct fib_entry *f;
	struct egress *e;
	struct ethhdr *eth;
	struct cursor c;
	struct net *net;
	__u32 block, slot, tap, ticket, ifindex;
	__u64 netns;
	int asked, why;
	int rx = STACK_NONE;
	void *ip;

	if (!meta)
		return XDP_PASS;
	block = meta->block;
	tap = meta->port & METADATA_TAP;
	slot = meta->port & ~METADATA_TAP;
	ticket = meta->ticket;
	dev = device_of(ctx);
	net = dev->nd_net.net;
	netns = net->net_cookie;
	c = start_of(ctx);
	eth = parse_eth(&c);
	why = STACK_MAC;
	if (!eth || !is_to(eth, dev))
		goto stack;
	ip = c.at;
	why = fib_query_of(&c, eth, net, length - sizeof(*eth), &q, &in);
	if (why)
		goto stack;
	p = policy_of(block, netns, q.fib.ifindex);
	if (type_of(eth) == bpf_htons(ETH_P_IP)) {
		if (!policy_cached(&p, POLICY_RX4))
			rx = rx_reason_ipv4(ctx, &p);
	} else if (!policy_cached(&p, POLICY_RX6)) {
		rx = rx_reason_ipv6(ctx, &p, q.fib.l4_protocol);
	}
	why = rx;
	if (rx > STACK_NONE)
		goto stack;
	/*
	 * Success alone: no route, blackhole, unreachable, prohibit, local
	 * delivery, forwarding off, no neighbour, too long for the route's MTU
	 * and encapsulating routes are the stack's. So is the interface by which
	 * the packet came, which earns its sender a redirect.
	 */
	in.tick = bpf_jiffies64();
	in.netns = netns;
	if (fib_caches()) {
		f = fib_entry_of(&q, &in);
		why = STACK_LOOKUP;
		if (!f)
			goto stack;
		asked = rx == RX_UNCACHED || !fib_hit(f, &q, &in);
	} else {
		f = 0;
		asked = 1;
	}
	if (asked) {
		why = lookup_reason(fib_caches() ? fib_lookup(ctx, f, &q, &in) : bpf_fib_lookup(ctx, &q.fib, sizeof(q.fib), 0));
		if (why)
			goto stack;
	}
	ifindex = fib_caches() ? f->ifindex : q.fib.ifindex;
	why = STACK_REDIRECT;
	if (asked && ifindex == ctx->ingress_ifindex)
		goto stack;
	e = egress_of(block, netns, ifindex);
	why = STACK_EGRESS;
	if (!e)
		goto stack;
	/* A frame with padding, which the stack takes off, may be too long but for it. */
	why = STACK_MTU;
	if (length > e->longest)
		goto stack;
	p = policy_of(block, netns, ifindex);
	if (!tx_cached(&p, length)) {
		why = tx_reason(ctx, &p, ifindex, length);
		if (why)
			goto stack;
	}

	/* Not by the answer's family: an IPv4 packet may have an IPv6 next hop (RFC 8950). */
	why = STACK_SOURCE;
	if (asked && type_of(eth) == bpf_htons(ETH_P_IP) && !source_valid(ctx, net, &q.fib, ip, e->slot, rx == STACK_NONE))
		goto stack;
	why = STACK_RATE; /* last, since who conforms is charged */
	if (e->flags & EGRESS_RATED && !conforms(ctx, e->slot, length))
		goto stack;
	if (tap)
		copy_frame(ctx, slot, TAP_TO_NODE);
	if (type_of(eth) == bpf_htons(ETH_P_IP))
		hop_ipv4(ip);
	else
		((struct ipv6hdr *)ip)->hop_limit--;
	if (fib_caches()) {
		if (asked && rx == STACK_NONE)
			fib_validate(f, &in, tx_mtu(&p));
		readdress(eth, f->smac, f->dmac);
	} else {
		readdress(eth, q.fib.smac, q.fib.dmac);
	}
	cut_see(ticket, dev);
	return transmit(ctx, e, length);
stack:
	return to_stack(ctx, slot, why);
}

/* Where the fast path is off. A veth without any program takes no XDP frames. */
SEC("xdp.frags")
int node_pass(struct xdp_md *ctx)
{
	struct metadata *meta = metadata_of(ctx);

	if (!meta)
		return XDP_PASS;
	return to_stack(ctx, meta->port & ~METADATA_TAP, STACK_OFF);
}
