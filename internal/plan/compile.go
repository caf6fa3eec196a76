package plan

import (
	"bytes"
	"fmt"
	"net/netip"

	"trellis/internal/routing"
	"trellis/internal/vnet"
)

// Allocation is what the PIP grants a VNet on a substrate node.
type Allocation struct {
	Instance   string // owner tag of everything that the agent makes
	Host       string // the substrate node
	IDBase     uint32 // first of IDsPerVNet user and group ids
	Generation int64
}

// Compile turns a completed and valid VNet into the plan for the substrate node
// a.Host. The same input gives the same plan, byte for byte.
func Compile(v *vnet.VNet, a Allocation) (*Plan, error) {
	configs, err := routing.Generate(v)
	if err != nil {
		return nil, fmt.Errorf("routing of %s: %w", v.Name, err)
	}
	p := &Plan{
		VNet:       v.Name,
		Generation: a.Generation,
		IDBase:     a.IDBase,
		Group:      Group(a.Instance, v.Name),
		Hosts:      hosts(v),
	}
	names := make([]string, len(v.Nodes))
	for i, n := range v.Nodes {
		names[i] = n.Name
	}
	prefixes, tables := compactRoutes(names, configs)
	p.Prefixes = prefixes
	destinations, component := routingGroups(v)
	p.Destinations = destinations

	ports := map[string][]Port{}
	for _, l := range v.Links {
		if err := p.addLink(a, v.Name, l, ports); err != nil {
			return nil, err
		}
	}
	for i, n := range v.Nodes {
		p.Nodes = append(p.Nodes, Node{
			Name:      n.Name,
			Image:     n.Image,
			Cmd:       n.Cmd,
			Env:       n.Env,
			Files:     n.Files,
			Exec:      n.Exec,
			Sysctls:   n.Sysctls,
			Limits:    Limits{CPU: n.CPU, Memory: n.Memory, Pids: n.Pids, Disk: n.Disk},
			Daemons:   configs[n.Name].Daemons,
			Loopbacks: hostPrefixes(n.Loopbacks),
			Ports:     ports[n.Name],
			Routes:    tables[n.Name],
			Component: component[i],
		})
	}
	return p, nil
}

// addLink adds the link's ports to the nodes', and its joint or LAN to the plan.
func (p *Plan) addLink(a Allocation, name string, l vnet.Link, ports map[string][]Port) error {
	devices := make([]string, len(l.Endpoints))
	for i, e := range l.Endpoints {
		devices[i] = DeviceName(PortDevice, a.Instance, name, e.Node+":"+e.Name)
		port := Port{
			Name: e.Name, Device: devices[i], MAC: e.MAC, MTU: e.MTU,
			Addrs: e.Addrs, Link: l.Name, Down: l.Down,
		}
		if l.Type == vnet.LAN {
			port.Egress, port.Ingress = e.Rx, e.Tx
		} else {
			port.Egress = l.Endpoints[1-i].Tx
		}
		ports[e.Node] = append(ports[e.Node], port)
	}
	switch l.Type {
	case vnet.PointToPoint:
		p.Joints = append(p.Joints, Joint{Link: l.Name, A: devices[0], B: devices[1]})
	case vnet.LAN:
		lan := LAN{Link: l.Name, Device: DeviceName(BridgeDevice, a.Instance, name, "@"+l.Name), Ports: devices}
		for _, e := range l.Endpoints {
			lan.MTU = max(lan.MTU, e.MTU)
		}
		p.LANs = append(p.LANs, lan)
	default:
		return fmt.Errorf("link %s of %s: type %q is neither %s nor %s", l.Name, name, l.Type, vnet.PointToPoint, vnet.LAN)
	}
	return nil
}

// routingGroups finds the sets of nodes that learn routes from one another: the
// components of the graph that is left when only links with carrier between
// nodes of one routing protocol count. Nodes without routing, and those alone
// in their group, wait for nothing and have component -1.
func routingGroups(v *vnet.VNet) (destinations [][]netip.Addr, component []int) {
	index := make(map[string]int, len(v.Nodes))
	parent := make([]int, len(v.Nodes))
	for i, n := range v.Nodes {
		index[n.Name], parent[i] = i, i
	}
	find := func(i int) int {
		for parent[i] != i {
			parent[i] = parent[parent[i]]
			i = parent[i]
		}
		return i
	}
	for _, l := range v.Links {
		if l.Down {
			continue
		}
		first := map[vnet.Protocol]int{}
		for _, e := range l.Endpoints {
			i := index[e.Node]
			proto := v.Nodes[i].Routing.Protocol
			if proto == vnet.None {
				continue
			}
			if f, ok := first[proto]; ok {
				parent[find(i)] = find(f)
			} else {
				first[proto] = i
			}
		}
	}
	size := make([]int, len(v.Nodes))
	for i := range v.Nodes {
		size[find(i)]++
	}
	number := map[int]int{}
	component = make([]int, len(v.Nodes))
	for i, n := range v.Nodes {
		root := find(i)
		if size[root] == 1 {
			component[i] = -1
			continue
		}
		g, ok := number[root]
		if !ok {
			g = len(destinations)
			number[root] = g
			destinations = append(destinations, nil)
		}
		component[i] = g
		destinations[g] = append(destinations[g], n.Loopbacks...)
	}
	return destinations, component
}

// hosts writes the /etc/hosts of the network's nodes (hosts(5)).
func hosts(v *vnet.VNet) []byte {
	var b bytes.Buffer
	b.WriteString("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n")
	for _, n := range v.Nodes {
		for _, a := range n.Loopbacks {
			fmt.Fprintf(&b, "%s %s\n", a, n.Name)
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
