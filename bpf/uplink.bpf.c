// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * At an uplink: EGRE frames for this machine leave their outer headers and go
 * on to the port that their addresses and key stand for, and so into the node.
 * What is not GRE, or not for an address of ours, is the host's.
 */
#include "token.h"
#include "tunnel.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * The outer headers of a packet, as far as they are read. The fault is kept
 * until the frame is known to be for us.
 */
struct received {
	struct arrival_key key;
	__u32 before; /* bytes up to the inner frame */
	__u32 packet; /* bytes of the outer Ethernet header and packet, as it says */
	int fault;    /* enum tunnel_drop, or SOUND */
};

#define SOUND -1

static __noinline int reject(const struct in6_addr *local, enum tunnel_drop why)
{
	if (!local || !bpf_map_lookup_elem(&locals, local))
		return XDP_PASS;
	count_drop(0, why, 1);
	return XDP_DROP;
}

static __always_inline void map_ipv4(struct in6_addr *to, __be32 address)
{
	to->s6_addr32[2] = bpf_htonl(0xffff);
	to->s6_addr32[3] = address;
}

/* read4 and read6 return whether the packet is GRE. */
static __always_inline int read4(struct cursor *c, struct received *r)
{
	struct iphdr *ip = take_ipv4(c);

	if (!ip || ip->protocol != PROTOCOL_GRE)
		return 0;
	map_ipv4(&r->key.remote, ip->saddr);
	map_ipv4(&r->key.local, ip->daddr);
	r->before = EGRE4_ROOM;
	r->packet = sizeof(struct ethhdr) + bpf_ntohs(ip->tot_len);
	if (ip->ihl != 5)
		r->fault = TUNNEL_OPTIONS;
	else if (!ipv4_intact(ip))
		r->fault = TUNNEL_CHECKSUM;
	else if (ip->frag_off & bpf_htons(IPV4_FRAGMENT))
		r->fault = TUNNEL_FRAGMENT;
	return 1;
}

static __always_inline int read6(struct cursor *c, struct received *r)
{
	struct ipv6hdr *ip = take_ipv6(c);
	__u8 *next;

	if (!ip)
		return 0;
	r->key.remote = ip->saddr;
	r->key.local = ip->daddr;
	r->before = EGRE6_ROOM;
	r->packet = sizeof(struct ethhdr) + sizeof(*ip) + bpf_ntohs(ip->payload_len);
	switch (ip->nexthdr) {
	case PROTOCOL_GRE:
		return 1;
	case 44: /* a fragment; what follows is its first byte, as in the others */
		r->fault = TUNNEL_FRAGMENT;
		break;
	case 0:  /* hop-by-hop options */
	case 43: /* routing */
	case 60: /* destination options */
		r->fault = TUNNEL_OPTIONS;
		break;
	default:
		return 0;
	}
	next = take(c, 1);
	return next && *next == PROTOCOL_GRE;
}

static __always_inline int gre_fault(const struct gre *gre)
{
	__u16 flags = bpf_ntohs(gre->flags);

	if (flags & GRE_VERSION)
		return TUNNEL_VERSION;
	if (!(flags & GRE_KEYED))
		return TUNNEL_KEYLESS;
	if (flags != GRE_KEYED)
		return TUNNEL_FLAGS;
	if (gre->protocol != bpf_htons(GRE_ETHERNET))
		return TUNNEL_PROTOCOL;
	return SOUND;
}

SEC("xdp.frags")
int uplink_in(struct xdp_md *ctx)
{
	struct received r = {.fault = SOUND};
	struct cursor c = start_of(ctx);
	struct ethhdr *eth = take_eth(&c);
	__u64 length = bpf_xdp_get_buff_len(ctx);
	struct arrival *a;
	struct gre *gre;
	__u32 inner;

	if (!eth)
		return XDP_PASS;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if (!read4(&c, &r))
			return XDP_PASS;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		if (!read6(&c, &r))
			return XDP_PASS;
	} else {
		return XDP_PASS;
	}
	if (r.fault != SOUND)
		return reject(&r.key.local, r.fault);
	if (r.packet > length)
		return reject(&r.key.local, TUNNEL_LENGTH);
	gre = take(&c, sizeof(*gre));
	if (!gre || r.packet < r.before)
		return reject(&r.key.local, TUNNEL_RUNT);
	r.fault = gre_fault(gre);
	if (r.fault != SOUND)
		return reject(&r.key.local, r.fault);
	if (r.packet < r.before + sizeof(struct ethhdr))
		return reject(&r.key.local, TUNNEL_RUNT);
	r.key.key = gre->key;
	a = bpf_map_lookup_elem(&arrivals, &r.key);
	if (!a)
		return reject(&r.key.local, TUNNEL_UNKNOWN);

	inner = r.packet - r.before;
	if (inner > a->longest) {
		count_drop(a->slot, TUNNEL_LONG, 1);
		return XDP_DROP;
	}
	/* Padding of the outer frame is none of the inner one's. */
	if ((length > r.packet && bpf_xdp_adjust_tail(ctx, (int)r.packet - (int)length)) ||
	    bpf_xdp_adjust_head(ctx, r.before) || give_token(ctx)) {
		count_drop(a->slot, TUNNEL_EDIT, 1);
		return XDP_DROP;
	}
	count_in(a->slot, 1, inner);
	return bpf_redirect_map(&devices, a->port, 0);
}
