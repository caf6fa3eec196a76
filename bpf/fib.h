/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Querying the node's own FIB. Each function fills the query from a packet that the
 * kernel would forward without a second look, and returns STACK_NONE; for every
 * other packet, why it is the stack's.
 */
#pragma once

#include "parse.h"
#include "stack.h"

#ifndef AF_INET
#define AF_INET 2
#endif
#ifndef AF_INET6
#define AF_INET6 10
#endif

#define FLOWINFO_MASK 0x0fffffff /* traffic class and flow label */

/*
 * query_ports fills what routes may be spread by, from the bytes that a packet has
 * behind its IP header: what the kernel's flow dissector takes for ports
 * (proto_ports_offset, include/linux/in.h). ICMP's errors go by the packet that
 * they tell of, which the helper does not see.
 */
static __always_inline enum stack_reason query_ports(struct cursor *c, struct bpf_fib_lookup *q, __u8 protocol, __u32 payload)
{
	__be16 *ports;
	__u8 *type;

	q->l4_protocol = protocol;
	switch (protocol) {
	case 1: /* ICMP: 0 and 8 are echoes */
		type = parse(c, 1);
		return type && payload >= 1 && (*type == 0 || *type == 8) ? STACK_NONE : STACK_TRANSPORT;
	case 58: /* ICMPv6: 128 and above are no errors; 130 to 137 are its hosts' and routers' own */
		type = parse(c, 1);
		return type && payload >= 1 && (*type == 128 || *type == 129) ? STACK_NONE : STACK_TRANSPORT;
	case 51: /* AH: its index comes after four bytes of other things */
		return STACK_TRANSPORT;
	case 6:   /* TCP */
	case 17:  /* UDP */
	case 33:  /* DCCP */
	case 50:  /* ESP, its index */
	case 132: /* SCTP */
	case 136: /* UDP-Lite */
		ports = parse(c, 2 * sizeof(*ports));
		if (!ports || payload < 2 * sizeof(*ports))
			return STACK_TRANSPORT;
		q->sport = ports[0];
		q->dport = ports[1];
		return STACK_NONE;
	default:
		return STACK_NONE;
	}
}

/* Addresses that no router forwards: RFC 1812 section 5.3.7, RFC 1122 3.2.1.3. */
static __always_inline int ipv4_odd(__be32 address)
{
	__u8 first = bpf_ntohl(address) >> 24;

	return first == 0 || first == 127 || first >= 224;
}

static __always_inline enum stack_reason query_ipv4(struct cursor *c, struct bpf_fib_lookup *q, __u32 length)
{
	struct iphdr *ip = parse_ipv4(c);
	__u32 total;

	if (!ip)
		return STACK_MALFORMED;
	if (ip->ihl != 5)
		return STACK_OPTIONS;
	if (ip->ttl <= 1)
		return STACK_TTL;
	if (!ipv4_intact(ip))
		return STACK_MALFORMED;
	if (ip->frag_off & bpf_htons(IPV4_FRAGMENT))
		return STACK_FRAGMENT;
	if (ipv4_odd(ip->saddr) || ipv4_odd(ip->daddr))
		return STACK_ADDRESS;
	total = bpf_ntohs(ip->tot_len);
	if (total < sizeof(*ip) || total > length)
		return STACK_MALFORMED;
	q->family = AF_INET;
	q->tos = ip->tos;
	q->tot_len = total;
	q->ipv4_src = ip->saddr;
	q->ipv4_dst = ip->daddr;
	return query_ports(c, q, ip->protocol, total - sizeof(*ip));
}

/* Multicast, unspecified, loopback, mapped, link-local: RFC 4291, RFC 4007. */
static __always_inline int ipv6_odd(const struct in6_addr *a)
{
	if (a->s6_addr[0] == 0xff || (a->s6_addr[0] == 0xfe && (a->s6_addr[1] & 0xc0) == 0x80))
		return 1;
	return !a->s6_addr32[0] && !a->s6_addr32[1];
}

static __always_inline int ipv6_extends(__u8 next)
{
	switch (next) {
	case 0:   /* hop-by-hop options */
	case 43:  /* routing */
	case 44:  /* fragment */
	case 51:  /* authentication */
	case 60:  /* destination options */
	case 135: /* mobility */
	case 139: /* HIP */
	case 140: /* shim6 */
		return 1;
	}
	return 0;
}

static __always_inline enum stack_reason query_ipv6(struct cursor *c, struct bpf_fib_lookup *q, __u32 length)
{
	struct ipv6hdr *ip = parse_ipv6(c);
	__u32 payload;

	if (!ip)
		return STACK_MALFORMED;
	if (ip->hop_limit <= 1)
		return STACK_TTL;
	if (ipv6_extends(ip->nexthdr))
		return STACK_OPTIONS;
	if (ipv6_odd(&ip->saddr) || ipv6_odd(&ip->daddr))
		return STACK_ADDRESS;
	payload = bpf_ntohs(ip->payload_len);
	if (!payload || payload + sizeof(*ip) > length)
		return STACK_MALFORMED;
	q->family = AF_INET6;
	q->flowinfo = *(__be32 *)ip & bpf_htonl(FLOWINFO_MASK);
	q->tot_len = payload + sizeof(*ip);
	memcpy(q->ipv6_src, &ip->saddr, sizeof(ip->saddr));
	memcpy(q->ipv6_dst, &ip->daddr, sizeof(ip->daddr));
	return query_ports(c, q, ip->nexthdr, payload);
}

/* One hop on. The checksum follows as RFC 1624 says, and as the kernel does. */
static __always_inline void hop_ipv4(struct iphdr *ip)
{
	__u32 check = ip->check + bpf_htons(0x0100);

	ip->check = check + (check >= 0xffff);
	ip->ttl--;
}

/* readdress writes the addresses that the FIB has found. */
static __always_inline void readdress(struct ethhdr *eth, const void *smac, const void *dmac)
{
	word16 *to = (word16 *)eth;

#pragma unroll
	for (int i = 0; i < ETH_ALEN / 2; i++) {
		to[i] = ((const word16 *)dmac)[i];
		to[i + ETH_ALEN / 2] = ((const word16 *)smac)[i];
	}
}

/* lookup_reason is what a code of bpf_fib_lookup means for a packet. */
static __always_inline enum stack_reason lookup_reason(long code)
{
	switch (code) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return STACK_NONE;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
	case BPF_FIB_LKUP_RET_UNREACHABLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return STACK_UNREACHABLE;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return STACK_LOCAL;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return STACK_FORWARDING;
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		return STACK_ENCAP_ROUTE;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return STACK_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return STACK_MTU;
	default: /* BPF_FIB_LKUP_RET_NO_SRC_ADDR, or an error */
		return STACK_LOOKUP;
	}
}
