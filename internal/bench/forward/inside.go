package forward

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"trellis/internal/vnet"
)

// Configurations whose routers have no veth pair: a device over the card itself
// is moved into the router's namespace.

// underlay gives a card its end of a tunnel, and makes known who has the other.
func underlay(card string, local, remote netip.Addr, remoteMAC vnet.MAC) error {
	const bits = 25
	if err := address(card, netip.PrefixFrom(local, bits)); err != nil {
		return err
	}
	return neighbour(card, remote, remoteMAC)
}

// A device of a router, over a card.
type over struct {
	name, card    string
	id            uint32 // VXLAN's network identifier, EGRE's key
	local, remote netip.Addr
	remoteMAC     vnet.MAC
}

// overCards are the devices of a single router.
var overCards = []over{
	{routerIn, inCard, inTunnelID, tunnelIn, tunnelFrom, genMAC},
	{routerOut, outCard, outTunnelID, tunnelOut, tunnelTo, sinkMAC},
}

// tunnelsInside ends tunnels in the router's own namespace: a tunnel's device is
// made in the root context, where its outer packets stay, and moved.
func tunnelsInside(device func(attrs netlink.LinkAttrs, o over, card int) netlink.Link, what, remedy string) func(*rig) error {
	return func(r *rig) error {
		for _, o := range overCards {
			if err := underlay(o.card, o.local, o.remote, o.remoteMAC); err != nil {
				return err
			}
			if err := r.moveIn(o, device, what, remedy); err != nil {
				return err
			}
		}
		return nil
	}
}

// moveIn makes a device over a card and moves it into the router. A tunnel
// stays bound to the namespace that it is made in (ip-link(8), "netns").
func (r *rig) moveIn(o over, device func(netlink.LinkAttrs, over, int) netlink.Link, what, remedy string) error {
	card, err := netlink.LinkByName(o.card)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = o.name
	l := device(attrs, o, card.Attrs().Index)
	if err := netlink.LinkAdd(l); err != nil {
		return missing(fmt.Errorf("make %s over %s: %w", o.name, o.card, err), what, remedy)
	}
	if err := netlink.LinkSetNsFd(l, r.routers[0].NS.FD()); err != nil {
		return fmt.Errorf("move %s into the router: %w", o.name, err)
	}
	return nil
}

func vxlanDevice(attrs netlink.LinkAttrs, o over, card int) netlink.Link {
	return &netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: int(o.id), VtepDevIndex: card,
		SrcAddr: o.local.AsSlice(), Group: o.remote.AsSlice(), Port: vxlanPort, Learning: true,
	}
}

func gretapDevice(attrs netlink.LinkAttrs, o over, card int) netlink.Link {
	return &netlink.Gretap{
		LinkAttrs: attrs, IKey: o.id, OKey: o.id, Local: o.local.AsSlice(), Remote: o.remote.AsSlice(),
		PMtuDisc: 1, Ttl: firstTTL, Link: uint32(card),
	}
}

func macvlanDevice(attrs netlink.LinkAttrs, _ over, card int) netlink.Link {
	attrs.ParentIndex = card
	return &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_PRIVATE}
}

// macvlans gives the router a macvlan over each card.
func macvlans(r *rig) error {
	for _, o := range overCards {
		if err := r.moveIn(o, macvlanDevice, "macvlan devices", "load the module macvlan"); err != nil {
			return err
		}
	}
	return nil
}
