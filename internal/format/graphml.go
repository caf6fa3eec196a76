package format

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"

	"trellis/internal/vnet"
	"trellis/internal/yamlfile"
)

// maxXMLDepth bounds nesting; yEd's groups in groups stay far below it.
const maxXMLDepth = 64

// maxKeys bounds the declared attributes, four for each key at most; the Zoo's
// files have some 40 keys.
const maxKeys = 20_000

// graph is a GraphML document as it is written, before it means a network.
type graph struct {
	attrs    map[string]string // of the graph, by lower-case attribute name
	directed bool
	nodes    []graphNode
	edges    []graphEdge
}

type graphNode struct {
	id    string
	line  int
	attrs map[string]string
	group bool // holds a graph of its own
}

// graphEdge joins two nodes, or any number where it is a hyperedge.
type graphEdge struct {
	ends     []string // node ids
	line     int
	attrs    map[string]string
	hyper    bool
	directed bool
}

// graphReader reads a document token by token.
type graphReader struct {
	file  string
	dec   *xml.Decoder
	g     graph
	keys  map[string]string // attribute names by key id and domain
	depth int
}

// readGraphML reads GraphML (graphml.graphdrawing.org), with the attributes of
// the Internet Topology Zoo where they are there.
func readGraphML(name string, data []byte, o Options) (*vnet.VNet, []Warning, error) {
	r := &graphReader{file: name, dec: xml.NewDecoder(bytes.NewReader(data)), keys: map[string]string{}}
	r.dec.CharsetReader = charsetReader
	if err := r.document(); err != nil {
		return nil, nil, err
	}
	b := graphBuilder{file: name, lines: places{"": 1}}
	v := b.build(&r.g)
	if len(b.errs) > 0 {
		return nil, nil, b.errs.Err()
	}
	machine := o.Machine
	if len(o.Set) > 0 {
		machine = nil // what is set may be what it lacks, or what it does without
	}
	if err := finish(name, v, b.lines, machine); err != nil {
		return nil, nil, err
	}
	if len(o.Set) > 0 {
		v, err := override(name, v, o)
		if err != nil {
			return nil, nil, err
		}
		return v, b.warnings, nil
	}
	return v, b.warnings, nil
}

// override puts settings over a network that was read from a format without such
// keys, by way of the native one.
func override(name string, v *vnet.VNet, o Options) (*vnet.VNet, error) {
	var native bytes.Buffer
	if err := WriteYAML(&native, v); err != nil {
		return nil, err
	}
	out, _, err := readYAML(name, native.Bytes(), nil, o)
	var errs Errors
	if errors.As(err, &errs) {
		for i := range errs {
			errs[i].Line = 0 // lines of a file that nobody sees
		}
		return nil, errs
	}
	return out, err
}

// charsetReader decodes the encodings that old tools write; encoding/xml does
// UTF-8 itself.
func charsetReader(charset string, in io.Reader) (io.Reader, error) {
	switch strings.ToLower(charset) {
	case "us-ascii", "ascii":
		return in, nil
	case "iso-8859-1", "latin1", "latin-1":
		data, err := io.ReadAll(in) // the file is in memory already
		if err != nil {
			return nil, err
		}
		out := make([]rune, len(data))
		for i, b := range data {
			out[i] = rune(b)
		}
		return strings.NewReader(string(out)), nil
	}
	return nil, fmt.Errorf("the encoding %q is not understood: save the file as UTF-8", yamlfile.Clip(charset))
}

func (r *graphReader) line() int {
	line, _ := r.dec.InputPos()
	return line
}

func (r *graphReader) fail(remedy, what string, args ...any) error {
	return Errors{{File: r.file, Line: r.line(), What: fmt.Sprintf(what, args...), Remedy: remedy}}
}

// next gives the next start, end or text token, or io.EOF.
func (r *graphReader) next() (xml.Token, error) {
	for {
		tok, err := r.dec.Token()
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		if err != nil {
			what := err.Error()
			var syntax *xml.SyntaxError
			if errors.As(err, &syntax) {
				what = syntax.Msg
			}
			return nil, Errors{{File: r.file, Line: r.line(), What: "not valid XML: " + clipLong(what), Remedy: "export the file again, in UTF-8", Err: err}}
		}
		switch t := tok.(type) {
		case xml.Directive:
			return nil, r.fail("remove the <!…> part", "document type declarations and entities are not accepted")
		case xml.StartElement:
			if r.depth++; r.depth > maxXMLDepth {
				return nil, r.fail("flatten the graph", "elements are nested deeper than %d", maxXMLDepth)
			}
			return t, nil
		case xml.EndElement:
			r.depth--
			return t, nil
		case xml.CharData:
			return t, nil
		}
	}
}

func clipLong(s string) string {
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

func attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// document reads the root element and what follows.
func (r *graphReader) document() error {
	seen := false
	for {
		tok, err := r.next()
		if errors.Is(err, io.EOF) {
			if !seen {
				return r.fail("give a GraphML file, or a YAML one named *.yaml", "there is no XML in the file")
			}
			return nil
		}
		if err != nil {
			return err
		}
		start, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		if start.Name.Local != "graphml" || seen {
			return r.fail("give a file with one <graphml> element", "the root element is <%s>, not <graphml>", yamlfile.Clip(start.Name.Local))
		}
		seen = true
		if err := r.root(); err != nil {
			return err
		}
	}
}

// root reads the keys and the first graph.
func (r *graphReader) root() error {
	graphs := 0
	return r.children(func(e xml.StartElement) error {
		switch e.Name.Local {
		case "key":
			if len(r.keys) > maxKeys {
				return r.fail("remove the keys that nothing uses", "the file declares too many keys")
			}
			r.key(e)
		case "graph":
			if graphs++; graphs > 1 {
				return r.fail("keep one graph in each file", "the file holds a second graph")
			}
			r.g.directed = attr(e, "edgedefault") == "directed"
			var err error
			r.g.attrs, err = r.graph()
			return err
		}
		return r.skip()
	})
}

// children calls f for each child element of the one just entered. f must
// consume the child's end.
func (r *graphReader) children(f func(xml.StartElement) error) error {
	for {
		tok, err := r.next()
		if err != nil {
			return unexpectedEOF(r, err)
		}
		switch t := tok.(type) {
		case xml.StartElement:
			if err := f(t); err != nil {
				return err
			}
		case xml.EndElement:
			return nil
		}
	}
}

// unexpectedEOF words an end of the file inside an element.
func unexpectedEOF(r *graphReader, err error) error {
	if errors.Is(err, io.EOF) {
		return r.fail("export the file again", "the file ends in the middle of an element")
	}
	return err
}

func (r *graphReader) skip() error {
	return r.children(func(xml.StartElement) error { return r.skip() })
}

// key notes what a data element's key stands for. Key ids differ from file to
// file, and one id may be used for nodes and edges apart.
func (r *graphReader) key(e xml.StartElement) {
	name := attr(e, "attr.name")
	if name == "" {
		return
	}
	domains := []string{attr(e, "for")}
	if domains[0] == "" || domains[0] == "all" {
		domains = []string{"graph", "node", "edge", "hyperedge"}
	}
	for _, d := range domains {
		r.keys[d+" "+attr(e, "id")] = strings.ToLower(name)
	}
}

// data reads one data element of an object into its attributes.
func (r *graphReader) data(e xml.StartElement, domain string, attrs map[string]string) error {
	name, known := r.keys[domain+" "+attr(e, "key")]
	var text, label strings.Builder
	if err := r.content(&text, &label, false); err != nil {
		return err
	}
	if label.Len() > 0 && attrs["label"] == "" {
		attrs["label"] = strings.TrimSpace(label.String())
	}
	if value := strings.TrimSpace(text.String()); known && value != "" {
		attrs[name] = value
	}
	return nil
}

// content collects the text of an element, and that of the labels that yEd puts
// inside its graphics.
func (r *graphReader) content(text, label *strings.Builder, inLabel bool) error {
	for {
		tok, err := r.next()
		if err != nil {
			return unexpectedEOF(r, err)
		}
		switch t := tok.(type) {
		case xml.CharData:
			if inLabel {
				label.Write(t)
			} else {
				text.Write(t)
			}
		case xml.StartElement:
			// Only the first label counts; what is inside others is dropped.
			if err := r.content(&strings.Builder{}, label, t.Name.Local == "NodeLabel" && label.Len() == 0); err != nil {
				return err
			}
		case xml.EndElement:
			return nil
		}
	}
}

// graph reads the nodes and edges of a graph, those of nested graphs included.
func (r *graphReader) graph() (map[string]string, error) {
	attrs := map[string]string{}
	err := r.children(func(e xml.StartElement) error {
		switch e.Name.Local {
		case "data":
			return r.data(e, "graph", attrs)
		case "node":
			return r.node(e)
		case "edge":
			return r.edge(e)
		case "hyperedge":
			return r.hyperedge(e)
		}
		return r.skip()
	})
	return attrs, err
}

func (r *graphReader) node(e xml.StartElement) error {
	if len(r.g.nodes) >= vnet.MaxNodes {
		return r.fail("split the network", "there are more than the %d nodes that one VNet may have", vnet.MaxNodes)
	}
	at := len(r.g.nodes)
	attrs := map[string]string{}
	r.g.nodes = append(r.g.nodes, graphNode{id: attr(e, "id"), line: r.line(), attrs: attrs})
	return r.children(func(e xml.StartElement) error {
		switch e.Name.Local {
		case "data":
			return r.data(e, "node", attrs)
		case "graph":
			r.g.nodes[at].group = true
			_, err := r.graph()
			return err
		}
		return r.skip()
	})
}

func (r *graphReader) edge(e xml.StartElement) error {
	edge := graphEdge{ends: []string{attr(e, "source"), attr(e, "target")}, line: r.line(), attrs: map[string]string{}, directed: r.g.directed}
	if d := attr(e, "directed"); d != "" {
		edge.directed = d == "true"
	}
	err := r.children(func(e xml.StartElement) error {
		if e.Name.Local == "data" {
			return r.data(e, "edge", edge.attrs)
		}
		return r.skip()
	})
	return r.addEdge(edge, err)
}

func (r *graphReader) hyperedge(e xml.StartElement) error {
	edge := graphEdge{line: r.line(), attrs: map[string]string{}, hyper: true}
	err := r.children(func(e xml.StartElement) error {
		switch e.Name.Local {
		case "data":
			return r.data(e, "hyperedge", edge.attrs)
		case "endpoint":
			edge.ends = append(edge.ends, attr(e, "node"))
		}
		return r.skip()
	})
	return r.addEdge(edge, err)
}

func (r *graphReader) addEdge(edge graphEdge, err error) error {
	if err != nil {
		return err
	}
	if len(r.g.edges) >= 2*vnet.MaxLinks { // opposite directed edges make one link
		return r.fail("split the network", "there are more than the %d links that one VNet may have", vnet.MaxLinks)
	}
	r.g.edges = append(r.g.edges, edge)
	return nil
}
