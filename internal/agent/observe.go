package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"trellis/internal/agent/reconcile"
	"trellis/internal/plan"
	"trellis/internal/routing"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/links"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/port"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
)

// observed is what the machine holds of one VNet.
type observed struct {
	kernel reconcile.Kernel
	states map[string]container.State // by node
	marks  map[string]applied         // by node
	index  map[string]int             // ifindex by device
	owner  map[string]string          // node by device
}

// applied is what a container's fingerprint says was applied to it last.
type applied struct {
	reconcile.Marks
	// Daemons is kept whole, with the user's files that configure them: changing a
	// running daemon's configuration means knowing what it has.
	Daemons routing.Daemons
	// Ran is how many of the commands to run after start have run, of those that
	// Running is the digest of; both are empty once all have.
	Ran     int    `json:",omitempty"`
	Running string `json:",omitempty"`
}

func (m applied) String() string {
	b, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("agent: marks that cannot be marshalled: %v", err)) // no value of the type can fail
	}
	return string(b)
}

// parseApplied reads a fingerprint. One that cannot be read matches no plan, so
// its container is made anew.
func parseApplied(fingerprint string) (m applied) {
	if json.Unmarshal([]byte(fingerprint), &m) != nil {
		return applied{}
	}
	return m
}

// observe reads what the machine holds of a VNet, and what a plan for it needs
// to know of the machine; confined, of the plan's nodes alone.
func (a *Agent) observe(ctx context.Context, want *plan.Plan, confined bool) (*observed, error) {
	name := want.VNet
	o := &observed{
		kernel: reconcile.Kernel{Nodes: map[string]reconcile.Node{}, Devices: map[string]reconcile.Device{}, Routes: a.underlayRoutes(want)},
		states: map[string]container.State{}, marks: map[string]applied{},
		index: map[string]int{}, owner: map[string]string{},
	}
	if err := a.paths.FastPathSupported(); err != nil {
		o.kernel.NoFastPath = err.Error()
	}
	if err := a.observeDevices(name, o); err != nil {
		return nil, fmt.Errorf("read the devices of %s: %w", name, err)
	}
	states, err := a.containers.List(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the containers of %s: %w", name, err)
	}
	for _, s := range states {
		o.states[s.Node] = s
	}
	if confined {
		o.confine(want)
	}
	if err := o.observeNodes(ctx); err != nil {
		return nil, err
	}
	for node, why := range a.fastPathBlockers(name) {
		if n, ok := o.kernel.Nodes[node]; ok {
			n.NoFastPath = why
			o.kernel.Nodes[node] = n
		}
	}
	return o, nil
}

// observeDevices reads the root context. What a helper pair does for its port
// counts as the port's.
func (a *Agent) observeDevices(name string, o *observed) error {
	devices, err := a.devices.Of(name)
	if err != nil {
		return err
	}
	names := make(map[int]string, len(devices))
	mine := make(map[string]links.Device, len(devices))
	label := make(map[string]string, len(devices))
	for _, l := range devices {
		names[l.Index] = l.Device
		mine[l.Device] = l
		o.index[l.Device] = l.Index
		o.owner[l.Device], _, _ = strings.Cut(l.Object, ":")
		label[l.Device] = l.Object
		if lan, ok := strings.CutPrefix(l.Object, "@"); ok {
			lan, peer, tunnel := strings.Cut(lan, ">")
			if label[l.Device] = "lan " + lan; tunnel {
				label[l.Device] += " to " + peer
			}
		}
	}
	if len(mine) == 0 {
		return nil
	}
	all, err := a.paths.Read(name)
	if err != nil {
		return err
	}
	attached := map[string]dataplane.Attachment{}
	for _, at := range all {
		if l, ok := mine[at.Device]; ok && at.VNet == name && at.Index == l.Index {
			attached[at.Device] = at
		}
	}
	helping := map[string]bool{} // helpers of ports that are there
	for device, l := range mine {
		if l.Kind == port.KindHelper {
			continue
		}
		at, ok := attached[device]
		d := reconcile.Device{
			Owner: label[device], Bridge: l.Kind == port.KindBridge, Up: l.Up, MTU: l.MTU, Master: l.Master, Egress: l.Shape,
			Attached: ok, Peer: names[at.Peer], PeerMAC: at.PeerMAC, Shaped: at.Mode == dataplane.Shaped, Rate: at.Rate,
			Path: pathOf(at), Receives: at.TakesXDP, Fast: at.Fast,
		}
		switch shapedEnd, behind := port.HelperNames(device); {
		case l.Kind == port.KindTunnel:
			member := port.TunnelMember(device)
			helping[member] = true
			h := mine[member]
			d.Up = l.Up && h.Up
			if attached[member].Mode == dataplane.Switched {
				d.Master, d.Isolated = h.Master, h.Isolated
			}
			if h.MTU != l.MTU {
				d.MTU = 0 // neither
			}
		case mine[behind].Device != "":
			helping[shapedEnd], helping[behind] = true, true
			if mine[shapedEnd].MTU != l.MTU || mine[behind].MTU != l.MTU {
				d.MTU = 0 // none of them
			}
			d.Helper, d.Ingress = true, mine[shapedEnd].Shape
			end := attached[behind]
			d.Attached = ok && d.Peer == shapedEnd && (end.Mode == dataplane.Switched || end.Role == dataplane.Port)
			if d.Attached && end.Mode == dataplane.Switched {
				d.Master = mine[behind].Master
			}
			if end.Path != nil && end.Peer == l.Index {
				d.Path = pathOf(end)
			}
			d.Peer, d.Shaped, d.PeerMAC = "", false, attached[shapedEnd].PeerMAC
		}
		o.kernel.Devices[device] = d
	}
	for device, l := range mine {
		if l.Kind == port.KindHelper && !helping[device] {
			o.kernel.Devices[device] = reconcile.Device{Owner: label[device]}
		}
	}
	return nil
}

// pathOf gives the path that an attachment is connected with.
func pathOf(at dataplane.Attachment) tunnel.Path {
	if at.Path == nil {
		return tunnel.Path{}
	}
	return *at.Path
}

// observeNodes reads the insides of the running nodes, side by side.
func (o *observed) observeNodes(ctx context.Context) error {
	nodes := make([]string, 0, len(o.states))
	for n := range o.states {
		nodes = append(nodes, n)
	}
	slices.Sort(nodes)
	inside := make([]reconcile.Node, len(nodes))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel())
	for i, name := range nodes {
		s := o.states[name]
		o.marks[name] = parseApplied(s.Fingerprint)
		marks := o.marks[name] // here, since the next turn writes to the map
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			n, err := observeNode(s)
			if err != nil {
				return fmt.Errorf("read the inside of %s: %w", s.ID, err)
			}
			n.Marks, n.Daemons = marks.Marks, marks.Daemons
			inside[i] = n
			return nil
		})
	}
	err := g.Wait()
	for i, name := range nodes {
		o.kernel.Nodes[name] = inside[i]
	}
	return err
}

// observeNode reads one container. A container that ends meanwhile has stopped.
func observeNode(s container.State) (reconcile.Node, error) {
	stopped := reconcile.Node{}
	if !s.Running || !s.Released {
		return stopped, nil
	}
	ns, err := netns.OfPid(s.Pid)
	if err != nil {
		if gone(err) {
			return stopped, nil
		}
		return stopped, err
	}
	defer ns.Close()
	in, err := ns.Read()
	if err != nil {
		return stopped, err
	}
	n := insideOf(in)
	n.Running, n.Limits = true, plan.Limits(s.Limits)
	return n, nil
}

// insideOf gives what was read inside a node as the reconciler has it.
func insideOf(in netns.Interior) reconcile.Node {
	n := reconcile.Node{Interfaces: make(map[string]reconcile.Interface, len(in.Interfaces)), Loopbacks: in.Loopbacks}
	for _, i := range in.Interfaces {
		n.Interfaces[i.Name] = reconcile.Interface{MAC: i.MAC, MTU: i.MTU, Up: i.Up, Enslaved: i.Enslaved, Addrs: i.Addrs}
	}
	return n
}

// gone reports whether an error means that the process is no more.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// interior is what a node's inside is to be, but for the interfaces that stay down.
func interior(n *plan.Node, down map[string]bool) netns.Interior {
	in := netns.Interior{Loopbacks: n.Loopbacks}
	_, sysctls := splitSysctls(n)
	for _, p := range n.Ports {
		in.Interfaces = append(in.Interfaces, netns.Interface{
			Name: p.Name, MAC: p.MAC, MTU: p.MTU, Up: !down[p.Name], Addrs: p.Addrs, Sysctls: sysctls[p.Name],
		})
	}
	return in
}

// splitSysctls parts a node's sysctls: those that are set when the node starts, and
// those of each interface, which can be set when that is there.
func splitSysctls(n *plan.Node) (start map[string]string, of map[string]map[string]string) {
	start, of = map[string]string{}, map[string]map[string]string{}
	for name, value := range n.Sysctls {
		i := vnet.SysctlInterface(name)
		if !slices.ContainsFunc(n.Ports, func(p plan.Port) bool { return p.Name == i }) {
			start[name] = value
			continue
		}
		if of[i] == nil {
			of[i] = map[string]string{}
		}
		of[i][name] = value
	}
	return start, of
}
