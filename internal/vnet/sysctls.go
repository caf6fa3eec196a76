package vnet

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// SysctlCeiling is the most that a node's network may have of something that is memory
// of the machine's.
type SysctlCeiling struct {
	// Name is dotted. One without a dot is that of all sysctls that end so.
	Name string
	// Max has a number for each field of the value.
	Max []uint64
}

// SysctlCeilings bound what descriptions, and nodes themselves, may set. What a node
// raises past them would be memory that no control group is charged with. Where the
// kernel's own default is enough for any network, it is the ceiling.
var SysctlCeilings = []SysctlCeiling{
	// Fragments that wait for others: 4 MiB is the default (net/ipv4/ip_fragment.c,
	// net/ipv6/reassembly.c, net/ipv6/netfilter/nf_conntrack_reasm.c).
	{"net.ipv4.ipfrag_high_thresh", []uint64{4 << 20}},
	{"net.ipv6.ip6frag_high_thresh", []uint64{4 << 20}},
	{"net.netfilter.nf_conntrack_frag6_high_thresh", []uint64{4 << 20}},
	{"net.ieee802154.6lowpan.6lowpanfrag_high_thresh", []uint64{4 << 20}},
	{"net.ipv4.ipfrag_time", []uint64{60}},
	{"net.ipv6.ip6frag_time", []uint64{60}},
	{"net.netfilter.nf_conntrack_frag6_timeout", []uint64{60}},
	// The least that a socket may have even when tcp_mem and udp_mem, the machine's, are
	// used up (sk_get_rmem0 and sk_get_wmem0 in include/net/sock.h); and the most.
	{"net.ipv4.tcp_rmem", []uint64{16 << 10, 1 << 20, 64 << 20}},
	{"net.ipv4.tcp_wmem", []uint64{16 << 10, 1 << 20, 64 << 20}},
	{"net.ipv4.udp_rmem_min", []uint64{16 << 10}},
	{"net.ipv4.udp_wmem_min", []uint64{16 << 10}},
	// Of a network namespace since Linux 6.8.
	{"net.core.optmem_max", []uint64{128 << 10}},
	{"net.core.somaxconn", []uint64{65535}},
	{"net.ipv4.tcp_max_syn_backlog", []uint64{65535}},
	{"net.ipv4.tcp_max_tw_buckets", []uint64{262144}},
	{"net.unix.max_dgram_qlen", []uint64{512}},
	{"net.ipv4.igmp_max_memberships", []uint64{4096}},
	{"net.ipv4.igmp_max_msf", []uint64{512}},
	{"net.ipv6.mld_max_msf", []uint64{512}},
	// Frames that wait for a neighbour, for each one; 208 KiB by default.
	{"unres_qlen_bytes", []uint64{212992}},
	{"unres_qlen", []uint64{128}},
	{"net.netfilter.nf_conntrack_max", []uint64{262144}},
	{"net.netfilter.nf_conntrack_expect_max", []uint64{4096}},
	{"net.mpls.platform_labels", []uint64{131072}}, // 8 bytes each, at once
}

// sysctlCeiling gives that of a sysctl, nil where there is none.
func sysctlCeiling(name string) []uint64 {
	name = strings.ReplaceAll(name, "/", ".") // an interface's name may have dots then: only the end counts
	for _, c := range SysctlCeilings {
		if name == c.Name || !strings.Contains(c.Name, ".") && strings.HasSuffix(name, "."+c.Name) {
			return c.Max
		}
	}
	return nil
}

// sysctl holds a value to its ceiling. Other values are the kernel's to judge.
func (c *checker) sysctl(at, who, name, value string) {
	most := sysctlCeiling(name)
	if most == nil {
		return
	}
	for i, f := range strings.Fields(value) {
		limit := uint64(math.MaxUint64)
		if i < len(most) {
			limit = most[i]
		}
		n, err := strconv.ParseUint(f, 0, 64)
		if err == nil && n <= limit {
			continue
		}
		field := ""
		if len(most) > 1 {
			field = fmt.Sprintf(" in field %d", i+1)
		}
		c.add(at+".sysctls."+name, fmt.Sprintf("use at most %d%s: more would be memory of the machine's that no limit of the node's counts", limit, field),
			"%s: sysctl %s is %q", who, clip(name), clip(value))
		return
	}
}
