package vnet

// Node gives the node of that name, or nil.
func (v *VNet) Node(name string) *Node {
	for i := range v.Nodes {
		if v.Nodes[i].Name == name {
			return &v.Nodes[i]
		}
	}
	return nil
}

// Link gives the link of that name, or nil.
func (v *VNet) Link(name string) *Link {
	for i := range v.Links {
		if v.Links[i].Name == name {
			return &v.Links[i]
		}
	}
	return nil
}

// EndDown reports whether an end of the link has no carrier: with the link, or alone.
func (l *Link) EndDown(end int) bool { return l.Down || l.Endpoints[end].Down }

// Neighbor is one way from a node to another over one link.
type Neighbor struct {
	Node   string // at the far end
	Link   int    // index in VNet.Links
	Local  int    // index of the near end in Link.Endpoints
	Remote int    // index of the far end in Link.Endpoints
}

// Adjacency lists each node's neighbours in the order of the links, over links
// that are up or down alike. Every two ends of a LAN are neighbours, but those of
// one node.
func (v *VNet) Adjacency() map[string][]Neighbor {
	adj := make(map[string][]Neighbor, len(v.Nodes))
	for li := range v.Links {
		ends := v.Links[li].Endpoints
		for a := range ends {
			for b := range ends {
				if ends[a].Node != ends[b].Node {
					adj[ends[a].Node] = append(adj[ends[a].Node], Neighbor{Node: ends[b].Node, Link: li, Local: a, Remote: b})
				}
			}
		}
	}
	return adj
}

// Components gives the sets of nodes that links connect, whether the links are
// up or down: what a network is when every cable is plugged in. Each component
// lists its nodes in the order of the description, and the components are in the
// order of their first nodes. A node without a link is a component of its own.
func (v *VNet) Components() [][]string {
	index := make(map[string]int, len(v.Nodes))
	sets := NewDisjoint(len(v.Nodes))
	for i := range v.Nodes {
		index[v.Nodes[i].Name] = i
	}
	for li := range v.Links {
		first := -1
		for _, end := range v.Links[li].Endpoints {
			i, known := index[end.Node]
			if !known {
				continue
			}
			if first < 0 {
				first = i
			}
			sets.Join(first, i)
		}
	}
	var out [][]string
	place := make(map[int]int)
	for i := range v.Nodes {
		root := sets.Find(i)
		at, seen := place[root]
		if !seen {
			at = len(out)
			place[root] = at
			out = append(out, nil)
		}
		out[at] = append(out[at], v.Nodes[i].Name)
	}
	return out
}
