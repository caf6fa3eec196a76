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

/* What came by each router, as the stamps tell. */
struct router {
	__u64 frames;
	__u64 missing; /* sequence numbers that were passed over, and did not come since */
	__u64 late;    /* frames that came after one with a greater number */
	__u32 next;    /* the sequence number that is expected */
	__u32 pad;
};

_Static_assert(sizeof(struct router) == 32, "shared with Go");

struct router routers[MAX_ROUTERS];

/*
 * Frames by their time on the way: 32 buckets for each power of two of
 * nanoseconds, so that a bucket is at most 3 % wide.
 */
#define BUCKET_BITS 5
#define POWERS 36
__u64 latency[POWERS << BUCKET_BITS];

static __noinline int note_other(struct xdp_md *ctx)
{
	__u32 len = ctx->data_end - ctx->data;

	if (bpf_get_smp_processor_id() != cpu)
		return XDP_DROP;
	tally.others++;
	/* One of the right length tells more than a stray one. */
	if (tally.other_len == lens[0])
		return XDP_DROP;
	tally.other_len = len;
	if (len >= HEADER_BYTES)
		bpf_xdp_load_bytes(ctx, 0, tally.other, HEADER_BYTES);
	else if (len >= 60)
		bpf_xdp_load_bytes(ctx, 0, tally.other, 60);
	return XDP_DROP;
}

/* power gives the place of the highest bit that is set, of a number below 2^32. */
static __always_inline __u32 power(__u64 v)
{
	__u32 p = 0;

	if (v >= 1 << 16) {
		v >>= 16;
		p += 16;
	}
	if (v >= 1 << 8) {
		v >>= 8;
		p += 8;
	}
	if (v >= 1 << 4) {
		v >>= 4;
		p += 4;
	}
	if (v >= 1 << 2) {
		v >>= 2;
		p += 2;
	}
	return p + (v >= 2);
}

/* note_latency counts a time on the way, ns. */
static __always_inline void note_latency(__u64 ns)
{
	__u64 bucket = ns;

	if (ns >= 1ULL << 32)
		bucket = sizeof(latency) / 8 - 1;
	else if (ns >= 1 << BUCKET_BITS) {
		__u32 p = power(ns) - BUCKET_BITS;

		bucket = (p << BUCKET_BITS) + (ns >> p);
	}
	check_here(bucket);
	if (bucket < sizeof(latency) / 8)
		latency[bucket]++;
}

/* note_stamp counts a frame by its stamp. */
static __always_inline void note_stamp(const struct stamp *stamp, __u32 kind, __u64 now)
{
	__u64 i = sizes ? kind / sizes : 0;
	struct router *r;

	check_here(i);
	if (i >= MAX_ROUTERS)
		return;
	r = &routers[i];
	r->frames++;
	if (stamp->sequence >= r->next) {
		r->missing += stamp->sequence - r->next;
		r->next = stamp->sequence + 1;
	} else {
		r->late++;
		r->missing--;
	}
	if (timed)
		note_latency(now > stamp->ns ? now - stamp->ns : 0);
}

SEC("xdp")
int sink(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	const struct stamp *stamp = data + stamp_at;
	__u64 wrong = 0, now = 0, kind = 0;

	if (stamp_at) {
		if (stamp_at > HEADER_BYTES - sizeof(*stamp) || (void *)(stamp + 1) > end)
			return note_other(ctx);
		kind = stamp->kind;
		check_here(kind);
		if (kind >= kinds || kind >= MAX_KINDS)
			return note_other(ctx);
	}
	if (end - data != lens[kind])
		return note_other(ctx);
#pragma unroll
	for (__u32 i = 0; i < HEADER_WORDS; i++) {
		__u64 *word = data + i * 8;

		if (i * 8 >= header_len)
			break;
		if ((void *)(word + 1) > end)
			return note_other(ctx);
		wrong |= (*word ^ headers[kind][i]) & mask[i];
	}
	if (wrong)
		return note_other(ctx);
	if (bpf_get_smp_processor_id() != cpu) {
		__sync_fetch_and_add(&tally.elsewhere, 1);
		return XDP_DROP;
	}
	tally.frames++;
	if (timed)
		now = bpf_ktime_get_ns();
	if (stamp_at)
		note_stamp(stamp, kind, now);
	if (timed || (tally.frames & (CLOCK_EVERY - 1)) == 0) {
		tally.last_ns = timed ? now : bpf_ktime_get_ns();
		tally.last_frames = tally.frames;
		if (!tally.first_ns) {
			tally.first_ns = tally.last_ns;
			tally.first_frames = tally.frames;
		}
	}
	return XDP_DROP;
}
