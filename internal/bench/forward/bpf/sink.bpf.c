// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The sink: counts the frames that are as they must be, and drops all. Rates
 * follow from two readings of the clock, at an early and at a late frame, so
 * that neither the start nor the end of a run counts.
 */
#include "frame.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Which bits of the header must be as expected. */
volatile const __u64 mask[HEADER_WORDS];

/* Length of a frame in bytes, without its check sequence. */
volatile const __u32 frame_len;

/* The processor that everything must happen on. */
volatile const __u32 cpu;

/* Every so many frames the clock is read, a power of two. */
#define CLOCK_EVERY 1024

/*
 * What the sink has seen. Only the processor `cpu` writes it, but for
 * `elsewhere`.
 */
struct seen {
	__u64 frames;       /* that were as expected */
	__u64 others;       /* that were not, whatever they were */
	__u64 elsewhere;    /* that were, but came on another processor */
	__u64 first_frames; /* `frames` at the first reading of the clock */
	__u64 first_ns;
	__u64 last_frames;  /* and at the last one */
	__u64 last_ns;
	__u32 other_len;    /* length of a frame that was not as expected */
	__u32 pad;
	__u8 other[HEADER_BYTES]; /* its beginning */
};

_Static_assert(sizeof(struct seen) == 64 + HEADER_BYTES, "shared with Go");

struct seen tally;

static __noinline int note_other(struct xdp_md *ctx)
{
	__u32 len = ctx->data_end - ctx->data;

	if (bpf_get_smp_processor_id() != cpu)
		return XDP_DROP;
	tally.others++;
	/* One of the right length tells more than a stray one. */
	if (tally.other_len == frame_len)
		return XDP_DROP;
	tally.other_len = len;
	if (len >= HEADER_BYTES)
		bpf_xdp_load_bytes(ctx, 0, tally.other, HEADER_BYTES);
	else if (len >= 60)
		bpf_xdp_load_bytes(ctx, 0, tally.other, 60);
	return XDP_DROP;
}

SEC("xdp")
int sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u64 wrong = 0;

	if (end - data != frame_len)
		return note_other(ctx);
#pragma unroll
	for (__u32 i = 0; i < HEADER_WORDS; i++) {
		__u64 *word = data + i * 8;

		if (i * 8 >= header_len)
			break;
		if ((void *)(word + 1) > end)
			return note_other(ctx);
		wrong |= (*word ^ header[i]) & mask[i];
	}
	if (wrong)
		return note_other(ctx);
	if (bpf_get_smp_processor_id() != cpu) {
		__sync_fetch_and_add(&tally.elsewhere, 1);
		return XDP_DROP;
	}
	if ((++tally.frames & (CLOCK_EVERY - 1)) == 0) {
		tally.last_ns = bpf_ktime_get_ns();
		tally.last_frames = tally.frames;
		if (!tally.first_ns) {
			tally.first_ns = tally.last_ns;
			tally.first_frames = tally.frames;
		}
	}
	return XDP_DROP;
}
