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

/* Words of packets, which may lie anywhere: the machines that run this read
 * them at one go, and the compiler would take them apart. */
typedef __u64 __attribute__((may_alias)) word64;
typedef __u32 __attribute__((may_alias)) word32;
typedef __u16 __attribute__((may_alias)) word16;

/* copy copies a constant, even number of bytes in as few steps as there can be. */
static __always_inline void copy(void *to, const void *from, __u32 bytes)
{
	__u32 i = 0;

#pragma unroll
	for (; i + 8 <= bytes; i += 8)
		*(word64 *)(to + i) = *(const word64 *)(from + i);
	if (bytes & 4) {
		*(word32 *)(to + i) = *(const word32 *)(from + i);
		i += 4;
	}
	if (bytes & 2)
		*(word16 *)(to + i) = *(const word16 *)(from + i);
}

/* Of eight bytes in memory, the first six. */
#define MAC_BYTES bpf_be64_to_cpu(0xffffffffffff0000ULL)

/* The EtherType of a header. */
static __always_inline __be16 type_of(const struct ethhdr *eth)
{
	return *(const word16 *)((const void *)eth + 2 * ETH_ALEN);
}

static __always_inline struct cursor start_of(const struct xdp_md *ctx)
{
	return (struct cursor){(void *)(long)ctx->data, (void *)(long)ctx->data_end};
}

static __always_inline void *parse(struct cursor *c, __u32 size)
{
	void *header = c->at;

	if (header + size > c->end)
		return 0;
	c->at = header + size;
	return header;
}

static __always_inline struct ethhdr *parse_eth(struct cursor *c)
{
	return parse(c, sizeof(struct ethhdr));
}

/* Without options, which the caller looks for in ihl. */
static __always_inline struct iphdr *parse_ipv4(struct cursor *c)
{
	struct iphdr *ip = parse(c, sizeof(*ip));

	return ip && ip->version == 4 ? ip : 0;
}

static __always_inline struct ipv6hdr *parse_ipv6(struct cursor *c)
{
	struct ipv6hdr *ip = parse(c, sizeof(*ip));

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
	const __u32 *word = (const void *)ip;
	__u64 sum = 0;

#pragma unroll
	for (__u32 i = 0; i < sizeof(*ip) / 4; i++)
		sum += word[i];
	/* 2^32 is 1 modulo 2^16 - 1, so carries may be added at the end. */
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return fold(sum) == 0xffff;
}
