package interop

import (
	"fmt"
	"os/exec"
	"testing"

	"trellis/internal/substrate/nstest"
)

// needGretap skips the test where the kernel has no gretap.
func needGretap(t testing.TB) {
	t.Helper()
	probe := exec.Command("unshare", "-n", "sh", "-c",
		"ip link add probe0 type gretap local 192.0.2.1 remote 192.0.2.2 key 1 && ip link add probe1 type ip6gretap local 2001:db8::1 remote 2001:db8::2 key 1")
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("needs a kernel with CONFIG_NET_IPGRE and CONFIG_IPV6_GRE (test/qemu boots one): %s", out)
	}
}

// gretap is Linux's own EGRE. Its devices lie in the guests and keep the root
// context's underlay.
type gretap struct {
	own, other *host
	underlay   underlay
	links      int
	options    string // of the devices
	keyless    bool   // leave the key out
}

func newGretap(t testing.TB, own, other *host, u underlay) *gretap {
	t.Helper()
	own.address(t, "up0")
	return &gretap{own: own, other: other, underlay: u, options: gretapOptions(u)}
}

// gretapOptions are what a peer of Trellis needs: a TTL of its own, since an
// inherited one is 1 for much of what routers say to each other; and no option
// header (RFC 2473 section 5.1), which ip6gretap adds by itself.
func gretapOptions(u underlay) string {
	if u.ipv6 {
		return "hoplimit 64 encaplimit none"
	}
	return "ttl 64"
}

func (s *gretap) link(t testing.TB, n *nstest.Node, name string, key uint32, mtu int) {
	t.Helper()
	s.links++
	kind := "gretap"
	if s.underlay.ipv6 {
		kind = "ip6gretap"
	}
	device := fmt.Sprintf("gt%d", s.links)
	options := s.options
	if !s.keyless {
		options += fmt.Sprintf(" key %d", key)
	}
	s.own.Must(t, fmt.Sprintf("ip link add %s mtu %d type %s local %v remote %v %s",
		device, mtu, kind, s.own.addr(s.underlay), s.other.addr(s.underlay), options))
	s.own.Must(t, fmt.Sprintf("ip link set %s netns %d name %s", device, n.Pid, name))
	n.Must(t, "ip link set "+name+" up")
}
