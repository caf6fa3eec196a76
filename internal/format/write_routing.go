package format

import "trellis/internal/vnet"

// networkRouting writes the network's routing: the protocol alone where Complete
// adds the rest.
func networkRouting(r vnet.Routing) *element {
	short := vnet.VNet{Routing: vnet.Routing{Protocol: r.Protocol}}
	_ = short.Complete() // a network without nodes needs no room
	return routing(r, short.Routing)
}

// nodeRouting writes what differs from what the node would inherit.
func nodeRouting(n *vnet.Node, network vnet.Routing) *element {
	probe := vnet.VNet{Routing: network, Nodes: []vnet.Node{{Kind: n.Kind, ASN: n.ASN, Routing: vnet.Routing{Protocol: n.Routing.Protocol}}}}
	_ = probe.Complete() // one node always has room
	inherited := probe.Nodes[0].Routing
	// What a node of an AS speaks inside depends on the others of the AS.
	inherited.IGP = ""
	return routing(n.Routing, inherited)
}

// routing writes a protocol, and what differs from what comes with it.
func routing(r, comes vnet.Routing) *element {
	m := newMapping().flow()
	m.add("protocol", text(string(r.Protocol)))
	if r.IGP != comes.IGP && r.IGP != "" {
		m.add("igp", text(string(r.IGP)))
	}
	if r.Daemon != comes.Daemon && r.Daemon != "" {
		m.add("daemon", text(string(r.Daemon)))
	}
	switch {
	case r.Intervals != comes.Intervals:
		m.add("timers", timers(r, comes.Timers))
	case r.Timers != comes.Timers && r.Timers != "":
		m.add("timers", text(string(r.Timers)))
	}
	if r.Area != comes.Area && r.Area != "" {
		m.add("area", text(string(r.Area)))
	}
	if r.DefaultRoute {
		m.add("default-route", plain("!!bool", "true"))
	}
	if r.RouteReflector {
		m.add("route-reflector", plain("!!bool", "true"))
	}
	if len(m.Content) == 2 {
		return text(string(r.Protocol))
	}
	return m
}

func timers(r vnet.Routing, comes vnet.Timers) *element {
	m := newMapping().flow()
	if r.Timers != comes && r.Timers != "" {
		m.add("set", text(string(r.Timers)))
	}
	if r.Intervals.Hello != 0 {
		m.add("hello", text(vnet.FormatDelay(r.Intervals.Hello)))
	}
	if r.Intervals.Dead != 0 {
		m.add("dead", text(vnet.FormatDelay(r.Intervals.Dead)))
	}
	if r.Intervals.SPF[2] != 0 {
		spf := newList().flow()
		for _, d := range r.Intervals.SPF {
			spf.append(text(vnet.FormatDelay(d)))
		}
		m.add("spf", spf)
	}
	return m
}

func linkRouting(r vnet.LinkRouting) *element {
	if r == (vnet.LinkRouting{Protocol: r.Protocol}) {
		return text(string(r.Protocol))
	}
	m := newMapping().flow()
	if r.Protocol != "" {
		m.add("protocol", text(string(r.Protocol)))
	}
	if r.Area != "" {
		m.add("area", text(string(r.Area)))
	}
	if r.Passive {
		m.add("passive", plain("!!bool", "true"))
	}
	return m
}
