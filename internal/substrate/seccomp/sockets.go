package seccomp

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// typeBits are those of the type of a socket, without the flags that may go with it.
const typeBits = low &^ (unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC)

// ofType holds where socket(2) asks for the type.
func ofType(t uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: 1, Value: typeBits, ValueTwo: t, Op: specs.OpMaskedEqual}
}

// netlinks are the netlink protocols that routing daemons, iproute2, ss, nft, iptables
// (nft), conntrack and ethtool speak.
var netlinks = []uint64{unix.NETLINK_ROUTE, unix.NETLINK_SOCK_DIAG, unix.NETLINK_NETFILTER, unix.NETLINK_GENERIC}

// absent are families and netlink protocols that programs ask for and do without, if
// the answer is that of a kernel that lacks them: Bluetooth and its neighbours, and
// from AF_IB on; XFRM, AUDIT, KOBJECT_UEVENT.
var (
	absentFamilies = []block{{24, 8}, {32, 32}}
	absentNetlinks = []block{{6, 2}, {8, 4}, {14, 2}}
)

// transports are the socket types of IPv4 and IPv6 with the protocols that a node may
// speak by them. A raw socket is the same code for every protocol (net/ipv4/raw.c), so
// raw ones may have any. Left out are SCTP, DCCP, MPTCP, SMC, UDP-Lite and L2TP: large
// stacks that nothing here needs.
var transports = []struct {
	kind      uint64
	protocols []uint64
}{
	{unix.SOCK_STREAM, []uint64{0, unix.IPPROTO_TCP}},
	{unix.SOCK_DGRAM, []uint64{0, unix.IPPROTO_UDP}},
}

// pings are the protocols of sockets for echo requests, by family.
var pings = map[uint64]uint64{unix.AF_INET: unix.IPPROTO_ICMP, unix.AF_INET6: unix.IPPROTO_ICMPV6}

// sockets are the rules for socket(2), socketpair(2) and setsockopt(2).
func sockets() (rules []specs.LinuxSyscall) {
	allow := func(name string, args ...specs.LinuxSeccompArg) {
		rules = append(rules, when(specs.ActAllow, 0, name, args...))
	}
	refuse := func(e unix.Errno, name string, args ...specs.LinuxSeccompArg) {
		rules = append(rules, when(specs.ActErrno, e, name, args...))
	}
	// Families that lead out of the network namespace (vsock reaches the hypervisor) or
	// are only attack surface for a router (AF_ALG, CAN, TIPC, RDS, …) have no rule, or this.
	for _, b := range absentFamilies {
		refuse(unix.EAFNOSUPPORT, "socket", b.of(0))
	}
	allow("socketpair", is(0, unix.AF_UNIX))
	allow("socket", is(0, unix.AF_UNIX))
	for _, t := range []uint64{unix.SOCK_RAW, unix.SOCK_DGRAM} {
		allow("socket", is(0, unix.AF_PACKET), ofType(t))
	}
	for _, p := range netlinks {
		allow("socket", is(0, unix.AF_NETLINK), is(2, p))
	}
	for _, b := range absentNetlinks {
		refuse(unix.EPROTONOSUPPORT, "socket", is(0, unix.AF_NETLINK), b.of(2))
	}
	for _, f := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for _, t := range transports {
			for _, p := range t.protocols {
				allow("socket", is(0, f), ofType(t.kind), is(2, p))
			}
		}
		allow("socket", is(0, f), ofType(unix.SOCK_RAW))
		allow("socket", is(0, f), ofType(unix.SOCK_DGRAM), is(2, pings[f]))
		for _, p := range []uint64{unix.IPPROTO_MPTCP, unix.IPPROTO_SCTP} {
			refuse(unix.EPROTONOSUPPORT, "socket", is(0, f), ofType(unix.SOCK_STREAM), is(2, p))
		}
	}
	for _, l := range levels {
		if l.allowed == nil {
			allow("setsockopt", is(1, l.level))
		}
		for _, b := range l.allowed {
			allow("setsockopt", is(1, l.level), b.of(2))
		}
	}
	return rules
}
