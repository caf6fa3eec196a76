// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The generator: run by BPF_PROG_RUN on live frames, it sends each of them out
 * of a device. The kernel takes the frames from a pool and gives them back as
 * whoever had them last has left them, so that the whole header is written anew
 * each time.
 */
#include "frame.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The device to send from. */
volatile const __u32 out_ifindex;

/* Flows less one, a power of two less one: frames take turns to come from that
 * many addresses, from the one in the header on. */
volatile const __u32 other_flows;

/* Where the source address of the innermost IPv4 header is. */
volatile const __u32 source;

/* Kinds take turns in this order, where there are several. */
#define MAX_TURNS (MAX_ROUTERS * 12)
volatile const __u32 turns;
volatile const __u8 turn_kinds[MAX_TURNS];

/* Whether frames are sent at a pace, not as fast as they can be. */
volatile const __u32 paced;

/* How far apart frames are sent, in 1/1024 ns, and for how long, ns. */
__u64 interval;
__u64 duration;

/* One processor runs the program at a time. */
__u64 sent;      /* frames that were sent */
__u64 begun;     /* when the program ran first, ns */
__u64 last_sent; /* when it sent last, ns */
__u64 ended;     /* when it ran last, ns */
__u64 due;       /* when the next frame is to be sent, 1/1024 ns after begun */
__u32 turn;
__u32 sequence[MAX_ROUTERS];

/* A generator that was held up makes up for so many frames and no more, lest it
 * send a burst that nobody asked for. */
#define CATCH_UP 32

/* is_due tells whether it is time for a frame. */
static __always_inline int is_due(void)
{
	__u64 elapsed;

	ended = bpf_ktime_get_ns();
	if (!begun)
		begun = ended;
	elapsed = ended - begun;
	if (elapsed >= duration)
		return 0;
	elapsed <<= 10;
	if (elapsed < due)
		return 0;
	if (elapsed > due + CATCH_UP * interval)
		due = elapsed;
	due += interval;
	last_sent = ended;
	return 1;
}

/* from_flow gives the frame its source address, whose lower half no flow
 * overflows. */
static __always_inline int from_flow(void *data, void *end, __u32 flow)
{
	__be16 *half, *check;
	__be16 to;
	__u32 sum;

	if (source > HEADER_BYTES - 4 || source < 2)
		return -1;
	half = data + source + 2;
	check = data + source - 2;
	if ((void *)(half + 1) > end || (void *)check < data)
		return -1;
	to = bpf_htons(bpf_ntohs(*half) + flow);
	sum = (__u16)~*check + (__u32)(__u16)~*half + to; /* RFC 1624 */
	sum = (sum & 0xffff) + (sum >> 16);
	*check = ~((sum & 0xffff) + (sum >> 16));
	*half = to;
	return 0;
}

/* put_stamp stamps a frame of a kind. */
static __always_inline int put_stamp(void *data, void *end, __u32 kind)
{
	struct stamp *stamp = data + stamp_at;
	__u64 router = sizes ? kind / sizes : 0;

	check_here(router);
	if (stamp_at > HEADER_BYTES - sizeof(*stamp) || (void *)(stamp + 1) > end || router >= MAX_ROUTERS)
		return -1;
	stamp->kind = kind;
	stamp->pad = 0;
	stamp->sequence = sequence[router]++;
	stamp->ns = timed ? bpf_ktime_get_ns() : 0;
	return 0;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	__u64 kind = 0;
	void *data, *end;

	if (paced && !is_due())
		return XDP_DROP;
	if (kinds > 1) {
		__u64 t = turn;

		if (t >= turns)
			t = 0;
		check_here(t);
		if (t >= MAX_TURNS)
			return XDP_ABORTED;
		kind = turn_kinds[t];
		turn = t + 1;
		check_here(kind);
		if (kind >= MAX_KINDS)
			return XDP_ABORTED;
		if (sizes > 1) {
			__u32 len = ctx->data_end - ctx->data;

			if (len != lens[kind] && bpf_xdp_adjust_tail(ctx, (int)lens[kind] - (int)len))
				return XDP_ABORTED;
		}
	}
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
#pragma unroll
	for (__u32 i = 0; i < HEADER_WORDS; i++) {
		__u64 *word = data + i * 8;

		if (i * 8 >= header_len)
			break;
		if ((void *)(word + 1) > end)
			return XDP_ABORTED;
		*word = headers[kind][i];
	}
	if (other_flows && from_flow(data, end, sent & other_flows))
		return XDP_ABORTED;
	if (stamp_at && put_stamp(data, end, kind))
		return XDP_ABORTED;
	sent++;
	return bpf_redirect(out_ifindex, 0);
}
