// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The stack path: at the port of a link whose other end is on another machine,
 * what the node's stack sends gets its outer headers and leaves by the uplink.
 */
#include <linux/pkt_cls.h>

#include "tunnel.h"
#include "verdict.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* VLAN tags that a frame may wear. The kernel takes them out of the frame one
 * by one, into the skb's metadata; a tunnel carries none there. */
#define MAX_TAGS 3
#define TAG_SIZE 4

#define ADDRESSES (2 * ETH_ALEN)

struct tags {
	__be32 tag[MAX_TAGS];
	__u32 size; /* bytes */
};

static __always_inline __u32 packets_of(const struct __sk_buff *skb)
{
	return skb->gso_segs ? skb->gso_segs : 1;
}

static __noinline int refuse(const struct __sk_buff *skb, __u32 slot, enum tunnel_drop why)
{
	count_drop(slot, why, packets_of(skb));
	return VERDICT_DROP;
}

/*
 * take_tags takes the tags out of a frame whose first one is in the metadata.
 * Each pop brings the next one there.
 */
static __always_inline enum tunnel_drop take_tags(struct __sk_buff *skb, struct tags *t)
{
#pragma unroll
	for (int i = 0; i < MAX_TAGS; i++) {
		if (!skb->vlan_present)
			return TUNNEL_DROPS;
		t->tag[i] = bpf_htonl(bpf_ntohs(skb->vlan_proto) << 16 | skb->vlan_tci);
		t->size += TAG_SIZE;
		if (bpf_skb_vlan_pop(skb))
			return TUNNEL_EDIT;
	}
	return skb->vlan_present ? TUNNEL_TAGS : TUNNEL_DROPS;
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
 * and which knows IPv4 and IPv6 only, as do super-packets.
 */
static __always_inline enum tunnel_drop make_room(struct __sk_buff *skb, const struct tags *t, __u32 room, __u64 family)
{
	__u64 inner_eth = sizeof(struct ethhdr) + t->size;
	__u64 flags = family | BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_GRE |
		      BPF_F_ADJ_ROOM_ENCAP_L2_ETH | BPF_F_ADJ_ROOM_ENCAP_L2(inner_eth);
	struct ethhdr eth;

	if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return TUNNEL_RUNT;
	if (skb->gso_size) {
		if (bpf_skb_adjust_room(skb, room + t->size, BPF_ADJ_ROOM_MAC, flags))
			return TUNNEL_NESTED;
	} else if (bpf_skb_change_head(skb, room + t->size, 0)) {
		return TUNNEL_EDIT;
	}
	if (bpf_skb_store_bytes(skb, room, &eth, ADDRESSES, 0) ||
	    write_tags(skb, room + ADDRESSES, t) ||
	    bpf_skb_store_bytes(skb, room + ADDRESSES + t->size, &eth.h_proto, sizeof(eth.h_proto), 0))
		return TUNNEL_EDIT;
	return TUNNEL_DROPS;
}

/*
 * send leaves by the uplink. The kernel knows a super-packet's segments and
 * their length; a plain frame's has been looked at.
 */
static __always_inline int send(struct __sk_buff *skb, const struct end *e, __u32 frames, __u32 bytes)
{
	__u32 mtu = 0;

	if (skb->gso_size && bpf_check_mtu(skb, e->device, &mtu, 0, BPF_MTU_CHK_SEGS))
		return refuse(skb, e->slot, TUNNEL_LONG);
	count_stack(e->slot, frames, bytes);
	return bpf_redirect(e->device, 0);
}

static __always_inline int send4(struct __sk_buff *skb, const struct end *e, const struct tags *t)
{
	__u32 inner = skb->len + t->size, frames = packets_of(skb);
	enum tunnel_drop why = make_room(skb, t, EGRE4_ROOM, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4);
	__u8 header[EGRE4_ROOM] __attribute__((aligned(8)));

	if (why != TUNNEL_DROPS)
		return refuse(skb, e->slot, why);
	memcpy(header, e->outer.bytes, sizeof(header));
	fill_lengths4(header, &e->outer, inner);
	if (bpf_skb_store_bytes(skb, 0, header, sizeof(header), 0))
		return refuse(skb, e->slot, TUNNEL_EDIT);
	return send(skb, e, frames, inner);
}

static __always_inline int send6(struct __sk_buff *skb, const struct end *e, const struct tags *t)
{
	__u32 inner = skb->len + t->size, frames = packets_of(skb);
	enum tunnel_drop why = make_room(skb, t, EGRE6_ROOM, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6);
	__u8 header[EGRE6_ROOM] __attribute__((aligned(8)));

	if (why != TUNNEL_DROPS)
		return refuse(skb, e->slot, why);
	memcpy(header, e->outer.bytes, sizeof(header));
	fill_lengths6(header, inner);
	if (bpf_skb_store_bytes(skb, 0, header, sizeof(header), 0))
		return refuse(skb, e->slot, TUNNEL_EDIT);
	return send(skb, e, frames, inner);
}

/* At the ingress of a port. As port_in, it lets nothing reach the root context. */
SEC("tcx/ingress")
int tunnel_in(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct end *e = bpf_map_lookup_elem(&stack_ends, &ifindex);
	struct tags t = {};
	enum tunnel_drop why;

	if (!e)
		return refuse(skb, 0, TUNNEL_UNJOINED);
	if (e->kind == END_NONE)
		return refuse(skb, e->slot, TUNNEL_UNJOINED);
	if (e->kind == END_LOCAL) {
		count_stack(e->slot, packets_of(skb), skb->len);
		count_in(e->peer_slot, packets_of(skb), skb->len);
		return bpf_redirect_peer(e->device, 0);
	}
	why = take_tags(skb, &t);
	if (why != TUNNEL_DROPS)
		return refuse(skb, e->slot, why);
	if (!skb->gso_size && skb->len + t.size > e->longest)
		return refuse(skb, e->slot, TUNNEL_LONG);
	return e->kind == END_EGRE4 ? send4(skb, e, &t) : send6(skb, e, &t);
}

/* At the egress of a port: the root context has no business there. */
SEC("tcx/egress")
int tunnel_out(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct end *e = bpf_map_lookup_elem(&stack_ends, &ifindex);

	return refuse(skb, e ? e->slot : 0, TUNNEL_ROOT);
}
