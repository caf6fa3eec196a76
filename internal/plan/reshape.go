package plan

import (
	"net/netip"
	"slices"

	"trellis/internal/vnet"
)

// Reshape gives the plans of a VNet, by substrate node, the shapes and the carrier
// of one of its links as Compile would, and confines the plans' changes to what
// differs. It reports false, and changes nothing, where the VNet has to be compiled:
// computed routes lead around a link without carrier.
func Reshape(plans map[string]*Plan, v *vnet.VNet, link string, placement map[string]string) bool {
	l := v.Link(link)
	carrier := false
	for _, p := range plans {
		p.portsOf(l, func(_ *Node, port *Port, end int) { carrier = carrier || port.Down != l.EndDown(end) })
	}
	if carrier && slices.ContainsFunc(v.Nodes, func(n vnet.Node) bool { return n.Routing.Protocol == vnet.Static }) {
		return false
	}
	crosses := len(linkHosts(l, placement)) > 1
	for _, p := range plans {
		p.Scope = []string{}
		p.portsOf(l, func(_ *Node, port *Port, end int) {
			port.Down = l.EndDown(end)
			port.Egress, port.Ingress = shapes(l, end, crosses)
			p.Scope = append(p.Scope, port.Device)
		})
	}
	if carrier {
		regroup(plans, v)
	}
	return true
}

// portsOf calls f with the plan's ports of a link: the node, the port, and the
// number of the link's end.
func (p *Plan) portsOf(l *vnet.Link, f func(n *Node, port *Port, end int)) {
	for i := range p.Nodes {
		n := &p.Nodes[i]
		for j := range n.Ports {
			if n.Ports[j].Link != l.Name {
				continue
			}
			for end := range l.Endpoints {
				if e := &l.Endpoints[end]; e.Node == n.Name && e.Name == n.Ports[j].Name {
					f(n, &n.Ports[j], end)
				}
			}
		}
	}
}

// regroup finds anew which nodes learn routes from one another. A network that
// falls apart, or comes together, concerns nodes anywhere.
func regroup(plans map[string]*Plan, v *vnet.VNet) {
	destinations, components := routingGroups(v)
	of := make(map[string][]int, len(v.Nodes))
	for i := range v.Nodes {
		of[v.Nodes[i].Name] = components[i]
	}
	for _, p := range plans {
		same := slices.EqualFunc(p.Destinations, destinations, slices.Equal[[]netip.Addr])
		p.Destinations = destinations
		for i := range p.Nodes {
			n := &p.Nodes[i]
			same = same && slices.Equal(n.Components, of[n.Name])
			n.Components = of[n.Name]
		}
		if !same {
			p.Scope = nil
		}
	}
}
