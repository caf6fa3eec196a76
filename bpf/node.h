/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The node as the kernel sees it, from the device that an XDP program runs on:
 * interface indices repeat from namespace to namespace, and a node's root may
 * pick them. Read only; what a kernel does not have, the asker looks for with
 * bpf_core_field_exists. (bpf_cast_to_kern_ctx and bpf_rdonly_cast: Linux 6.2,
 * commits fd264ca02094 and a35b9af4ec2c.)
 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "parse.h"

#define OF_KERNEL __attribute__((preserve_access_index))

struct timespec64 {
	__s64 tv_sec;
} OF_KERNEL;

struct list_head {
	struct list_head *next;
} OF_KERNEL;

struct hlist_node {
	struct hlist_node *next;
} OF_KERNEL;

struct hlist_head {
	struct hlist_node *first;
} OF_KERNEL;

typedef struct {
	int counter;
} OF_KERNEL atomic_t;

struct ipv4_devconf {
	int data[16]; /* IPV4_DEVCONF_* less one, as many as are asked for */
} OF_KERNEL;

struct in_ifaddr {
	struct in_ifaddr *ifa_next;
	__be32 ifa_local;
} OF_KERNEL;

struct in_device {
	struct in_ifaddr *ifa_list;
	struct ipv4_devconf cnf;
} OF_KERNEL;

struct ipv6_devconf {
	__s32 disable_ipv6;
	__s32 forwarding;
} OF_KERNEL;

struct inet6_dev {
	struct ipv6_devconf cnf;
} OF_KERNEL;

struct fib_rule {
	struct list_head list;
	int suppress_ifgroup, suppress_prefixlen;
} OF_KERNEL;

struct fib_rules_ops {
	struct list_head rules_list;
} OF_KERNEL;

struct netns_ipv4 {
	struct ipv4_devconf *devconf_all;
	atomic_t dev_addr_genid, rt_genid;
	atomic_t fib_num_tclassid_users;
	_Bool fib_has_custom_rules;
	_Bool fib_has_custom_local_routes;
	__u8 sysctl_ip_fwd_use_pmtu;
	__u8 sysctl_fib_multipath_hash_policy;
} OF_KERNEL;

struct netns_sysctl_ipv6 {
	__u8 multipath_hash_policy;
} OF_KERNEL;

struct netns_ipv6 {
	struct netns_sysctl_ipv6 sysctl;
	struct ipv6_devconf *devconf_all;
	struct fib_rules_ops *fib6_rules_ops;
	unsigned int fib6_rules_require_fldissect;
	atomic_t fib6_sernum;
	_Bool fib6_has_custom_rules;
} OF_KERNEL;

struct nf_hook_entry {
	void *hook, *priv;
} OF_KERNEL;

struct nf_hook_entries {
	__u16 num_hook_entries;
	struct nf_hook_entry hooks[1]; /* and behind them the nf_hook_ops of each */
} OF_KERNEL;

struct nf_hook_ops {
	__u8 pf; /* and in the byte behind it hook_ops_type, a bit field */
	int priority;
} OF_KERNEL;

struct netns_nf {
	void *hooks_ipv4[5], *hooks_ipv6[5];
} OF_KERNEL;

struct netns_xfrm {
	unsigned int policy_count[6];
	__u8 policy_default[3];
} OF_KERNEL;

struct net {
	__u64 net_cookie;
	struct list_head dev_base_head;
	struct hlist_head *dev_index_head;
	struct netns_ipv4 ipv4;
	struct netns_ipv6 ipv6;
	struct netns_nf nf;
	struct netns_xfrm xfrm;
} OF_KERNEL;

typedef struct {
	struct net *net;
} OF_KERNEL possible_net_t;

struct Qdisc {
	void *enqueue;
} OF_KERNEL;

enum netdev_priv_flags {
	IFF_L3MDEV_SLAVE = 1,
};

enum netdev_state_t {
	__LINK_STATE_START,
	__LINK_STATE_NOCARRIER = 2,
};

struct net_device {
	possible_net_t nd_net;
	const unsigned char *dev_addr;
	int ifindex;
	unsigned int mtu;
	struct list_head dev_list;
	struct hlist_node index_hlist;
	unsigned long state;
	unsigned long priv_flags : 32;
	struct in_device *ip_ptr;
	struct inet6_dev *ip6_ptr;
	struct Qdisc *qdisc;
	void *rx_handler;
	void *tcx_ingress, *tcx_egress;     /* Linux 6.6, commit e420bed02507 */
	void *miniq_ingress, *miniq_egress; /* before */
	void *nf_hooks_ingress, *nf_hooks_egress;
} OF_KERNEL;

struct xdp_rxq_info {
	struct net_device *dev;
} OF_KERNEL;

struct xdp_buff {
	struct xdp_rxq_info *rxq;
} OF_KERNEL;

void *bpf_cast_to_kern_ctx(void *ctx) __ksym;
void *bpf_rdonly_cast(void *object, __u32 type) __ksym;

/* What lies at an address of the kernel's, as a type of the kernel's. */
#define KERNEL_AT(type, address) ((type *)bpf_rdonly_cast((void *)(__u64)(address), bpf_core_type_id_kernel(type)))

/* The object that has a list's node in a field of it. */
#define KERNEL_OF(type, field, node) KERNEL_AT(type, (__u64)(node) - bpf_core_field_offset(type, field))

static __always_inline struct net_device *device_of(struct xdp_md *ctx)
{
	struct xdp_buff *frame = bpf_cast_to_kern_ctx(ctx);

	return frame->rxq->dev;
}

/* Entries of one place of a hash that are looked at. */
#define CHAIN 8

/*
 * device_at finds a device of a namespace by its index, NULL if there is none
 * or too many share its place (NETDEV_HASHENTRIES, include/linux/netdevice.h).
 */
static __always_inline struct net_device *device_at(struct net *net, __u32 ifindex)
{
	__u64 place = (__u64)net->dev_index_head + (ifindex & 255) * sizeof(struct hlist_head);
	struct hlist_node *node = KERNEL_AT(struct hlist_head, place)->first;

	for (int i = 0; i < CHAIN && node; i++) {
		struct net_device *dev = KERNEL_OF(struct net_device, index_hlist, node);

		if ((__u32)dev->ifindex == ifindex)
			return dev;
		node = dev->index_hlist.next;
	}
	return 0;
}

/* Whether the device is up, and its peer, if it is of a pair. */
static __always_inline int has_carrier(struct net_device *dev)
{
	unsigned long up = 1UL << bpf_core_enum_value(enum netdev_state_t, __LINK_STATE_START);
	unsigned long off = 1UL << bpf_core_enum_value(enum netdev_state_t, __LINK_STATE_NOCARRIER);

	return (dev->state & (up | off)) == up;
}

/* Whether the frame is for the device's own address, not for a group's. */
static __always_inline int is_to(const struct ethhdr *eth, struct net_device *dev)
{
	/* One load of eight bytes in place of six: MAX_ADDR_LEN is 32. */
	__u64 own = KERNEL_AT(struct timespec64, dev->dev_addr)->tv_sec, to = *(const word64 *)eth;

	return !((own ^ to) & MAC_BYTES) && !(eth->h_dest[0] & 1);
}
