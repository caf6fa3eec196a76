package draw

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"trellis/internal/vnet"
)

// DOT writes the network in the language of Graphviz (dot(1)).
func DOT(w io.Writer, v *vnet.VNet, o Options) error {
	s := newScene(v, o)
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "graph %s {\n", dotQuote(s.name))
	fmt.Fprintf(b, "  graph [label=%s, labelloc=t, fontname=\"sans-serif\", overlap=false, splines=true]\n", dotQuote(s.name+": "+s.subtitle))
	fmt.Fprintln(b, `  node [shape=circle, style=filled, fillcolor="#dbe9f6", color="#2f6690", fontname="sans-serif", fontsize=11]`)
	fmt.Fprintln(b, `  edge [color="#6b7785", fontname="sans-serif", fontsize=9]`)
	for i, n := range s.vertices {
		attrs := []string{"label=" + dotQuote(n.label), "tooltip=" + dotQuote(n.title)}
		switch n.shape {
		case host:
			attrs = append(attrs, "shape=box", `fillcolor="#dcebcf"`, `color="#5d8a3a"`)
		case lan:
			attrs = append(attrs, "shape=box", `style="filled,rounded"`, `fillcolor="#fdf1d8"`, `color="#b7791f"`)
		}
		fmt.Fprintf(b, "  %s [%s]\n", dotQuote(s.id(i)), strings.Join(attrs, ", "))
	}
	for _, e := range s.edges {
		attrs := []string{"tooltip=" + dotQuote(e.title)}
		if e.label != "" {
			attrs = append(attrs, "label="+dotQuote(e.label))
		}
		for k, key := range []string{"taillabel=", "headlabel="} {
			if e.ends[k] != "" {
				attrs = append(attrs, key+dotQuote(e.ends[k]))
			}
		}
		if e.down {
			attrs = append(attrs, "style=dashed", `color="#c0392b"`)
		}
		fmt.Fprintf(b, "  %s -- %s [%s]\n", dotQuote(s.id(e.a)), dotQuote(s.id(e.b)), strings.Join(attrs, ", "))
	}
	fmt.Fprintln(b, "}")
	return b.Flush()
}

// id names a vertex in DOT: a LAN may bear the name of a node.
func (s *scene) id(i int) string {
	if s.vertices[i].shape == lan {
		return "@" + s.vertices[i].name
	}
	return s.vertices[i].name
}

// dotQuote writes a string of DOT. Backslashes start escapes of labels there.
func dotQuote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", "").Replace(s) + `"`
}

// Mermaid writes the network as a Mermaid flowchart, which web pages and many
// readers of Markdown draw.
func Mermaid(w io.Writer, v *vnet.VNet, o Options) error {
	s := newScene(v, o)
	b := bufio.NewWriter(w)
	fmt.Fprintln(b, "---")
	fmt.Fprintf(b, "title: %s\n", mermaidQuote(s.name+": "+s.subtitle))
	fmt.Fprintln(b, "---")
	fmt.Fprintln(b, "flowchart LR")
	for i, n := range s.vertices {
		left, right := "((", "))"
		switch n.shape {
		case host:
			left, right = "[", "]"
		case lan:
			left, right = "([", "])"
		}
		fmt.Fprintf(b, "  n%d%s%s%s\n", i, left, mermaidQuote(n.label), right)
	}
	for _, e := range s.edges {
		line := "---"
		if e.down {
			line = "-.-"
		}
		if text := e.line(); text != "" {
			line += "|" + mermaidQuote(text) + "|"
		}
		fmt.Fprintf(b, "  n%d %s n%d\n", e.a, line, e.b)
	}
	of := map[shape][]string{}
	for i, n := range s.vertices {
		of[n.shape] = append(of[n.shape], fmt.Sprintf("n%d", i))
	}
	if ids := of[host]; len(ids) > 0 {
		fmt.Fprintln(b, "  classDef host fill:#dcebcf,stroke:#5d8a3a")
		fmt.Fprintf(b, "  class %s host\n", strings.Join(ids, ","))
	}
	if ids := of[lan]; len(ids) > 0 {
		fmt.Fprintln(b, "  classDef lan fill:#fdf1d8,stroke:#b7791f")
		fmt.Fprintf(b, "  class %s lan\n", strings.Join(ids, ","))
	}
	return b.Flush()
}

// line puts all texts of an edge into one, for programs that place one text on a
// line: the near end, the label, the far end.
func (e *edge) line() string {
	var words []string
	for _, text := range []string{e.ends[0], e.label, e.ends[1]} {
		if text != "" {
			words = append(words, strings.ReplaceAll(text, "\n", " "))
		}
	}
	return strings.Join(words, " · ")
}

// mermaidQuote writes a string of Mermaid, whose escapes are HTML entities with
// a number sign in the place of the ampersand.
func mermaidQuote(s string) string {
	return `"` + strings.NewReplacer(`"`, "#quot;", "#", "#35;", "<", "#lt;", ">", "#gt;", "\n", "<br/>", "\r", "").Replace(s) + `"`
}
