// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * What a seccomp filter cannot tell of the calls of nodes' processes, since it lies
 * in memory: attached to the control group (of version 2) that all of an instance's
 * nodes are in.
 *
 *  - trellis_options: setsockopt(2). Options that nothing in a node needs are unknown.
 *    Rings of packet sockets and programs of socket
 *    filters are memory that no control group is charged with; each network namespace
 *    has a budget of both.
 *  - trellis_sysctl: writes below /proc/sys/net, with ceilings for what is memory.
 *  - trellis_live: reads what the sockets there are have been charged with, since no
 *    hook tells of the end of a packet socket. The service sums it up, and gives back.
 *
 * What is charged to a socket is the most that it has ever asked for: whether the
 * kernel then did it, or undid it later, a hook before the call does not know.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define SOL_IP		 0
#define SOL_SOCKET	 1
#define SOL_TCP		 6
#define SOL_UDP		 17
#define SOL_IPV6	 41
#define SO_ATTACH_FILTER 26
#define SOL_PACKET	 263
#define PACKET_RX_RING	 5
#define EINVAL		 22
#define ENOPROTOOPT	 92
#define ENOMEM		 12

/* What a network namespace's sockets may have: bytes of rings, instructions of filters. */
const volatile __u64 ring_budget = 16 << 20;
const volatile __u64 filter_budget = 16384;

struct socket_charge {
	__u64 netns; /* cookie */
	__u64 ring;  /* bytes */
	__u64 filter; /* instructions of the classic program */
};
_Static_assert(sizeof(struct socket_charge) == 24, "read by the service");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_charge);
} sockets SEC(".maps");

struct charge {
	__s64 ring;
	__s64 filter;
};

/* By namespace: all that was ever charged, and what of that the service has given back. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct charge);
} charged SEC(".maps"), released SEC(".maps");

/* over reports whether the namespace has used up its budget. */
static __always_inline int over(__u64 netns, const struct charge *c)
{
	struct charge *back = bpf_map_lookup_elem(&released, &netns);
	__s64 ring = c->ring, filter = c->filter;
	if (back) {
		ring -= back->ring;
		filter -= back->filter;
	}
	return ring > (__s64)ring_budget || filter > (__s64)filter_budget;
}

/* charge lets the call through, 1, if there is room for what it asks for. */
static __always_inline int charge(struct bpf_sockopt *ctx, __u64 ring, __u64 filter)
{
	struct bpf_sock *sk = ctx->sk;
	struct socket_charge *s;
	struct charge *c, none = {};
	__u64 netns = bpf_get_netns_cookie(ctx), more_ring = 0, more_filter = 0;

	if (!sk)
		goto refuse;
	s = bpf_sk_storage_get(&sockets, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!s)
		goto refuse;
	c = bpf_map_lookup_elem(&charged, &netns);
	if (!c) {
		bpf_map_update_elem(&charged, &netns, &none, BPF_NOEXIST);
		c = bpf_map_lookup_elem(&charged, &netns);
		if (!c)
			goto refuse;
	}
	/* The socket is locked, so nobody else changes s. */
	if (ring > s->ring)
		more_ring = ring - s->ring;
	if (filter > s->filter)
		more_filter = filter - s->filter;
	s->netns = netns;
	s->ring += more_ring;
	s->filter += more_filter;
	__sync_fetch_and_add(&c->ring, more_ring);
	__sync_fetch_and_add(&c->filter, more_filter);
	if ((!more_ring && !more_filter) || !over(netns, c))
		return 1;
	s->ring -= more_ring;
	s->filter -= more_filter;
	__sync_fetch_and_add(&c->ring, -more_ring);
	__sync_fetch_and_add(&c->filter, -more_filter);
refuse:
	bpf_set_retval(-ENOMEM); /* on which libpcap asks for less */
	return 0;
}

/*
 * known reports whether routing and tools use an option; other levels than these are
 * the seccomp profile's to judge (internal/substrate/seccomp/options.go). Numbers:
 * include/uapi/asm-generic/socket.h, linux/in.h, in6.h, tcp.h, udp.h, mroute.h.
 */
static __always_inline int known(__u32 level, __u32 option)
{
	switch (level) {
	case SOL_SOCKET:
		switch (option) {
		case 0 ... 31: /* up to SO_PEERSEC */
		case 34 ... 37: /* PASSSEC, TIMESTAMPNS, MARK, TIMESTAMPING */
		case 40: /* RXQ_OVFL */
		case 42: /* PEEK_OFF */
		case 44: /* LOCK_FILTER */
		case 45: /* SELECT_ERR_QUEUE */
		case 47: /* MAX_PACING_RATE */
		case 49: /* INCOMING_CPU */
		case 62 ... 67: /* BINDTOIFINDEX, the times of 64 bits */
		case 75: /* RCVMARK */
		case 76: /* PASSPIDFD */
			return 1;
		}
		/* Buffers past rmem_max and wmem_max, programs, busy polling, pinned pages, and
		 * TXTIME, whose stamps leave the node with the frame. */
		return 0;
	case SOL_IP: /* without the policies of IPsec, and x_tables from 64 on */
		return (option < 64 && option != 16 && option != 17) || (option >= 200 && option < 216);
	case SOL_IPV6: /* nor FLOWLABEL_MGR, 32: 4,096 labels are the machine's (FL_MAX_SIZE) */
		switch (option) {
		case 0 ... 31:
		case 33:
		case 36 ... 63:
		case 66 ... 67:
		case 70 ... 79:
		case 200 ... 215: /* MRT6_INIT and on */
			return 1;
		}
		return 0;
	case SOL_TCP: /* without REPAIR and what goes with it, ULP, ZEROCOPY_RECEIVE */
		switch (option) {
		case 0 ... 18:
		case 23 ... 28:
		case 30:
		case 32 ... 34:
		case 36 ... 43:
			return 1;
		}
		return 0;
	case SOL_UDP: /* CORK, checksums of IPv6, GSO and GRO; no ENCAP */
		return option == 1 || (option >= 101 && option <= 104);
	}
	return 1;
}

SEC("cgroup/setsockopt")
int trellis_options(struct bpf_sockopt *ctx)
{
	__u8 *value = ctx->optval, *end = ctx->optval_end;
	__u32 *words = ctx->optval;

	/* What passes is used as it was seen: the kernel's copy. */
	if (ctx->level == SOL_PACKET && ctx->optname == PACKET_RX_RING) {
		if (value + 16 > end)
			goto invalid;
		return charge(ctx, (__u64)words[0] * words[1], 0); /* tp_block_size, tp_block_nr */
	}
	if (ctx->level == SOL_SOCKET && ctx->optname == SO_ATTACH_FILTER) {
		if (value + 16 > end)
			goto invalid;
		return charge(ctx, 0, *(__u16 *)value); /* len of struct sock_fprog */
	}
	if (!known(ctx->level, ctx->optname)) {
		bpf_set_retval(-ENOPROTOOPT);
		return 0;
	}
	ctx->optlen = 0; /* the caller's own buffer, however long */
	return 1;
invalid:
	bpf_set_retval(-EINVAL);
	return 0;
}

#define NAME	64
#define NUMBERS 3
#define NUMBER	31 /* characters */

struct ceiling {
	__u64 max[NUMBERS];
};

/* By name, "net/ipv4/ipfrag_high_thresh", or by the last part of it alone. */
struct sysctl_name {
	char text[NAME];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct sysctl_name);
	__type(value, struct ceiling);
} ceilings SEC(".maps");

SEC("cgroup/sysctl")
int trellis_sysctl(struct bpf_sysctl *ctx)
{
	struct sysctl_name name = {};
	struct ceiling *ceiling;
	char text[4 * (NUMBER + 1)] = {};
	int at = 0;

	if (!ctx->write)
		return 1;
	if (bpf_sysctl_get_name(ctx, name.text, NAME, 0) < 0)
		return 1; /* longer than all that have a ceiling */
	ceiling = bpf_map_lookup_elem(&ceilings, &name);
	if (!ceiling) {
		__builtin_memset(&name, 0, sizeof(name));
		if (bpf_sysctl_get_name(ctx, name.text, NAME, BPF_F_SYSCTL_BASE_NAME) < 0)
			return 1;
		ceiling = bpf_map_lookup_elem(&ceilings, &name);
		if (!ceiling)
			return 1;
	}
	if (ctx->file_pos != 0 || bpf_sysctl_get_new_value(ctx, text, sizeof(text)) <= 0)
		return 0;
#pragma unroll
	for (int i = 0; i < NUMBERS; i++) {
		unsigned long number;
		if (i && (!text[at] || (text[at] == '\n' && !text[at + 1])))
			return 1;
		long n = bpf_strtoul(text + at, NUMBER, 0, &number);
		if (n <= 0 || n > NUMBER)
			return 0;
		if (number > ceiling->max[i])
			return 0;
		at += n & NUMBER;
	}
	return 1;
}

/* The context of this iterator (kernel/bpf: struct bpf_iter__bpf_sk_storage_map). */
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	void *map;
	void *sk;
	struct socket_charge *value;
};

SEC("iter/bpf_sk_storage_map")
int trellis_live(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct socket_charge s, *value = ctx->value;
	if (!value)
		return 0;
	s = *value;
	bpf_seq_write(ctx->meta->seq, &s, sizeof(s));
	return 0;
}
