// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The shortbridge: what a node sends at one port enters the node at the other
 * end of its link, or the underlay on its way there. One look-up, by the port;
 * none of an address.
 */
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
 * At the ingress of a port: a frame that the node has sent.
 *
 * Nothing gets past this program. Whatever it does not redirect it drops, so a
 * tenant's frame never reaches the root context's stack.
 */
SEC("tcx/ingress")
int port_in(struct __sk_buff *skb)
{
	struct port *p = port_of(skb);
	struct end *e;

	if (!p)
		return drop(skb, 0, DROP_UNJOINED);
	count_from(skb, p->slot);
	switch (p->mode) {
	case MODE_DIRECT:
		count_to(skb, p->peer_slot);
		return bpf_redirect_peer(p->peer, 0);
	case MODE_SHAPED:
		count_to(skb, p->peer_slot);
		skb->mark = MARK_WIRE;
		return bpf_redirect(p->peer, 0);
	case MODE_EGRE4:
	case MODE_EGRE6:
		e = end_at(p->end);
		if (e && e->mode == MODE_EGRE4)
			return send_egre(skb, e, MODE_EGRE4);
		if (e && e->mode == MODE_EGRE6)
			return send_egre(skb, e, MODE_EGRE6);
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
	return VERDICT_NEXT;
}
