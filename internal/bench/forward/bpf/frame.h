/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the generator sends and the sink expects. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/*
 * Longest header that can be described, in words of 8 bytes: VXLAN over IPv4
 * with an inner Ethernet, IPv4 and UDP header takes 92 bytes, over IPv6 112. A
 * stamp fits behind the former.
 */
#define HEADER_WORDS 14
#define HEADER_BYTES (HEADER_WORDS * 8)

/* Routers side by side, and kinds of frames: a kind is a size for a router. */
#define MAX_ROUTERS 64
#define MAX_KINDS (MAX_ROUTERS * 3)

/* Kinds of frames there are, and how many of them each router has: kind k is
 * router k / sizes's. */
volatile const __u32 kinds;
volatile const __u32 sizes;

/* Bytes of header that are handled, of every kind; the rest of the arrays means
 * nothing. */
volatile const __u32 header_len;

/* The headers, as they lie in memory. */
volatile const __u64 headers[MAX_KINDS][HEADER_WORDS];

/* Lengths of frames in bytes, without their check sequence. */
volatile const __u32 lens[MAX_KINDS];

/* Where in each frame there is a stamp; 0: there is none. */
volatile const __u32 stamp_at;

/* Whether stamps have the time, for which both sides read the clock. */
volatile const __u32 timed;

/* check_here keeps the compiler from checking another register than the one that
 * is used as an index, which the verifier would not see. */
#define check_here(v) asm volatile("" : "+r"(v))

/* stamp is what tells a frame from others, in its payload. */
struct stamp {
	__u16 kind;
	__u16 pad;
	__u32 sequence; /* by router, from 0 on */
	__u64 ns;       /* CLOCK_MONOTONIC, when it was sent */
} __attribute__((packed));

_Static_assert(sizeof(struct stamp) == 16, "shared with Go");
