package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"trellis/internal/substrate/sysctl"
	"trellis/internal/vnet"
)

// defaults are the sysctls of every node. Those under conf/default are what
// later interfaces start from, so they are set before any arrives.
var defaults = map[string]string{
	// A node is a router. (These and IPv6's ignore_routes_with_linkdown set what
	// stands under default, too: inet_forward_change, addrconf_fixup_forwarding,
	// addrconf_fixup_linkdown.)
	"net/ipv4/ip_forward":                "1",
	"net/ipv6/conf/all/forwarding":       "1",
	"net/ipv6/conf/all/accept_ra":        "0",
	"net/ipv6/conf/default/accept_ra":    "0",
	"net/ipv4/conf/all/rp_filter":        "0", // ways there and back may differ
	"net/ipv4/conf/default/rp_filter":    "0",
	"net/ipv4/fib_multipath_hash_policy": "1", // a flow keeps its path, flows are spread
	"net/ipv6/fib_multipath_hash_policy": "1",
	// A pulled cable carries nothing, so equal-cost paths take the other.
	"net/ipv4/conf/all/ignore_routes_with_linkdown":     "1",
	"net/ipv4/conf/default/ignore_routes_with_linkdown": "1",
	"net/ipv6/conf/all/ignore_routes_with_linkdown":     "1",
	// Addresses are unique by construction; looking for duplicates takes a second.
	"net/ipv6/conf/all/accept_dad":        "0",
	"net/ipv6/conf/default/accept_dad":    "0",
	"net/ipv6/conf/default/dad_transmits": "0",
	// Removing our address, or taking an interface down and up, spares the others.
	"net/ipv4/conf/all/promote_secondaries":     "1",
	"net/ipv4/conf/default/promote_secondaries": "1",
	"net/ipv6/conf/all/keep_addr_on_down":       "1",
	"net/ipv6/conf/default/keep_addr_on_down":   "1",
}

// Defaults sets what interfaces that arrive later inherit: forwarding in both
// families, no duplicate address detection, no router advertisements taken, no
// reverse path filter, per-flow multipath. The user's sysctls (net.*, dots or
// slashes) come after and prevail. Those of interfaces are for [NS.Configure], since no
// interface is there yet.
//
// A default that the kernel does not have is left out; a user's is an error.
func (n *NS) Defaults(sysctls map[string]string) error {
	return n.Do(func() (err error) {
		own, err := sysctl.Open()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, own.Close()) }()
		for _, path := range slices.Sorted(maps.Keys(defaults)) {
			if err := own.Write(path, defaults[path]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return setSysctls(own, sysctls)
	})
}

// setSysctls writes sysctls, by their names, in the order of their paths.
func setSysctls(fs *sysctl.FS, sysctls map[string]string) error {
	paths := make(map[string]string, len(sysctls))
	for name, value := range sysctls {
		path := vnet.SysctlPath(name)
		if !strings.HasPrefix(path, "net/") || path != filepath.Clean(path) {
			return fmt.Errorf("sysctl %s: only net.* can be set for a node", name)
		}
		paths[path] = value
	}
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		if err := fs.Write(path, paths[path]); err != nil {
			return err
		}
	}
	return nil
}
