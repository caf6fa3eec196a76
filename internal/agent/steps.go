package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/routing"
	"trellis/internal/substrate/bridge"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/image"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/shaper"
	"trellis/internal/vnet"
)

// farewellTime is how long the daemons of nodes that go, while others stay, may take to
// end: they tell their peers, of which those that are not on a link of the node see no
// carrier go.
const farewellTime = 1500 * time.Millisecond

// stop removes containers with all that is in them.
func (r *runner) stop(ctx context.Context, steps []reconcile.Step) error {
	ids := make([]container.ID, len(steps))
	for i, s := range steps {
		r.point(s.Op)
		ids[i] = r.id(s.Node)
		r.w.unwatch(s.Node)
		delete(r.seen.states, s.Node)
	}
	for i, s := range steps {
		if r.nodes[s.Node] == nil {
			continue
		}
		if err := r.a.containers.KeepSaved(ids[i]); err != nil { // its next container gets it
			return err
		}
	}
	if !r.want.Empty() { // somebody stays to be told
		farewell, cancel := context.WithTimeout(ctx, farewellTime)
		r.a.containers.Terminate(farewell, ids...)
		cancel()
	}
	// Side by side: the nodes are killed at once, so that no daemon of theirs reacts
	// to links that go one after the other.
	var g errgroup.Group
	g.Go(func() error {
		if err := r.a.containers.Remove(ctx, ids...); err != nil {
			return fmt.Errorf("stop %d nodes of %s: %w", len(ids), r.want.VNet, err)
		}
		return nil
	})
	g.Go(func() error { return r.dropPorts(steps) })
	if err := g.Wait(); err != nil {
		return err
	}
	var gone []string
	for _, s := range steps {
		if r.nodes[s.Node] == nil {
			gone = append(gone, s.Node)
		}
	}
	if len(gone) > 0 {
		if err := r.a.containers.ForgetSaved(r.want.VNet, gone...); err != nil {
			return err
		}
	}
	r.advance(len(steps))
	return nil
}

// dropPorts removes the ports of nodes that are about to stop, all in one go:
// left to the end of their namespaces, each costs more, and their names stay
// taken for a while.
func (r *runner) dropPorts(steps []reconcile.Step) error {
	if r.want.Empty() {
		return r.dropGroup()
	}
	stopping := map[string]bool{}
	for _, s := range steps {
		stopping[s.Node] = true
	}
	var devices []string
	for device, owner := range r.seen.owner {
		if stopping[owner] {
			devices = append(devices, device)
		}
	}
	return r.remove(devices)
}

// dropGroup removes all devices of the VNet by their group, unless another
// VNet's devices happen to share it.
func (r *runner) dropGroup() error {
	alone, err := r.a.devices.Alone(r.want.Group, r.want.VNet)
	if err != nil || !alone {
		return err
	}
	if err := port.DeleteGroup(r.want.Group); err != nil {
		return fmt.Errorf("remove the devices of %s: %w", r.want.VNet, err)
	}
	return nil
}

// removeDevices removes ports and bridges of the root context.
func (r *runner) removeDevices(_ context.Context, steps []reconcile.Step) error {
	var devices []string
	for _, s := range steps {
		r.point(s.Op)
		devices = append(devices, r.withParts(s.Device)...)
	}
	for _, d := range devices {
		delete(r.seen.index, d)
	}
	if err := r.remove(devices); err != nil {
		return err
	}
	r.advance(len(steps))
	return nil
}

// withParts gives a device and those that are there for its sake alone.
func (r *runner) withParts(device string) []string {
	devices := []string{device}
	shaped, behind := port.HelperNames(device)
	for _, d := range []string{shaped, behind, port.TunnelMember(device)} {
		if _, ok := r.seen.index[d]; ok && d != device {
			devices = append(devices, d)
		}
	}
	return devices
}

// remove removes devices and what the data plane holds of them. Those that are
// gone already are no error.
func (r *runner) remove(devices []string) error {
	if len(devices) == 0 {
		return nil
	}
	if err := port.Delete(devices...); err != nil {
		return fmt.Errorf("remove the devices of %s: %w", r.want.VNet, err)
	}
	if err := r.a.paths.Remove(r.want.VNet, devices...); err != nil {
		return fmt.Errorf("detach the ports of %s: %w", r.want.VNet, err)
	}
	return nil
}

// start makes a container whose init waits, and prepares its network namespace.
func (r *runner) start(ctx context.Context, s reconcile.Step) error {
	n := r.nodes[s.Node]
	m := applied{Marks: r.marks(n), Daemons: n.Daemons.With(n.Files)}
	m.Routes, m.Exec = "", "" // not yet
	// Its image may have gone from the cache since it was asked for.
	told := false
	withImage := image.WithProgress(ctx, func(text string) {
		told = true
		r.w.report.doing(text)
	})
	h, err := r.a.containers.Start(withImage, container.Spec{
		ID: r.id(n.Name), IDBase: r.want.IDBase, Image: n.Image, Cmd: n.Cmd, Restart: restartOf(n), Env: n.Env,
		Files: slices.Concat(n.Files, n.Daemons.Files), Dirs: n.Daemons.Dirs,
		Saved: savedFiles(n), Services: services(n), Yields: n.Daemons.Yields, Limits: container.Limits(n.Limits),
		Fingerprint: m.String(),
	})
	if told {
		r.w.report.doing("")
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.held[n.Name] = h
	r.seen.marks[n.Name] = m
	r.mu.Unlock()
	ns, err := r.space(n.Name)
	if err != nil {
		return err
	}
	defer ns.Close()
	sysctls, _ := splitSysctls(n)
	return ns.Defaults(sysctls)
}

func (r *runner) id(node string) container.ID { return container.ID{VNet: r.want.VNet, Node: node} }

// restartOf says when a node's command starts again: one that the description names
// always does where it does not say, an image's own is its maker's, and runs once.
func restartOf(n *plan.Node) vnet.Restart {
	if n.Restart == "" && len(n.Cmd) > 0 {
		return vnet.RestartAlways
	}
	return n.Restart
}

// savedFiles are those that the routing software writes when its user saves the configuration.
func savedFiles(n *plan.Node) []string {
	var paths []string
	for _, f := range slices.Concat(n.Files, n.Daemons.Files) {
		if name := path.Clean(f.Path); routing.Saves(name) {
			paths = append(paths, name)
		}
	}
	return paths
}

func services(n *plan.Node) []container.Service {
	list := make([]container.Service, len(n.Daemons.Services))
	for i, s := range n.Daemons.Services {
		list[i] = container.Service(s)
	}
	return list
}

// addBridges makes LANs' bridges and shuts them off from this machine's stack.
func (r *runner) addBridges(_ context.Context, steps []reconcile.Step) error {
	devices := make([]string, len(steps))
	up := make(map[string]bool, len(steps))
	for i, s := range steps {
		devices[i] = s.Device
		up[s.Device] = true
	}
	done, err := r.a.notePending(r.want.VNet, devices)
	if err != nil {
		return err
	}
	for _, device := range devices {
		r.point(reconcile.AddBridge)
		l := r.lans[device]
		err := bridge.Ensure(bridge.Bridge{
			Name: device, MTU: l.MTU, Group: r.want.Group,
			Alias: plan.Alias(r.a.cfg.Instance, r.want.VNet, "@"+l.Link),
		})
		if err != nil {
			return fmt.Errorf("make lan %s of %s: %w", l.Link, r.want.VNet, err)
		}
	}
	if err := done(); err != nil {
		return err
	}
	if err := r.learnDevices(devices); err != nil {
		return err
	}
	for _, device := range devices {
		if err := r.attach(device, dataplane.Bridge); err != nil {
			return err
		}
	}
	if err := port.SetUp(up); err != nil {
		return err
	}
	r.advance(len(steps))
	return nil
}

// attach attaches the programs of a role to a device.
func (r *runner) attach(device string, role dataplane.Role) error {
	r.mu.Lock()
	index, ok := r.seen.index[device]
	r.mu.Unlock()
	if !ok {
		return fmt.Errorf("device %s has gone", device)
	}
	if err := r.a.paths.Attach(r.want.VNet, device, index, role); err != nil {
		return fmt.Errorf("attach to %s: %w", device, err)
	}
	return nil
}

// addPorts makes veth pairs, and learns the numbers of all devices.
func (r *runner) addPorts(_ context.Context, steps []reconcile.Step) error {
	specs := make([]port.Spec, len(steps))
	devices := make([]string, len(steps))
	for i, s := range steps {
		r.point(s.Op)
		devices[i] = s.Device
		ns, err := r.space(s.Node)
		if err != nil {
			return err
		}
		defer ns.Close() // once all are made: a turn has so many at most
		p := r.ports[s.Device]
		specs[i] = port.Spec{
			Device: p.Device, Alias: plan.Alias(r.a.cfg.Instance, r.want.VNet, s.Node+":"+p.Name), Group: r.want.Group,
			Name: p.Name, MAC: p.MAC, MTU: p.MTU, Node: ns.FD(),
		}
	}
	if err := r.makeDevices(devices, func() error { return port.Create(specs) }); err != nil {
		return fmt.Errorf("make the ports of %s: %w", r.want.VNet, err)
	}
	r.advance(len(steps))
	return nil
}

// makeDevices has create make devices, which are noted as pending meanwhile, so that
// a killed service's successor finds them.
func (r *runner) makeDevices(devices []string, create func() error) error {
	done, err := r.a.notePending(r.want.VNet, devices)
	if err != nil {
		return err
	}
	// Whatever was made is to be known, also if not all was.
	if err := errors.Join(create(), r.learnDevices(devices)); err != nil {
		return err
	}
	return done()
}

// learnDevices learns the interface indexes of devices that were just made, and
// has the view of the machine know whose they are.
func (r *runner) learnDevices(devices []string) error {
	if err := r.a.devices.Refresh(devices...); err != nil {
		return err
	}
	found, err := r.a.devices.Indexes(devices...)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for device, index := range found {
		r.seen.index[device] = index
	}
	return nil
}

// unplug takes ports from the ends that they had, whatever those were, and has
// their nodes forget who was there.
func (r *runner) unplug(_ context.Context, steps []reconcile.Step) error {
	for _, s := range steps {
		r.point(s.Op)
		if err := r.unplugOne(s.Device); err != nil {
			return fmt.Errorf("unplug %s/%s: %w", r.want.VNet, s.Name, err)
		}
		r.advance(1)
	}
	return nil
}

func (r *runner) unplugOne(device string) error {
	if r.seen.kernel.Devices[device].Master != "" {
		members := map[string]string{device: ""}
		if _, behind := port.HelperNames(device); r.seen.index[behind] != 0 {
			members[behind] = ""
		}
		if err := bridge.SetPorts(members); err != nil {
			return err
		}
	}
	if err := r.disconnect(device); err != nil {
		return err
	}
	ns, err := r.space(r.owners[device])
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.ForgetNeighbours(r.ports[device].Name)
}

// join makes shortbridges.
func (r *runner) join(_ context.Context, steps []reconcile.Step) error {
	for _, s := range steps {
		r.point(s.Op)
		for _, device := range []string{s.Device, s.Peer} {
			if r.seen.kernel.Devices[device].Master != "" {
				if err := bridge.SetPort("", device); err != nil {
					return err
				}
			}
		}
		if err := r.joinPorts(s.Device, s.Peer); err != nil {
			return fmt.Errorf("join %s/%s: %w", r.want.VNet, s.Name, err)
		}
		r.advance(1)
	}
	return nil
}

func (r *runner) joinPorts(a, b string) error {
	for _, device := range []string{a, b} {
		if err := r.attach(device, dataplane.Port); err != nil {
			return err
		}
	}
	from, to := r.end(a), r.end(b)
	from.Rate, to.Rate = r.rateOf(b), r.rateOf(a)
	return r.a.paths.Join(from, to)
}

// rateOf gives the rate of what a port sends, if the fast path has to know it.
func (r *runner) rateOf(device string) dataplane.Rate {
	p, rate := r.ports[device], r.rates[device]
	if p == nil || rate == 0 {
		return dataplane.Rate{}
	}
	burst, queue := shaper.Bounds(rate, p.MTU)
	return dataplane.Rate{Bits: rate, Burst: burst, Queue: queue, MTU: p.MTU}
}

// end gives an attached device's end of a shortbridge.
func (r *runner) end(device string) dataplane.End {
	p := r.ports[device]
	e := dataplane.End{Index: r.seen.index[device], Shaped: p == nil || !p.Egress.IsZero()}
	if p != nil {
		e.MAC = p.MAC
	}
	return e
}

// enslave puts ports on their LANs' bridges; one whose own frames are shaped by
// way of a helper pair.
func (r *runner) enslave(_ context.Context, steps []reconcile.Step) error {
	masters := make(map[string]string, len(steps))
	var tunnels []reconcile.Step
	for _, s := range steps {
		r.point(s.Op)
		if r.tunnels[s.Device] != nil {
			tunnels = append(tunnels, s)
			continue
		}
		member := s.Device
		if p := r.ports[s.Device]; !p.Ingress.IsZero() {
			var err error
			if member, err = r.useHelper(p, dataplane.Member); err != nil {
				return fmt.Errorf("shape what %s/%s sends: %w", r.want.VNet, s.Name, err)
			}
		}
		if err := r.attach(member, dataplane.Member); err != nil {
			return fmt.Errorf("%s/%s: %w", r.want.VNet, s.Name, err)
		}
		masters[member] = s.Peer
	}
	if err := bridge.SetPorts(masters); err != nil {
		return fmt.Errorf("put the ports of %s on their bridges: %w", r.want.VNet, err)
	}
	if err := r.enslaveTunnels(tunnels); err != nil {
		return err
	}
	r.advance(len(steps))
	return nil
}

// shape sets the qdiscs of ports, and the rates on the fast path: before, those that
// become lower, and after, those that become higher. So the fast path never takes a queue
// for drained that is not.
func (r *runner) shape(_ context.Context, steps []reconcile.Step) error {
	shapes := make(map[string]vnet.Shape, len(steps))
	var lower, higher []string
	for _, s := range steps {
		r.point(s.Op)
		p := r.ports[s.Device]
		shapes[s.Device] = p.Egress
		if !p.Ingress.IsZero() {
			shaped, _ := port.HelperNames(s.Device)
			shapes[shaped] = p.Ingress
		}
		if r.rates[s.Device] < r.seen.kernel.Devices[s.Device].Rate {
			lower = append(lower, s.Device)
		} else {
			higher = append(higher, s.Device)
		}
	}
	err := r.setRates(lower)
	if err == nil {
		err = shaper.SetAll(shapes)
	}
	if err == nil {
		err = r.setRates(higher)
	}
	if err != nil {
		return fmt.Errorf("shape the ports of %s: %w", r.want.VNet, err)
	}
	r.advance(len(steps))
	return nil
}

// setRates has the fast path know the rates of what ports send.
func (r *runner) setRates(devices []string) error {
	for _, device := range devices {
		if err := r.a.paths.SetRate(r.seen.index[device], r.rateOf(device)); err != nil {
			return err
		}
	}
	return nil
}

// resize sets the MTU of a port and of its helper pair, or of a LAN's tunnel.
func (r *runner) resize(_ context.Context, s reconcile.Step) error {
	t := r.tunnels[s.Device]
	if t != nil && t.LAN != "" {
		return errors.Join(port.SetMTU(s.Device, t.MTU), port.SetMTU(port.TunnelMember(s.Device), t.MTU))
	}
	devices := []string{s.Device}
	shaped, behind := port.HelperNames(s.Device)
	r.mu.Lock()
	for _, d := range []string{shaped, behind} {
		if _, ok := r.seen.index[d]; ok {
			devices = append(devices, d)
		}
	}
	r.mu.Unlock()
	var errs []error
	for _, d := range devices {
		errs = append(errs, port.SetMTU(d, r.ports[s.Device].MTU))
	}
	return errors.Join(errs...)
}

// routesLost is the mark of routes that may not be there any more: no plan's.
const routesLost = "lost"

// address sets up what is inside a node.
func (r *runner) address(_ context.Context, s reconcile.Step) error {
	ns, err := r.space(s.Node)
	if err != nil {
		return err
	}
	defer ns.Close()
	r.mu.Lock()
	routed := r.seen.marks[s.Node].Routes != ""
	r.mu.Unlock()
	if routed {
		// The routes over what is new, or has been away, have gone; once all is as it
		// should be, nothing but the mark tells that they are to be written again.
		if err := r.mark(s.Node, func(m *applied) { m.Routes = routesLost }); err != nil {
			return err
		}
	}
	_, err = ns.Configure(interior(r.nodes[s.Node], r.keepDown[s.Node]))
	return err
}

// route writes a node's computed routes.
func (r *runner) route(_ context.Context, s reconcile.Step) error {
	ns, err := r.space(s.Node)
	if err != nil {
		return err
	}
	defer ns.Close()
	n := r.nodes[s.Node]
	routes, err := n.Routes.Expand(r.want.Prefixes)
	if err != nil {
		return err
	}
	var sources []netip.Addr
	for _, l := range n.Loopbacks {
		if !slices.Contains(n.Anycast, l.Addr()) {
			sources = append(sources, l.Addr())
		}
	}
	if _, err := ns.SetRoutes(routes, sources...); err != nil {
		if len(r.keepDown[s.Node]) == 0 {
			return err
		}
		// There are none over an interface that the node keeps down. They are written
		// when all is as it should be.
		r.a.log.Info("a node that keeps an interface down lacks routes over it", "vnet", r.want.VNet, "node", s.Node, "err", err)
		return nil
	}
	return r.mark(s.Node, func(m *applied) { m.Routes = r.marks(n).Routes })
}

// mark books what was applied to a node. That of a held node is written when
// it is released.
func (r *runner) mark(node string, change func(*applied)) error {
	r.mu.Lock()
	m := r.seen.marks[node]
	change(&m)
	r.seen.marks[node] = m
	_, held := r.held[node]
	r.mu.Unlock()
	if held {
		return nil
	}
	return r.a.containers.SetFingerprint(r.id(node), m.String())
}

// carrier sets ports up or down.
func (r *runner) carrier(_ context.Context, steps []reconcile.Step) error {
	up := make(map[string]bool, len(steps))
	for _, s := range steps {
		r.point(s.Op)
		up[s.Device] = s.On
		if r.ports[s.Device] == nil {
			up[port.TunnelMember(s.Device)] = s.On
		}
		if s.Op == reconcile.CarrierLoss {
			r.lost[s.Device] = true
		} else if s.On && r.lost[s.Device] {
			if err := r.awaitCarrierLoss(s.Device); err != nil {
				return err
			}
		}
	}
	if err := port.SetUp(up); err != nil {
		return fmt.Errorf("set the carrier of ports of %s: %w", r.want.VNet, err)
	}
	r.advance(len(steps))
	return nil
}

// carrierLossPatience is how long a node's programs may take to hear of a lost carrier.
const carrierLossPatience = time.Second

// awaitCarrierLoss waits until the programs of a port's node know that its carrier went.
func (r *runner) awaitCarrierLoss(device string) error {
	ns, err := r.space(r.owners[device])
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.AwaitCarrierLoss(r.ports[device].Name, carrierLossPatience)
}

func (r *runner) limit(ctx context.Context, s reconcile.Step) error {
	return r.a.containers.SetLimits(ctx, r.id(s.Node), container.Limits(r.nodes[s.Node].Limits))
}

// release lets a node run.
func (r *runner) release(ctx context.Context, s reconcile.Step) error {
	r.mu.Lock()
	h, m := r.held[s.Node], r.seen.marks[s.Node]
	r.mu.Unlock()
	if h == nil {
		return errors.New("the node was not started")
	}
	if err := r.a.containers.SetFingerprint(r.id(s.Node), m.String()); err != nil {
		return err
	}
	if err := h.Release(); err != nil {
		return err
	}
	state := container.State{ID: r.id(s.Node), Pid: h.Pid(), Running: true, Released: true, Started: time.Now()}
	r.mu.Lock()
	delete(r.held, s.Node)
	r.seen.states[s.Node] = state
	r.mu.Unlock()
	return nil
}
