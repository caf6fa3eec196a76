/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The device that an XDP program runs on, as the kernel sees it: interface
 * indices repeat from namespace to namespace, and a node's root may pick them.
 * (bpf_cast_to_kern_ctx and bpf_rdonly_cast: Linux 6.2, commits fd264ca02094
 * and a35b9af4ec2c.)
 */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define OF_KERNEL __attribute__((preserve_access_index))

struct net {
	__u64 net_cookie;
} OF_KERNEL;

typedef struct {
	struct net *net;
} OF_KERNEL possible_net_t;

struct net_device {
	possible_net_t nd_net;
	const unsigned char *dev_addr;
} OF_KERNEL;

struct xdp_rxq_info {
	struct net_device *dev;
} OF_KERNEL;

struct xdp_buff {
	struct xdp_rxq_info *rxq;
} OF_KERNEL;

void *bpf_cast_to_kern_ctx(void *ctx) __ksym;
void *bpf_rdonly_cast(void *object, __u32 type) __ksym;

static __always_inline struct net_device *device_of(struct xdp_md *ctx)
{
	struct xdp_buff *frame = bpf_cast_to_kern_ctx(ctx);

	return frame->rxq->dev;
}

static __always_inline __u64 netns_of(struct net_device *dev)
{
	return dev->nd_net.net->net_cookie;
}

/* Whether the frame is for the device's own address, not for a group's. */
static __always_inline int is_to(const struct ethhdr *eth, struct net_device *dev)
{
	const struct ethhdr *own = bpf_rdonly_cast((void *)dev->dev_addr, bpf_core_type_id_kernel(struct ethhdr));
	const __u8 *to = eth->h_dest;

	return to[0] == own->h_dest[0] && to[1] == own->h_dest[1] && to[2] == own->h_dest[2] &&
	       to[3] == own->h_dest[3] && to[4] == own->h_dest[4] && to[5] == own->h_dest[5] && !(to[0] & 1);
}
