package plan

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

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
	destinations, components := routingGroups(v)
	p.Destinations = destinations

	ports := map[string][]Port{}
	for _, l := range v.Links {
		if err := p.addLink(a, v.Name, l, ports); err != nil {
			return nil, err
		}
	}
	for i, n := range v.Nodes {
		p.Nodes = append(p.Nodes, Node{
			Name:       n.Name,
			Image:      n.Image,
			Cmd:        n.Cmd,
			Env:        n.Env,
			Files:      n.Files,
			Exec:       n.Exec,
			Sysctls:    n.Sysctls,
			Limits:     Limits{CPU: n.CPU, Memory: n.Memory, Pids: n.Pids, Disk: n.Disk},
			Daemons:    configs[n.Name].Daemons,
			Loopbacks:  hostPrefixes(n.Loopbacks),
			Ports:      ports[n.Name],
			Routes:     tables[n.Name],
			Components: components[i],
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

// routingGroups finds the sets of nodes that learn routes from one another, for
// each address family: the components of the graph that is left when only links
// with carrier count that carry the family between nodes of one routing
// protocol. Nodes without routing, and those alone in their group, wait for
// nothing.
func routingGroups(v *vnet.VNet) (destinations [][]netip.Addr, components [][]int) {
	components = make([][]int, len(v.Nodes))
	for _, of := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		find := routingComponents(v, of)
		members := map[int][]int{} // by the component's root, in order of the nodes
		addrs := map[int][]netip.Addr{}
		for i, n := range v.Nodes {
			root := find(i)
			members[root] = append(members[root], i)
			for _, a := range n.Loopbacks {
				if of(a) {
					addrs[root] = append(addrs[root], a)
				}
			}
		}
		for i := range v.Nodes {
			root := find(i)
			if len(members[root]) == 1 || members[root][0] != i || len(addrs[root]) == 0 {
				continue
			}
			for _, m := range members[root] {
				components[m] = append(components[m], len(destinations))
			}
			destinations = append(destinations, addrs[root])
		}
	}
	return destinations, components
}

// routingComponents joins the nodes that route together in one address family,
// and returns the function that gives each node's component.
func routingComponents(v *vnet.VNet, of func(netip.Addr) bool) (find func(node int) int) {
	index := make(map[string]int, len(v.Nodes))
	parent := make([]int, len(v.Nodes))
	for i, n := range v.Nodes {
		index[n.Name], parent[i] = i, i
	}
	find = func(i int) int {
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
			carries := slices.ContainsFunc(e.Addrs, func(p netip.Prefix) bool { return of(p.Addr()) })
			if proto == vnet.None || !carries {
				continue
			}
			if f, ok := first[proto]; ok {
				parent[find(i)] = find(f)
			} else {
				first[proto] = i
			}
		}
	}
	return find
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
