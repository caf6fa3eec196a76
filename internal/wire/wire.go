// Package wire converts between the model of a virtual network (internal/vnet)
// and its form in the API (api/trellis/v1). The two say the same thing in the
// same words; only the API writes addresses as text. The package is pure.
package wire

import (
	"fmt"
	"net/netip"
	"time"

	trellisv1 "trellis/api/trellis/v1"
	"trellis/internal/vnet"
)

// ToProto gives the API's form of a network.
func ToProto(v *vnet.VNet) *trellisv1.VNet {
	out := &trellisv1.VNet{
		Name:    v.Name,
		Routing: routingToProto(v.Routing),
		Addressing: &trellisv1.Addressing{
			Ipv4: prefixText(v.Addressing.IPv4), Ipv6: prefixText(v.Addressing.IPv6), Mode: string(v.Addressing.Mode),
		},
	}
	for i := range v.Nodes {
		out.Nodes = append(out.Nodes, nodeToProto(&v.Nodes[i]))
	}
	for i := range v.Links {
		out.Links = append(out.Links, LinkToProto(&v.Links[i]))
	}
	return out
}

func routingToProto(r vnet.Routing) *trellisv1.Routing {
	out := &trellisv1.Routing{
		Protocol: string(r.Protocol), Igp: string(r.IGP), Daemon: string(r.Daemon), Timers: string(r.Timers),
		Area: string(r.Area), DefaultRoute: r.DefaultRoute, RouteReflector: r.RouteReflector,
	}
	if i := r.Intervals; !i.IsZero() {
		out.Intervals = &trellisv1.Intervals{HelloNs: int64(i.Hello), DeadNs: int64(i.Dead)}
		if i.SPF != [3]time.Duration{} {
			out.Intervals.SpfNs = []int64{int64(i.SPF[0]), int64(i.SPF[1]), int64(i.SPF[2])}
		}
	}
	return out
}

func linkRoutingToProto(r vnet.LinkRouting) *trellisv1.LinkRouting {
	if r == (vnet.LinkRouting{}) {
		return nil
	}
	return &trellisv1.LinkRouting{Protocol: string(r.Protocol), Area: string(r.Area), Passive: r.Passive}
}

func nodeToProto(n *vnet.Node) *trellisv1.Node {
	out := &trellisv1.Node{
		Name: n.Name, Display: n.Display, Image: n.Image, Cmd: n.Cmd, Restart: string(n.Restart), ExecTimeoutNs: n.ExecTimeout.Nanoseconds(),
		Cpu: n.CPU, Memory: n.Memory, Pids: int32(n.Pids), Disk: n.Disk,
		Env: n.Env, Exec: n.Exec, Sysctls: n.Sysctls,
		Routing: routingToProto(n.Routing), Asn: n.ASN, On: n.On,
		Fastpath: string(n.FastPath), Repair: string(n.Repair), RouterId: addrText(n.RouterID),
		Kind: string(n.Kind), Addressing: string(n.Addressing),
	}
	for _, f := range n.Files {
		out.Files = append(out.Files, &trellisv1.File{Path: f.Path, Content: f.Content, Mode: f.Mode})
	}
	for _, a := range n.Loopbacks {
		out.Loopbacks = append(out.Loopbacks, a.String())
	}
	for _, a := range n.Anycast {
		out.Anycast = append(out.Anycast, a.String())
	}
	if n.Position != nil {
		out.Position = &trellisv1.Position{Latitude: n.Position.Latitude, Longitude: n.Position.Longitude}
	}
	return out
}

// LinkToProto gives the API's form of a link.
func LinkToProto(l *vnet.Link) *trellisv1.Link {
	out := &trellisv1.Link{
		Name: l.Name, Type: string(l.Type), Down: l.Down,
		Addressing: string(l.Addressing), Routing: linkRoutingToProto(l.Routing), Overlap: l.Overlap,
	}
	for i := range l.Endpoints {
		e := &l.Endpoints[i]
		end := &trellisv1.Interface{
			Node: e.Node, Name: e.Name, Mtu: int32(e.MTU), AutoMtu: e.AutoMTU, Cost: int32(e.Cost), Auto: e.Auto, Down: e.Down,
			Tx: ShapeToProto(e.Tx), Rx: ShapeToProto(e.Rx),
		}
		if !e.MAC.IsZero() {
			end.Mac = e.MAC.String()
		}
		for _, p := range e.Addrs {
			end.Addrs = append(end.Addrs, p.String())
		}
		out.Endpoints = append(out.Endpoints, end)
	}
	return out
}

// ShapeToProto gives the API's form of a shape: nil for a perfect wire.
func ShapeToProto(s vnet.Shape) *trellisv1.Shape {
	if s.IsZero() {
		return nil
	}
	return &trellisv1.Shape{Rate: s.Rate, DelayNs: int64(s.Delay), JitterNs: int64(s.Jitter), Loss: s.Loss}
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// FromProto gives the model's form of a network. Only what the model cannot hold
// is an error: an address that is none, say. The error is a [vnet.Errors] with
// the path of each such object; the rules of [vnet.VNet.Validate] are not checked.
func FromProto(p *trellisv1.VNet) (*vnet.VNet, error) {
	if p == nil {
		return nil, vnet.Errors{{What: "the request has no network", Remedy: "fill in the field vnet"}}
	}
	c := &converter{}
	v := &vnet.VNet{
		Name:    p.GetName(),
		Routing: c.routing("routing", p.GetRouting()),
		Addressing: vnet.Addressing{
			IPv4: c.prefix("addressing.ipv4", p.GetAddressing().GetIpv4(), true),
			IPv6: c.prefix("addressing.ipv6", p.GetAddressing().GetIpv6(), true),
			Mode: vnet.AddressMode(p.GetAddressing().GetMode()),
		},
	}
	for i, n := range p.GetNodes() {
		v.Nodes = append(v.Nodes, c.node(fmt.Sprintf("nodes[%d]", i), n))
	}
	for i, l := range p.GetLinks() {
		v.Links = append(v.Links, c.link(fmt.Sprintf("links[%d]", i), l))
	}
	if len(c.errs) > 0 {
		return nil, c.errs
	}
	return v, nil
}

// converter collects what could not be converted.
type converter struct{ errs vnet.Errors }

func (c *converter) add(path, remedy, what string, args ...any) {
	c.errs = append(c.errs, vnet.Error{Path: path, What: path + ": " + fmt.Sprintf(what, args...), Remedy: remedy})
}

func (c *converter) prefix(path, s string, mayBeEmpty bool) netip.Prefix {
	if s == "" && mayBeEmpty {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		c.add(path, "write an address with its prefix length, like 10.0.0.1/24", "%q is not a prefix", s)
	}
	return p
}

func (c *converter) addr(path, s string) netip.Addr {
	a, err := netip.ParseAddr(s)
	if err != nil {
		c.add(path, "write an address like 10.0.0.1", "%q is not an address", s)
	}
	return a
}

func (c *converter) routing(path string, r *trellisv1.Routing) vnet.Routing {
	out := vnet.Routing{
		Protocol:       vnet.Protocol(r.GetProtocol()),
		IGP:            vnet.Protocol(r.GetIgp()),
		Daemon:         vnet.Daemon(r.GetDaemon()),
		Timers:         vnet.Timers(r.GetTimers()),
		Intervals:      vnet.Intervals{Hello: time.Duration(r.GetIntervals().GetHelloNs()), Dead: time.Duration(r.GetIntervals().GetDeadNs())},
		Area:           vnet.Area(r.GetArea()),
		DefaultRoute:   r.GetDefaultRoute(),
		RouteReflector: r.GetRouteReflector(),
	}
	switch spf := r.GetIntervals().GetSpfNs(); len(spf) {
	case 0:
	case len(out.Intervals.SPF):
		for i := range spf {
			out.Intervals.SPF[i] = time.Duration(spf[i])
		}
	default:
		c.add(path+".intervals.spf_ns", "give three: first, next, most", "%d delays of the shortest-path calculation", len(spf))
	}
	return out
}

func linkRoutingFromProto(r *trellisv1.LinkRouting) vnet.LinkRouting {
	return vnet.LinkRouting{Protocol: vnet.Protocol(r.GetProtocol()), Area: vnet.Area(r.GetArea()), Passive: r.GetPassive()}
}

func (c *converter) node(path string, p *trellisv1.Node) vnet.Node {
	n := vnet.Node{
		Name: p.GetName(), Display: p.GetDisplay(), Image: p.GetImage(), Cmd: p.GetCmd(), Restart: vnet.Restart(p.GetRestart()), ExecTimeout: time.Duration(p.GetExecTimeoutNs()),
		CPU: p.GetCpu(), Memory: p.GetMemory(), Pids: int(p.GetPids()), Disk: p.GetDisk(),
		Env: p.GetEnv(), Exec: p.GetExec(), Sysctls: p.GetSysctls(),
		Routing: c.routing(path+".routing", p.GetRouting()), ASN: p.GetAsn(), On: p.GetOn(),
		FastPath: vnet.FastPath(p.GetFastpath()), Repair: vnet.Repair(p.GetRepair()), Kind: vnet.Kind(p.GetKind()), Addressing: vnet.AddressMode(p.GetAddressing()),
	}
	for _, f := range p.GetFiles() {
		n.Files = append(n.Files, vnet.File{Path: f.GetPath(), Content: f.GetContent(), Mode: f.GetMode()})
	}
	for i, s := range p.GetLoopbacks() {
		n.Loopbacks = append(n.Loopbacks, c.addr(fmt.Sprintf("%s.loopbacks[%d]", path, i), s))
	}
	for i, s := range p.GetAnycast() {
		n.Anycast = append(n.Anycast, c.addr(fmt.Sprintf("%s.anycast[%d]", path, i), s))
	}
	if s := p.GetRouterId(); s != "" {
		n.RouterID = c.addr(path+".routerID", s)
	}
	if pos := p.GetPosition(); pos != nil {
		n.Position = &vnet.Position{Latitude: pos.GetLatitude(), Longitude: pos.GetLongitude()}
	}
	return n
}

func (c *converter) link(path string, p *trellisv1.Link) vnet.Link {
	l := vnet.Link{
		Name: p.GetName(), Type: vnet.LinkType(p.GetType()), Down: p.GetDown(),
		Addressing: vnet.AddressMode(p.GetAddressing()), Routing: linkRoutingFromProto(p.GetRouting()), Overlap: p.GetOverlap(),
	}
	for i, e := range p.GetEndpoints() {
		at := fmt.Sprintf("%s.endpoints[%d]", path, i)
		end := vnet.Interface{
			Node: e.GetNode(), Name: e.GetName(), MTU: int(e.GetMtu()), AutoMTU: e.GetAutoMtu(), Cost: int(e.GetCost()), Auto: e.GetAuto(), Down: e.GetDown(),
			Tx: shapeFromProto(e.GetTx()), Rx: shapeFromProto(e.GetRx()),
		}
		if s := e.GetMac(); s != "" {
			mac, err := vnet.ParseMAC(s)
			if err != nil {
				c.add(at+".mac", "write it like 02:00:00:00:00:01", "%q is not a 48-bit MAC address", s)
			}
			end.MAC = mac
		}
		for j, s := range e.GetAddrs() {
			end.Addrs = append(end.Addrs, c.prefix(fmt.Sprintf("%s.addrs[%d]", at, j), s, false))
		}
		l.Endpoints = append(l.Endpoints, end)
	}
	return l
}

func shapeFromProto(s *trellisv1.Shape) vnet.Shape {
	return vnet.Shape{
		Rate: s.GetRate(), Delay: time.Duration(s.GetDelayNs()),
		Jitter: time.Duration(s.GetJitterNs()), Loss: s.GetLoss(),
	}
}
