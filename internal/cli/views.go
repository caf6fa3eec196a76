package cli

import (
	"fmt"
	"io"
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
	Nodes   []nodeView `json:"nodes"`
	Links   []linkView `json:"links"`
}

// nodeView is a node in `show VNET -o json`, and all of `show VNET/NODE -o json`.
type nodeView struct {
	VNet       string        `json:"vnet,omitempty"` // only in show VNET/NODE
	Name       string        `json:"name"`
	State      string        `json:"state"`
	Message    string        `json:"message,omitempty"`
	Host       string        `json:"host,omitempty"` // substrate node
	PID        int           `json:"pid,omitempty"`  // of the node's init, on the substrate node
	Restarts   int           `json:"restarts"`
	Memory     int64         `json:"memory"` // bytes in use
	CPUSeconds float64       `json:"cpuSeconds"`
	Image      string        `json:"image,omitempty"`
	Routing    string        `json:"routing,omitempty"`
	ASN        uint32        `json:"asn,omitempty"`
	RouterID   string        `json:"routerID,omitempty"`
	Loopbacks  []string      `json:"loopbacks"`
	Limits     limitsView    `json:"limits"`
	Services   []serviceView `json:"services"`
	Interfaces []ifaceView   `json:"interfaces"`
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
	Device    string    `json:"device,omitempty"` // in the root context
	RxPackets uint64    `json:"rxPackets"`
	RxBytes   uint64    `json:"rxBytes"`
	TxPackets uint64    `json:"txPackets"`
	TxBytes   uint64    `json:"txBytes"`
	Drops     uint64    `json:"drops"`
}

// shapeView is what a link does to frames; 0 means that it does nothing.
type shapeView struct {
	Rate   uint64  `json:"rate"`   // bit/s
	Delay  float64 `json:"delay"`  // seconds
	Jitter float64 `json:"jitter"` // seconds
	Loss   float64 `json:"loss"`   // probability, 0 to 1
}

type linkView struct {
	Name  string      `json:"name"`
	Type  string      `json:"type"`
	State string      `json:"state"`
	Ends  []ifaceView `json:"ends"`
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

// routing names a routing choice: "ospf (frr, fast)".
func routing(r *trellisv1.Routing) string {
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
		Name: s.Name, State: s.State, Message: s.Message, Created: s.Created,
		Routing: routing(r.GetVnet().GetRouting()), Nodes: []nodeView{}, Links: []linkView{},
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
			n.VNet = network.Name
			return &n, nil
		}
	}
	return nil, fmt.Errorf("%s has no node %q; `trellis show %s` lists its nodes", network.Name, name, network.Name)
}

func viewLink(l *trellisv1.Link, status *trellisv1.LinkStatus) linkView {
	view := linkView{Name: l.GetName(), Type: l.GetType(), State: status.GetState(), Ends: []ifaceView{}}
	if view.State == "" {
		view.State = "up"
		if l.GetDown() {
			view.State = "down"
		}
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
			Cost: int(e.GetCost()), Device: p.GetDevice(),
			RxPackets: p.GetRxPackets(), RxBytes: p.GetRxBytes(),
			TxPackets: p.GetTxPackets(), TxBytes: p.GetTxBytes(), Drops: p.GetDrops(),
		})
	}
	return view
}

func viewNode(n *trellisv1.Node, s *trellisv1.NodeStatus, ends []ifaceView) nodeView {
	view := nodeView{
		Name: n.GetName(), State: s.GetState(), Message: oneLine(s.GetMessage()), Host: s.GetHost(), PID: int(s.GetPid()),
		Restarts: int(s.GetRestarts()), Memory: s.GetMemory(), CPUSeconds: s.GetCpuSeconds(),
		Image: n.GetImage(), Routing: routing(n.GetRouting()), ASN: n.GetAsn(), RouterID: n.GetRouterId(),
		Loopbacks: append([]string{}, n.GetLoopbacks()...),
		Limits:    limitsView{n.GetCpu(), n.GetMemory(), int(n.GetPids()), n.GetDisk()},
		Services:  []serviceView{}, Interfaces: append([]ifaceView{}, ends...),
	}
	if view.State == "" {
		view.State = "absent"
	}
	for _, d := range s.GetServices() {
		view.Services = append(view.Services, serviceView{d.GetName(), d.GetState(), int(d.GetPid()), int(d.GetRestarts())})
	}
	return view
}

func (v *networkView) table(w io.Writer) {
	up := 0
	for _, n := range v.Nodes {
		if n.State == "running" {
			up++
		}
	}
	fmt.Fprintf(w, "%s: %s, routing %s, %d of %s up, %s\n", v.Name, v.State, v.Routing, up, count(len(v.Nodes), "node"), count(len(v.Links), "link"))
	if v.Message != "" {
		fmt.Fprintln(w, v.Message)
	}
	fmt.Fprintln(w)
	nodes := newTable("NODE", "STATE", "LOOPBACKS", ">RESTARTS", ">MEMORY", ">CPU", "MESSAGE")
	for _, n := range v.Nodes {
		nodes.add(n.Name, n.State, strings.Join(n.Loopbacks, " "), fmt.Sprint(n.Restarts), size(n.Memory),
			fmt.Sprintf("%.2fs", n.CPUSeconds), n.Message)
	}
	nodes.write(w)
	if len(v.Links) == 0 {
		return
	}
	fmt.Fprintln(w)
	links := newTable("LINK", "TYPE", "STATE", "ENDS", "SHAPE", ">PACKETS", ">DROPS")
	for _, l := range v.Links {
		var ends, shapes []string
		var packets, drops uint64
		for _, e := range l.Ends {
			ends = append(ends, e.Node+":"+e.Name)
			shapes = append(shapes, e.Shape.String())
			packets += e.TxPackets
			drops += e.Drops
		}
		links.add(l.Name, l.Type, l.State, strings.Join(ends, " "), distinct(shapes), fmt.Sprint(packets), fmt.Sprint(drops))
	}
	links.write(w)
}

func (v *nodeView) table(w io.Writer) {
	fmt.Fprintf(w, "%s/%s: %s\n", v.VNet, v.Name, v.State)
	if v.Message != "" {
		fmt.Fprintln(w, v.Message)
	}
	fmt.Fprintln(w)
	facts := newTable("", "")
	fact := func(name, value string) {
		if value != "" {
			facts.add(name, value)
		}
	}
	fact("loopbacks", strings.Join(v.Loopbacks, " "))
	fact("routing", v.Routing)
	fact("router id", v.RouterID)
	if v.ASN != 0 {
		fact("AS", fmt.Sprint(v.ASN))
	}
	fact("image", v.Image)
	fact("host", v.Host)
	if v.PID != 0 {
		fact("pid", fmt.Sprint(v.PID))
	}
	fact("restarts", fmt.Sprint(v.Restarts))
	fact("memory", size(v.Memory)+v.Limits.of(size(v.Limits.Memory), v.Limits.Memory != 0))
	fact("cpu", fmt.Sprintf("%.2fs used", v.CPUSeconds)+v.Limits.of(fmt.Sprintf("%g cores", v.Limits.CPU), v.Limits.CPU != 0))
	if v.Limits.Pids != 0 {
		fact("processes", fmt.Sprintf("at most %d", v.Limits.Pids))
	}
	if v.Limits.Disk != 0 {
		fact("disk", "at most "+size(v.Limits.Disk))
	}
	facts.write(w)
	if len(v.Services) > 0 {
		fmt.Fprintln(w)
		t := newTable("SERVICE", "STATE", ">PID", ">RESTARTS")
		for _, s := range v.Services {
			t.add(s.Name, s.State, fmt.Sprint(s.PID), fmt.Sprint(s.Restarts))
		}
		t.write(w)
	}
	if len(v.Interfaces) > 0 {
		fmt.Fprintln(w)
		t := newTable("INTERFACE", "LINK", "ADDRESSES", ">MTU", "SENDS AT", ">RX", ">TX", ">DROPS", "DEVICE")
		for _, i := range v.Interfaces {
			t.add(i.Name, i.Link, strings.Join(i.Addrs, " "), fmt.Sprint(i.MTU), i.Shape.String(),
				fmt.Sprint(i.RxPackets), fmt.Sprint(i.TxPackets), fmt.Sprint(i.Drops), i.Device)
		}
		t.write(w)
	}
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
