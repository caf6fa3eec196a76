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

struct token {
	__u32 token;
	__u32 base; /* where egress (ends.h) may have the node's ends: a hint */
	__u32 tap;  /* the slot of the port that the frame arrives by, if copies are wanted; else 0 */
};

/* The frame's token, NULL if it has none. */
static __always_inline struct token *token_of(const struct xdp_md *ctx)
{
	struct token *t = (void *)(long)ctx->data_meta;

	return (void *)(t + 1) <= (void *)(long)ctx->data && t->token == TOKEN ? t : 0;
}

/* give_token returns 0, or -1 if there is no room. Moves the bounds. */
static __always_inline int give_token(struct xdp_md *ctx, __u32 base, __u32 tap)
{
	struct token *t;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*t)))
		return -1;
	t = (void *)(long)ctx->data_meta;
	if ((void *)(t + 1) > (void *)(long)ctx->data)
		return -1;
	*t = (struct token){TOKEN, base, tap};
	return 0;
}

/* Moves the bounds. */
static __always_inline int take_token(struct xdp_md *ctx)
{
	return bpf_xdp_adjust_meta(ctx, sizeof(struct token));
}
