package forward

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/tunnel"
)

// Where the data plane of a rig has its pins, in the mount namespace of the rig's
// root context, and what its network is called.
const pins, tenant = "/run/bpf", "forward"

// openPlane opens the rig's data plane, which lives as long as the rig.
func (r *rig) openPlane() (*dataplane.Dataplane, error) {
	if err := dataplane.Mount(pins); err != nil {
		return nil, err
	}
	d, err := dataplane.Open(pins)
	if err == nil {
		r.hold(d)
	}
	return d, err
}

// egre joins the cards with the first and the last router by Trellis's EGRE
// tunnels, and the routers with each other; with fast, Trellis forwards on the
// routers' behalf, else their own stacks do.
func egre(fast bool) func(*rig) error { return egreLinks(fast, false) }

// egreLinks is egre; with rates, what the routers send into the tunnels has one.
func egreLinks(fast, rates bool) func(*rig) error {
	return func(r *rig) error {
		d, err := r.openPlane()
		if err != nil {
			return err
		}
		cards := map[string]int{}
		for name, end := range map[string]netip.Addr{inCard: tunnelIn, outCard: tunnelOut} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			cards[name] = l.Attrs().Index
			_, err = d.AttachUplink(dataplane.Uplink{Name: name, Index: cards[name], Addrs: []netip.Addr{end}, XDP: dataplane.Native})
			if err != nil {
				return err
			}
		}
		ports := make([]int, 0, 2*len(r.routers)) // in, out, in, out, …
		devices := map[int]string{}               // of the ports
		for i := range r.routers {
			for _, p := range [][2]string{{inPort(i), routerIn}, {outPort(i), routerOut}} {
				index, err := r.attachPort(d, i, p[0], p[1])
				if err != nil {
					return err
				}
				if fast {
					if err := d.SetFast(tenant, p[0], true); err != nil {
						return err
					}
				}
				ports, devices[index] = append(ports, index), p[0]
			}
		}
		for i := 1; i+1 < len(ports) && r.config.sides == 0; i += 2 {
			if err := d.Join(dataplane.End{Index: ports[i]}, dataplane.End{Index: ports[i+1]}); err != nil {
				return err
			}
		}
		in := tunnel.Path{
			Endpoints: tunnel.Endpoints{Local: tunnelIn, Remote: tunnelFrom}, Key: inTunnelID, MTU: routerMTU,
			Route: tunnel.Route{Uplink: cards[inCard], Source: inMAC, NextHop: genMAC, MTU: cardMTU},
		}
		out := tunnel.Path{
			Endpoints: tunnel.Endpoints{Local: tunnelOut, Remote: tunnelTo}, Key: outTunnelID, MTU: routerMTU,
			Route: tunnel.Route{Uplink: cards[outCard], Source: outMAC, NextHop: sinkMAC, MTU: cardMTU},
		}
		connect := func(port int, path tunnel.Path) error {
			from, to := port, 0
			if rates {
				var err error
				if from, err = r.rate(d, devices[port], port); err != nil {
					return err
				}
				to = port
			}
			return d.Connect(from, to, path)
		}
		// Routers in a row have a tunnel at each end of it, those side by side two each.
		ends := [][2]int{{ports[0], ports[len(ports)-1]}}
		for i := 1; i < r.config.sides; i++ {
			ends[0][1] = ports[1]
			ends = append(ends, [2]int{ports[2*i], ports[2*i+1]})
		}
		for _, e := range ends {
			if err := errors.Join(connect(e[0], in), connect(e[1], out)); err != nil {
				return err
			}
			in.Key++
			out.Key++
		}
		return r.bringUpPorts()
	}
}

// attachPort hands a port of router i to the data plane, and gives its index.
func (r *rig) attachPort(d *dataplane.Dataplane, i int, device, inside string) (int, error) {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return 0, fmt.Errorf("find the port %s: %w", device, err)
	}
	index := l.Attrs().Index
	if err := d.Attach(tenant, device, index, dataplane.Port); err != nil {
		return 0, err
	}
	end := dataplane.FarEnd{Node: fmt.Sprintf("%s/r%d", tenant, i), NS: r.routers[i].NS}
	err = r.routers[i].Do(func() error {
		l, err := netlink.LinkByName(inside)
		if err == nil {
			end.Index = l.Attrs().Index
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("find %s of router %d: %w", inside, i, err)
	}
	return index, d.AttachFarEnd(tenant, device, end)
}
