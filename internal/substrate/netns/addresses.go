package netns

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/rtnl"
)

// Addresses gives the node's global addresses, whoever has set them: those of lo
// first, then by interface, IPv4 before IPv6.
func (n *NS) Addresses() ([]netip.Addr, error) {
	c, err := n.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var all []address
	h := unix.IfAddrmsg{}
	err = c.Dump(unix.RTM_GETADDR, rtnl.Header(&h), nil,
		func() { all = all[:0] },
		func(body []byte) error {
			if a, ok := parseAddress(body); ok && a.prefix.Addr().IsGlobalUnicast() {
				all = append(all, a)
			}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("read a node's addresses: %w", err)
	}
	slices.SortStableFunc(all, func(a, b address) int {
		// lo is a namespace's first device.
		return cmp.Or(cmp.Compare(a.index, b.index), cmp.Compare(a.prefix.Addr().BitLen(), b.prefix.Addr().BitLen()))
	})
	addrs := make([]netip.Addr, len(all))
	for i, a := range all {
		addrs[i] = a.prefix.Addr()
	}
	return addrs, nil
}
