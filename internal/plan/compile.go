package plan

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"trellis/internal/routing"
	"trellis/internal/vnet"
)

// Allocation is what the PIP grants a VNet.
type Allocation struct {
	IDBase     uint32 // first of IDsPerVNet user and group ids
	Generation int64
	// Placement is the substrate node of each virtual node, by name.
	Placement map[string]string
	// Hosts are the substrate nodes that Placement names, by name.
	Hosts map[string]Host
	// Keys are the EGRE keys of the links that cross substrate nodes, one for each
	// of Spans.
	Keys map[string]uint32
}

// Host is a substrate node, as far as plans depend on it.
type Host struct {
	Instance string // owner tag of everything that its agent makes
	// Addrs are the underlay addresses that tunnels end at, those of IPv4 first;
	// none on a machine without an uplink.
	Addrs []netip.Addr
	MTU   int // of the underlay, bytes of the IP packet
	// Cores that nodes may use; 0: not known. Routing timers depend on it.
	Cores float64
}

// Load says how many of the VNet's routers share the cores of its substrate nodes.
func (a Allocation) Load(v *vnet.VNet) routing.Load {
	cores := make(map[string]float64, len(a.Hosts))
	for name, h := range a.Hosts {
		cores[name] = h.Cores
	}
	return routing.NewLoad(v, a.Placement, cores)
}

// AllOn places all nodes of a VNet on one substrate node.
func AllOn(v *vnet.VNet, host string) map[string]string {
	placement := make(map[string]string, len(v.Nodes))
	for i := range v.Nodes {
		placement[v.Nodes[i].Name] = host
	}
	return placement
}

// Compile turns a completed and valid VNet, whose links fit ([FitLinks]), into
// the plans of the substrate nodes that hold nodes of it, by name. The same
// input gives the same plans, byte for byte.
func Compile(v *vnet.VNet, a Allocation) (map[string]*Plan, error) {
	configs, err := routing.Generate(v, a.Load(v))
	if err != nil {
		return nil, fmt.Errorf("routing of %s: %w", v.Name, err)
	}
	c := compilation{v: v, a: a, plans: map[string]*Plan{}, ports: make(map[string][]Port, len(v.Nodes))}
	names := map[string][]string{} // of the nodes of each host
	hosts := hosts(v)
	destinations, components := routingGroups(v)
	for i := range v.Nodes {
		name := v.Nodes[i].Name
		on, ok := a.Placement[name]
		if !ok {
			return nil, fmt.Errorf("node %s of %s has no place", name, v.Name)
		}
		host, ok := a.Hosts[on]
		if !ok {
			return nil, fmt.Errorf("node %s of %s is placed on %s, which is not known", name, v.Name, on)
		}
		if c.plans[on] == nil {
			c.plans[on] = &Plan{
				VNet:         v.Name,
				Generation:   a.Generation,
				IDBase:       a.IDBase,
				Host:         on,
				Group:        Group(host.Instance, v.Name),
				Hosts:        hosts,
				Destinations: destinations,
			}
		}
		names[on] = append(names[on], name)
	}
	for i := range v.Links {
		if err := c.addLink(&v.Links[i]); err != nil {
			return nil, err
		}
	}
	tables := make(map[string]map[string]RouteTable, len(c.plans))
	for on, p := range c.plans {
		p.Prefixes, tables[on] = compactRoutes(names[on], configs)
	}
	for i, n := range v.Nodes {
		on := a.Placement[n.Name]
		p := c.plans[on]
		p.Nodes = append(p.Nodes, Node{
			Name:        n.Name,
			Image:       n.Image,
			Cmd:         n.Cmd,
			Restart:     n.Restart,
			Env:         n.Env,
			Files:       n.Files,
			Exec:        n.Exec,
			ExecTimeout: n.ExecTimeout,
			Sysctls:     n.Sysctls,
			Limits:      Limits{CPU: n.CPU, Memory: n.Memory, Pids: n.Pids, Disk: n.Disk},
			Daemons:     configs[n.Name].Daemons,
			Loopbacks:   hostPrefixes(slices.Concat(n.Loopbacks, n.Anycast)),
			Anycast:     n.Anycast,
			Ports:       c.ports[n.Name],
			Routes:      tables[on][n.Name],
			Components:  components[i],
			NoFastPath:  n.FastPath == vnet.FastPathOff,
			NoRepair:    n.Repair == vnet.RepairNever,
		})
	}
	return c.plans, nil
}

// compilation is the work on one VNet.
type compilation struct {
	v     *vnet.VNet
	a     Allocation
	plans map[string]*Plan  // by substrate node
	ports map[string][]Port // by node
}

// addLink adds the link's ports to the nodes', and its joint, LAN and tunnels to
// the plans.
func (c *compilation) addLink(l *vnet.Link) error {
	hosts := linkHosts(l, c.a.Placement)
	crosses := len(hosts) > 1
	devices := make([]string, len(l.Endpoints))
	for i, e := range l.Endpoints {
		instance := c.a.Hosts[c.a.Placement[e.Node]].Instance
		devices[i] = DeviceName(PortDevice, instance, c.v.Name, e.Node+":"+e.Name)
		port := Port{
			Name: e.Name, Device: devices[i], MAC: e.MAC, MTU: e.MTU,
			Addrs: e.Addrs, Link: l.Name, Down: l.EndDown(i),
		}
		port.Egress, port.Ingress = shapes(l, i, crosses)
		c.ports[e.Node] = append(c.ports[e.Node], port)
	}
	switch {
	case l.Type == vnet.LAN:
		return c.addLAN(l, hosts, devices)
	case l.Type != vnet.PointToPoint:
		return fmt.Errorf("link %s of %s: type %q is neither %s nor %s", l.Name, c.v.Name, l.Type, vnet.PointToPoint, vnet.LAN)
	case !crosses:
		p := c.plans[hosts[0]]
		p.Joints = append(p.Joints, Joint{Link: l.Name, A: devices[0], B: devices[1]})
		return nil
	}
	for i, e := range l.Endpoints {
		here, there := c.a.Placement[e.Node], c.a.Placement[l.Endpoints[1-i].Node]
		if err := c.addTunnel(l, here, there, Tunnel{Device: devices[i]}); err != nil {
			return err
		}
	}
	return nil
}

// shapes gives those of the port at one end of a link.
func shapes(l *vnet.Link, end int, crosses bool) (egress, ingress vnet.Shape) {
	switch e := &l.Endpoints[end]; {
	case l.Type == vnet.LAN:
		return e.Rx, e.Tx
	case crosses:
		return vnet.Shape{}, e.Tx // before the underlay, so that it carries no more
	}
	return l.Endpoints[1-end].Tx, vnet.Shape{}
}

// addLAN adds a bridge on each substrate node that the LAN has ends on, and
// tunnels from each to each.
func (c *compilation) addLAN(l *vnet.Link, hosts, devices []string) error {
	for _, here := range hosts {
		instance := c.a.Hosts[here].Instance
		lan := LAN{Link: l.Name, Device: DeviceName(BridgeDevice, instance, c.v.Name, "@"+l.Name), MTU: linkMTU(l)}
		for i, e := range l.Endpoints {
			if c.a.Placement[e.Node] == here {
				lan.Ports = append(lan.Ports, devices[i])
			}
		}
		p := c.plans[here]
		p.LANs = append(p.LANs, lan)
		for _, there := range hosts {
			if there == here {
				continue
			}
			device := DeviceName(TunnelDevice, instance, c.v.Name, "@"+l.Name+">"+there)
			if err := c.addTunnel(l, here, there, Tunnel{Device: device, LAN: lan.Device}); err != nil {
				return err
			}
		}
	}
	return nil
}

// addTunnel adds the end at here of the link's path to there.
func (c *compilation) addTunnel(l *vnet.Link, here, there string, t Tunnel) error {
	w, err := findPath(here, there, c.a.Hosts)
	if err != nil {
		return fmt.Errorf("link %s of %s: %w", l.Name, c.v.Name, err)
	}
	span := Span(l, here, there)
	t.Key = c.a.Keys[span]
	if t.Key == 0 {
		return fmt.Errorf("link %s of %s: the path between %s and %s has no key", l.Name, c.v.Name, here, there)
	}
	t.Link, t.Peer, t.Local, t.Remote, t.MTU = l.Name, there, w.local, w.remote, linkMTU(l)
	p := c.plans[here]
	p.Tunnels = append(p.Tunnels, t)
	return nil
}

// linkMTU is the largest IP packet that any end of the link sends.
func linkMTU(l *vnet.Link) (mtu int) {
	for i := range l.Endpoints {
		mtu = max(mtu, l.Endpoints[i].MTU)
	}
	return mtu
}

// hosts writes the /etc/hosts of the network's nodes (hosts(5)).
func hosts(v *vnet.VNet) []byte {
	var b bytes.Buffer
	b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	addrs := v.NameAddresses()
	for i := range v.Nodes {
		name := v.Nodes[i].Name
		for _, a := range addrs[name] {
			fmt.Fprintf(&b, "%s %s\n", a, name)
		}
	}
	return b.Bytes()
}

func hostPrefixes(addrs []netip.Addr) []netip.Prefix {
	prefixes := make([]netip.Prefix, len(addrs))
	for i, a := range addrs {
		prefixes[i] = netip.PrefixFrom(a, a.BitLen())
	}
	return prefixes
}
