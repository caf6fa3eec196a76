/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What a node's stack asks besides its FIB before a packet has gone through.
 * Whatever there is of it, the packet is the stack's. The fast path looks by
 * itself, so nobody has to watch. What it has found clear stays so until the
 * kernel's next tick (policy_cache.h): so it is off a tick after a rule has come (4 ms
 * with CONFIG_HZ=250), and on again with the first packet after it has gone.
 */
#pragma once

#include "fib.h"
#include "policy_cache.h"
#include "node.h"
#include "local_addresses.h"

/* Netfilter's hooks on the way through (enum nf_inet_hooks). */
#define HOOK_PREROUTING 0
#define HOOK_FORWARD 2
#define HOOK_POSTROUTING 4

#define NF_HOOK_OP_UNDEFINED 0 /* enum nf_hook_ops_type */
#define SELINUX_FIRST -225 /* NF_IP_PRI_SELINUX_FIRST, and for IPv6 (linux/netfilter_ipv4.h) */

/* Directions and verdict of IPsec policy (linux/xfrm.h). */
#define XFRM_OUT 1
#define XFRM_FWD 2
#define XFRM_ACCEPT 2

/* Rules of a namespace that are looked at. */
#define RULES 64

#define CONF4(conf, name) ((conf)->data[IPV4_DEVCONF_##name - 1])

/*
 * rx_device_reason: what sees a frame before IP does: tc, a netdev hook, a bridge,
 * bond or macvlan that the device is in.
 */
static __always_inline enum stack_reason rx_device_reason(struct net_device *dev)
{
	if (dev->rx_handler)
		return STACK_MASTER;
	if (bpf_core_field_exists(dev->tcx_ingress) && dev->tcx_ingress)
		return STACK_TC;
	if (bpf_core_field_exists(dev->miniq_ingress) && dev->miniq_ingress)
		return STACK_TC;
	return bpf_core_field_exists(dev->nf_hooks_ingress) && dev->nf_hooks_ingress ? STACK_NETFILTER : STACK_NONE;
}

/* in_vrf: the first VRF of a namespace makes a rule there (vrf_add_fib_rules,
 * drivers/net/vrf.c), so this is asked where there are rules. */
static __always_inline int in_vrf(struct net_device *dev)
{
	return BPF_CORE_READ_BITFIELD(dev, priv_flags) & bpf_core_enum_value(enum netdev_priv_flags, IFF_L3MDEV_SLAVE);
}

/*
 * tx_device_reason: what keeps what IP gives the device from the wire: tc, a netdev
 * hook, queueing, or no carrier.
 */
static __always_inline enum stack_reason tx_device_reason(struct net_device *dev)
{
	if (!has_carrier(dev))
		return STACK_DOWN;
	if (bpf_core_field_exists(dev->tcx_egress) && dev->tcx_egress)
		return STACK_TC;
	if (bpf_core_field_exists(dev->miniq_egress) && dev->miniq_egress)
		return STACK_TC;
	if (bpf_core_field_exists(dev->nf_hooks_egress) && dev->nf_hooks_egress)
		return STACK_NETFILTER;
	/* noqueue has none: noqueue_init, net/sched/sch_generic.c */
	return dev->qdisc->enqueue ? STACK_TC : STACK_NONE;
}

/*
 * is_apparmor: the only hook is AppArmor's, which it has at postrouting in every
 * namespace: it lets whatever pass that no rule has marked and no socket has sent
 * (apparmor_ip_postroute, security/apparmor/lsm.c). Nobody else has a hook of
 * that priority that is neither nftables' nor BPF's.
 */
static __noinline int is_apparmor(__u64 hooks)
{
	__u64 place = hooks + bpf_core_field_offset(struct nf_hook_entries, hooks) + bpf_core_type_size(struct nf_hook_entry);
	struct nf_hook_ops *ops;
	struct ethhdr *bytes;

	if (KERNEL_AT(struct nf_hook_entries, hooks)->num_hook_entries != 1)
		return 0;
	ops = KERNEL_AT(struct nf_hook_ops, KERNEL_AT(struct hlist_head, place)->first);
	bytes = KERNEL_AT(struct ethhdr, (__u64)ops + bpf_core_field_offset(struct nf_hook_ops, pf));
	return ops->priority == SELINUX_FIRST && bytes->h_dest[1] == NF_HOOK_OP_UNDEFINED;
}

static __always_inline int no_hooks(void **hooks)
{
	if (hooks[HOOK_PREROUTING] || hooks[HOOK_FORWARD])
		return 0;
	return !hooks[HOOK_POSTROUTING] || is_apparmor((__u64)hooks[HOOK_POSTROUTING]);
}

static __always_inline int no_ipsec(struct net *net)
{
	if (!bpf_core_field_exists(net->xfrm))
		return 1;
	if (net->xfrm.policy_count[XFRM_FWD] || net->xfrm.policy_count[XFRM_OUT])
		return 0;
	/* What no policy is for: Linux 5.14, commit 2d151d39073a. */
	return !bpf_core_field_exists(net->xfrm.policy_default) ||
	       (net->xfrm.policy_default[XFRM_FWD] == XFRM_ACCEPT && net->xfrm.policy_default[XFRM_OUT] == XFRM_ACCEPT);
}

/*
 * ipv4_reason: what besides the FIB decides on IPv4 packets that come in at the
 * device. Redirects are taken into account by the stack alone, and so are
 * learned path MTUs where they count for other people's packets; the helper
 * hashes otherwise than the stack by the policies 2 and 3.
 */
static __always_inline enum stack_reason ipv4_reason(struct net *net, struct net_device *dev)
{
	struct ipv4_devconf *all = net->ipv4.devconf_all;
	struct in_device *in = dev->ip_ptr;

	if (bpf_core_field_exists(net->nf) && !no_hooks(net->nf.hooks_ipv4))
		return STACK_NETFILTER;
	if (!in || CONF4(&in->cnf, RP_FILTER) || CONF4(all, RP_FILTER) || CONF4(all, ACCEPT_REDIRECTS))
		return STACK_SYSCTL;
	if (net->ipv4.sysctl_ip_fwd_use_pmtu)
		return STACK_SYSCTL;
	if (bpf_core_field_exists(net->ipv4.sysctl_fib_multipath_hash_policy) && net->ipv4.sysctl_fib_multipath_hash_policy > 1)
		return STACK_SYSCTL;
	return no_ipsec(net) ? STACK_NONE : STACK_IPSEC;
}

/*
 * rules_honoured: the helper does not see that an IPv6 rule suppresses what its
 * table says (fib6_rule_suppress, net/ipv6/fib6_rules.c, looks at a rt6_info,
 * of which the helper has none). VRFs are the stack's.
 */
static __noinline int rules_honoured(struct xdp_md *ctx)
{
	struct net_device *dev = device_of(ctx);
	struct fib_rules_ops *ops = dev->nd_net.net->ipv6.fib6_rules_ops;
	__u64 head = (__u64)ops + bpf_core_field_offset(struct fib_rules_ops, rules_list);
	struct list_head *node = ops->rules_list.next;

	if (in_vrf(dev))
		return 0;
	for (int i = 0; i < RULES; i++) {
		struct fib_rule *rule;

		if ((__u64)node == head)
			return 1;
		rule = KERNEL_OF(struct fib_rule, list, node);
		if (rule->suppress_prefixlen != -1 || rule->suppress_ifgroup != -1)
			return 0;
		node = rule->list.next;
	}
	return 0;
}

/*
 * ipv6_reason is the same for IPv6. There all interfaces forward, or none. Where
 * a rule asks for ports or a protocol, the stack spreads ICMPv6, and that alone,
 * by a flow label whose bytes are the other way round (ip6_multipath_l3_keys,
 * net/ipv6/route.c).
 */
static __always_inline enum stack_reason ipv6_reason(struct xdp_md *ctx, struct net *net, struct net_device *dev, __u8 protocol)
{
	struct inet6_dev *in = dev->ip6_ptr;

	if (bpf_core_field_exists(net->nf) && !no_hooks(net->nf.hooks_ipv6))
		return STACK_NETFILTER;
	if (!in || in->cnf.disable_ipv6 || !net->ipv6.devconf_all->forwarding)
		return STACK_SYSCTL;
	if (net->ipv6.sysctl.multipath_hash_policy > 1)
		return STACK_SYSCTL;
	if (bpf_core_field_exists(net->ipv6.fib6_has_custom_rules) && net->ipv6.fib6_has_custom_rules &&
	    (!rules_honoured(ctx) || (protocol == 58 && net->ipv6.fib6_rules_require_fldissect)))
		return STACK_RULES;
	return no_ipsec(net) ? STACK_NONE : STACK_IPSEC;
}

/*
 * source_routed: what the FIB says of a packet's source, as seen from the
 * interface that the packet leaves by, is that it is somebody else's
 * (__fib_validate_source, net/ipv4/fib_frontend.c).
 */
static __noinline int source_routed(struct xdp_md *ctx, const struct bpf_fib_lookup *found, __be32 source, __be32 destination, __u8 tos)
{
	struct bpf_fib_lookup q = {
		.family = AF_INET, .ifindex = found->ifindex, .tos = tos, .ipv4_src = destination, .ipv4_dst = source,
		.l4_protocol = found->l4_protocol, .sport = found->dport, .dport = found->sport,
	};
	long answer;

	if (in_vrf(device_of(ctx)))
		return 0;
	answer = bpf_fib_lookup(ctx, &q, sizeof(q), 0);
	return answer == BPF_FIB_LKUP_RET_SUCCESS || answer == BPF_FIB_LKUP_RET_NO_NEIGH ||
	       answer == BPF_FIB_LKUP_RET_UNSUPP_LWT;
}

/* With rules or local routes of the node's own, or realms, the FIB is asked
 * about a packet's source. */
static __always_inline int fib_checks_source(struct net *net)
{
	if (bpf_core_field_exists(net->ipv4.fib_has_custom_rules) &&
	    (net->ipv4.fib_has_custom_rules | net->ipv4.fib_has_custom_local_routes))
		return 1;
	return bpf_core_field_exists(net->ipv4.fib_num_tclassid_users) && net->ipv4.fib_num_tclassid_users.counter;
}

/*
 * source_valid: as fib_validate_source, for a route that was found, and the slot of
 * the port that it leaves by. Where the FIB need not be asked, a source must not be an address
 * of the node's.
 */
static __always_inline int source_valid(struct xdp_md *ctx, struct net *net, const struct bpf_fib_lookup *found, const struct iphdr *ip, __u32 slot, int plain)
{
	if (!plain && fib_checks_source(net))
		return source_routed(ctx, found, ip->saddr, ip->daddr, ip->tos);
	return !is_local_address(ctx, net, ip->saddr, slot);
}

/* Of an interface by which nothing but the FIB decides on packets, but which the
 * next packet has to look at again. Not a reason. */
#define RX_UNCACHED -1

/*
 * rx_reason_ipv4, rx_reason_ipv6: why such packets that come in at the device are
 * the stack's: STACK_NONE, which is cached, RX_UNCACHED, or a reason.
 */
static __noinline int rx_reason_ipv4(struct xdp_md *ctx, struct policy_entry *p)
{
	struct net_device *dev = device_of(ctx);
	struct net *net = dev->nd_net.net;
	enum stack_reason why = rx_device_reason(dev);

	if (!why)
		why = ipv4_reason(net, dev);
	if (why || !p)
		return why;
	if (fib_checks_source(net))
		return RX_UNCACHED;
	cache_policy(p, POLICY_RX4);
	return STACK_NONE;
}

static __noinline int rx_reason_ipv6(struct xdp_md *ctx, struct policy_entry *p, __u8 protocol)
{
	struct net_device *dev = device_of(ctx);
	struct net *net = dev->nd_net.net;
	enum stack_reason why = rx_device_reason(dev);

	if (!why)
		why = ipv6_reason(ctx, net, dev, protocol);
	if (why || !p)
		return why;
	if (bpf_core_field_exists(net->ipv6.fib6_has_custom_rules) && net->ipv6.fib6_has_custom_rules)
		return RX_UNCACHED;
	cache_policy(p, POLICY_RX6);
	return STACK_NONE;
}

/*
 * tx_reason: why what IP sends by the interface, a frame of the length, does not go
 * onto the wire at once. A route's MTU may be more than its device's.
 */
static __noinline int tx_reason(struct xdp_md *ctx, struct policy_entry *p, __u32 ifindex, __u32 length)
{
	struct net_device *out = device_at(device_of(ctx)->nd_net.net, ifindex);
	enum stack_reason why;
	__u32 mtu;

	if (!p || !out)
		return STACK_EGRESS;
	why = tx_device_reason(out);
	if (why)
		return why;
	mtu = out->mtu;
	if (mtu <= 0xffff && !policy_cached(p, POLICY_TX))
		cache_policy(p, (__u64)mtu << POLICY_MTU | POLICY_TX);
	return length <= mtu + sizeof(struct ethhdr) ? STACK_NONE : STACK_MTU;
}
