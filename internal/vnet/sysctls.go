package vnet

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
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

// SysctlPath turns net.ipv4.ip_forward into net/ipv4/ip_forward. As in sysctl(8),
// whichever of dot and slash comes first is the separator, and the other stands
// for itself, or for the separator's character within a name: net.ipv4.conf.eth0/1.
// An interface's dots are taken for its own, too: net.ipv4.conf.eth0.1.rp_filter.
func SysctlPath(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '/' {
		return name
	}
	path := strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
	if parts := strings.Split(path, "/"); perInterface(parts) {
		last := len(parts) - 1
		return strings.Join(append(parts[:3:3], strings.Join(parts[3:last], "."), parts[last]), "/")
	}
	return path
}

// perInterface reports whether the parts of a path are those of a sysctl that each
// interface has its own of.
func perInterface(parts []string) bool {
	if len(parts) < 5 {
		return false
	}
	switch parts[1] + "/" + parts[2] {
	case "ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh", "mpls/conf":
		return true
	}
	return false
}

// SysctlInterface gives the interface that a sysctl is of, "" where it is of none, of
// all, or of those that come.
func SysctlInterface(name string) string {
	parts := strings.Split(SysctlPath(name), "/")
	if !perInterface(parts) || parts[3] == "all" || parts[3] == "default" {
		return ""
	}
	return parts[3]
}

// ownInterfaces are those that a network namespace can have from the start: lo, and
// where their modules are loaded, the kernel's own tunnels (net.core.fb_tunnels_only_for_init_net).
var ownInterfaces = []string{"lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}

// interfaceSysctls refuses those of interfaces that their node does not have, or that
// have none such.
func (c *checker) interfaceSysctls() {
	for i := range c.v.Nodes {
		n := &c.v.Nodes[i]
		for _, k := range sortedKeys(n.Sysctls) {
			name := SysctlInterface(k)
			if name == "" || slices.Contains(ownInterfaces, name) {
				continue
			}
			at := fmt.Sprintf("nodes[%d].sysctls.%s", i, k)
			e := c.interfaces()[n.Name][name]
			switch {
			case e == nil:
				c.add(at, "name one that a link gives the node"+c.interfaceList(n.Name), "node %q: sysctl %s is of the interface %s, which the node does not have", clip(n.Name), clip(k), clip(name))
			case e.MTU < MinMTUIPv6 && strings.HasPrefix(k, "net.ipv6."):
				c.add(at, fmt.Sprintf("leave it out, or give the link an MTU of %d or more", MinMTUIPv6), "node %q: sysctl %s is of IPv6, which %s does not have with an MTU of %d", clip(n.Name), clip(k), name, e.MTU)
			}
		}
	}
}

// interfaces gives the ends of links by node and name.
func (c *checker) interfaces() map[string]map[string]*Interface {
	if c.ends != nil {
		return c.ends
	}
	c.ends = map[string]map[string]*Interface{}
	for i := range c.v.Links {
		for j := range c.v.Links[i].Endpoints {
			e := &c.v.Links[i].Endpoints[j]
			if c.ends[e.Node] == nil {
				c.ends[e.Node] = map[string]*Interface{}
			}
			c.ends[e.Node][e.Name] = e
		}
	}
	return c.ends
}

// interfaceList names a node's interfaces for a remedy, where they are few.
func (c *checker) interfaceList(node string) string {
	names := slices.Sorted(maps.Keys(c.interfaces()[node]))
	if len(names) == 0 || len(names) > 8 {
		return ""
	}
	return ": " + orList(names)
}

// SysctlTrouble words why a machine cannot set a sysctl, and what to do.
func SysctlTrouble(name, value string, err error) (what, remedy string) {
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(SysctlPath(name), "net/mpls/"):
		return fmt.Sprintf("sysctl %s needs MPLS, which this machine's kernel has not loaded", clip(name)), "load it: modprobe mpls_router"
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("this machine has no sysctl %s for a network of a node's", clip(name)),
			"check how it is written (sysctl -a in a node lists all), or load the kernel module that brings it"
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ERANGE):
		return fmt.Sprintf("the kernel does not take %q for sysctl %s", clip(value), clip(name)), "give a value that it takes"
	}
	return fmt.Sprintf("sysctl %s cannot be set: %v", clip(name), err), "leave it out"
}

// ipv6Off refuses to turn IPv6 off where interfaces are given IPv6 addresses: the
// kernel would not take them.
func (c *checker) ipv6Off() {
	for i := range c.v.Nodes {
		n := &c.v.Nodes[i]
		off := map[string]string{} // the sysctls that turn it off, by interface, all and default
		on := map[string]bool{}    // the interfaces where another turns it on again
		for _, k := range sortedKeys(n.Sysctls) {
			parts := strings.Split(SysctlPath(k), "/")
			if len(parts) != 5 || !perInterface(parts) || parts[1] != "ipv6" || parts[4] != "disable_ipv6" {
				continue
			}
			if value, err := strconv.ParseInt(strings.TrimSpace(n.Sysctls[k]), 0, 64); err == nil && value == 0 {
				on[parts[3]] = true
			} else {
				off[parts[3]] = k
			}
		}
		if len(off) == 0 {
			continue
		}
		refuse := func(name string, has netip.Addr, inherits ...string) {
			for _, from := range append([]string{name}, inherits...) {
				if on[from] {
					return
				}
				if k := off[from]; k != "" {
					c.add(fmt.Sprintf("nodes[%d].sysctls.%s", i, k), "turn IPv6 addresses off with addressing: {ipv4: 10.0.0.0/8} for the network or addressing: none for the node, and name none, or leave the sysctl out",
						"node %q: sysctl %s turns IPv6 off, and %s is given the address %s", clip(n.Name), clip(k), name, has)
					delete(off, from) // one message is enough
					return
				}
			}
		}
		for _, a := range slices.Concat(n.Loopbacks, n.Anycast) {
			if a.Is6() {
				refuse("lo", a, "all")
			}
		}
		for _, name := range slices.Sorted(maps.Keys(c.interfaces()[n.Name])) {
			for _, p := range c.interfaces()[n.Name][name].Addrs {
				if p.Addr().Is6() {
					refuse(name, p.Addr(), "default", "all")
					break
				}
			}
		}
	}
}
