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

/* Frames that were sent; one processor runs the program at a time. */
__u64 sent;

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
	sent++;
	return bpf_redirect(out_ifindex, 0);
}
