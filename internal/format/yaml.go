package format

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
)

// Bounds of a YAML document, whatever its size in bytes: the parser spends some
// 300 bytes on every value, and aliases repeat values without spending any.
const (
	maxYAMLValues  = 1_000_000
	maxYAMLVisited = 2_000_000
	maxMergeDepth  = 8
	maxFaults      = 1000 // more are noise, and cost memory
)

// yamlReader walks one parsed document and collects what is wrong with it.
type yamlReader struct {
	file    string
	open    Open
	errs    Errors
	lines   places
	visited int             // values looked at, aliases counted each time
	files   map[string]file // what references to files gave, by path
}

// readYAML reads the native format.
func readYAML(name string, data []byte, open Open) (*vnet.VNet, []Warning, error) {
	r := &yamlReader{file: name, open: open, lines: places{"": 1}, files: map[string]file{}}
	root, err := r.parse(data)
	if err != nil {
		return nil, nil, err
	}
	v := r.network(root)
	if len(r.errs) == 0 {
		if err := finish(name, v, r.lines); err != nil {
			return nil, nil, err
		}
		return v, nil, nil
	}
	// More may be wrong with what could be read, but a description that is known to
	// be incomplete would only produce noise.
	return nil, nil, r.errs.orNil()
}

// parse gives the root of the one document in the file.
func (r *yamlReader) parse(data []byte) (*yaml.Node, error) {
	values := 1
	for _, b := range data {
		switch b {
		case ',', ':', '[', '{', '-', '?', '\n', '\r':
			values++
		}
	}
	if values > maxYAMLValues {
		return nil, Errors{{File: r.file, Line: 1, What: "the file has too many values", Remedy: fmt.Sprintf("describe at most %d nodes and %d links", vnet.MaxNodes, vnet.MaxLinks)}}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) || err == nil && (len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null") {
		return nil, Errors{{File: r.file, Line: 1, What: "the file is empty", Remedy: "describe a network with name, nodes and links"}}
	}
	if err != nil {
		return nil, Errors{r.syntax(err)}
	}
	if err := dec.Decode(&more); err == nil {
		return nil, Errors{{File: r.file, Line: max(more.Line, 1), What: "the file holds a second document", Remedy: "describe one network in each file"}}
	} else if !errors.Is(err, io.EOF) {
		return nil, Errors{r.syntax(err)}
	}
	return doc.Content[0], nil
}

var yamlErrorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntax words an error of the YAML library.
func (r *yamlReader) syntax(err error) Error {
	text := err.Error()
	line := 1
	if m := yamlErrorLine.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = n
		}
	}
	if strings.HasPrefix(text, "did not find expected") {
		// The library counts the lines of its parser's errors from 0, those of its
		// scanner's from 1; the line is where the surrounding mapping or list starts.
		if strings.HasPrefix(err.Error(), "yaml: line ") {
			line++
		}
	}
	remedy := "check the indentation, the quotes and the brackets from that line on"
	if strings.Contains(text, "cannot start any token") {
		remedy = "indent with spaces, not tabs, and quote values that start with a special character"
	}
	return Error{File: r.file, Line: line, What: "not valid YAML: " + text, Remedy: remedy, Err: err}
}

func (r *yamlReader) fail(n *yaml.Node, remedy, what string, args ...any) {
	r.errs = append(r.errs, Error{File: r.file, Line: max(n.Line, 1), What: fmt.Sprintf(what, args...), Remedy: remedy})
}

// failWith reports the error of a unit's parser, which has its own remedy.
func (r *yamlReader) failWith(n *yaml.Node, what string, err error) {
	r.errs = append(r.errs, Error{File: r.file, Line: max(n.Line, 1), What: what + ": " + err.Error(), Err: err})
}

// visit counts a value, and reports whether reading goes on.
func (r *yamlReader) visit(n *yaml.Node) bool {
	r.visited++
	if r.visited == maxYAMLVisited {
		r.fail(n, "use fewer aliases; put what repeats under defaults", "the aliases in the file repeat too many values")
	}
	return r.visited < maxYAMLVisited && len(r.errs) < maxFaults
}

// deref follows an alias.
func deref(n *yaml.Node) *yaml.Node {
	for range maxMergeDepth {
		if n.Kind != yaml.AliasNode || n.Alias == nil {
			break
		}
		n = n.Alias
	}
	return n
}

// pair is one entry of a mapping.
type pair struct {
	key   string
	at    *yaml.Node // the key
	value *yaml.Node // not an alias
}

// mapping gives the entries of a mapping, in their order, merge keys resolved.
// With a non-nil list of keys, others are errors. A null value counts as an
// empty mapping.
func (r *yamlReader) mapping(n *yaml.Node, what string, known []string) []pair {
	n = deref(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "write it as `key: value` lines", "%s must be a mapping, not %s", what, kindOf(n))
		return nil
	}
	return r.entries(n, what, known, 0)
}

func (r *yamlReader) entries(n *yaml.Node, what string, known []string, depth int) []pair {
	var out []pair
	var merged []*yaml.Node
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := deref(n.Content[i]), deref(n.Content[i+1])
		if !r.visit(key) {
			return nil
		}
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" {
			merged = append(merged, value)
			continue
		}
		if key.Kind != yaml.ScalarNode {
			r.fail(n.Content[i], "use a word as the key", "a key of %s is %s", what, kindOf(key))
			continue
		}
		if first, dup := seen[key.Value]; dup {
			r.fail(n.Content[i], "keep one of them", "key %q is there twice in %s (first in line %d)", clip(key.Value), what, first)
			continue
		}
		seen[key.Value] = n.Content[i].Line
		if known != nil && !slices.Contains(known, key.Value) {
			r.unknown(n.Content[i], key.Value, what, known)
			continue
		}
		out = append(out, pair{key.Value, n.Content[i], value})
	}
	for _, m := range merged {
		sources := []*yaml.Node{m}
		if m.Kind == yaml.SequenceNode {
			sources = m.Content
		}
		for _, source := range sources {
			source = deref(source)
			if source.Kind != yaml.MappingNode || depth >= maxMergeDepth {
				r.fail(source, "merge an alias of a mapping, as in `<<: *base`", "%s merges something that is not a mapping", what)
				continue
			}
			for _, p := range r.entries(source, what, known, depth+1) {
				if _, own := seen[p.key]; !own {
					seen[p.key] = p.at.Line
					out = append(out, p)
				}
			}
		}
	}
	return out
}

func (r *yamlReader) unknown(n *yaml.Node, key, what string, known []string) {
	remedy := "the keys are " + strings.Join(known, ", ")
	if near := vnet.Nearest(clip(key), known); near != "" {
		remedy = fmt.Sprintf("did you mean %q?", near)
	}
	r.fail(n, remedy, "unknown key %q in %s", clip(key), what)
}

// sequence gives the items of a list; null counts as an empty one.
func (r *yamlReader) sequence(n *yaml.Node, what string) []*yaml.Node {
	n = deref(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.fail(n, "write it as a list, like [a, b]", "%s must be a list, not %s", what, kindOf(n))
		return nil
	}
	out := make([]*yaml.Node, 0, len(n.Content))
	for _, item := range n.Content {
		if !r.visit(item) {
			return nil
		}
		out = append(out, deref(item))
	}
	return out
}

// text gives a scalar as it is written, whatever YAML takes its type for: a node
// may be called 7, a variable may be set to yes.
func (r *yamlReader) text(n *yaml.Node, what string) (string, bool) {
	n = deref(n)
	switch {
	case n.Kind != yaml.ScalarNode:
		r.fail(n, "write a single value", "%s must be a single value, not %s", what, kindOf(n))
		return "", false
	case n.ShortTag() == "!!null":
		r.fail(n, "write a value, or leave the key out", "%s has no value", what)
		return "", false
	}
	switch n.ShortTag() {
	case "!!str", "!!int", "!!float", "!!bool", "!!timestamp", "!!merge":
		return n.Value, true
	}
	r.fail(n, "leave the tag out", "%s has the tag %s, which is not understood", what, clip(n.ShortTag()))
	return "", false
}

// texts gives a list of scalars; one scalar counts as a list of one.
func (r *yamlReader) texts(n *yaml.Node, what string) []string {
	if deref(n).Kind == yaml.ScalarNode && deref(n).ShortTag() != "!!null" {
		if s, ok := r.text(n, what); ok {
			return []string{s}
		}
		return nil
	}
	items := r.sequence(n, what)
	out := make([]string, 0, len(items))
	for _, item := range items {
		if s, ok := r.text(item, what); ok {
			out = append(out, s)
		}
	}
	return out
}

// integer gives a whole number in decimal, within bounds.
func (r *yamlReader) integer(n *yaml.Node, what string, least, most int64) (int64, bool) {
	s, ok := r.text(n, what)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < least || v > most {
		r.fail(n, fmt.Sprintf("write a whole number from %d to %d", least, most), "%s is %q", what, clip(s))
		return 0, false
	}
	return v, true
}

// number gives a decimal number.
func (r *yamlReader) number(n *yaml.Node, what string) (float64, bool) {
	s, ok := r.text(n, what)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || strings.ContainsAny(s, "xX_pPnN") {
		r.fail(n, "write a number", "%s is %q", what, clip(s))
		return 0, false
	}
	return v, true
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if n.ShortTag() == "!!null" {
			return "empty"
		}
		return fmt.Sprintf("the single value %q", clip(n.Value))
	}
	return "an alias"
}

// clip keeps a piece of input short enough for a message.
func clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
