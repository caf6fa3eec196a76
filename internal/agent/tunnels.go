package agent

import (
	"context"
	"fmt"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/substrate/bridge"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/port"
	"trellis/internal/tunnel"
)

// addTunnels makes the pairs that stand on LANs' bridges for other machines.
func (r *runner) addTunnels(_ context.Context, steps []reconcile.Step) error {
	specs := make([]port.Tunnel, len(steps))
	var devices []string
	for i, s := range steps {
		r.point(s.Op)
		t := r.tunnels[s.Device]
		specs[i] = port.Tunnel{
			Device: t.Device, Group: r.want.Group, MTU: t.MTU,
			Alias: plan.Alias(r.a.cfg.Instance, r.want.VNet, "@"+t.Link+">"+t.Peer),
		}
		devices = append(devices, t.Device, port.TunnelMember(t.Device))
	}
	if err := r.makeDevices(devices, func() error { return port.CreateTunnels(specs) }); err != nil {
		return fmt.Errorf("make the tunnels of %s's LANs: %w", r.want.VNet, err)
	}
	r.advance(len(steps))
	return nil
}

// receive has the far ends of ports, and of LANs' tunnels, take what comes from
// the underlay. Of a node that means that its own stack must not leave super-
// packets of a tenant's tunnels to others, since its links are tunnels already.
func (r *runner) receive(_ context.Context, steps []reconcile.Step) error {
	inside := map[string]map[string]int{} // interface indexes, by node and name
	for _, s := range steps {
		r.point(s.Op)
		inner := dataplane.FarEnd{Index: r.seen.index[port.TunnelMember(s.Device)]}
		if s.Node != "" {
			ns, err := r.space(s.Node)
			if err != nil {
				return err
			}
			defer ns.Close() // once all are attached: a turn has so many at most
			if inside[s.Node] == nil {
				if inside[s.Node], err = interfaces(ns); err != nil {
					return fmt.Errorf("look into %s/%s: %w", r.want.VNet, s.Node, err)
				}
			}
			name := r.ports[s.Device].Name
			if err := ns.SegmentTunnels(name); err != nil {
				return fmt.Errorf("set up %s/%s: %w", r.want.VNet, s.Name, err)
			}
			inner = dataplane.FarEnd{Node: r.want.VNet + "/" + s.Node, NS: ns, Index: inside[s.Node][name]}
		}
		if err := r.attach(s.Device, dataplane.Port); err != nil {
			return fmt.Errorf("%s/%s: %w", r.want.VNet, s.Name, err)
		}
		if err := r.a.paths.AttachFarEnd(r.want.VNet, s.Device, inner); err != nil {
			return fmt.Errorf("%s/%s: %w", r.want.VNet, s.Name, err)
		}
		r.advance(1)
	}
	return nil
}

func interfaces(ns *netns.NS) (map[string]int, error) {
	in, err := ns.Read()
	if err != nil {
		return nil, err
	}
	index := map[string]int{}
	for _, i := range in.Interfaces {
		index[i.Name] = i.Index
	}
	return index, nil
}

// enslaveTunnels puts tunnels on their LANs' bridges, apart from one another.
func (r *runner) enslaveTunnels(steps []reconcile.Step) error {
	members := map[string][]string{} // by bridge
	for _, s := range steps {
		member := port.TunnelMember(s.Device)
		if err := r.attach(member, dataplane.Member); err != nil {
			return fmt.Errorf("%s/%s: %w", r.want.VNet, s.Name, err)
		}
		members[s.Peer] = append(members[s.Peer], member)
	}
	for master, list := range members {
		if err := bridge.SetIsolated(master, list...); err != nil {
			return fmt.Errorf("put the tunnels of %s on their bridges: %w", r.want.VNet, err)
		}
		if err := r.a.devices.Refresh(list...); err != nil {
			return err
		}
	}
	return nil
}

// connect connects tunnels with their paths. Those that there is no route for now
// are disconnected from whatever they had.
func (r *runner) connect(_ context.Context, steps []reconcile.Step) error {
	if err := r.freeKeys(steps); err != nil {
		return err
	}
	for _, s := range steps {
		r.point(s.Op)
		if err := r.connectOne(r.tunnels[s.Device]); err != nil {
			return fmt.Errorf("connect %s/%s %s: %w", r.want.VNet, s.Name, s.Detail, err)
		}
		r.advance(1)
	}
	return nil
}

// freeKeys disconnects the devices that have a key which another is to have now.
func (r *runner) freeKeys(steps []reconcile.Step) error {
	wanted := map[uint32]string{}
	for _, s := range steps {
		wanted[r.tunnels[s.Device].Key] = s.Device
	}
	for device, d := range r.seen.kernel.Devices {
		if d.Path == (tunnel.Path{}) {
			continue
		}
		if to, ok := wanted[d.Path.Key]; ok && to != device {
			if err := r.disconnect(device); err != nil {
				return err
			}
		}
	}
	return nil
}

// disconnect takes a device's path away, wherever it begins.
func (r *runner) disconnect(device string) error {
	_, behind := port.HelperNames(device)
	var indexes []int
	for _, d := range []string{device, behind} {
		if i, ok := r.seen.index[d]; ok {
			indexes = append(indexes, i)
		}
	}
	return r.a.paths.Unjoin(indexes...)
}

func (r *runner) connectOne(t *plan.Tunnel) error {
	path := reconcile.PathOf(t, r.seen.kernel, r.seen.kernel.Devices[t.Device].Path)
	from := t.Device
	if p := r.ports[t.Device]; p != nil {
		if !p.Ingress.IsZero() {
			var err error
			if from, err = r.useHelper(p, dataplane.Port); err != nil {
				return err
			}
		} else if r.seen.kernel.Devices[t.Device].Master != "" {
			if err := bridge.SetPort("", t.Device); err != nil {
				return err
			}
		}
	}
	if err := r.attach(from, dataplane.Port); err != nil {
		return err
	}
	if path == (tunnel.Path{}) {
		return r.a.paths.Unjoin(r.seen.index[from])
	}
	return r.a.paths.Connect(r.seen.index[from], r.seen.index[t.Device], path)
}

// fastPath turns forwarding on nodes' behalf on or off. Nodes are watched before
// it goes on.
func (r *runner) fastPath(ctx context.Context, steps []reconcile.Step) error {
	if err := r.watchForwarding(r.forwarding()); err != nil {
		return fmt.Errorf("watch the nodes of %s: %w", r.want.VNet, err)
	}
	for _, s := range steps {
		r.point(s.Op)
		if err := r.setFast(s); err != nil {
			return fmt.Errorf("%s/%s: %w", r.want.VNet, s.Name, err)
		}
		r.advance(1)
	}
	return nil
}
