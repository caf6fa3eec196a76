package cli

import (
	"fmt"
	"strings"
	"time"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/vnet"
)

// networkView is what `show VNET -o json` prints.
type networkView struct {
	Name    string     `json:"name"`
	State   string     `json:"state"`
	Message string     `json:"message,omitempty"`
	Routing string     `json:"routing"`
	Created string     `json:"created,omitempty"` // RFC 3339, UTC
	Hosts   []string   `json:"hosts"`             // substrate nodes that its nodes are placed on
	Nodes   []nodeView `json:"nodes"`
	Links   []linkView `json:"links"`
	// Missing says which figures below are not there, and why.
	Missing []string `json:"missing,omitempty"`
}

// nodeView is a node in `show VNET -o json`, and all of `show VNET/NODE -o json`.
type nodeView struct {
	VNet       string        `json:"vnet,omitempty"` // only in show VNET/NODE
	Name       string        `json:"name"`
	Display    string        `json:"display,omitempty"` // the name as people write it
	Kind       string        `json:"kind,omitempty"`    // router or host
	State      string        `json:"state"`
	Message    string        `json:"message,omitempty"`
	Host       string        `json:"host,omitempty"` // substrate node
	PID        int           `json:"pid,omitempty"`  // of the node's init, on the substrate node
	Restarts   int           `json:"restarts"`
	Repairs    int           `json:"repairs"` // of what its root did to its own interfaces
	Memory     int64         `json:"memory"`  // bytes in use
	CPUSeconds float64       `json:"cpuSeconds"`
	FastPath   string        `json:"fastpath,omitempty"` // "on", or "off: " and why
	Image      string        `json:"image,omitempty"`
	Routing    string        `json:"routing,omitempty"`
	ASN        uint32        `json:"asn,omitempty"`
	RouterID   string        `json:"routerID,omitempty"`
	Loopbacks  []string      `json:"loopbacks"`
	Limits     limitsView    `json:"limits"`
	Services   []serviceView `json:"services"`
	Interfaces []ifaceView   `json:"interfaces"`
	Missing    []string      `json:"missing,omitempty"` // only in show VNET/NODE
}

// limitsView holds a node's limits; 0 means none.
type limitsView struct {
	CPU    float64 `json:"cpu"`    // cores
	Memory int64   `json:"memory"` // bytes
	Pids   int     `json:"pids"`
	Disk   int64   `json:"disk"` // bytes
}

type serviceView struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	PID      int    `json:"pid,omitempty"` // inside the node
	Restarts int    `json:"restarts"`
	Exit     int    `json:"exit,omitempty"` // of the last end, 128+n for a signal n
}

// ifaceView is one end of a link. Rx is what the node received, Tx what it sent.
type ifaceView struct {
	Node      string    `json:"node"`
	Name      string    `json:"name"`
	Link      string    `json:"link"`
	MAC       string    `json:"mac,omitempty"`
	MTU       int       `json:"mtu,omitempty"`
	Addrs     []string  `json:"addrs"`
	Shape     shapeView `json:"shape"` // of what the node sends
	Receive   shapeView `json:"receive,omitzero"`
	Cost      int       `json:"cost,omitempty"`
	Down      bool      `json:"down,omitempty"`   // of a LAN: this end alone has no carrier
	Host      string    `json:"host,omitempty"`   // substrate node
	Device    string    `json:"device,omitempty"` // in the root context
	RxPackets uint64    `json:"rxPackets"`
	RxBytes   uint64    `json:"rxBytes"`
	TxPackets uint64    `json:"txPackets"`
	TxBytes   uint64    `json:"txBytes"`
	// Of these, what took the fast path; the rest met the node's stack.
	RxFastPackets uint64            `json:"rxFastPackets"`
	RxFastBytes   uint64            `json:"rxFastBytes"`
	TxFastPackets uint64            `json:"txFastPackets"`
	TxFastBytes   uint64            `json:"txFastBytes"`
	Drops         uint64            `json:"drops"`         // packets
	DropsByReason map[string]uint64 `json:"dropsByReason"` // the same; reasons without any are left out
	// Packets that arrived on the fast path, and left it for the node's stack.
	StackByReason map[string]uint64 `json:"stackByReason"`
	// Fault is why nothing passes: what the node's root did to the interface.
	Fault string     `json:"fault,omitempty"`
	Paths []pathView `json:"paths"` // across the underlay; none on one machine
}

// pathView is the way of a link across the underlay, as one end sees it.
type pathView struct {
	Peer    string `json:"peer"`          // substrate node
	Remote  string `json:"remote"`        // its address
	Key     uint32 `json:"key"`           // of EGRE
	MTU     int    `json:"mtu,omitempty"` // of the underlay on the way; absent: not known
	State   string `json:"state"`         // up, down
	Message string `json:"message,omitempty"`
}

// shapeView is what a link does to frames; 0 means that it does nothing.
type shapeView struct {
	Rate   uint64  `json:"rate"`   // bit/s
	Delay  float64 `json:"delay"`  // seconds
	Jitter float64 `json:"jitter"` // seconds
	Loss   float64 `json:"loss"`   // probability, 0 to 1
}

type linkView struct {
	Name    string      `json:"name"`
	Type    string      `json:"type"`
	State   string      `json:"state"` // up, down, broken
	Message string      `json:"message,omitempty"`
	Ends    []ifaceView `json:"ends"`
	// Tunnels are what the substrate nodes count between the parts of a LAN.
	Tunnels []tunnelView `json:"tunnels,omitempty"`
}

// tunnelView is the tunnel between two parts of a LAN, as one host counts it.
type tunnelView struct {
	Host          string            `json:"host"` // that counts
	Peer          string            `json:"peer"`
	RxPackets     uint64            `json:"rxPackets"` // from the peer
	RxBytes       uint64            `json:"rxBytes"`
	TxPackets     uint64            `json:"txPackets"` // to it
	TxBytes       uint64            `json:"txBytes"`
	Drops         uint64            `json:"drops"`
	DropsByReason map[string]uint64 `json:"dropsByReason"`
}

func viewShape(s *trellisv1.Shape) shapeView {
	return shapeView{s.GetRate(), float64(s.GetDelayNs()) / 1e9, float64(s.GetJitterNs()) / 1e9, s.GetLoss()}
}

// String gives the shape for people: "10mbit 5ms ±1ms loss 0.1%".
func (s shapeView) String() string {
	var parts []string
	if s.Rate != 0 {
		parts = append(parts, vnet.FormatRate(s.Rate))
	}
	if s.Delay != 0 {
		parts = append(parts, duration(s.Delay))
	}
	if s.Jitter != 0 {
		parts = append(parts, "±"+duration(s.Jitter))
	}
	if s.Loss != 0 {
		parts = append(parts, fmt.Sprintf("loss %.4g%%", s.Loss*100))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, " ")
}

// duration writes a time given in seconds.
func duration(seconds float64) string {
	return time.Duration(seconds * 1e9).Round(time.Microsecond).String()
}

// routingWords names a routing choice: "ospf (frr, fast)".
func routingWords(r *trellisv1.Routing) string {
	var extra []string
	for _, s := range []string{r.GetDaemon(), r.GetTimers()} {
		if s != "" && s != string(vnet.TimersDefault) {
			extra = append(extra, s)
		}
	}
	if len(extra) == 0 {
		return r.GetProtocol()
	}
	return fmt.Sprintf("%s (%s)", r.GetProtocol(), strings.Join(extra, ", "))
}

// viewNetwork joins the description of a network with its state.
func viewNetwork(r *trellisv1.GetResponse) *networkView {
	s := viewSummary(r.GetSummary())
	v := &networkView{
		Name: s.Name, State: s.State, Message: s.Message, Created: s.Created, Hosts: s.Hosts, Missing: r.GetMessages(),
		Routing: routingWords(r.GetVnet().GetRouting()), Nodes: []nodeView{}, Links: []linkView{},
	}
	if v.Routing == "" {
		v.Routing = s.Routing
	}
	links := map[string]*trellisv1.LinkStatus{}
	for _, l := range r.GetLinks() {
		links[l.GetName()] = l
	}
	ends := map[string][]ifaceView{}
	for _, l := range r.GetVnet().GetLinks() {
		view := viewLink(l, links[l.GetName()])
		for _, e := range view.Ends {
			ends[e.Node] = append(ends[e.Node], e)
		}
		v.Links = append(v.Links, view)
	}
	states := map[string]*trellisv1.NodeStatus{}
	for _, n := range r.GetNodes() {
		states[n.GetName()] = n
	}
	for _, n := range r.GetVnet().GetNodes() {
		v.Nodes = append(v.Nodes, viewNode(n, states[n.GetName()], ends[n.GetName()]))
	}
	return v
}

// viewOneNode gives the node of that name.
func viewOneNode(r *trellisv1.GetResponse, name string) (*nodeView, error) {
	network := viewNetwork(r)
	for _, n := range network.Nodes {
		if n.Name == name {
			n.VNet, n.Missing = network.Name, network.Missing
			return &n, nil
		}
	}
	return nil, fmt.Errorf("%s has no node %q; `trellis show %s` lists its nodes", network.Name, name, network.Name)
}

func viewLink(l *trellisv1.Link, status *trellisv1.LinkStatus) linkView {
	view := linkView{Name: l.GetName(), Type: l.GetType(), State: status.GetState(), Message: oneLine(status.GetMessage()), Ends: []ifaceView{}}
	if view.State == "" {
		view.State = "up"
		if l.GetDown() {
			view.State = "down"
		}
	}
	for _, t := range status.GetTunnels() {
		view.Tunnels = append(view.Tunnels, tunnelView{
			Host: t.GetHost(), Peer: t.GetPeer(), RxPackets: t.GetRxPackets(), RxBytes: t.GetRxBytes(),
			TxPackets: t.GetTxPackets(), TxBytes: t.GetTxBytes(), Drops: t.GetDrops(), DropsByReason: counted(t.GetDropsByReason()),
		})
	}
	ports := map[[2]string]*trellisv1.PortStatus{}
	for _, p := range status.GetPorts() {
		ports[[2]string{p.GetNode(), p.GetInterface()}] = p
	}
	for _, e := range l.GetEndpoints() {
		p := ports[[2]string{e.GetNode(), e.GetName()}]
		view.Ends = append(view.Ends, ifaceView{
			Node: e.GetNode(), Name: e.GetName(), Link: l.GetName(), MAC: e.GetMac(), MTU: int(e.GetMtu()),
			Addrs: append([]string{}, e.GetAddrs()...), Shape: viewShape(e.GetTx()), Receive: viewShape(e.GetRx()),
			Cost: int(e.GetCost()), Down: e.GetDown(), Host: p.GetHost(), Device: p.GetDevice(),
			RxPackets: p.GetRxPackets(), RxBytes: p.GetRxBytes(), TxPackets: p.GetTxPackets(), TxBytes: p.GetTxBytes(),
			RxFastPackets: p.GetRxFastPackets(), RxFastBytes: p.GetRxFastBytes(),
			TxFastPackets: p.GetTxFastPackets(), TxFastBytes: p.GetTxFastBytes(),
			Drops: p.GetDrops(), DropsByReason: counted(p.GetDropsByReason()),
			StackByReason: counted(p.GetStackByReason()), Fault: oneLine(p.GetFault()), Paths: viewPaths(p.GetPaths()),
		})
	}
	return view
}

// counted leaves out the reasons without any.
func counted(by map[string]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for reason, n := range by {
		if n > 0 {
			out[reason] = n
		}
	}
	return out
}

func viewPaths(paths []*trellisv1.Path) []pathView {
	out := []pathView{}
	for _, p := range paths {
		out = append(out, pathView{
			Peer: p.GetPeer(), Remote: p.GetRemote(), Key: p.GetKey(), MTU: int(p.GetMtu()), State: p.GetState(), Message: oneLine(p.GetMessage()),
		})
	}
	return out
}

func viewNode(n *trellisv1.Node, s *trellisv1.NodeStatus, ends []ifaceView) nodeView {
	view := nodeView{
		Name: n.GetName(), State: s.GetState(), Message: oneLine(s.GetMessage()), Host: s.GetHost(), PID: int(s.GetPid()),
		Restarts: int(s.GetRestarts()), Repairs: int(s.GetRepairs()), Memory: s.GetMemory(), CPUSeconds: s.GetCpuSeconds(), FastPath: oneLine(s.GetFastpath()),
		Image: n.GetImage(), Routing: routingWords(n.GetRouting()), ASN: n.GetAsn(), RouterID: n.GetRouterId(),
		Display: n.GetDisplay(), Kind: n.GetKind(),
		Loopbacks: append([]string{}, n.GetLoopbacks()...),
		Limits:    limitsView{n.GetCpu(), n.GetMemory(), int(n.GetPids()), n.GetDisk()},
		Services:  []serviceView{}, Interfaces: append([]ifaceView{}, ends...),
	}
	if view.State == "" {
		view.State = "absent"
	}
	for _, d := range s.GetServices() {
		view.Services = append(view.Services, serviceView{d.GetName(), d.GetState(), int(d.GetPid()), int(d.GetRestarts()), int(d.GetExit())})
	}
	return view
}

// of says what a limit is, where there is one.
func (limitsView) of(limit string, set bool) string {
	if !set {
		return ""
	}
	return ", at most " + limit
}

// distinct joins values, once where all are alike.
func distinct(values []string) string {
	for _, v := range values {
		if v != values[0] {
			return strings.Join(values, " | ")
		}
	}
	if len(values) == 0 {
		return "-"
	}
	return values[0]
}

// size writes bytes in binary units.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%dB", n)
	}
	f, i := float64(n)/1024, 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return fmt.Sprintf("%.4g%ciB", f, units[i])
}
