/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * EGRE: Ethernet over GRE with a key (RFC 2784, RFC 2890), over IPv4 or IPv6.
 * Byte for byte what Linux's gretap with a key and Open vSwitch speak.
 */
#pragma once

#include "parse.h"

#define PROTOCOL_GRE 47
#define GRE_ETHERNET 0x6558 /* Transparent Ethernet Bridging */
#define GRE_KEYED    0x2000 /* flags and version: a key and nothing else */
#define GRE_VERSION  0x0007
#define GRE_IGNORED  0x03f8 /* bits 6 to 12, to be ignored on receipt: RFC 2784 section 2.3 */

struct gre {
	__be16 flags; /* and version */
	__be16 protocol;
	__be32 key;
};

/* The bytes before the inner frame. */
#define EGRE4_ROOM (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct gre))
#define EGRE6_ROOM (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct gre))

_Static_assert(EGRE4_ROOM == 42 && EGRE6_ROOM == 62, "as on the wire");

/* An outer header, prepared for each link end but for its length. */
struct outer {
	__u8 bytes[64];
	__u32 sum; /* of the IPv4 header's words, length and checksum 0 */
};

/*
 * fill_lengths writes the length fields of an outer header whose inner frame
 * has the given length. (header + EGRE?_ROOM is in bounds.)
 */
static __always_inline void fill_lengths4(void *header, const struct outer *o, __u32 inner)
{
	struct iphdr *ip = header + sizeof(struct ethhdr);
	__be16 length = bpf_htons(inner + EGRE4_ROOM - sizeof(struct ethhdr));

	ip->tot_len = length;
	ip->check = ~fold(o->sum + length);
}

static __always_inline void fill_lengths6(void *header, __u32 inner)
{
	struct ipv6hdr *ip = header + sizeof(struct ethhdr);

	ip->payload_len = bpf_htons(inner + sizeof(struct gre));
}
