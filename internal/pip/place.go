package pip

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"trellis/internal/embed"
	"trellis/internal/store"
	"trellis/internal/vnet"
)

// Embedder decides which substrate node hosts each virtual node.
type Embedder interface {
	Embed(embed.Request) (embed.Assignment, error)
}

// hosts are the substrate nodes as they were read once, by name.
type hosts map[string]store.HostState

// remember adds to a placement the nodes that the VNet had, and has no more, on
// substrate nodes that have vanished: they may still run, so that one that comes
// back into the description goes where it was.
func (h hosts) remember(placement, was map[string]string) {
	for node, host := range was {
		at, known := h[host]
		if _, placed := placement[node]; !placed && known && !at.Alive {
			placement[node] = host
		}
	}
}

// hosts reads the substrate nodes.
func (p *Provider) hosts(ctx context.Context) (hosts, error) {
	all, err := p.store.Hosts(ctx)
	if h, known := all[p.host]; known && !h.Alive {
		h.Alive = true
		all[p.host] = h
	}
	return all, err
}

// accepts says, in a sentence, why a substrate node gets no new nodes; nil where it does.
func (h hosts) accepts(name string) error {
	host, known := h[name]
	switch {
	case !known:
		names := slices.Sorted(maps.Keys(h))
		remedy := "there is " + strings.Join(names, ", ")
		if len(names) == 0 {
			remedy = "there is none at all: start trellis serve on it"
		} else if near := vnet.Nearest(name, names); near != "" {
			remedy = fmt.Sprintf("did you mean %q?", near)
		}
		return fmt.Errorf("there is no substrate node %q; %s", name, remedy)
	case !host.Alive:
		return fmt.Errorf("%s; start trellis serve there, or choose another substrate node", host.Silence())
	case host.Protocol != store.Protocol:
		return fmt.Errorf("%s runs trellis %s, which speaks protocol %d and not %d as here; run the same version everywhere",
			name, host.Version, host.Protocol, store.Protocol)
	}
	return nil
}

// placementOf is where the nodes of a stored VNet are. Records of before there
// were several substrate nodes have all on their one.
func placementOf(rec *store.VNetRecord) map[string]string {
	if rec.Placement == nil && len(rec.Hosts) == 1 {
		placement := make(map[string]string, len(rec.Spec.Nodes))
		for i := range rec.Spec.Nodes {
			placement[rec.Spec.Nodes[i].Name] = rec.Hosts[0]
		}
		return placement
	}
	return rec.Placement
}

// place gives each node of a VNet its substrate node. Nodes stay where they are,
// as was says, unless their description names another: a substrate node that has
// vanished may still run its nodes.
func (p *Provider) place(ctx context.Context, v *vnet.VNet, was map[string]string, there hosts) (map[string]string, error) {
	request := embed.Request{Nodes: make([]embed.Node, len(v.Nodes))}
	open := false // some node may go anywhere
	for i := range v.Nodes {
		n := &v.Nodes[i]
		at := was[n.Name]
		if _, known := there[at]; !known {
			at = "" // forgotten for good
		}
		if n.On != "" && n.On != at {
			if err := there.accepts(n.On); err != nil {
				return nil, Refused{fmt.Errorf("node %s is to be on %s: %w", n.Name, n.On, err)}
			}
			if at != "" && !there[at].Alive {
				return nil, Refused{fmt.Errorf("node %s cannot go to %s: it may still run on %s, and %s; start trellis serve there first, or leave the node where it is",
					n.Name, n.On, at, there[at].Silence())}
			}
		}
		open = open || n.On == "" && at == ""
		request.Nodes[i] = embed.Node{Name: n.Name, Memory: n.Memory, CPU: n.CPU, On: n.On, At: at}
	}
	for i := range v.Links {
		l := &v.Links[i]
		link := embed.Link{}
		for _, e := range l.Endpoints {
			link.Nodes = append(link.Nodes, e.Node)
			link.Rate = max(link.Rate, e.Tx.Rate)
		}
		request.Links = append(request.Links, link)
	}
	free, err := p.free(ctx, v.Name, there, open)
	if err != nil {
		return nil, err
	}
	request.Hosts = free
	placement, err := p.embedder.Embed(request)
	if err != nil {
		return nil, Refused{fmt.Errorf("place VNet %s: %w; `trellis substrate ls` lists the substrate nodes", v.Name, err)}
	}
	if there.stranded(v, placement) {
		// Links cannot leave some of the machines: perhaps they need not.
		request.Hosts = slices.DeleteFunc(request.Hosts, func(h embed.Host) bool { return len(there[h.Name].Addrs) == 0 })
		if other, err := p.embedder.Embed(request); err == nil && !there.stranded(v, other) {
			placement = other
		}
	}
	if err := there.have(v, placement); err != nil {
		return nil, err
	}
	return placement, nil
}

// have refuses limits that are more than the substrate node has, and so none at all.
// The sum of all limits may be more.
func (h hosts) have(v *vnet.VNet, placement map[string]string) error {
	for i := range v.Nodes {
		n, on := &v.Nodes[i], placement[v.Nodes[i].Name]
		if has := h[on].Memory; has > 0 && n.Memory > has {
			return Refused{fmt.Errorf("node %s may have %s of memory, and nodes on %s %s all together; lower memory",
				n.Name, vnet.FormatSize(n.Memory), on, vnet.FormatSize(has))}
		}
	}
	return nil
}

// stranded reports whether a placement has a link that leaves a substrate node
// without an uplink.
func (h hosts) stranded(v *vnet.VNet, placement map[string]string) bool {
	for i := range v.Links {
		ends := v.Links[i].Endpoints
		alone, first := false, placement[ends[0].Node]
		crosses := false
		for _, e := range ends {
			on := placement[e.Node]
			alone = alone || len(h[on].Addrs) == 0
			crosses = crosses || on != first
		}
		if alone && crosses {
			return true
		}
	}
	return false
}

// free lists the substrate nodes that accept new nodes. What other VNets' nodes may
// use there is only looked up where it counts.
func (p *Provider) free(ctx context.Context, except string, there hosts, counts bool) ([]embed.Host, error) {
	index := map[string]int{}
	var free []embed.Host
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if there.accepts(name) == nil {
			index[name] = len(free)
			free = append(free, embed.Host{Name: name, Memory: there[name].Memory, CPU: there[name].CPU})
		}
	}
	if !counts || len(free) < 2 {
		return free, nil
	}
	others, err := p.store.Summaries(ctx)
	if err != nil {
		return nil, err
	}
	for _, v := range others {
		if v.Name == except {
			continue
		}
		for host, share := range v.Shares {
			if j, ok := index[host]; ok {
				free[j].MemoryUsed += share.Memory
				free[j].CPUUsed += share.CPU
			}
		}
	}
	return free, nil
}
