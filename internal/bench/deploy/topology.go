package deploy

import (
	"fmt"

	"trellis/internal/vnet"
)

// Limits of nodes in generated networks: enough for any routing daemon's tables
// of the largest of them, and low enough for a thousand nodes side by side.
const (
	memory = 128 << 20 // bytes
	pids   = 128
)

// Ring gives n routers, each linked with the next and the last with the first.
func Ring(n int, r vnet.Routing) (*vnet.VNet, error) {
	if n < 3 {
		return nil, fmt.Errorf("a ring of %d nodes: the least ring has 3", n)
	}
	b := builder{name: fmt.Sprintf("ring-%d", n), routing: r}
	for i := range n {
		b.node("r", i)
	}
	for i := range n {
		b.link(i, (i+1)%n)
	}
	return b.finish()
}

// Tree gives n routers in a binary tree, filled level by level: node i is linked
// with its parent, (i-1)/2.
func Tree(n int, r vnet.Routing) (*vnet.VNet, error) {
	if n < 1 {
		return nil, fmt.Errorf("a tree of %d nodes: the least tree has 1", n)
	}
	b := builder{name: fmt.Sprintf("tree-%d", n), routing: r}
	for i := range n {
		b.node("r", i)
	}
	for i := 1; i < n; i++ {
		b.link((i-1)/2, i)
	}
	return b.finish()
}

// Grid gives rows × columns routers, each linked with its neighbours to the
// right and below.
func Grid(rows, columns int, r vnet.Routing) (*vnet.VNet, error) {
	if rows < 1 || columns < 1 {
		return nil, fmt.Errorf("a grid of %d × %d nodes: the least grid has 1 × 1", rows, columns)
	}
	b := builder{name: fmt.Sprintf("grid-%dx%d", rows, columns), routing: r}
	for i := range rows * columns {
		b.node("r", i)
	}
	for i := range rows * columns {
		if (i+1)%columns != 0 {
			b.link(i, i+1)
		}
		if i+columns < rows*columns {
			b.link(i, i+columns)
		}
	}
	return b.finish()
}

// Core says how the routers of a [Hosts] network are linked.
type Core string

// Shapes of the core.
const (
	Mesh     Core = "mesh" // each with every other
	CoreRing Core = "ring"
	mostMesh      = 64 // routers in a mesh: 2,016 links
)

// Hosts gives routers that speak r, in a core of the given shape, and hosts that
// hang on them evenly, each by a link of its own. Hosts run no routing software
// and have connected routes only: a container, an interface, its addresses.
func Hosts(hosts, routers int, core Core, r vnet.Routing) (*vnet.VNet, error) {
	switch {
	case routers < 1 || hosts < 1:
		return nil, fmt.Errorf("%d hosts on %d routers: there must be one of each at least", hosts, routers)
	case core == Mesh && routers > mostMesh:
		return nil, fmt.Errorf("a full mesh of %d routers: choose a ring for more than %d", routers, mostMesh)
	case core == CoreRing && routers < 3:
		return nil, fmt.Errorf("a ring of %d routers: the least ring has 3; choose a mesh", routers)
	case core != Mesh && core != CoreRing:
		return nil, fmt.Errorf("a core of shape %q: it is either %s or %s", core, Mesh, CoreRing)
	}
	b := builder{name: fmt.Sprintf("hosts-%d-%d", hosts, routers), routing: r}
	for i := range routers {
		b.node("r", i)
	}
	for i := range hosts {
		b.node("h", i)
		b.v.Nodes[routers+i].Routing = vnet.Routing{Protocol: vnet.None}
	}
	for i := range routers {
		if core == CoreRing {
			b.link(i, (i+1)%routers)
			continue
		}
		for j := i + 1; j < routers; j++ {
			b.link(i, j)
		}
	}
	for i := range hosts {
		b.link(routers+i, i%routers)
	}
	return b.finish()
}

// builder puts a generated network together.
type builder struct {
	name    string
	routing vnet.Routing
	v       vnet.VNet
}

func (b *builder) node(kind string, number int) {
	b.v.Nodes = append(b.v.Nodes, vnet.Node{
		Name: fmt.Sprintf("%s%d", kind, number+1), Memory: memory, Pids: pids,
	})
}

func (b *builder) link(i, j int) {
	b.v.Links = append(b.v.Links, vnet.Link{Endpoints: []vnet.Interface{
		{Node: b.v.Nodes[i].Name}, {Node: b.v.Nodes[j].Name},
	}})
}

func (b *builder) finish() (*vnet.VNet, error) {
	b.v.Name, b.v.Routing = b.name, b.routing
	return finish(&b.v)
}

// finish completes and validates a network.
func finish(v *vnet.VNet) (*vnet.VNet, error) {
	if err := v.Complete(); err != nil {
		return nil, fmt.Errorf("%s: %w", v.Name, err)
	}
	if err := v.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", v.Name, err)
	}
	return v, nil
}
