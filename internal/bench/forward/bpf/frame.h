/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the generator sends and the sink expects. */
#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/*
 * Longest header that can be described, in words of 8 bytes: VXLAN over IPv4
 * with an inner Ethernet, IPv4 and UDP header takes 92 bytes, over IPv6 112.
 */
#define HEADER_WORDS 14
#define HEADER_BYTES (HEADER_WORDS * 8)

/* Bytes of header that are handled; the rest of the arrays means nothing. */
volatile const __u32 header_len;

/* The header, as it lies in memory. */
volatile const __u64 header[HEADER_WORDS];
