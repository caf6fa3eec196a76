package agent

import (
	"context"
	"fmt"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/substrate/bridge"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/shaper"
	"trellis/internal/tunnel"
)

// addHelpers makes the helper pairs of ports.
func (r *runner) addHelpers(_ context.Context, steps []reconcile.Step) error {
	helpers := make([]port.Helper, len(steps))
	var devices []string
	for i, s := range steps {
		r.point(s.Op)
		p := r.ports[s.Device]
		helpers[i] = port.Helper{
			Device: p.Device, Group: r.want.Group, MTU: p.MTU,
			Alias: plan.Alias(r.a.cfg.Instance, r.want.VNet, s.Node+":"+p.Name),
		}
		shaped, behind := port.HelperNames(p.Device)
		devices = append(devices, shaped, behind)
	}
	if err := r.makeDevices(devices, func() error { return port.CreateHelpers(helpers) }); err != nil {
		return fmt.Errorf("make the pairs that shape what the nodes of %s send: %w", r.want.VNet, err)
	}
	r.advance(len(steps))
	return nil
}

// removeHelpers removes the helper pairs of ports. What these led to is theirs
// again by the steps that follow.
func (r *runner) removeHelpers(_ context.Context, steps []reconcile.Step) error {
	var devices []string
	for _, s := range steps {
		r.point(s.Op)
		shaped, behind := port.HelperNames(s.Device)
		devices = append(devices, shaped, behind)
	}
	if err := r.remove(devices); err != nil {
		return err
	}
	for _, d := range devices {
		delete(r.seen.index, d)
	}
	r.advance(len(steps))
	return nil
}

// useHelper joins a port with its helper pair, and gives the end that is in the LAN,
// or begins the path, in the port's stead, with its program for that.
func (r *runner) useHelper(p *plan.Port, role dataplane.Role) (behind string, err error) {
	shaped, behind := port.HelperNames(p.Device)
	have := r.seen.kernel.Devices[p.Device]
	if have.Path != (tunnel.Path{}) && !(have.Helper && have.Attached) {
		if err := r.a.paths.Unjoin(r.seen.index[p.Device]); err != nil { // the key is to be the helper's
			return "", err
		}
	}
	if have.Master != "" {
		if err := bridge.SetPort("", p.Device); err != nil {
			return "", err
		}
	}
	if err := r.joinPorts(p.Device, shaped); err != nil {
		return "", err
	}
	if have.Ingress != p.Ingress { // before anything passes
		if err := shaper.Set(shaped, p.Ingress); err != nil {
			return "", err
		}
	}
	if err := r.attach(behind, role); err != nil {
		return "", err
	}
	return behind, port.SetUp(map[string]bool{shaped: true, behind: true})
}
