// Package embed decides which substrate node hosts each virtual node: graph in,
// assignment out. It is pure, knows nothing of the rest of Trellis, and gives the
// same assignment for the same request every time.
//
// [FirstFit] is the only algorithm so far. Callers use it through an
// interface of their own, so that others can stand in its place.
package embed

import (
	"fmt"
	"slices"
	"strings"
)

// Request is a virtual network, and the substrate that it is to go onto.
type Request struct {
	// Nodes come in the order of the description, which is the order they are
	// served in.
	Nodes []Node
	Links []Link
	// Hosts are the substrate nodes that accept new nodes, in any order.
	Hosts []Host
}

// Node is a virtual node. A limit of 0 counts as nothing.
type Node struct {
	Name   string
	Memory int64   // limit, bytes
	CPU    float64 // limit, cores
	// On is the substrate node that it must be on; empty: any.
	On string
	// At is where it is now, which need not be among Hosts; empty: nowhere. It
	// stays there unless On names another.
	At string
}

// Link is a virtual link, by the names of the nodes that it joins.
type Link struct {
	Nodes []string
	Rate  uint64 // most that any end may send, bit/s; 0: unlimited
}

// Host is a substrate node.
type Host struct {
	Name   string
	Memory int64   // for nodes, bytes
	CPU    float64 // cores for nodes
	// What nodes of other networks are limited to. Limits are ceilings and not
	// reservations, so it may be more than there is.
	MemoryUsed int64
	CPUUsed    float64
}

// Assignment is the substrate node of each virtual node, by name.
type Assignment map[string]string

// FirstFit gives each node the first host, by name, that has room for its limits,
// and where none has, the one with the largest share left. Nodes that are
// somewhere, or must be, go before the others. Links do not count.
type FirstFit struct{}

// Embed assigns every node. It fails only where a node asks for a host that accepts
// none, or where there are no hosts for the nodes that have to go somewhere.
func (FirstFit) Embed(r Request) (Assignment, error) {
	hosts := slices.Clone(r.Hosts)
	slices.SortFunc(hosts, func(a, b Host) int { return strings.Compare(a.Name, b.Name) })
	find := func(name string) *Host {
		i, ok := slices.BinarySearchFunc(hosts, name, func(h Host, name string) int { return strings.Compare(h.Name, name) })
		if !ok {
			return nil
		}
		return &hosts[i]
	}
	out := make(Assignment, len(r.Nodes))
	for i := range r.Nodes {
		n := &r.Nodes[i]
		name := n.At
		if n.On != "" {
			name = n.On
		}
		if name == "" {
			continue
		}
		h := find(name)
		if h == nil && name != n.At {
			return nil, fmt.Errorf("node %s asks for %s, which accepts no nodes", n.Name, name)
		}
		if h != nil {
			h.charge(n)
		}
		out[n.Name] = name
	}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if out[n.Name] != "" {
			continue
		}
		if len(hosts) == 0 {
			return nil, fmt.Errorf("no substrate node accepts node %s", n.Name)
		}
		h := choose(hosts, n)
		h.charge(n)
		out[n.Name] = h.Name
	}
	return out, nil
}

// choose gives the first host with room, or the one with the largest share left.
func choose(hosts []Host, n *Node) *Host {
	best := &hosts[0]
	for i := range hosts {
		if hosts[i].fits(n) {
			return &hosts[i]
		}
		if hosts[i].left() > best.left() {
			best = &hosts[i]
		}
	}
	return best
}

func (h *Host) charge(n *Node) {
	h.MemoryUsed += n.Memory
	h.CPUUsed += n.CPU
}

// fits reports whether the host has room for a node's limits.
func (h *Host) fits(n *Node) bool {
	return (n.Memory == 0 || n.Memory <= h.Memory-h.MemoryUsed) && (n.CPU == 0 || n.CPU <= h.CPU-h.CPUUsed+grain)
}

// grain is less of a core than anybody asks for, and more than adding up shares such
// as 0.1, which no floating point number is, may be wrong by.
const grain = 1e-6

// left is the share of the host that is free, of what it has least
// of: 1 for an empty one, below 0 where more is promised than there is.
func (h *Host) left() float64 {
	share := func(used, all float64) float64 {
		if all <= 0 {
			return -1e9 - used // nothing there is worse than anything used
		}
		return 1 - used/all
	}
	return min(share(float64(h.MemoryUsed), float64(h.Memory)), share(h.CPUUsed, h.CPU))
}
