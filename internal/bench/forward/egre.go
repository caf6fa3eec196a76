package forward

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"trellis/internal/substrate/tunnel"
)

// egre joins the cards with the first and the last router by Trellis's EGRE
// tunnels, and the routers with each other; with fast, Trellis forwards on the
// routers' behalf, else their own stacks do.
func egre(fast bool) func(*rig) error {
	return func(r *rig) error {
		t, err := tunnel.Open()
		if err != nil {
			return err
		}
		r.hold(t)
		in, err := netlink.LinkByName(inCard)
		if err != nil {
			return err
		}
		out, err := netlink.LinkByName(outCard)
		if err != nil {
			return err
		}
		for _, u := range []tunnel.Uplink{
			{Index: in.Attrs().Index, Addrs: []netip.Addr{tunnelIn}},
			{Index: out.Attrs().Index, Addrs: []netip.Addr{tunnelOut}},
		} {
			if err := t.AttachUplink(u); err != nil {
				return err
			}
		}
		ports := make([]int, 0, 2*len(r.routers)) // in, out, in, out, …
		for i := range r.routers {
			for _, p := range [][2]string{{inPort(i), routerIn}, {outPort(i), routerOut}} {
				index, err := r.attachPort(t, i, p[0], p[1])
				if err != nil {
					return err
				}
				if fast {
					if err := t.SetFast(index, true); err != nil {
						return err
					}
				}
				ports = append(ports, index)
			}
		}
		for i := 1; i+1 < len(ports); i += 2 {
			if err := t.Join(ports[i], ports[i+1], routerMTU); err != nil {
				return err
			}
		}
		for port, path := range map[int]tunnel.Path{
			ports[0]: {
				Uplink: in.Attrs().Index, Source: inMAC, NextHop: genMAC, Local: tunnelIn, Remote: tunnelFrom, Key: inTunnelID,
			},
			ports[len(ports)-1]: {
				Uplink: out.Attrs().Index, Source: outMAC, NextHop: sinkMAC, Local: tunnelOut, Remote: tunnelTo, Key: outTunnelID,
			},
		} {
			path.UnderlayMTU, path.LinkMTU = cardMTU, routerMTU
			if err := t.Connect(port, path); err != nil {
				return err
			}
		}
		return r.bringUpPorts()
	}
}

// attachPort hands a port of router i to the tunnels, and gives its index.
func (r *rig) attachPort(t *tunnel.Tunnel, i int, device, inside string) (int, error) {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return 0, fmt.Errorf("find the port %s: %w", device, err)
	}
	p := tunnel.Port{Index: l.Attrs().Index, Node: r.routers[i].NS}
	err = r.routers[i].Do(func() error {
		l, err := netlink.LinkByName(inside)
		if err == nil {
			p.NodeIndex = l.Attrs().Index
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find %s of router %d: %w", inside, i, err)
	}
	return p.Index, t.AttachPort(p)
}
