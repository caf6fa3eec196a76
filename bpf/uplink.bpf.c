// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * At an uplink: EGRE frames for this machine leave their outer headers and go
 * on to the port that their addresses and key stand for, and so into the node.
 * What is not GRE, or not for an address of ours, is the host's.
 */
#include <linux/in6.h>

#include "cut_through.h"
#include "ecn.h"
#include "egress.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Addresses of one uplink. */
#define MAX_ADDRESSES 16

/* A tunnel as frames arrive by it: where those with its key go, and what else
 * they must show to get in. */
struct tunnel {
	struct in6_addr remote, local; /* IPv4 as ::ffff:a.b.c.d */
	__u32 slot;    /* of the port, in devices and counters */
	__u32 block;   /* of its node: a hint as in metadata */
	__u32 longest; /* inner frame, bytes */
	__u32 tap;     /* METADATA_TAP: copies are wanted of what arrives */
	__be32 key;    /* of GRE: whose the entry is */
	__u32 pad;
};

/* How an uplink's program is attached. */
enum uplink_mode {
	UPLINK_NATIVE = 1,  /* in its driver */
	UPLINK_GENERIC = 2, /* behind it */
};

/* Of an uplink; for the agent. */
enum uplink_flag {
	UPLINK_ENCAP_OFFLOAD = 1, /* it must be told of encapsulation: see encap.h */
	UPLINK_NO_TRANSMIT = 2,   /* its driver cannot send what XDP redirects to it */
};

struct uplink {
	__u32 slot;
	enum uplink_mode mode;
	__u32 count; /* of addresses */
	enum uplink_flag flags;
	struct in6_addr address[MAX_ADDRESSES]; /* that tunnels end at */
};

_Static_assert(sizeof(struct tunnel) == 56, "the agent shares this layout");
_Static_assert(sizeof(struct uplink) == 272, "the agent shares this layout");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PORTS);
	__type(key, __be32); /* of GRE */
	__type(value, __u32); /* number of the tunnel's entry in tunnels */
} tunnel_index SEC(".maps");

/* As ports: an entry is never changed while it may be read. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORT_ENTRIES);
	__type(key, __u32);
	__type(value, struct tunnel);
} tunnels SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 64);
	__type(key, __u32); /* interface index */
	__type(value, struct uplink);
} uplinks SEC(".maps");

/* The addresses of all uplinks: whichever a frame comes in by. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 64 * MAX_ADDRESSES);
	__type(key, struct in6_addr);
	__type(value, __u32);
} tunnel_addrs SEC(".maps");

/*
 * The outer headers of a packet, as far as they are read. The fault is kept
 * until the frame is known to be for us.
 */
struct received {
	struct in6_addr remote, local;
	__u32 before; /* bytes up to the inner frame */
	__u32 packet; /* bytes of the outer Ethernet header and packet, as it says */
	int fault;    /* enum drop_reason, or SOUND */
	int congested; /* the underlay has marked it (ECN) */
};

#define SOUND -1

static __noinline int reject(const struct xdp_md *ctx, const struct in6_addr *local, enum drop_reason why)
{
	__u32 ifindex = ctx->ingress_ifindex;
	struct uplink *u;

	if (!local || !bpf_map_lookup_elem(&tunnel_addrs, local))
		return XDP_PASS;
	u = bpf_map_lookup_elem(&uplinks, &ifindex);
	return drop_xdp(u ? u->slot : 0, why);
}

static __always_inline void map_ipv4(struct in6_addr *to, __be32 address)
{
	to->s6_addr32[2] = bpf_htonl(0xffff);
	to->s6_addr32[3] = address;
}

static __always_inline int same(const struct in6_addr *a, const struct in6_addr *b)
{
	return a->s6_addr32[3] == b->s6_addr32[3] && a->s6_addr32[2] == b->s6_addr32[2] &&
	       a->s6_addr32[1] == b->s6_addr32[1] && a->s6_addr32[0] == b->s6_addr32[0];
}

/* read4 and read6 return whether the packet is GRE. */
static __always_inline int read4(struct cursor *c, struct received *r)
{
	struct iphdr *ip = parse_ipv4(c);

	if (!ip || ip->protocol != PROTOCOL_GRE)
		return 0;
	map_ipv4(&r->remote, ip->saddr);
	map_ipv4(&r->local, ip->daddr);
	r->congested = has_ce4(ip);
	r->before = EGRE4_HEADER;
	r->packet = sizeof(struct ethhdr) + bpf_ntohs(ip->tot_len);
	if (ip->ihl != 5)
		r->fault = DROP_OPTIONS;
	else if (!ipv4_intact(ip))
		r->fault = DROP_CHECKSUM;
	else if (ip->frag_off & bpf_htons(IPV4_FRAGMENT))
		r->fault = DROP_FRAGMENT;
	return 1;
}

static __always_inline int read6(struct cursor *c, struct received *r)
{
	struct ipv6hdr *ip = parse_ipv6(c);
	__u8 *next;

	if (!ip)
		return 0;
	r->remote = ip->saddr;
	r->local = ip->daddr;
	r->congested = has_ce6(ip);
	r->before = EGRE6_HEADER;
	r->packet = sizeof(struct ethhdr) + sizeof(*ip) + bpf_ntohs(ip->payload_len);
	switch (ip->nexthdr) {
	case PROTOCOL_GRE:
		return 1;
	case 44: /* a fragment; what follows is its first byte, as in the others */
		r->fault = DROP_FRAGMENT;
		break;
	case 0:  /* hop-by-hop options */
	case 43: /* routing */
	case 60: /* destination options */
		r->fault = DROP_OPTIONS;
		break;
	default:
		return 0;
	}
	next = parse(c, 1);
	return next && *next == PROTOCOL_GRE;
}

static __always_inline int gre_fault(const struct gre *gre)
{
	__u16 flags = bpf_ntohs(gre->flags);

	if (flags & GRE_VERSION)
		return DROP_VERSION;
	if (!(flags & GRE_KEYED))
		return DROP_KEYLESS;
	if ((flags & ~GRE_IGNORED) != GRE_KEYED)
		return DROP_FLAGS;
	if (gre->protocol != bpf_htons(GRE_ETHERNET))
		return DROP_PROTOCOL;
	return SOUND;
}

static __always_inline struct tunnel *tunnel_of(__be32 key)
{
	for (int i = 0; i < INDEX_TRIES; i++) {
		__u32 *number = bpf_map_lookup_elem(&tunnel_index, &key);
		struct tunnel *t;

		if (!number)
			break;
		t = bpf_map_lookup_elem(&tunnels, number);
		if (t && t->key == key)
			return t;
	}
	return 0;
}

/*
 * receive is what the programs below do. cuts is a constant: whether to forward by
 * cut-through what can be.
 */
static __always_inline int receive(struct xdp_md *ctx, int cuts)
{
	struct received r = {.fault = SOUND};
	struct cursor c = start_of(ctx);
	struct ethhdr *eth = parse_eth(&c);
	__u64 length = bpf_xdp_get_buff_len(ctx);
	struct tunnel *t;
	struct gre *gre;
	__u32 inner, ticket;
	int verdict;

	if (!eth)
		return XDP_PASS;
	if (type_of(eth) == bpf_htons(ETH_P_IP)) {
		if (!read4(&c, &r))
			return XDP_PASS;
	} else if (type_of(eth) == bpf_htons(ETH_P_IPV6)) {
		if (!read6(&c, &r))
			return XDP_PASS;
	} else {
		return XDP_PASS;
	}
	if (r.fault != SOUND)
		return reject(ctx, &r.local, r.fault);
	if (r.packet > length)
		return reject(ctx, &r.local, DROP_LENGTH);
	gre = parse(&c, sizeof(*gre));
	if (!gre || r.packet < r.before)
		return reject(ctx, &r.local, DROP_RUNT);
	r.fault = gre_fault(gre);
	if (r.fault != SOUND)
		return reject(ctx, &r.local, r.fault);
	if (r.packet < r.before + sizeof(struct ethhdr))
		return reject(ctx, &r.local, DROP_RUNT);
	t = tunnel_of(gre->key);
	if (!t || !same(&t->remote, &r.remote) || !same(&t->local, &r.local))
		return reject(ctx, &r.local, DROP_UNKNOWN_PEER);

	inner = r.packet - r.before;
	if (inner > t->longest)
		return drop_xdp(t->slot, DROP_LONG);
	if (cuts && length == r.packet && !r.congested && !t->tap) {
		verdict = r.before == EGRE4_HEADER ? cut_through(ctx, c, t->slot, t->block, inner, MODE_EGRE4)
						   : cut_through(ctx, c, t->slot, t->block, inner, MODE_EGRE6);
		if (verdict != BY_THE_NODE)
			return verdict;
	}
	ticket = cut_send(ctx, t->slot);
	/* Padding of the outer frame is none of the inner one's. */
	if ((length > r.packet && bpf_xdp_adjust_tail(ctx, (int)r.packet - (int)length)) ||
	    bpf_xdp_adjust_head(ctx, r.before) || push_metadata(ctx, t->block, t->slot | t->tap, ticket))
		return drop_xdp(t->slot, DROP_UNEDITABLE);
	if (r.congested && propagate_ce(ctx))
		return drop_xdp(t->slot, DROP_CONGESTION);
	if (bpf_redirect_map(&devices, t->slot, XDP_DROP) != XDP_REDIRECT)
		return drop_xdp(t->slot, DROP_UNJOINED);
	count_fast_to(t->slot, inner);
	return XDP_REDIRECT;
}

SEC("xdp.frags")
int uplink_in(struct xdp_md *ctx)
{
	return receive(ctx, 1);
}

/* For kernels that cannot run the other. */
SEC("xdp.frags")
int uplink_plain(struct xdp_md *ctx)
{
	return receive(ctx, 0);
}
