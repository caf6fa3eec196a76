/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The token that frames of the fast path carry from XDP program to XDP program,
 * in their metadata. It tells a whole frame, checksums and all, from an skb
 * that reaches a node's end by its driver: that one may lack a checksum, which
 * nobody would fill in any more. A veth shows no metadata with an skb.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define TOKEN 0x74726c66

static __always_inline int has_token(const struct xdp_md *ctx)
{
	__u32 *token = (void *)(long)ctx->data_meta;

	return (void *)(token + 1) <= (void *)(long)ctx->data && *token == TOKEN;
}

/* give_token returns 0, or -1 if there is no room. Moves the bounds. */
static __always_inline int give_token(struct xdp_md *ctx)
{
	__u32 *token;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*token)))
		return -1;
	token = (void *)(long)ctx->data_meta;
	if ((void *)(token + 1) > (void *)(long)ctx->data)
		return -1;
	*token = TOKEN;
	return 0;
}

/* Moves the bounds. */
static __always_inline int take_token(struct xdp_md *ctx)
{
	return bpf_xdp_adjust_meta(ctx, sizeof(__u32));
}
