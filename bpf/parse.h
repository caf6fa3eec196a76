/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reading headers of an XDP frame from its linear part. Each function looks
 * whether the header is there, moves the cursor past it, and gives a pointer to
 * it, or NULL. Pointers live until a helper moves the frame's bounds.
 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef memcpy
#define memcpy __builtin_memcpy
#endif

/* ip->frag_off: more fragments follow, or this one is not the first. */
#define IPV4_FRAGMENT 0x3fff

struct cursor {
	void *at, *end;
};

static __always_inline struct cursor start_of(const struct xdp_md *ctx)
{
	return (struct cursor){(void *)(long)ctx->data, (void *)(long)ctx->data_end};
}

static __always_inline void *take(struct cursor *c, __u32 size)
{
	void *header = c->at;

	if (header + size > c->end)
		return 0;
	c->at = header + size;
	return header;
}

static __always_inline struct ethhdr *take_eth(struct cursor *c)
{
	return take(c, sizeof(struct ethhdr));
}

/* Without options, which the caller looks for in ihl. */
static __always_inline struct iphdr *take_ipv4(struct cursor *c)
{
	struct iphdr *ip = take(c, sizeof(*ip));

	return ip && ip->version == 4 ? ip : 0;
}

static __always_inline struct ipv6hdr *take_ipv6(struct cursor *c)
{
	struct ipv6hdr *ip = take(c, sizeof(*ip));

	return ip && ip->version == 6 ? ip : 0;
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Whether the checksum of a header without options is right (RFC 1071). */
static __always_inline int ipv4_intact(const struct iphdr *ip)
{
	const __u16 *word = (const void *)ip;
	__u32 sum = 0;

#pragma unroll
	for (__u32 i = 0; i < sizeof(*ip) / 2; i++)
		sum += word[i];
	return fold(sum) == 0xffff;
}
