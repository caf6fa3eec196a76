/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Copies of what the fast path forwards, for captures: no stack, and so no packet
 * socket, sees it. Who copies finds that he has to in an entry that he has read
 * anyway, so captures that are off cost nothing.
 */
#pragma once

#include "maps.h"

enum tap_direction {
	TAP_TO_NODE = 1,   /* arrived at the node's end */
	TAP_FROM_NODE = 2, /* left by the port */
};

/* What stands before a copy. */
struct copied {
	__u64 time; /* CLOCK_MONOTONIC, ns */
	__u32 slot; /* of the port */
	__u32 length; /* of the frame, bytes; the copy may be shorter */
	enum tap_direction direction;
	__u32 pad;
};

_Static_assert(sizeof(struct copied) == 24, "the agent shares this layout");

/* How many bytes of a frame are wanted, by slot. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} taps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__type(key, __u32);
	__type(value, __u32);
} copies SEC(".maps");

static __noinline int put_copy(struct xdp_md *ctx, struct copied *head, __u32 wanted)
{
	__u64 size = head->length < wanted ? head->length : wanted;

	/* The upper half of the flags: bytes of the frame (BPF_F_CTXLEN_MASK). */
	return bpf_perf_event_output(ctx, &copies, size << 32 | BPF_F_CURRENT_CPU, head, sizeof(*head));
}

static __noinline int copy_frame(struct xdp_md *ctx, __u32 slot, enum tap_direction direction)
{
	struct copied head = {
		.time = bpf_ktime_get_ns(), .slot = slot, .length = bpf_xdp_get_buff_len(ctx), .direction = direction,
	};
	__u32 *wanted = bpf_map_lookup_elem(&taps, &slot);

	return wanted ? put_copy(ctx, &head, *wanted) : 0;
}
