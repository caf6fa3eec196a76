/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * EGRE: Ethernet over GRE with a key (RFC 2784, RFC 2890), over IPv4 or IPv6.
 * Byte for byte what Linux's gretap with a key and Open vSwitch speak.
 */
#pragma once

#include "maps.h"
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

/* The bytes before the inner frame: Ethernet's, the outer IP header's and GRE's. */
#define EGRE4_HEADER (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct gre))
#define EGRE6_HEADER (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct gre))

_Static_assert(EGRE4_HEADER == 42 && EGRE6_HEADER == 62, "as on the wire");

/* An outer header, prepared for each egress but for its length. */
struct outer {
	__u8 bytes[64];
	__u32 sum; /* of the IPv4 header's words, length and checksum 0 */
};

/* Of MODE_EGRE4 or MODE_EGRE6. */
static __always_inline __u32 egre_header(enum mode mode)
{
	return mode == MODE_EGRE4 ? EGRE4_HEADER : EGRE6_HEADER;
}

/*
 * write_outer writes an outer header for an inner frame of the given length into
 * the room that was made for it at the start of the packet, for skbs and XDP
 * frames alike. mode is a constant where it is called. It returns 0, or -1 if
 * there is no room.
 */
static __always_inline int write_outer(void *start, void *end, const struct outer *o, __u32 inner, enum mode mode)
{
	void *ip = start + sizeof(struct ethhdr);

	if (start + egre_header(mode) > end)
		return -1;
	copy(start, o->bytes, egre_header(mode));
	if (mode == MODE_EGRE4) {
		__be16 length = bpf_htons(inner + EGRE4_HEADER - sizeof(struct ethhdr));

		((struct iphdr *)ip)->tot_len = length;
		((struct iphdr *)ip)->check = ~fold(o->sum + length);
	} else {
		((struct ipv6hdr *)ip)->payload_len = bpf_htons(inner + sizeof(struct gre));
	}
	return 0;
}
