package format

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"trellis/internal/vnet"
	"trellis/internal/yamlfile"
)

// maxDaemonNodes is the largest network that gets routing daemons where the
// format has no word for routing: OSPF on every node of a network beyond it takes
// more memory (about 10 MiB a node) and time than a laptop should spend unasked,
// so it gets computed routes.
const maxDaemonNodes = 100

// graphBuilder turns a graph into a network.
type graphBuilder struct {
	file     string
	errs     Errors
	warnings []Warning
	lines    places
}

func (b *graphBuilder) fail(line int, remedy, what string, args ...any) {
	b.errs = append(b.errs, Error{File: b.file, Line: line, What: fmt.Sprintf(what, args...), Remedy: remedy})
}

func (b *graphBuilder) warn(line int, what string, args ...any) {
	b.warnings = append(b.warnings, Warning{File: b.file, Line: line, What: fmt.Sprintf(what, args...)})
}

func (b *graphBuilder) build(g *graph) *vnet.VNet {
	v := &vnet.VNet{Name: b.networkName(g), Routing: vnet.Routing{Protocol: vnet.OSPF}}
	nodes := b.nodes(g)
	if len(nodes) > maxDaemonNodes {
		v.Routing.Protocol = vnet.Static
	}
	names := nameNodes(nodes)
	byID := make(map[string]string, len(nodes))
	for i, n := range nodes {
		byID[n.id] = names[i]
		b.lines[fmt.Sprintf("nodes[%d]", i)] = n.line
		v.Nodes = append(v.Nodes, vnet.Node{Name: names[i], Display: display(n.attrs["label"], names[i]), Position: b.position(n)})
	}
	if len(nodes) == 0 && len(b.errs) == 0 {
		b.fail(1, "give a GraphML file with nodes and edges", "the graph has no nodes")
	}
	b.links(v, g, byID)
	return v
}

// networkName takes the file's name before the file's own word for the network:
// several files of the Zoo have the same one, GEANT's years for example.
func (b *graphBuilder) networkName(g *graph) string {
	base, ext := filepath.Base(b.file), filepath.Ext(b.file)
	words := []string{strings.TrimSuffix(base, ext), g.attrs["network"], g.attrs["label"]}
	if ext == "" { // standard input, say
		words = append(words[1:], words[0])
	}
	for _, s := range words {
		if name := vnet.VNetLabel(fold(s)); name != "" {
			return name
		}
	}
	return "graph"
}

// nodes checks the ids and leaves out groups that no edge ends at: they are
// frames around nodes.
func (b *graphBuilder) nodes(g *graph) []graphNode {
	used := map[string]bool{}
	for _, e := range g.edges {
		for _, id := range e.ends {
			used[id] = true
		}
	}
	first := make(map[string]int, len(g.nodes))
	var out []graphNode
	for _, n := range g.nodes {
		if line, dup := first[n.id]; dup {
			b.fail(n.line, "give every node an id of its own", "node id %q is there twice (first in line %d)", yamlfile.Clip(n.id), line)
			continue
		}
		first[n.id] = n.line
		if !n.group || used[n.id] {
			out = append(out, n)
		}
	}
	return out
}

// nameNodes makes unique names from labels. A placeholder or a label without a
// letter or digit that can be kept gives way to the node's id; of several nodes
// with one label the first keeps it, the others get -2, -3, ….
func nameNodes(nodes []graphNode) []string {
	preferred := make([]string, len(nodes))
	taken := map[string]bool{}
	for i, n := range nodes {
		preferred[i] = preferredName(n, i)
		taken[preferred[i]] = true
	}
	out := make([]string, len(nodes))
	uses := map[string]int{} // of a label, so far
	for i, w := range preferred {
		name := w
		count := uses[w]
		for count > 0 {
			count++
			suffix := "-" + strconv.Itoa(count)
			name = strings.TrimRight(w[:min(len(w), 63-len(suffix))], "-") + suffix
			if !taken[name] {
				break
			}
		}
		uses[w] = max(count, 1)
		taken[name] = true
		out[i] = name
	}
	return out
}

// display gives a label as the name that people read, "" where it is none or the
// same as the node's name.
func display(label, name string) string {
	s := strings.Join(strings.Fields(label), " ")
	if placeholder(s) || s == name || !vnet.ValidDisplay(s) {
		return ""
	}
	return s
}

func preferredName(n graphNode, index int) string {
	name := ""
	if !placeholder(n.attrs["label"]) {
		name = vnet.NodeLabel(fold(n.attrs["label"]))
	}
	if name == "" {
		name = vnet.NodeLabel(fold(n.id))
	}
	if name == "" {
		name = strconv.Itoa(index)
	}
	// A name of digits alone would be taken for an address by every program that
	// resolves names: "7" is 0.0.0.7.
	if strings.Trim(name, "0123456789") == "" {
		name = "n" + name[:min(len(name), 62)]
	}
	return name
}

// placeholder reports whether a label only says that there is none.
func placeholder(label string) bool {
	switch strings.ToLower(strings.TrimSpace(label)) {
	case "", "none", "null", "nan", "unknown":
		return true
	}
	return strings.Trim(label, "?- ") == ""
}

// fold gives text in ASCII letters as far as a letter has one at its root:
// decomposition takes the accents off, the table does the letters that Unicode
// does not decompose.
func fold(s string) string {
	var out strings.Builder
	for _, r := range norm.NFKD.String(s) {
		switch {
		case unicode.Is(unicode.Mn, r) || r == '\'' || r == '’' || r == '`':
		case plainLetters[unicode.ToLower(r)] != "":
			out.WriteString(plainLetters[unicode.ToLower(r)])
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

var plainLetters = map[rune]string{
	'ß': "ss", 'æ': "ae", 'œ': "oe", 'ø': "o", 'ł': "l", 'đ': "d", 'ð': "d", 'þ': "th", 'ı': "i", 'ħ': "h", 'ŧ': "t", 'ŋ': "n",
}

func (b *graphBuilder) position(n graphNode) *vnet.Position {
	lat, lon := n.attrs["latitude"], n.attrs["longitude"]
	if lat == "" || lon == "" {
		return nil
	}
	y, err1 := strconv.ParseFloat(lat, 64)
	x, err2 := strconv.ParseFloat(lon, 64)
	if err1 != nil || err2 != nil || !(math.Abs(y) <= 90 && math.Abs(x) <= 180) {
		b.warn(n.line, "node %q: the position %q, %q is not on the globe and was left out", yamlfile.Clip(n.id), yamlfile.Clip(lat), yamlfile.Clip(lon))
		return nil
	}
	return &vnet.Position{Latitude: y, Longitude: x}
}

// links makes a link of every edge; two directed edges in opposite directions
// are one link.
func (b *graphBuilder) links(v *vnet.VNet, g *graph, byID map[string]string) {
	type direction struct{ from, to string }
	open := map[direction][]int{} // links that a directed edge made, still without their opposite
	for _, e := range g.edges {
		if e.hyper {
			b.lan(v, e, byID)
			continue
		}
		from, ok1 := byID[e.ends[0]]
		to, ok2 := byID[e.ends[1]]
		for i, ok := range []bool{ok1, ok2} {
			if !ok {
				b.fail(e.line, "add the node, or remove the edge", "an edge ends at node %q, which does not exist", yamlfile.Clip(e.ends[i]))
			}
		}
		if !ok1 || !ok2 {
			continue
		}
		if from == to {
			b.warn(e.line, "the edge from node %q to itself was left out: a link joins different nodes", from)
			continue
		}
		shape := vnet.Shape{Rate: b.rate(e)}
		if e.directed {
			if back := open[direction{to, from}]; len(back) > 0 {
				v.Links[back[0]].Endpoints[1].Tx = shape
				open[direction{to, from}] = back[1:]
				continue
			}
			open[direction{from, to}] = append(open[direction{from, to}], len(v.Links))
		}
		b.lines[fmt.Sprintf("links[%d]", len(v.Links))] = e.line
		v.Links = append(v.Links, vnet.Link{Type: vnet.PointToPoint, Endpoints: []vnet.Interface{{Node: from, Tx: shape}, {Node: to, Tx: shape}}})
	}
}

// lan makes a LAN of a hyperedge.
func (b *graphBuilder) lan(v *vnet.VNet, e graphEdge, byID map[string]string) {
	rate := b.rate(e)
	l := vnet.Link{Type: vnet.LAN}
	on := map[string]bool{}
	for _, id := range e.ends {
		name, ok := byID[id]
		if !ok {
			b.fail(e.line, "add the node, or remove the endpoint", "a hyperedge ends at node %q, which does not exist", yamlfile.Clip(id))
			continue
		}
		if on[name] {
			b.warn(e.line, "the hyperedge's second end at node %q was left out", name)
			continue
		}
		on[name] = true
		l.Endpoints = append(l.Endpoints, vnet.Interface{Node: name, Tx: vnet.Shape{Rate: rate}, Rx: vnet.Shape{Rate: rate}})
	}
	if len(l.Endpoints) == 0 {
		b.warn(e.line, "a hyperedge without ends was left out")
		return
	}
	b.lines[fmt.Sprintf("links[%d]", len(v.Links))] = e.line
	v.Links = append(v.Links, l)
}

// rate reads the Zoo's LinkSpeedRaw, in bit/s.
func (b *graphBuilder) rate(e graphEdge) uint64 {
	raw := e.attrs["linkspeedraw"]
	if raw == "" {
		return 0
	}
	f, err := strconv.ParseFloat(raw, 64)
	if err != nil || !(f >= vnet.MinRate && f <= vnet.MaxRate) {
		b.warn(e.line, "the link speed %q is not a rate from %s to %s; the link is unlimited", yamlfile.Clip(raw), vnet.FormatRate(vnet.MinRate), vnet.FormatRate(vnet.MaxRate))
		return 0
	}
	return uint64(math.Round(f))
}
