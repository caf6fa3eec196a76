package forward

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/vnet"
)

// Tunnels in the root context.
const (
	inTunnel, outTunnel = "vxlan0", "vxlan1"
	// VXLAN's network identifiers, EGRE's keys.
	inTunnelID, outTunnelID = 0xc0ffee, 0x7e1a11
)

// nothing is joined.
func nothing(*rig) error { return nil }

// native makes the root context a router between its cards.
func native(*rig) error {
	if err := address(inCard, netip.PrefixFrom(firstHop, hostBits)); err != nil {
		return err
	}
	if err := address(outCard, netip.PrefixFrom(lastHop, hostBits)); err != nil {
		return err
	}
	return neighbour(outCard, sinkHost, sinkMAC)
}

// xdpNative does the same in XDP, by the same FIB.
func xdpNative(r *rig) error {
	if err := native(r); err != nil {
		return err
	}
	in, err := netlink.LinkByName(inCard)
	if err != nil {
		return err
	}
	out, err := netlink.LinkByName(outCard)
	if err != nil {
		return err
	}
	var programs forwarderObjects
	if err := loadForwarderObjects(&programs, nil); err != nil {
		return fmt.Errorf("load the forwarder: %w", err)
	}
	r.hold(&programs)
	// A devmap finds the device in the namespace of whoever writes it.
	if err := programs.Cards.Put(uint32(out.Attrs().Index), uint32(out.Attrs().Index)); err != nil {
		return fmt.Errorf("let the forwarder send to %s: %w", outCard, err)
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: programs.Forward, Interface: in.Attrs().Index, Flags: link.XDPDriverMode})
	if err != nil {
		return fmt.Errorf("attach the forwarder to %s: %w", inCard, err)
	}
	r.hold(l)
	return nil
}

// bridged joins each device with the routers' ports by a bridge, which knows
// what is where, as it would after the first answer.
func bridged(in, out string) func(*rig) error {
	return func(r *rig) error {
		br0, err := bridge("br0", in)
		if err != nil {
			return err
		}
		br1, err := bridge("br1", out)
		if err != nil {
			return err
		}
		for i := range r.routers {
			if err := errors.Join(member(br0, inPort(i)), member(br1, outPort(i)), behind(br0, inPort(i), inPortMAC(i))); err != nil {
				return err
			}
		}
		if err := behind(br1, out, sinkMAC); err != nil {
			return err
		}
		return r.bringUpPorts()
	}
}

// bridge makes a bridge with a first device.
func bridge(name, first string) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(br); err != nil {
		return nil, missing(fmt.Errorf("make the bridge %s: %w", name, err), "bridges", "load the module bridge")
	}
	if err := member(br, first); err != nil {
		return nil, err
	}
	return br, netlink.LinkSetUp(br)
}

// member puts a device into a bridge.
func member(br netlink.Link, device string) error {
	l, err := netlink.LinkByName(device)
	if err == nil {
		err = netlink.LinkSetMaster(l, br)
	}
	if err != nil {
		return fmt.Errorf("put %s into the bridge %s: %w", device, br.Attrs().Name, err)
	}
	return nil
}

// behind tells a bridge which address is behind a device of it.
func behind(br netlink.Link, device string, mac vnet.MAC) error {
	l, err := netlink.LinkByName(device)
	if err == nil {
		err = netlink.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_MASTER, State: netlink.NUD_NOARP, HardwareAddr: mac[:],
		})
	}
	if err != nil {
		return fmt.Errorf("tell the bridge %s who is behind %s: %w", br.Attrs().Name, device, err)
	}
	return nil
}

// stitched sends everything from each device to the router's port and back, by
// the mirred action of tc.
func stitched(in, out string) func(*rig) error {
	return func(r *rig) error {
		for _, pair := range [][2]string{{in, inPort(0)}, {inPort(0), in}, {out, outPort(0)}, {outPort(0), out}} {
			if err := stitch(pair[0], pair[1]); err != nil {
				return fmt.Errorf("send what comes from %s to %s: %w", pair[0], pair[1], err)
			}
		}
		return r.bringUpPorts()
	}
}

func stitch(from, to string) error {
	a, err := netlink.LinkByName(from)
	if err != nil {
		return err
	}
	b, err := netlink.LinkByName(to)
	if err != nil {
		return err
	}
	qdisc := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: a.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil {
		return err
	}
	// Without a selector, u32 takes everything.
	return netlink.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: a.Attrs().Index, Parent: qdisc.Handle, Protocol: unix.ETH_P_ALL, Priority: 1},
		Actions:     []netlink.Action{netlink.NewMirredAction(b.Attrs().Index)},
	})
}

// tunnelled makes the tunnels, and joins their devices in place of the cards.
func tunnelled(join func(*rig) error) func(*rig) error {
	return func(r *rig) error {
		if err := addTunnel(inTunnel, inTunnelID, inCard, tunnelIn, tunnelFrom, genMAC); err != nil {
			return err
		}
		if err := addTunnel(outTunnel, outTunnelID, outCard, tunnelOut, tunnelTo, sinkMAC); err != nil {
			return err
		}
		return join(r)
	}
}

// addTunnel makes a VXLAN device over a card.
func addTunnel(name string, vni int, card string, local, remote netip.Addr, remoteMAC vnet.MAC) error {
	if err := underlay(card, local, remote, remoteMAC); err != nil {
		return err
	}
	under, err := netlink.LinkByName(card)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	device := vxlanDevice(attrs, over{id: uint32(vni), local: local, remote: remote}, under.Attrs().Index)
	if err := netlink.LinkAdd(device); err != nil {
		return fmt.Errorf("make the tunnel %s: %w", name, err)
	}
	return netlink.LinkSetUp(device)
}

// shortbridges joins cards and routers in a row by Trellis's port programs. A
// card's driver sends what goes to it, so that it counts as shaped, without a
// qdisc; between routers frames go directly.
func shortbridges(r *rig) error {
	d, err := r.openPlane()
	if err != nil {
		return err
	}
	end := func(device string, card bool) (dataplane.End, error) {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return dataplane.End{}, fmt.Errorf("find %s: %w", device, err)
		}
		return dataplane.End{Index: l.Attrs().Index, Shaped: card}, d.Attach(tenant, device, l.Attrs().Index, dataplane.Port)
	}
	from, card := inCard, true
	for i := range len(r.routers) + 1 {
		to, last := outCard, i == len(r.routers)
		if !last {
			to = inPort(i)
		}
		a, err := end(from, card)
		if err != nil {
			return err
		}
		b, err := end(to, last)
		if err != nil {
			return err
		}
		if err := d.Join(a, b); err != nil {
			return err
		}
		from, card = outPort(i), false
	}
	return r.bringUpPorts()
}
