/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Congestion marks of the underlay (RFC 6040, and for GRE RFC 9601). A router
 * that is congested marks a packet whose outer header says that its ends know
 * ECN. Trellis says that they do not, so nothing of its own is ever marked;
 * Linux and Open vSwitch copy the inner packet's word on it, and a mark that
 * their packets bring belongs to the inner packet.
 */
#pragma once

#include "parse.h"

#define ECN_CE 3 /* CE; 0 is Not-ECT; of the traffic class */

static __always_inline int has_ce4(const struct iphdr *ip)
{
	return (ip->tos & ECN_CE) == ECN_CE;
}

static __always_inline int has_ce6(const struct ipv6hdr *ip)
{
	return (ip->flow_lbl[0] >> 4 & ECN_CE) == ECN_CE;
}

/* The checksum follows as RFC 1624 says. */
static __always_inline int set_ce4(struct iphdr *ip)
{
	__be16 *word = (void *)ip, before = *word;

	if (!(ip->tos & ECN_CE))
		return -1;
	ip->tos |= ECN_CE;
	ip->check = ~fold((__u16)~ip->check + (__u16)~before + *word);
	return 0;
}

static __always_inline int set_ce6(struct ipv6hdr *ip)
{
	if (!(ip->flow_lbl[0] & ECN_CE << 4))
		return -1;
	ip->flow_lbl[0] |= ECN_CE << 4;
	return 0;
}

/*
 * propagate_ce marks the IP packet of a frame as having met congestion, behind up to two VLAN tags. It
 * returns -1 if the packet's sender knows no ECN: that one hears of congestion
 * by a loss. What is not IP is left as it is.
 */
static __noinline int propagate_ce(struct xdp_md *ctx)
{
	struct cursor c = start_of(ctx);
	struct ethhdr *eth = parse_eth(&c);
	struct iphdr *ip4;
	struct ipv6hdr *ip6;
	__be16 protocol, *tag;

	if (!eth)
		return 0;
	protocol = eth->h_proto;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		tag = parse(&c, 2 * sizeof(*tag));
		if (!tag)
			return 0;
		protocol = tag[1];
	}
	if (protocol == bpf_htons(ETH_P_IP)) {
		ip4 = parse_ipv4(&c);
		return ip4 ? set_ce4(ip4) : 0;
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		ip6 = parse_ipv6(&c);
		return ip6 ? set_ce6(ip6) : 0;
	}
	return 0;
}
