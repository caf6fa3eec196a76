// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The shortbridge: what a node sends at one port enters the node at the other
 * end of its link, or the underlay on its way there. One look-up, by the port;
 * none of an address.
 */
#include <linux/if_packet.h>

#include "charge.h"
#include "encap.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Marks a frame on its way through the qdisc of a port, so that port_out knows
 * it from what the root context's own stack might send. A node cannot forge
 * it: the kernel clears the mark of what changes namespaces, and port_in sets
 * its own.
 */
#define MARK_WIRE 0x74726c73

/*
 * hand_over gives a frame to the peer's node. The direct way is for frames to the
 * node's own address alone: what the kernel notes of a frame's address, which
 * decides whether IP takes it, is what this port's own has made of it or, since
 * Linux 6.15 (commit c43272299488), that it is the node's. Frames for groups and
 * for others go through the veth pair, where the far end looks for itself.
 */
static __always_inline int hand_over(struct __sk_buff *skb, const struct port *p)
{
	const __u64 *to = (const __u64 *)(long)skb->data;

	if (p->peer_mac && ((const void *)(to + 1) > (const void *)(long)skb->data_end ||
			    ((*to ^ p->peer_mac) & MAC_BYTES))) {
		skb->mark = MARK_WIRE;
		return bpf_redirect(p->peer, 0);
	}
	if (skb->pkt_type == PACKET_OTHERHOST)
		bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(p->peer, 0);
}

/*
 * At the ingress of a port: a frame that the node has sent.
 *
 * Nothing gets past this program. Whatever it does not redirect it drops, so a
 * tenant's frame never reaches the root context's stack.
 */
SEC("tcx/ingress")
int port_in(struct __sk_buff *skb)
{
	struct port *p = port_of(skb);
	struct egress *e;

	if (!p)
		return drop(skb, 0, DROP_UNJOINED);
	count_from(skb, p->slot);
	/* When a frame may leave, as its sender has said (SO_TXTIME), would have others'
	 * wait behind it in a queue that all share. A veth does not take it away (Linux
	 * 5.18, skb_clear_tstamp). */
	skb->tstamp = 0;
	switch (p->mode) {
	case MODE_DIRECT:
		count_to(skb, p->peer_slot);
		return hand_over(skb, p);
	case MODE_SHAPED:
		charge(skb, p->slot, wire_length(skb));
		count_to(skb, p->peer_slot);
		skb->mark = MARK_WIRE;
		return bpf_redirect(p->peer, 0);
	case MODE_EGRE4:
	case MODE_EGRE6:
		if (p->peer_slot)
			leave_by_path(skb, p->peer_slot);
		e = egress_at(p->egress);
		if (e && e->mode == MODE_EGRE4)
			return transmit_egre(skb, e, MODE_EGRE4);
		if (e && e->mode == MODE_EGRE6)
			return transmit_egre(skb, e, MODE_EGRE6);
		return drop(skb, p->slot, DROP_UNJOINED);
	default:
		return drop(skb, p->slot, DROP_UNJOINED);
	}
}

/*
 * At the egress of a port, before its qdisc: a frame of the link in a shaped
 * direction, or one of the root context's stack, which has no business here.
 */
SEC("tcx/egress")
int port_out(struct __sk_buff *skb)
{
	if (skb->mark != MARK_WIRE) {
		struct port *p = port_of(skb);

		return drop(skb, p ? p->slot : 0, DROP_FROM_ROOT);
	}
	skb->mark = 0;
	return TCX_VERDICT_NEXT;
}
