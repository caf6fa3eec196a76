// Package reconcile decides what to do: it compares the plan for one VNet with
// what the kernel holds of it and returns the steps that lead from the one to
// the other, in order. It is pure; the agent observes and executes.
//
// The steps depend on nothing but the two values, never on what was done
// before, so the same comparison serves creation, change, repair after a crash
// at any instruction, and removal. When nothing differs there are no steps.
//
// The order: what must go goes first (nodes, then ports, then bridges), then
// nodes are started and held, then devices are made and joined, then the
// nodes' insides are set up, and only then are the nodes released, so that no
// program of a tenant runs before its network is there. Ports get their carrier
// before the nodes get their routes: routes over an interface without carrier
// are dead until the kernel has told every table of it, a hundred interfaces a
// second (net/core/link_watch.c).
package reconcile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"trellis/internal/plan"
	"trellis/internal/routing"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
)

// Kernel is what a substrate node holds of one VNet.
type Kernel struct {
	Nodes   map[string]Node   // by name
	Devices map[string]Device // ports, bridges and tunnels in the root context, by device name
	// Routes are those of the underlay that are known now.
	Routes map[tunnel.Endpoints]tunnel.Route
	// NoFastPath is why the machine cannot forward on nodes' behalf; "": it can.
	NoFastPath string
}

// Node is a node's container as it is.
type Node struct {
	// Running is false for what is left of a node that has died or was never
	// released: it can only be removed.
	Running bool
	// Marks say what the container was made from and what was applied to it.
	Marks Marks
	// Daemons is the routing software as it was configured last, with the user's
	// files that configure it.
	Daemons routing.Daemons
	// Limits are the ones in force.
	Limits plan.Limits
	// Interfaces and Loopbacks are the node's inside, as far as Trellis made it.
	Interfaces map[string]Interface
	Loopbacks  []netip.Prefix
	// NoFastPath is what of the tenant's keeps the node's packets on its stack, as
	// far as the fast path cannot see it itself; "": nothing.
	NoFastPath string
}

// Interface is a virtual interface as its node has it.
type Interface struct {
	MAC   vnet.MAC
	MTU   int
	Up    bool
	Addrs []netip.Prefix // sorted; those that Trellis placed
	// Enslaved: the tenant has put it into a bridge, bond or VRF of its own.
	Enslaved bool
}

// Device is a network device of the VNet in the root context.
type Device struct {
	Owner  string // in words, for people: "denver:eth1", "lan exchange"
	Bridge bool
	Up     bool
	MTU    int
	Master string // the bridge that the device is a port of
	// Isolated, of what stands on a bridge for another machine: it exchanges
	// nothing with others of its kind.
	Isolated bool
	Egress   vnet.Shape // the qdisc
	// Helper reports whether the port has a helper pair. In place, the port is
	// joined with the pair's one end, whose qdisc shapes what the node sends, and
	// the other end is in the LAN or begins the path in the port's stead.
	Helper  bool
	Ingress vnet.Shape // the qdisc of the helper pair
	// Attached reports whether the port's program is in place.
	Attached bool
	// Peer is the device that the port's frames go to; Shaped, that they go by
	// way of its qdisc. PeerMAC is the address of the node's interface there as the
	// program knows it or, where a helper pair shapes what the node sends, of the
	// node's own.
	Peer    string
	PeerMAC vnet.MAC
	Shaped  bool
	// Rate is that of what the port's node sends, as the fast path knows it, in bit/s.
	Rate uint64
	// Path is where they go instead, on a link across machines.
	Path tunnel.Path
	// Receives reports whether the far end of the pair takes frames from the
	// underlay and from neighbours' fast path; Fast, that it forwards them on its
	// node's behalf.
	Receives, Fast bool
}

// Op is a kind of step.
type Op string

// The steps, in the order of their execution.
const (
	Stop         Op = "stop"          // remove a node's container and all in it
	CarrierLoss  Op = "carrier-loss"  // take the carrier of a port whose far end is made anew, as its neighbour's restart does
	RemovePort   Op = "remove-port"   // remove a device of the root context
	RemoveHelper Op = "remove-helper" // remove a port's helper pair
	RemoveBridge Op = "remove-bridge" // remove a device of the root context
	Start        Op = "start"         // start a node's container, held
	AddBridge    Op = "add-bridge"    // make a LAN's bridge
	AddPort      Op = "add-port"      // make a veth pair between a node and the root context
	AddTunnel    Op = "add-tunnel"    // make the pair that stands on a LAN's bridge for another machine
	AddHelper    Op = "add-helper"    // make the pair that shapes what a port's node sends into a LAN or a tunnel
	Receive      Op = "receive"       // have a pair's far end take what comes from the underlay
	Unplug       Op = "unplug"        // take a port from the end that it had; its node forgets the neighbours there
	Join         Op = "join"          // make or correct a shortbridge
	Enslave      Op = "enslave"       // put a port on its LAN's bridge
	Connect      Op = "connect"       // connect a port, or a LAN's tunnel, with its path
	Shape        Op = "shape"         // set rate, delay and loss
	Resize       Op = "resize"        // change a port's MTU
	Carrier      Op = "carrier"       // give or take a port's carrier
	Address      Op = "address"       // set up interfaces and addresses inside a node
	Route        Op = "route"         // write computed routes
	Limit        Op = "limit"         // change a running container's limits
	Reload       Op = "reload"        // change a running node's files and daemons
	FastPath     Op = "fast-path"     // forward on a node's behalf, or leave it to the node's stack
	Release      Op = "release"       // let a held node run
	Exec         Op = "exec"          // run the user's commands in a node
)

var order = []Op{
	Stop, CarrierLoss, RemovePort, RemoveHelper, RemoveBridge, Start, AddBridge, AddPort, AddTunnel, AddHelper, Receive,
	Unplug, Join, Enslave, Connect, Shape, Resize, Carrier, Address, Route, Limit, Reload,
	FastPath, Release, Exec,
}

// Step is one thing to do. Which of Node and Device are set depends on Op.
type Step struct {
	Op     Op
	Node   string // node name
	Device string // device name in the root context
	Peer   string // Join: the other port; Enslave: the bridge
	Name   string // the object in the user's words: "denver", "denver:eth1", …
	Detail string // why or what, for people
	On     bool   // FastPath: forward; Carrier: up
}

// String gives the step as the dry run and the transcripts show it.
func (s Step) String() string {
	text := string(s.Op) + " " + s.Name
	if s.Detail != "" {
		text += ": " + s.Detail
	}
	return text
}

// Diff returns the steps from have to want. Nodes in wait are not started now,
// with everything that depends on them: their restart is being held back.
// A nil want asks for removal.
func Diff(want *plan.Plan, have Kernel, wait map[string]bool) []Step {
	if want == nil {
		want = &plan.Plan{}
	}
	d := differ{
		have: have, wait: wait, marks: MarksOf(want), steps: map[Op][]Step{},
		wanted: map[string]bool{}, fresh: map[string]bool{}, gone: map[string]bool{},
		crosses: len(want.Tunnels) > 0, joined: map[string]bool{}, far: map[string]string{}, rates: Rates(want), shaped: map[string]bool{},
	}
	for _, j := range want.Joints {
		d.joined[j.A], d.joined[j.B] = true, true
	}
	for _, t := range want.Tunnels {
		d.joined[t.Device] = t.LAN == ""
	}
	owner := map[string]string{}
	for i := range want.Nodes {
		for _, p := range want.Nodes[i].Ports {
			owner[p.Device] = want.Nodes[i].Name
		}
	}
	for _, j := range want.Joints {
		d.far[j.A], d.far[j.B] = owner[j.B], owner[j.A]
	}
	d.nodes(want)
	d.devices(want)
	for i := range want.Nodes {
		d.inside(&want.Nodes[i])
	}
	var steps []Step
	for _, op := range order {
		steps = append(steps, d.steps[op]...)
	}
	return steps
}

type differ struct {
	have   Kernel
	wait   map[string]bool
	marks  func(*plan.Node) Marks
	steps  map[Op][]Step
	wanted map[string]bool // nodes and devices of the plan
	fresh  map[string]bool // nodes that are (re)started and ports that are made now
	gone   map[string]bool // nodes that are not there and will not be
	// crosses tells that the VNet goes on at other machines.
	crosses bool
	joined  map[string]bool   // the ports of point-to-point links
	far     map[string]string // the node at the other end, by device, of links on this machine
	rates   map[string]uint64
	shaped  map[string]bool // the ports that there is a step for
}

// Rates gives the rates, in bit/s, that the fast path has to know: of what the nodes of a VNet
// that goes on at other machines send by each port, where a qdisc sets a rate and no more.
func Rates(p *plan.Plan) map[string]uint64 {
	rates := map[string]uint64{}
	if p == nil || len(p.Tunnels) == 0 {
		return rates
	}
	ports := map[string]*plan.Port{}
	for i := range p.Nodes {
		for j := range p.Nodes[i].Ports {
			ports[p.Nodes[i].Ports[j].Device] = &p.Nodes[i].Ports[j]
		}
	}
	set := func(device string, s vnet.Shape) {
		if s.Rate != 0 && !s.NeedsNetem() {
			rates[device] = s.Rate
		}
	}
	for _, j := range p.Joints {
		for _, way := range [][2]string{{j.A, j.B}, {j.B, j.A}} {
			if to := ports[way[1]]; to != nil {
				set(way[0], to.Egress)
			}
		}
	}
	for i := range p.Tunnels {
		if from := ports[p.Tunnels[i].Device]; from != nil && p.Tunnels[i].LAN == "" {
			set(from.Device, from.Ingress)
		}
	}
	return rates
}

func (d *differ) add(s Step) { d.steps[s.Op] = append(d.steps[s.Op], s) }

// nodes decides which containers go and which are started.
func (d *differ) nodes(want *plan.Plan) {
	for i := range want.Nodes {
		n := &want.Nodes[i]
		d.wanted["node "+n.Name] = true
		have, there := d.have.Nodes[n.Name]
		why := ""
		switch {
		case !there:
			why = "new"
		case !have.Running:
			why = "it has stopped"
		default:
			if why = have.Marks.Restarts(d.marks(n)); why == "" {
				continue
			}
		}
		if there {
			d.add(Step{Op: Stop, Node: n.Name, Name: n.Name, Detail: why})
		}
		if d.wait[n.Name] {
			d.gone[n.Name] = true
			continue
		}
		d.fresh[n.Name] = true
		detail := n.Image
		if there {
			detail = why
		}
		d.add(Step{Op: Start, Node: n.Name, Name: n.Name, Detail: detail})
	}
	for _, name := range sortedKeys(d.have.Nodes) {
		if !d.wanted["node "+name] {
			d.add(Step{Op: Stop, Node: name, Name: name, Detail: "not wanted"})
		}
	}
}

// devices decides about everything in the root context.
func (d *differ) devices(want *plan.Plan) {
	for _, l := range want.LANs {
		d.bridge(l)
	}
	label := map[string]string{}
	for i := range want.Nodes {
		n := &want.Nodes[i]
		for j := range n.Ports {
			d.port(n, &n.Ports[j])
			label[n.Ports[j].Device] = n.Name + ":" + n.Ports[j].Name
		}
	}
	ports := map[string]*plan.Port{}
	for i := range want.Nodes {
		for j := range want.Nodes[i].Ports {
			p := &want.Nodes[i].Ports[j]
			ports[p.Device] = p
		}
	}
	for _, j := range want.Joints {
		d.joint(j, ports, label)
	}
	for _, l := range want.LANs {
		for _, p := range l.Ports {
			if d.deferred(p) {
				continue
			}
			have := d.have.Devices[p]
			if d.fresh["port "+p] || have.Master != l.Device || !have.Attached || !helped(have, ports[p]) {
				if have.Master != l.Device {
					d.unplug(p, label[p])
				}
				d.add(Step{Op: Enslave, Device: p, Peer: l.Device, Name: label[p], Detail: "lan " + l.Link})
			}
		}
	}
	for i := range want.Tunnels {
		t := &want.Tunnels[i]
		if t.LAN != "" {
			d.lanTunnel(t)
			label[t.Device] = "lan " + t.Link
		}
		d.connect(t, ports[t.Device], label[t.Device])
	}
	for _, name := range sortedKeys(d.have.Devices) {
		if d.wanted["device "+name] {
			continue
		}
		op, label := RemovePort, d.have.Devices[name].Owner
		if d.have.Devices[name].Bridge {
			op = RemoveBridge
		}
		if label == "" {
			label = name
		}
		d.add(Step{Op: op, Device: name, Name: label, Detail: "not wanted"})
	}
}

func (d *differ) bridge(l plan.LAN) {
	d.wanted["device "+l.Device] = true
	have, there := d.have.Devices[l.Device]
	if !there || !have.Up || have.MTU != l.MTU || !have.Attached {
		d.add(Step{Op: AddBridge, Device: l.Device, Name: "lan " + l.Link})
	}
}

func (d *differ) port(n *plan.Node, p *plan.Port) {
	name := n.Name + ":" + p.Name
	have, there := d.have.Devices[p.Device]
	_, insideThere := d.have.Nodes[n.Name].Interfaces[p.Name]
	switch {
	case d.gone[n.Name]:
		return // not wanted now: the loop over what is there removes it
	case d.fresh[n.Name], there != insideThere, !there:
		// A node that starts has new namespaces. A device without its other end
		// belongs to a namespace that is gone, or was renamed inside.
		if there {
			d.add(Step{Op: RemovePort, Device: p.Device, Name: name, Detail: "its node starts anew"})
		}
		d.add(Step{Op: AddPort, Node: n.Name, Device: p.Device, Name: name, Detail: "link " + p.Link})
		d.fresh["port "+p.Device] = true
		have = Device{}
	}
	d.wanted["device "+p.Device] = true
	switch helper := !p.Ingress.IsZero(); {
	case helper && !have.Helper:
		d.add(Step{Op: AddHelper, Node: n.Name, Device: p.Device, Name: name, Detail: "to shape what it sends"})
	case !helper && have.Helper:
		d.add(Step{Op: RemoveHelper, Node: n.Name, Device: p.Device, Name: name, Detail: "what it sends is not shaped any more"})
	}
	if d.receives(p) && !have.Receives {
		d.add(Step{Op: Receive, Node: n.Name, Device: p.Device, Name: name})
	}
	if fast := d.fast(n, p); have.Fast != fast && (have.Receives || d.receives(p)) {
		d.add(Step{Op: FastPath, Node: n.Name, Device: p.Device, Name: name, Detail: onOff(fast), On: fast})
	}
	if have.Egress != p.Egress || have.Ingress != p.Ingress {
		d.shaped[p.Device] = true
		d.add(Step{Op: Shape, Node: n.Name, Device: p.Device, Name: name, Detail: shapeText(p.Egress, p.Ingress)})
	}
	if have.MTU != p.MTU && !d.fresh["port "+p.Device] {
		d.add(Step{Op: Resize, Node: n.Name, Device: p.Device, Name: name, Detail: fmt.Sprintf("MTU %d", p.MTU)})
	}
	switch up := !p.Down && !d.gone[d.far[p.Device]]; {
	case up && !have.Up:
		d.add(Step{Op: Carrier, Node: n.Name, Device: p.Device, Name: name, Detail: "up", On: true})
	case !up && have.Up && p.Down:
		d.add(Step{Op: Carrier, Node: n.Name, Device: p.Device, Name: name, Detail: "down"})
	case !up && have.Up:
		d.add(Step{Op: Carrier, Node: n.Name, Device: p.Device, Name: name, Detail: "down: " + d.far[p.Device] + " does not run"})
	}
}

// receives reports whether frames may come to the port from the underlay, or
// from a neighbour's fast path. On a machine that holds a VNet whole they never
// do, and what comes by way of netem or a bridge is not such a frame; the
// program at the far end would only be in the way.
func (d *differ) receives(p *plan.Port) bool {
	return d.crosses && d.joined[p.Device] && !p.Egress.NeedsNetem()
}

// rate has the fast path know the rate of what a port's node sends, where all else about
// the port's other end is as it should be.
func (d *differ) rate(device, label string) {
	want := d.rates[device]
	if d.have.Devices[device].Rate == want || d.shaped[device] {
		return
	}
	detail := "what it sends is not rated any more"
	if want != 0 {
		detail = "what it sends has the rate " + vnet.FormatRate(want)
	}
	d.shaped[device] = true
	d.add(Step{Op: Shape, Device: device, Name: label, Detail: detail})
}

// fast reports whether what comes to the port is forwarded on its node's behalf.
func (d *differ) fast(n *plan.Node, p *plan.Port) bool {
	return d.receives(p) && !n.NoFastPath && d.have.NoFastPath == "" &&
		(d.fresh[n.Name] || d.have.Nodes[n.Name].NoFastPath == "")
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// lanTunnel decides about the pair that stands on a LAN's bridge for another
// machine. Its two ends count as one device.
func (d *differ) lanTunnel(t *plan.Tunnel) {
	name := "lan " + t.Link
	d.wanted["device "+t.Device] = true
	have, there := d.have.Devices[t.Device]
	if !there {
		d.add(Step{Op: AddTunnel, Device: t.Device, Name: name, Detail: "to " + t.Peer})
		d.fresh["port "+t.Device] = true
	}
	if !have.Receives {
		d.add(Step{Op: Receive, Device: t.Device, Name: name, Detail: "from " + t.Peer})
	}
	if have.Master != t.LAN || !have.Isolated {
		d.add(Step{Op: Enslave, Device: t.Device, Peer: t.LAN, Name: name, Detail: "to " + t.Peer})
	}
	if there && have.MTU != t.MTU {
		d.add(Step{Op: Resize, Device: t.Device, Name: name, Detail: fmt.Sprintf("MTU %d", t.MTU)})
	}
	if !have.Up {
		d.add(Step{Op: Carrier, Device: t.Device, Name: name, Detail: "to " + t.Peer, On: true})
	}
}

// connect decides about a tunnel's path. While its route is not known, a path to
// the same end stays as it was, and another one goes.
func (d *differ) connect(t *plan.Tunnel, p *plan.Port, label string) {
	if d.deferred(t.Device) {
		return
	}
	have := d.have.Devices[t.Device]
	want := PathOf(t, d.have, have.Path)
	if !d.fresh["port "+t.Device] && have.Attached && have.Peer == "" && have.Path == want &&
		(t.LAN != "" || have.Master == "" && helped(have, p)) {
		d.rate(t.Device, label)
		return
	}
	detail := "to " + t.Peer
	if want == (tunnel.Path{}) {
		detail += ", when there is a route"
	}
	if t.LAN == "" && have.Path.Key != t.Key {
		d.unplug(t.Device, label)
	}
	d.add(Step{Op: Connect, Device: t.Device, Name: label, Detail: detail})
}

// helped reports whether what a port's node sends is shaped by a helper pair, or
// not, as it should be.
func helped(have Device, want *plan.Port) bool {
	if want.Ingress.IsZero() {
		return !have.Helper
	}
	return have.Helper && !have.Ingress.IsZero() && have.PeerMAC == want.MAC
}

// PathOf gives the path that a tunnel should be connected with, where now is the
// one that it has; the zero value: none, for want of a route.
func PathOf(t *plan.Tunnel, k Kernel, now tunnel.Path) tunnel.Path {
	p := tunnel.Path{Endpoints: tunnel.Endpoints{Local: t.Local, Remote: t.Remote}, Key: t.Key, MTU: t.MTU}
	route, ok := k.Routes[p.Endpoints]
	if !ok {
		if now.Endpoints != p.Endpoints || now.Key != p.Key || now.MTU != p.MTU {
			return tunnel.Path{}
		}
		route = now.Route
	}
	p.Route = route
	return p
}

// deferred reports whether the plan's device p is left out because its node waits.
func (d *differ) deferred(p string) bool { return !d.wanted["device "+p] }

func (d *differ) joint(j plan.Joint, ports map[string]*plan.Port, label map[string]string) {
	if d.deferred(j.A) || d.deferred(j.B) {
		return
	}
	right := func(from, to string) bool {
		have := d.have.Devices[from]
		return !d.fresh["port "+from] && !d.fresh["port "+to] &&
			have.Attached && have.Peer == to && have.PeerMAC == ports[to].MAC && have.Shaped == !ports[to].Egress.IsZero() && have.Master == "" &&
			have.Path == (tunnel.Path{}) && !have.Helper
	}
	if right(j.A, j.B) && right(j.B, j.A) {
		d.rate(j.A, label[j.A])
		d.rate(j.B, label[j.B])
		return
	}
	for _, ends := range [][2]string{{j.A, j.B}, {j.B, j.A}} {
		have := d.have.Devices[ends[0]]
		if d.fresh["port "+ends[1]] && !d.fresh["port "+ends[0]] && have.Up && !ports[ends[0]].Down {
			// Its daemons are to see that the sessions with the old one are over.
			d.add(Step{Op: CarrierLoss, Device: ends[0], Name: label[ends[0]], Detail: label[ends[1]] + " is new"})
			d.add(Step{Op: Carrier, Device: ends[0], Name: label[ends[0]], Detail: "up", On: true})
		}
		if have.Peer != ends[1] || have.PeerMAC != ports[ends[1]].MAC {
			d.unplug(ends[0], label[ends[0]])
		}
	}
	d.add(Step{Op: Join, Device: j.A, Peer: j.B, Name: label[j.A] + " - " + label[j.B]})
}

// unplug has a node forget its neighbours at a port that is to have another end:
// one with the same address would be sent frames for the old one's MAC until the
// node's kernel gave up on it, which takes up to 40 s. The port is off its old
// end by then, so that nobody there can answer any more, and the step is repeated
// if it is not known whether it was done.
func (d *differ) unplug(device, label string) {
	if !d.fresh["port "+device] {
		d.add(Step{Op: Unplug, Device: device, Name: label, Detail: "its node forgets who was there"})
	}
}

// inside decides about what is in a node.
func (d *differ) inside(n *plan.Node) {
	if d.gone[n.Name] {
		return
	}
	have := d.have.Nodes[n.Name]
	fresh := d.fresh[n.Name]
	if fresh {
		have = Node{Limits: n.Limits}
	}
	detail := d.interior(n, have)
	if detail != "" || fresh {
		d.add(Step{Op: Address, Node: n.Name, Name: n.Name, Detail: detail})
	}
	marks := d.marks(n)
	// The kernel drops routes with the interface, or its address, that they use.
	if have.Marks.Routes != marks.Routes || detail != "" && len(n.Routes.Groups) > 0 {
		d.add(Step{Op: Route, Node: n.Name, Name: n.Name, Detail: fmt.Sprintf("%d groups of next hops", len(n.Routes.Groups))})
	}
	if have.Limits != n.Limits {
		d.add(Step{Op: Limit, Node: n.Name, Name: n.Name, Detail: limitText(n.Limits)})
	}
	if !fresh {
		if text := reloadText(n, have, marks); text != "" {
			d.add(Step{Op: Reload, Node: n.Name, Name: n.Name, Detail: text})
		}
	}
	if fresh {
		d.add(Step{Op: Release, Node: n.Name, Name: n.Name})
	}
	if have.Marks.Exec != marks.Exec {
		d.add(Step{Op: Exec, Node: n.Name, Name: n.Name, Detail: fmt.Sprintf("%d commands", len(n.Exec))})
	}
}

// interior tells what of a node's interfaces is not as wanted; "" if all is.
func (d *differ) interior(n *plan.Node, have Node) string {
	for _, p := range n.Ports {
		is, ok := have.Interfaces[p.Name]
		addrs := slices.Clone(p.Addrs)
		slices.SortFunc(addrs, netip.Prefix.Compare)
		switch {
		case d.fresh["port "+p.Device]:
			return p.Name + " is new"
		case !ok:
			return p.Name + " is missing"
		case !is.Up:
			return p.Name + " is down inside"
		case is.MTU != p.MTU:
			return fmt.Sprintf("%s: MTU %d instead of %d", p.Name, is.MTU, p.MTU)
		case is.MAC != p.MAC:
			return fmt.Sprintf("%s: MAC %s instead of %s", p.Name, is.MAC, p.MAC)
		case !slices.Equal(is.Addrs, addrs):
			return p.Name + ": addresses"
		}
	}
	loopbacks := slices.Clone(n.Loopbacks)
	slices.SortFunc(loopbacks, netip.Prefix.Compare)
	if !slices.Equal(have.Loopbacks, loopbacks) {
		return "lo: addresses"
	}
	return ""
}

func shapeText(egress, ingress vnet.Shape) string {
	var parts []string
	for _, s := range []struct {
		direction string
		shape     vnet.Shape
	}{{"in", egress}, {"out", ingress}} {
		if s.shape.IsZero() {
			continue
		}
		text := s.direction
		if s.shape.Rate != 0 {
			text += " rate " + vnet.FormatRate(s.shape.Rate)
		}
		if s.shape.Delay != 0 {
			text += " delay " + s.shape.Delay.String()
		}
		if s.shape.Jitter != 0 {
			text += " jitter " + s.shape.Jitter.String()
		}
		if s.shape.Loss != 0 {
			text += fmt.Sprintf(" loss %g%%", s.shape.Loss*100)
		}
		parts = append(parts, text)
	}
	if parts == nil {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func limitText(l plan.Limits) string {
	text := "memory " + vnet.FormatSize(l.Memory) + fmt.Sprintf(", %d processes", l.Pids)
	if l.CPU > 0 {
		text += fmt.Sprintf(", %g cores", l.CPU)
	}
	return text
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Ops gives all kinds of steps in the order of their execution.
func Ops() []Op { return slices.Clone(order) }
