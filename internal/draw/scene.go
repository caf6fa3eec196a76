// Package draw draws virtual networks: as SVG for people, as DOT (Graphviz) and
// Mermaid for other programs. It is pure, and its output depends on the network
// alone: the same network gives the same picture.
package draw

import (
	"fmt"
	"strings"
	"time"

	"trellis/internal/vnet"
)

// scene is a network as a graph to draw: a vertex for each node and each LAN,
// an edge for each point-to-point link and each interface on a LAN.
type scene struct {
	name     string
	subtitle string
	vertices []vertex
	edges    []edge
	// common is the label that all links bear, where there is one; it is then
	// said once and not at each link.
	common string
}

// shape is what stands for a vertex.
type shape string

const (
	router shape = "router"
	host   shape = "host"
	lan    shape = "lan"
)

type vertex struct {
	name  string // of the node, or of the LAN
	label string // lines
	title string // shown when pointed at
	shape shape
	geo   *vnet.Position
}

// Options say what a drawing shows beyond the nodes and links.
type Options struct {
	Interfaces bool // the names of interfaces, at the ends of links
	Addresses  bool // the addresses of interfaces and loopbacks
}

type edge struct {
	a, b  int // indexes of vertices
	label string
	title string
	down  bool
	// ends are the texts at a and b, lines of interface names and addresses.
	ends [2]string
	// nth counts the edges between the same vertices, of which there are many.
	nth, many int
}

// newScene makes the scene of a network. Endpoints of nodes that do not exist
// are left out: drawing is no place to complain.
func newScene(v *vnet.VNet, o Options) *scene {
	s := &scene{name: v.Name}
	index := make(map[string]int, len(v.Nodes))
	for i := range v.Nodes {
		n := &v.Nodes[i]
		index[n.Name] = len(s.vertices)
		kind := router
		if !n.Kind.Traits().Forwards {
			kind = host
		}
		label := n.DisplayName()
		if o.Addresses {
			for _, a := range n.Loopbacks {
				label += "\n" + a.String()
			}
		}
		s.vertices = append(s.vertices, vertex{name: n.Name, label: label, title: nodeTitle(n), shape: kind, geo: n.Position})
	}
	for i := range v.Links {
		l := &v.Links[i]
		if l.Type == vnet.LAN {
			s.addLAN(l, index, o)
			continue
		}
		if len(l.Endpoints) != 2 {
			continue
		}
		a, okA := index[l.Endpoints[0].Node]
		b, okB := index[l.Endpoints[1].Node]
		if okA && okB {
			s.edges = append(s.edges, edge{a: a, b: b, label: linkLabel(l), title: linkTitle(l), down: l.Down,
				ends: [2]string{endText(&l.Endpoints[0], o), endText(&l.Endpoints[1], o)}})
		}
	}
	s.countParallel()
	s.findCommon()
	links := "links"
	if len(v.Links) == 1 {
		links = "link"
	}
	nodes := "nodes"
	if len(v.Nodes) == 1 {
		nodes = "node"
	}
	s.subtitle = fmt.Sprintf("%d %s, %d %s", len(v.Nodes), nodes, len(v.Links), links)
	if p := v.Routing.Protocol; p != "" && p != vnet.None {
		s.subtitle += ", " + string(p)
	}
	if s.common != "" {
		s.subtitle += ", every link " + s.common
	}
	return s
}

// addLAN adds a vertex for a LAN and an edge for each of its interfaces.
func (s *scene) addLAN(l *vnet.Link, index map[string]int, o Options) {
	at := len(s.vertices)
	label := l.Name
	if label == "" {
		label = "LAN"
	}
	s.vertices = append(s.vertices, vertex{name: label, label: label, title: linkTitle(l), shape: lan})
	for i := range l.Endpoints {
		e := &l.Endpoints[i]
		if n, ok := index[e.Node]; ok {
			title := endName(e) + " on " + label
			if text := shapeText(e.Tx); text != "" {
				title += "\nsends " + text
			}
			s.edges = append(s.edges, edge{a: n, b: at, label: shapeText(e.Tx), title: title, down: l.EndDown(i), ends: [2]string{endText(e, o)}})
		}
	}
}

// countParallel numbers the edges between the same two vertices.
func (s *scene) countParallel() {
	between := map[[2]int][]int{}
	for i, e := range s.edges {
		key := [2]int{min(e.a, e.b), max(e.a, e.b)}
		between[key] = append(between[key], i)
	}
	for _, list := range between {
		for n, i := range list {
			s.edges[i].nth, s.edges[i].many = n, len(list)
		}
	}
}

// findCommon moves a label that every edge bears into common.
func (s *scene) findCommon() {
	if len(s.edges) < 3 {
		return
	}
	for _, e := range s.edges {
		if e.label == "" || e.label != s.edges[0].label {
			return
		}
	}
	s.common = s.edges[0].label
	for i := range s.edges {
		s.edges[i].label = ""
	}
}

// neighbors lists, for each vertex, the vertices at the other ends of its edges.
func (s *scene) neighbors() [][]int {
	out := make([][]int, len(s.vertices))
	for _, e := range s.edges {
		if e.a != e.b {
			out[e.a] = append(out[e.a], e.b)
			out[e.b] = append(out[e.b], e.a)
		}
	}
	return out
}

func nodeTitle(n *vnet.Node) string {
	lines := []string{n.DisplayName()}
	if n.Display != "" {
		lines = append(lines, n.Name)
	}
	for _, a := range n.Loopbacks {
		lines = append(lines, a.String())
	}
	if n.Routing.Speaks(vnet.BGP) {
		lines = append(lines, fmt.Sprintf("AS %d", n.ASN))
	}
	return strings.Join(lines, "\n")
}

// endText is what a drawing shows at an end of a link, a line for each thing.
func endText(e *vnet.Interface, o Options) string {
	var lines []string
	if o.Interfaces {
		lines = append(lines, e.Name)
	}
	if o.Addresses {
		for _, a := range e.Addrs {
			lines = append(lines, a.String())
		}
	}
	return strings.Join(lines, "\n")
}

func endName(e *vnet.Interface) string {
	if e.Name == "" {
		return e.Node
	}
	return e.Node + ":" + e.Name
}

// linkTitle says everything about a link, one end to a line.
func linkTitle(l *vnet.Link) string {
	var lines []string
	if l.Name != "" {
		lines = append(lines, l.Name)
	}
	if l.Down {
		lines = append(lines, "down")
	}
	for i := range l.Endpoints {
		e := &l.Endpoints[i]
		words := []string{endName(e)}
		if e.Down {
			words = append(words, "down")
		}
		for _, a := range e.Addrs {
			words = append(words, a.String())
		}
		if text := shapeText(e.Tx); text != "" {
			words = append(words, "sends "+text)
		}
		lines = append(lines, strings.Join(words, "  "))
	}
	return strings.Join(lines, "\n")
}

// linkLabel says what a point-to-point link does to frames: once where both
// directions are alike.
func linkLabel(l *vnet.Link) string {
	a, b := shapeText(l.Endpoints[0].Tx), shapeText(l.Endpoints[1].Tx)
	switch {
	case a == b:
		return a
	case a == "":
		a = "unlimited"
	case b == "":
		b = "unlimited"
	}
	return a + " / " + b
}

// shapeText says what a shape does, empty for a perfect wire.
func shapeText(s vnet.Shape) string {
	var words []string
	if s.Rate != 0 {
		words = append(words, vnet.FormatRate(s.Rate))
	}
	if s.Delay != 0 {
		words = append(words, s.Delay.Round(time.Microsecond).String())
	}
	if s.Jitter != 0 {
		words = append(words, "±"+s.Jitter.Round(time.Microsecond).String())
	}
	if s.Loss != 0 {
		words = append(words, fmt.Sprintf("%.3g%% loss", s.Loss*100))
	}
	return strings.Join(words, " ")
}
