/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The stack path's encapsulation: what a node's stack sends over a link between
 * machines gets its outer headers and leaves by the uplink.
 */
#pragma once

#include <stddef.h>

#include "egress.h"
#include "skb.h"

/* VLAN tags that a frame may wear. The kernel takes them out of the frame one
 * by one, into the skb's metadata; a tunnel carries none there. */
#define MAX_TAGS 3
#define TAG_SIZE 4

#define ADDRESSES (2 * ETH_ALEN)

#define DONE DROP_REASONS /* no reason to drop */

struct tags {
	__be32 tag[MAX_TAGS];
	__u32 size; /* bytes */
};

/*
 * pop_tags takes the tags out of a frame whose first one is in the metadata.
 * Each pop brings the next one there.
 */
static __always_inline enum drop_reason pop_tags(struct __sk_buff *skb, struct tags *t)
{
#pragma unroll
	for (int i = 0; i < MAX_TAGS; i++) {
		if (!skb->vlan_present)
			return DONE;
		t->tag[i] = bpf_htonl(bpf_ntohs(skb->vlan_proto) << 16 | skb->vlan_tci);
		t->size += TAG_SIZE;
		if (bpf_skb_vlan_pop(skb))
			return DROP_UNEDITABLE;
	}
	return skb->vlan_present ? DROP_TAGS : DONE;
}

/* write_tags writes the tags at an offset. */
static __always_inline long write_tags(struct __sk_buff *skb, __u32 at, const struct tags *t)
{
	switch (t->size) {
	case 0:
		return 0;
	case TAG_SIZE:
		return bpf_skb_store_bytes(skb, at, t->tag, TAG_SIZE, 0);
	case 2 * TAG_SIZE:
		return bpf_skb_store_bytes(skb, at, t->tag, 2 * TAG_SIZE, 0);
	default:
		return bpf_skb_store_bytes(skb, at, t->tag, 3 * TAG_SIZE, 0);
	}
}

/*
 * make_room puts bytes before the frame for the outer header and the tags, and
 * puts the inner Ethernet header, tags in it, behind the outer header's place.
 *
 * bpf_skb_change_head takes every frame. A super-packet needs
 * bpf_skb_adjust_room, which tells the kernel where its segments' headers are,
 * and which knows IPv4 and IPv6 only, as do super-packets. So does, with offload,
 * an IP packet for a card that fills in checksums where it finds TCP or UDP
 * itself, and not where it is told (NETIF_F_IP_CSUM without NETIF_F_HW_CSUM):
 * told of the encapsulation, it looks deeper, or the kernel fills them in.
 */
static __always_inline enum drop_reason make_room(struct __sk_buff *skb, const struct tags *t, __u32 room, __u64 family, int offload)
{
	__u64 inner_eth = sizeof(struct ethhdr) + t->size;
	__u64 flags = family | BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_GRE |
		      BPF_F_ADJ_ROOM_ENCAP_L2_ETH | BPF_F_ADJ_ROOM_ENCAP_L2(inner_eth);
	struct ethhdr eth;

	offload = offload && (skb->protocol == bpf_htons(ETH_P_IP) || skb->protocol == bpf_htons(ETH_P_IPV6));
	if (!skb->gso_size && !t->size && !offload) /* the frame is as it has to be */
		return bpf_skb_change_head(skb, room, 0) ? DROP_UNEDITABLE : DONE;
	if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return DROP_RUNT;
	if (skb->gso_size) {
		if (bpf_skb_adjust_room(skb, room + t->size, BPF_ADJ_ROOM_MAC, flags))
			return DROP_NESTED;
	} else if (!offload || bpf_skb_adjust_room(skb, room + t->size, BPF_ADJ_ROOM_MAC, flags)) {
		/* Too short for what it says it is, or encapsulated already. */
		if (bpf_skb_change_head(skb, room + t->size, 0))
			return DROP_UNEDITABLE;
	}
	if (bpf_skb_store_bytes(skb, room, &eth, ADDRESSES, 0) ||
	    write_tags(skb, room + ADDRESSES, t) ||
	    bpf_skb_store_bytes(skb, room + ADDRESSES + t->size, &eth.h_proto, sizeof(eth.h_proto), 0))
		return DROP_UNEDITABLE;
	return DONE;
}

static __always_inline enum drop_reason encap_skb(struct __sk_buff *skb, const struct egress *e, const struct tags *t, enum mode mode)
{
	__u64 family = mode == MODE_EGRE4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;
	__u32 inner = skb->len + t->size;
	enum drop_reason why = make_room(skb, t, egre_header(mode), family, e->flags & EGRESS_ENCAP_OFFLOAD);

	if (why != DONE)
		return why;
	if (write_outer((void *)(long)skb->data, (void *)(long)skb->data_end, &e->outer, inner, mode))
		return DROP_UNEDITABLE;
	return DONE;
}

/*
 * The length of the longest frame that a super-packet of TCP or UDP will be cut
 * into; of what else there may be, that of a frame without headers.
 */
static __always_inline __u32 segment_of(struct __sk_buff *skb)
{
	__u32 at = sizeof(struct ethhdr);
	__u8 first, protocol, offset;

	if (bpf_skb_load_bytes(skb, at, &first, sizeof(first)))
		return skb->gso_size;
	if (first >> 4 == 4) {
		if (bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, protocol), &protocol, sizeof(protocol)))
			return skb->gso_size;
		at += (first & 15) * 4;
	} else {
		if (bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, nexthdr), &protocol, sizeof(protocol)))
			return skb->gso_size;
		at += sizeof(struct ipv6hdr);
	}
	if (protocol == 17)
		return at + 8 + skb->gso_size;
	if (protocol != 6 || bpf_skb_load_bytes(skb, at + 12, &offset, sizeof(offset)))
		return skb->gso_size;
	return at + (offset >> 4) * 4 + skb->gso_size;
}

/* wire_length gives the bytes of the frames that an skb stands for, as the kernel's
 * queueing disciplines count them (qdisc_pkt_len_init, net/core/dev.c). */
static __always_inline __u64 wire_length(struct __sk_buff *skb)
{
	__u64 more = skb->gso_segs;

	if (!skb->gso_size || more < 2)
		return skb->len;
	return skb->len + (more - 1) * (segment_of(skb) - skb->gso_size);
}

/*
 * transmit_egre sends an skb by an egress entry that is of the mode, and gives
 * the program's verdict.
 */
static __always_inline int transmit_egre(struct __sk_buff *skb, const struct egress *e, enum mode mode)
{
	enum drop_reason why;
	struct tags t = {};
	__u32 length;

	why = pop_tags(skb, &t);
	length = skb->gso_size ? segment_of(skb) : skb->len;
	if (why == DONE && length + t.size > e->longest)
		why = DROP_LONG;
	if (why == DONE)
		why = encap_skb(skb, e, &t, mode);
	if (why != DONE)
		return drop(skb, e->slot, why);
	return bpf_redirect(e->uplink, 0);
}
