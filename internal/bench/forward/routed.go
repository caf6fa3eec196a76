package forward

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"trellis/internal/vnet"
)

// The root context as a router on both sides of the virtual ones, as Xen's
// privileged domain was in the routed set-ups of UCL (2007): it routes by the
// packet's destination to a router, and what a router sends on to the sink.

// fromCards is the routing table for what comes in by the card.
const fromCards = 100

// rootLink is a link between the root context and a router.
type rootLink struct{ router, root netip.Addr }

// rootLinks gives the links of router i, at its way in and out.
func rootLinks(i int) (in, out rootLink) {
	link := func(second byte) rootLink {
		return rootLink{netip.AddrFrom4([4]byte{100, second, byte(i), 2}), netip.AddrFrom4([4]byte{100, second, byte(i), 1})}
	}
	return link(64), link(65)
}

// rootMAC is the root context's address at the way out of router i.
func (r *rig) rootMAC(i int) (mac vnet.MAC, err error) {
	err = r.root.Do(func() error {
		l, err := netlink.LinkByName(outPort(i))
		if err == nil {
			copy(mac[:], l.Attrs().HardwareAddr)
		}
		return err
	})
	return mac, err
}

// beyond is the network that router i has a route to.
func (r *rig) beyond(i int) netip.Prefix {
	if r.config.sides == 0 {
		return sinkNet
	}
	return netip.PrefixFrom(side(sinkNet.Addr(), i), sinkNet.Bits())
}

// routed sets up the root context's routes.
func routed(r *rig) error {
	if err := r.bringUpPorts(); err != nil {
		return err
	}
	out, err := netlink.LinkByName(outCard)
	if err != nil {
		return err
	}
	rule := netlink.NewRule()
	rule.IifName, rule.Table, rule.Family = inCard, fromCards, netlink.FAMILY_V4
	if err := netlink.RuleAdd(rule); err != nil {
		return missing(fmt.Errorf("add a rule for what comes in by %s: %w", inCard, err), "routing rules", "take one with CONFIG_IP_MULTIPLE_TABLES")
	}
	for i := range r.routers {
		in, err := netlink.LinkByName(inPort(i))
		if err != nil {
			return err
		}
		to := network(r.beyond(i))
		before, after := rootLinks(i)
		steps := []error{
			address(inPort(i), netip.PrefixFrom(before.root, hostBits)),
			address(outPort(i), netip.PrefixFrom(after.root, hostBits)),
			neighbour(inPort(i), before.router, inPortMAC(i)),
			neighbour(outCard, side(sinkHost, i), sinkMAC),
			netlink.RouteAdd(&netlink.Route{LinkIndex: in.Attrs().Index, Table: fromCards, Flags: int(netlink.FLAG_ONLINK), Gw: before.router.AsSlice(), Dst: to}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: out.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: to}),
		}
		for _, err := range steps {
			if err != nil {
				return fmt.Errorf("route to and from router %d: %w", i, err)
			}
		}
	}
	return nil
}
