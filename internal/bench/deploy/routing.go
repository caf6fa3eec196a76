package deploy

import (
	"fmt"
	"slices"
	"strings"

	"trellis/internal/vnet"
)

// ParseRouting reads "PROTOCOL[/DAEMON[/TIMERS]]", such as "static", "bgp/bird"
// or "ospf/frr/fast". Timers are fast where none are named, because a laboratory
// has no reason to wait.
func ParseRouting(s string) (vnet.Routing, error) {
	fields := strings.Split(s, "/")
	protocols := []string{string(vnet.None), string(vnet.Static), string(vnet.OSPF), string(vnet.ISIS), string(vnet.BGP), string(vnet.RIP)}
	r := vnet.Routing{Protocol: vnet.Protocol(fields[0])}
	switch {
	case !slices.Contains(protocols, fields[0]):
		return r, fmt.Errorf("routing %q: %q is none of %s", s, fields[0], strings.Join(protocols, ", "))
	case !r.Protocol.NeedsDaemon() && len(fields) > 1:
		return r, fmt.Errorf("routing %q: %s needs no daemon; leave /%s out", s, fields[0], strings.Join(fields[1:], "/"))
	case !r.Protocol.NeedsDaemon():
		return r, nil
	case len(fields) > 3:
		return r, fmt.Errorf("routing %q: write PROTOCOL, PROTOCOL/DAEMON or PROTOCOL/DAEMON/TIMERS", s)
	}
	r.Daemon, r.Timers = vnet.FRR, vnet.TimersFast
	if len(fields) > 1 {
		r.Daemon = vnet.Daemon(fields[1])
	}
	if len(fields) > 2 {
		r.Timers = vnet.Timers(fields[2])
	}
	if r.Daemon.Kind() == nil {
		return r, fmt.Errorf("routing %q: the daemon %q is none of %s", s, r.Daemon, strings.Join(vnet.DaemonNames(), ", "))
	}
	if r.Timers != vnet.TimersFast && r.Timers != vnet.TimersDefault {
		return r, fmt.Errorf("routing %q: the timers %q are neither %s nor %s", s, r.Timers, vnet.TimersFast, vnet.TimersDefault)
	}
	return r, nil
}

// Reroute gives the network with every node routing as r says, whatever its
// description said. Addresses and names stay.
func Reroute(v *vnet.VNet, r vnet.Routing) (*vnet.VNet, error) {
	out := *v
	out.Routing = r
	out.Nodes = slices.Clone(v.Nodes)
	for i := range out.Nodes {
		out.Nodes[i].Routing = vnet.Routing{}
	}
	return finish(&out)
}

// describeRouting gives the network's routing in the words of [ParseRouting],
// with the number of nodes that have another.
func describeRouting(v *vnet.VNet) string {
	s := routingText(v.Routing)
	others := 0
	for i := range v.Nodes {
		if routingText(v.Nodes[i].Routing) != s {
			others++
		}
	}
	if others > 0 {
		s += fmt.Sprintf(" (%d of %d nodes differ)", others, len(v.Nodes))
	}
	return s
}

func routingText(r vnet.Routing) string {
	if !r.Protocol.NeedsDaemon() {
		return string(r.Protocol)
	}
	return fmt.Sprintf("%s/%s/%s", r.Protocol, r.Daemon, r.Timers)
}

// withLink gives the network with one more link: between the two nodes that are
// the furthest apart in the description among those that are not neighbours, or,
// where all are, between the first and the last. Nil where there are not two.
func withLink(v *vnet.VNet) (*vnet.VNet, error) {
	n := len(v.Nodes)
	if n < 2 {
		return nil, nil
	}
	neighbours := map[[2]string]bool{}
	for _, l := range v.Links {
		for _, a := range l.Endpoints {
			for _, b := range l.Endpoints {
				neighbours[[2]string{a.Node, b.Node}] = true
			}
		}
	}
	from, to := v.Nodes[0].Name, v.Nodes[n-1].Name
	for distance := n - 1; distance > 0; distance-- {
		found := false
		for i := 0; i+distance < n && !found; i++ {
			a, b := v.Nodes[i].Name, v.Nodes[i+distance].Name
			if found = !neighbours[[2]string{a, b}]; found {
				from, to = a, b
			}
		}
		if found {
			break
		}
	}
	out := *v
	out.Nodes = slices.Clone(v.Nodes)
	out.Links = append(slices.Clone(v.Links), vnet.Link{
		Name: "bench-extra", Endpoints: []vnet.Interface{{Node: from}, {Node: to}},
	})
	return finish(&out)
}
