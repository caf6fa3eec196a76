/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Whose packets take the CPUs' time: for each device, how many packets its
 * network namespace's stack received there and the time that they took. Attached
 * for moments only, when softirqs take a CPU whole: it costs some 50 ns a packet.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define OF_KERNEL __attribute__((preserve_access_index))

struct ns_common {
	unsigned int inum;
} OF_KERNEL;

struct net {
	struct ns_common ns;
} OF_KERNEL;

typedef struct {
	struct net *net;
} OF_KERNEL possible_net_t;

struct net_device {
	possible_net_t nd_net;
	int ifindex;
} OF_KERNEL;

struct sk_buff {
	struct net_device *dev;
	unsigned int len;
	unsigned char *data;
} OF_KERNEL;

/* A longer time between two packets of a CPU has other causes, ns. */
#define LONGEST 20000

struct device {
	__u32 netns; /* inode number of the network namespace */
	__u32 ifindex;
};

struct use {
	__u64 packets;
	__u64 time; /* ns */
	/* One packet of each SAMPLE is remembered until the next one. How often it
	 * was seen again tells packets that circle from those that pass. */
	__u64 sample;
	__u64 samples;
	__u64 repeats;
};

/* More than can wait in the queues of a loop (net.core.netdev_max_backlog). */
#define SAMPLE 4096

/* Bytes of a packet, from its network header on, that tell it from others. */
#define TELLING 40

_Static_assert(sizeof(struct device) == 8, "the agent shares this layout");
_Static_assert(sizeof(struct use) == 40, "the agent shares this layout");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct device);
	__type(value, struct use);
} uses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64); /* when a CPU's last packet was counted, CLOCK_MONOTONIC, ns */
} last SEC(".maps");

/* print_of gives what tells a packet from others; not 0. */
static __always_inline __u64 print_of(struct sk_buff *skb)
{
	__u64 head[TELLING / 8] = {}, size = skb->len, print = size | 1;

	/* In 64 bits, of one register: Linux 6.1 does not carry the bound over from its lower half. */
	asm volatile("" : "+r"(size));
	if (size > TELLING)
		size = TELLING;
	bpf_probe_read_kernel(head, size, skb->data);
	for (int i = 0; i < TELLING / 8; i++)
		print = (print ^ head[i]) * 0x9e3779b97f4a7c15ULL;
	return print | 1;
}

/*
 * count_packet: tracepoint netif_receive_skb(struct sk_buff *skb). A packet is
 * charged the time since the one before it on its CPU, which what came before it
 * took: in a flood, where it matters, they are of one kind.
 */
SEC("tp_btf/netif_receive_skb")
int count_packet(__u64 *ctx)
{
	struct sk_buff *skb = (struct sk_buff *)ctx[0];
	struct net_device *dev = skb->dev;
	struct device key;
	__u64 now = bpf_ktime_get_ns(), took, print;
	__u64 *before;
	struct use *use, fresh = {};
	__u32 zero = 0;

	if (!dev)
		return 0;
	key.netns = dev->nd_net.net->ns.inum;
	key.ifindex = dev->ifindex;
	before = bpf_map_lookup_elem(&last, &zero);
	if (!before)
		return 0;
	took = now - *before;
	*before = now;
	if (took > LONGEST)
		took = LONGEST;
	use = bpf_map_lookup_elem(&uses, &key);
	if (!use) {
		bpf_map_update_elem(&uses, &key, &fresh, BPF_NOEXIST);
		use = bpf_map_lookup_elem(&uses, &key);
		if (!use)
			return 0;
	}
	print = print_of(skb);
	if (print == use->sample)
		use->repeats++;
	if (!(use->packets++ % SAMPLE)) {
		use->sample = print;
		use->samples++;
	}
	use->time += took;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
