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

/* Frames that were sent; one processor runs the program at a time. */
__u64 sent;

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

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;

#pragma unroll
	for (__u32 i = 0; i < HEADER_WORDS; i++) {
		__u64 *word = data + i * 8;

		if (i * 8 >= header_len)
			break;
		if ((void *)(word + 1) > end)
			return XDP_ABORTED;
		*word = header[i];
	}
	if (other_flows && from_flow(data, end, sent & other_flows))
		return XDP_ABORTED;
	sent++;
	return bpf_redirect(out_ifindex, 0);
}
