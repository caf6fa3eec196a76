package draw

import (
	"slices"

	"gonum.org/v1/gonum/graph"
	"gonum.org/v1/gonum/graph/iterator"
	"gonum.org/v1/gonum/graph/simple"
)

// hopGraph is a component as the layout library wants to see it, its vertices
// numbered from 0. It lists everything in order, unlike the library's own graphs,
// whose order changes from run to run and the picture with it.
type hopGraph struct {
	nodes    []graph.Node
	adjacent [][]int // ascending, without repetitions
}

// newHopGraph makes the graph of the vertices in members, with the adjacency
// of all vertices.
func newHopGraph(members []int, neighbors [][]int) *hopGraph {
	local := make(map[int]int, len(members))
	for i, v := range members {
		local[v] = i
	}
	g := &hopGraph{adjacent: make([][]int, len(members))}
	for i, v := range members {
		g.nodes = append(g.nodes, simple.Node(i))
		for _, w := range neighbors[v] {
			g.adjacent[i] = append(g.adjacent[i], local[w])
		}
		slices.Sort(g.adjacent[i])
		g.adjacent[i] = slices.Compact(g.adjacent[i])
	}
	return g
}

// Node implements graph.Graph.
func (g *hopGraph) Node(id int64) graph.Node {
	if id < 0 || id >= int64(len(g.nodes)) {
		return nil
	}
	return g.nodes[id]
}

// Nodes implements graph.Graph.
func (g *hopGraph) Nodes() graph.Nodes { return iterator.NewOrderedNodes(g.nodes) }

// From implements graph.Graph.
func (g *hopGraph) From(id int64) graph.Nodes {
	out := make([]graph.Node, 0, len(g.adjacent[id]))
	for _, j := range g.adjacent[id] {
		out = append(out, g.nodes[j])
	}
	return iterator.NewOrderedNodes(out)
}

// HasEdgeBetween implements graph.Graph.
func (g *hopGraph) HasEdgeBetween(x, y int64) bool {
	_, found := slices.BinarySearch(g.adjacent[x], int(y))
	return found
}

// Edge implements graph.Graph.
func (g *hopGraph) Edge(u, v int64) graph.Edge {
	if !g.HasEdgeBetween(u, v) {
		return nil
	}
	return simple.Edge{F: g.nodes[u], T: g.nodes[v]}
}
