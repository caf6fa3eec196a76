/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rates. What leaves by a port of a rated link is one class, and goes one of two ways:
 * by the fast path while it conforms, or over to the shaped path (the node's stack, the
 * port, the qdisc in the root context), where it stays until that has drained, so that
 * the packets of a flow stay in order.
 *
 * The policer is the generic cell rate algorithm as virtual scheduling (ITU-T I.371
 * annex A): one word holds the theoretical arrival time (TAT), here the class's clock. A
 * packet conforms if the clock is ahead of the time by no more than the tolerance, and
 * moves it on by what its bytes take at the rate. Both paths move the same clock, so of
 * both together no more passes in a time t than the rate allows in t, the tolerance
 * twice, and the qdisc's burst.
 *
 * While a class is shaped, its clock may also fall behind the time, by the tolerance at
 * most, as a credit. The qdisc's bucket, which was full when the class came and is no
 * smaller, then holds at least as much as the credit: a clock that is not ahead of the
 * time means an empty queue, and one that has fallen behind by the whole tolerance means
 * that it has been empty for so long, should the qdisc's timer be late. Frames that the
 * qdisc drops from its tail move the clock, too; it stops where a full queue would be.
 *
 * Between node_in and the qdisc is the node's stack, behind the qdisc of a link between
 * machines another backlog. So a class waits, too, until the packet that it has handed
 * over last is seen where the two ways meet: it is known by its headers. One that is
 * lost on the way is waited for no longer than PATIENCE, from when the queue should have
 * drained.
 *
 * On one machine the ways do not meet at the neighbour's: what comes from a qdisc goes by
 * its stack, what comes by the fast path goes on by it. There a class waits for a LULL as
 * well, but no longer than OVERDUE from when its queue was empty.
 *
 * What may be reordered still: what reaches a node on two processors at once, where the
 * one handed over last overtakes the other's; what waits in the queue of an uplink itself
 * when a class comes back; a flow whose packets differ only behind the bytes that are
 * compared; whatever a node's stack holds back for longer than PATIENCE, or a neighbour's
 * for longer than LULL; and a flow on one machine that knows no lull, once each OVERDUE at
 * most. And on one machine, where nothing is seen behind the qdisc: what waits there when
 * its processor runs no softirqs for longer than the qdisc's burst and LULL, since the time
 * that a bucket runs over is lost to the queue, and not to the clock.
 */
#pragma once

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>

#include "maps.h"

/* Clocks count in 1/64 ns of CLOCK_MONOTONIC, which lasts 9 years of running; a byte's
 * time has 14 bits more. So 64 bytes at 10 Gbit/s are 3,276 and not 3,276.8, 0.03 %, and
 * 512 KiB at 1 kbit/s fit. */
#define CLOCK_FRACTION 6
#define COST_FRACTION 14

/* ns, from the hand-over of a packet. */
#define PATIENCE 250000000ULL
#define LULL 10000000ULL

#define OVERDUE 1000000000ULL /* ns */

/* How often a clock that others move meanwhile is tried. */
#define CLOCK_TRIES 8

enum rate_flag {
	RATE_PATH = 1, /* the two ways meet behind the qdisc, where a path begins; else in it */
};

/* What the agent alone writes. */
struct rate {
	__u64 bits;      /* a second, as asked for; for the agent */
	__u64 cost;      /* of a byte: clock, and COST_FRACTION; 0: not known, nothing conforms */
	__u64 tolerance; /* clock */
	__u64 depth;     /* of the full queue: clock */
	__u64 hold;      /* clock: a shaped class stays so until then, as its queue was filled at another rate */
	enum rate_flag flags;
	__u32 pad;
};

/* What the programs alone write, but for a fresh slot. */
struct class {
	__u64 clock;
	__u64 awaited;  /* the print of the packet that was handed over last; 0: it has come through */
	__u64 patience; /* clock: until when it is waited for */
	__u64 shaped;   /* clock: when the class was on the shaped path and its queue was not empty, last; 0: it is not */
};

_Static_assert(sizeof(struct rate) == 48, "the agent shares this layout");
_Static_assert(sizeof(struct class) == 32, "the agent shares this layout");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32); /* slot of the port that the class leaves by */
	__type(value, struct rate);
} rates SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32); /* as above */
	__type(value, struct class);
} classes SEC(".maps");

#define READ(word) (*(volatile __u64 *)&(word))
#define WRITE(word, value) (*(volatile __u64 *)&(word) = (value))

static __always_inline __u64 clock_now(void)
{
	return bpf_ktime_get_ns() << CLOCK_FRACTION;
}

static __always_inline __u64 cost_of(const struct rate *r, __u64 bytes)
{
	return bytes * r->cost >> COST_FRACTION;
}

/* Prints are odd; this one is no packet's. */
#define PRINT_NONE 2

/* What follows an IP header. */
struct transport {
	__be32 word[5];
};

static __always_inline __u64 mix(__u64 print, __u64 word)
{
	print = (print ^ word) * 0x9e3779b97f4a7c15ULL;
	return print ^ print >> 32;
}

/* load_bytes is for frames and skbs alike; xdp is a constant where it is called. */
static __always_inline long load_bytes(void *ctx, int xdp, __u32 at, void *to, __u32 size)
{
	return xdp ? bpf_xdp_load_bytes(ctx, at, to, size) : bpf_skb_load_bytes(ctx, at, to, size);
}

/*
 * print_of gives what tells a packet from others, by what no hop changes: addresses,
 * identification, and 16 bytes behind the IP header. Of TCP, whose segments may be merged
 * on the way, where its data ends, and what it acknowledges.
 */
static __always_inline __u64 print_of(void *ctx, int xdp)
{
	__u32 at = sizeof(struct ethhdr), length;
	struct transport t = {};
	__u64 print = 1;
	__u8 version, protocol;

	if (load_bytes(ctx, xdp, at, &version, sizeof(version)))
		return PRINT_NONE;
	if (version == 0x45) {
		struct iphdr ip;

		if (load_bytes(ctx, xdp, at, &ip, sizeof(ip)))
			return PRINT_NONE;
		length = bpf_ntohs(ip.tot_len) - sizeof(ip);
		protocol = ip.protocol;
		print = mix(print, (__u64)ip.saddr << 32 | ip.daddr);
		if (protocol != 6)
			print = mix(print, ip.id);
		at += sizeof(ip);
	} else if (version >> 4 == 6) {
		struct ipv6hdr ip;

		if (load_bytes(ctx, xdp, at, &ip, sizeof(ip)))
			return PRINT_NONE;
		length = bpf_ntohs(ip.payload_len);
		protocol = ip.nexthdr;
#pragma unroll
		for (int i = 0; i < 4; i++)
			print = mix(print, (__u64)ip.saddr.s6_addr32[i] << 32 | ip.daddr.s6_addr32[i]);
		at += sizeof(ip);
	} else {
		return PRINT_NONE;
	}
	if (length >= sizeof(t)) {
		if (load_bytes(ctx, xdp, at, &t, sizeof(t)))
			return PRINT_NONE;
	} else if (length < 8 || load_bytes(ctx, xdp, at, &t, 8)) {
		return PRINT_NONE;
	}
	print = mix(print, (__u64)protocol << 32 | t.word[0]);
	if (protocol == 6) {
		__u32 header = bpf_ntohl(t.word[3]) >> 28 << 2;

		print = mix(print, (__u64)(bpf_ntohl(t.word[1]) + length - header) << 32 | t.word[2]);
	} else {
		print = mix(print, (__u64)t.word[1] << 32 | t.word[2]);
		print = mix(print, (__u64)length << 32 | t.word[3]);
	}
	return print | 1;
}
