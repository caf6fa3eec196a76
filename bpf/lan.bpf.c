// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A LAN is a Linux bridge between two programs on each of its members. On its
 * way through the bridge every frame wears a tag of ours, in the skb's
 * metadata, at no cost:
 *
 *  - br_netfilter leaves tagged frames alone (unless told otherwise), so the
 *    machine's own firewall, which may well drop what it does not know, does
 *    not see them;
 *  - a tagged frame that misses the bridge finds no VLAN device, and the
 *    kernel's stack lets it fall;
 *  - a frame without the tag is the root context's own, and is kept out;
 *  - the tag's number tells a link-local group address, which a bridge would
 *    keep to itself (IEEE 802.1Q, table 8-1) and which we hide from it: STP,
 *    LACP, 802.1X, LLDP and MAC pause pass as they pass a wire.
 *
 * A frame with a tag of its tenant's has the first two already. It gets a mark
 * in place of ours, since pushing a second tag at ingress displaces the frame by
 * its length on kernels as Debian 12's (skb->mac_len in skb_vlan_push).
 */
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>

#include "skb.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Our tag. A tenant's own tags, of whatever number, stay inside it. */
#define TAG_PROTOCOL ETH_P_8021AD
#define TAG_PLAIN    0xffd
#define TAG_GROUP    0xffe /* the destination is a hidden group address */

#define VID_MASK 0xfff

/* In place of our tag. A node cannot forge them: see MARK_WIRE in port.bpf.c. */
#define MARK_PLAIN 0x74726c70
#define MARK_GROUP 0x74726c67

/*
 * 01:80:c2:00:00:00 to 0f are the addresses that bridges do not forward. With
 * another fifth byte they are ordinary group addresses, which they flood.
 */
#define GROUP_BYTE 4
#define GROUP_HIDE 0x54

static __always_inline int is_link_local(const struct ethhdr *eth)
{
	const __u8 *d = eth->h_dest;

	return d[0] == 0x01 && d[1] == 0x80 && d[2] == 0xc2 &&
	       d[3] == 0 && d[4] == 0 && d[5] < 0x10;
}

/* set_group_byte returns 0, or a negative error. */
static __always_inline long set_group_byte(struct __sk_buff *skb, __u8 value)
{
	return bpf_skb_store_bytes(skb, GROUP_BYTE, &value, sizeof(value), 0);
}

/* At the ingress of a member: a frame on its way into the LAN. */
SEC("tcx/ingress")
int lan_in(struct __sk_buff *skb)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	struct port *p = port_of(skb);
	__u16 tag = TAG_PLAIN;

	if (!p)
		return drop(skb, 0, DROP_UNJOINED);
	count_from(skb, p->slot);
	if (p->mode != MODE_SWITCHED)
		return drop(skb, p->slot, DROP_UNJOINED);
	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return drop(skb, p->slot, DROP_UNEDITABLE);
	if (is_link_local(eth)) {
		tag = TAG_GROUP;
		if (set_group_byte(skb, GROUP_HIDE))
			return drop(skb, p->slot, DROP_UNEDITABLE);
	}
	if (skb->vlan_present) {
		skb->mark = tag == TAG_GROUP ? MARK_GROUP : MARK_PLAIN;
		return TCX_VERDICT_NEXT;
	}
	if (bpf_skb_vlan_push(skb, bpf_htons(TAG_PROTOCOL), tag))
		return drop(skb, p->slot, DROP_UNEDITABLE);
	return TCX_VERDICT_NEXT;
}

/* At the egress of a member, before its qdisc: a frame on its way out of the LAN. */
SEC("tcx/egress")
int lan_out(struct __sk_buff *skb)
{
	struct port *p = port_of(skb);
	__u32 slot = p ? p->slot : 0;
	__u16 tag = skb->vlan_tci & VID_MASK;
	__u32 mark = skb->mark;

	if (mark == MARK_PLAIN || mark == MARK_GROUP) {
		skb->mark = 0;
		tag = mark == MARK_GROUP ? TAG_GROUP : TAG_PLAIN;
	} else if (!skb->vlan_present || skb->vlan_proto != bpf_htons(TAG_PROTOCOL) ||
		   (tag != TAG_PLAIN && tag != TAG_GROUP)) {
		return drop(skb, slot, DROP_FROM_ROOT);
	} else if (bpf_skb_vlan_pop(skb)) {
		return drop(skb, slot, DROP_UNEDITABLE);
	}
	if (tag == TAG_GROUP && set_group_byte(skb, 0))
		return drop(skb, slot, DROP_UNEDITABLE);
	count_to(skb, slot);
	return TCX_VERDICT_NEXT;
}

/*
 * At the ingress of the bridge device itself: a frame that the bridge would
 * hand to the root context's stack. None is meant for it.
 */
SEC("tcx/ingress")
int lan_host(struct __sk_buff *skb)
{
	struct port *p = port_of(skb);

	return drop(skb, p ? p->slot : 0, DROP_TO_ROOT);
}
