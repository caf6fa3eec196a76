package sandbox

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"trellis/internal/vnet"
	"trellis/internal/yamlfile"
)

// Bounds of a sandbox.
const (
	// MaxHosts is how many hosts a sandbox may have.
	MaxHosts = 64
	// LeastMTU, with IPv6 LeastMTU6, and MostMTU bound an underlay's MTU in bytes:
	// below, no virtual link keeps IPv6's least MTU of 1280 (the encapsulation
	// over IPv4 takes 42, over IPv6 62); above, an IPv4 packet ends.
	LeastMTU  = 1322
	LeastMTU6 = 1342
	MostMTU   = 65535
	// defaultMTU is Ethernet's.
	defaultMTU = 1500
)

// Host is a substrate node to make.
type Host struct {
	Name string `json:"name"`
	// Memory in bytes and CPU in cores are what the host says it has for virtual
	// nodes. Zero: what the machine has.
	Memory int64   `json:"memory,omitempty"`
	CPU    float64 `json:"cpu,omitempty"`
}

// Underlay is the network between the hosts. At least one of the prefixes is
// valid; each host has an address of every one that is.
type Underlay struct {
	IPv4 netip.Prefix `json:"ipv4,omitzero"`
	IPv6 netip.Prefix `json:"ipv6,omitzero"`
	MTU  int          `json:"mtu"` // bytes
}

// Spec says what a sandbox is made of. It is read from a file by [ReadFile].
type Spec struct {
	Name     string   `json:"name"`
	Hosts    []Host   `json:"hosts"` // the first one keeps the store
	Underlay Underlay `json:"underlay"`
}

// defaultUnderlay is used where a file names none: prefixes that RFC 5737 and
// RFC 3849 keep for documentation.
var defaultUnderlay = Underlay{
	IPv4: netip.MustParsePrefix("192.0.2.0/24"),
	IPv6: netip.MustParsePrefix("2001:db8::/64"),
	MTU:  defaultMTU,
}

// fabric is the name of the namespace between the hosts.
const fabric = "fabric"

// reserved names of hosts: they name interfaces of the fabric, where the kernel
// has some of its own, and directories beside the sandbox's.
var reserved = []string{fabric, "lo", "all", "default", "netns", "certs", "state"}

var (
	sandboxName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)
	hostName    = regexp.MustCompile(`^[a-z][a-z0-9-]{0,14}$`)
)

// checkName gives what is wrong with the name of a sandbox, and the remedy.
func checkName(name string) (what, remedy string) {
	if !sandboxName.MatchString(name) {
		return fmt.Sprintf("the sandbox's name %q", yamlfile.Clip(name)), "use up to 32 of a-z, 0-9 and hyphens, a letter or digit first"
	}
	return "", ""
}

// checkHost gives what is wrong with the name of a host, and the remedy.
func checkHost(name string) (what, remedy string) {
	switch {
	case !hostName.MatchString(name):
		return fmt.Sprintf("the host's name %q", yamlfile.Clip(name)), "use up to 15 of a-z, 0-9 and hyphens, a letter first"
	case slices.Contains(reserved, name):
		return fmt.Sprintf("the host's name %q is the sandbox's own", name), "choose another"
	}
	return "", ""
}

// checkPrefix gives what is wrong with an underlay's prefix for so many hosts,
// and the remedy.
func checkPrefix(key string, p netip.Prefix, hosts int) (what, remedy string) {
	if v4 := key == "ipv4"; p.Addr().Is4() != v4 {
		return fmt.Sprintf("%s is %s", key, p), "write a prefix of that family"
	}
	if p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() || p.Addr().IsUnspecified() {
		return fmt.Sprintf("%s is %s, whose addresses no router forwards", key, p), "write another, like " + map[bool]string{
			true: defaultUnderlay.IPv4.String(), false: defaultUnderlay.IPv6.String()}[p.Addr().Is4()]
	}
	if free := p.Addr().BitLen() - p.Bits(); free < 16 && 2*hosts > 1<<free {
		return fmt.Sprintf("%s %s holds %d addresses, and %d hosts need %d", key, p, 1<<free, hosts, 2*hosts), "write a shorter prefix"
	}
	return "", ""
}

// link is the place of a host in the underlay: its uplink's addresses and, at
// the same index, the fabric's ends. Each pair is a /31 or /127 of its own
// (RFC 3021, RFC 6164), the host's address the odd one. IPv4 comes first.
type link struct {
	host, router []netip.Addr
}

// link gives the place of the host with index i.
func (u Underlay) link(i int) link {
	var l link
	for _, p := range []netip.Prefix{u.IPv4, u.IPv6} {
		if p.IsValid() {
			first := offset(p.Masked().Addr(), 2*i)
			l.router = append(l.router, first)
			l.host = append(l.host, first.Next())
		}
	}
	return l
}

// offset gives the address n after a; n is less than 1 << 16.
func offset(a netip.Addr, n int) netip.Addr {
	b := a.AsSlice()
	for i := len(b) - 1; n > 0 && i >= 0; i-- {
		n += int(b[i])
		b[i], n = byte(n), n>>8
	}
	a, _ = netip.AddrFromSlice(b)
	return a
}

// index gives the place of a host in the list, or an error that names those
// there are.
func (s *Spec) index(name string) (int, error) {
	var names []string
	for i, h := range s.Hosts {
		if h.Name == name {
			return i, nil
		}
		names = append(names, h.Name)
	}
	if near := vnet.Nearest(name, names); near != "" {
		return 0, fmt.Errorf("sandbox %s has no host %q; did you mean %q?", s.Name, yamlfile.Clip(name), near)
	}
	return 0, fmt.Errorf("sandbox %s has no host %q; its hosts are %s", s.Name, yamlfile.Clip(name), strings.Join(names, ", "))
}
