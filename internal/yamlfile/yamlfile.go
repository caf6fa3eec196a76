// Package yamlfile reads YAML files for people: it walks a document and collects
// every mistake with its line and a remedy, instead of stopping at the first. The
// descriptions of networks and of sandboxes and the service's configuration are
// read with it.
//
// Values are taken as they are written, whatever YAML would make of them. Reading
// is bounded in time and memory on any bytes.
package yamlfile

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

// Bounds of a document, whatever its size in bytes: the parser spends some
// 300 bytes on every value, and aliases repeat values without spending any.
const (
	maxValues     = 1_000_000
	maxVisited    = 2_000_000
	maxMergeDepth = 8
	maxErrors     = 1000 // more are noise, and cost memory
)

// Reader walks one parsed document and collects what is wrong with it.
type Reader struct {
	File string // its name, for messages
	// Origins names what values come from that are not in the file: those of line
	// -1 from Origins[0], those of line -2 from Origins[1], …
	Origins []string
	Errs    Errors

	visited int // values looked at, aliases counted each time
}

// ErrEmpty is the cause of the error of a file without any value.
var ErrEmpty = errors.New("empty file")

// Kind says what a file describes, for messages about the file as a whole.
type Kind struct {
	Empty  string // the remedy for an empty file
	Second string // the remedy for a second document in it
	Large  string // the remedy for too many values
}

// Parse gives the root of the one document in the file. Its error is an [Errors].
func (r *Reader) Parse(data []byte, kind Kind) (*yaml.Node, error) {
	values := 1
	for _, b := range data {
		switch b {
		case ',', ':', '[', '{', '-', '?', '\n', '\r':
			values++
		}
	}
	if values > maxValues {
		return nil, Errors{{File: r.File, Line: 1, What: "the file has too many values", Remedy: kind.Large}}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	err := dec.Decode(&doc)
	if errors.Is(err, io.EOF) || err == nil && (len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null") {
		return nil, Errors{{File: r.File, Line: 1, What: "the file is empty", Remedy: kind.Empty, Err: ErrEmpty}}
	}
	if err != nil {
		return nil, Errors{r.syntax(err)}
	}
	if err := dec.Decode(&more); err == nil {
		return nil, Errors{{File: r.File, Line: max(more.Line, 1), What: "the file holds a second document", Remedy: kind.Second}}
	} else if !errors.Is(err, io.EOF) {
		return nil, Errors{r.syntax(err)}
	}
	return doc.Content[0], nil
}

var yamlErrorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntax words an error of the YAML library.
func (r *Reader) syntax(err error) Error {
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
	return Error{File: r.File, Line: line, What: "not valid YAML: " + text, Remedy: remedy, Err: err}
}

// Fail notes a mistake at a value.
func (r *Reader) Fail(n *yaml.Node, remedy, what string, args ...any) {
	r.Note(n.Line, Error{What: fmt.Sprintf(what, args...), Remedy: remedy})
}

// FailWith reports the error of a unit's parser, which has its own remedy.
func (r *Reader) FailWith(n *yaml.Node, what string, err error) {
	r.Note(n.Line, Error{What: what + ": " + err.Error(), Err: err})
}

// Note adds a mistake in a line, as values have it.
func (r *Reader) Note(line int, e Error) {
	if line < 0 && -line <= len(r.Origins) {
		e.File, e.Line = r.Origins[-line-1], 0
	} else {
		e.File, e.Line = r.File, max(line, 1)
	}
	r.Errs = append(r.Errs, e)
}

// Exhausted reports whether reading has ended early: the file repeats too much, or
// too much is wrong with it.
func (r *Reader) Exhausted() bool { return r.visited >= maxVisited || len(r.Errs) >= maxErrors }

// visit counts a value, and reports whether reading goes on.
func (r *Reader) visit(n *yaml.Node) bool {
	r.visited++
	if r.visited == maxVisited {
		r.Fail(n, "use fewer aliases; put what repeats under defaults", "the aliases in the file repeat too many values")
	}
	return !r.Exhausted()
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

// Pair is one entry of a mapping.
type Pair struct {
	Key   string
	At    *yaml.Node // the key
	Value *yaml.Node // not an alias
}

// Mapping gives the entries of a mapping, in their order, merge keys resolved.
// With a non-nil list of keys, others are errors. A null value counts as an
// empty mapping.
func (r *Reader) Mapping(n *yaml.Node, what string, known []string) []Pair {
	n = deref(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.Fail(n, "write it as `key: value` lines", "%s must be a mapping, not %s", what, describe(n))
		return nil
	}
	return r.entries(n, what, known, 0)
}

func (r *Reader) entries(n *yaml.Node, what string, known []string, depth int) []Pair {
	var out []Pair
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
			r.Fail(n.Content[i], "use a word as the key", "a key of %s is %s", what, describe(key))
			continue
		}
		if first, dup := seen[key.Value]; dup {
			r.Fail(n.Content[i], "keep one of them", "key %q is there twice in %s (first in line %d)", Clip(key.Value), what, first)
			continue
		}
		seen[key.Value] = n.Content[i].Line
		if known != nil && !slices.Contains(known, key.Value) {
			r.unknownKey(n.Content[i], key.Value, what, known)
			continue
		}
		out = append(out, Pair{key.Value, n.Content[i], value})
	}
	for _, m := range merged {
		sources := []*yaml.Node{m}
		if m.Kind == yaml.SequenceNode {
			sources = m.Content
		}
		for _, source := range sources {
			source = deref(source)
			if source.Kind != yaml.MappingNode || depth >= maxMergeDepth {
				r.Fail(source, "merge an alias of a mapping, as in `<<: *base`", "%s merges something that is not a mapping", what)
				continue
			}
			for _, p := range r.entries(source, what, known, depth+1) {
				if _, own := seen[p.Key]; !own {
					seen[p.Key] = p.At.Line
					out = append(out, p)
				}
			}
		}
	}
	return out
}

func (r *Reader) unknownKey(n *yaml.Node, key, what string, known []string) {
	remedy := "the keys are " + strings.Join(known, ", ")
	if near := vnet.Nearest(Clip(key), known); near != "" {
		remedy = fmt.Sprintf("did you mean %q?", near)
	}
	r.Fail(n, remedy, "unknown key %q in %s", Clip(key), what)
}

// Sequence gives the items of a list; null counts as an empty one.
func (r *Reader) Sequence(n *yaml.Node, what string) []*yaml.Node {
	n = deref(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.Fail(n, "write it as a list, like [a, b]", "%s must be a list, not %s", what, describe(n))
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

// Text gives a scalar as it is written, whatever YAML takes its type for: a node
// may be called 7, a variable may be set to yes.
func (r *Reader) Text(n *yaml.Node, what string) (string, bool) {
	n = deref(n)
	switch {
	case n.Kind != yaml.ScalarNode:
		r.Fail(n, "write a single value", "%s must be a single value, not %s", what, describe(n))
		return "", false
	case n.ShortTag() == "!!null":
		r.Fail(n, "write a value, or leave the key out", "%s has no value", what)
		return "", false
	}
	switch n.ShortTag() {
	case "!!str", "!!int", "!!float", "!!bool", "!!timestamp", "!!merge":
		return n.Value, true
	}
	r.Fail(n, "leave the tag out", "%s has the tag %s, which is not understood", what, Clip(n.ShortTag()))
	return "", false
}

// Texts gives a list of scalars; one scalar counts as a list of one.
func (r *Reader) Texts(n *yaml.Node, what string) []string {
	if deref(n).Kind == yaml.ScalarNode && deref(n).ShortTag() != "!!null" {
		if s, ok := r.Text(n, what); ok {
			return []string{s}
		}
		return nil
	}
	items := r.Sequence(n, what)
	out := make([]string, 0, len(items))
	for _, item := range items {
		if s, ok := r.Text(item, what); ok {
			out = append(out, s)
		}
	}
	return out
}

// Integer gives a whole number in decimal, within bounds.
func (r *Reader) Integer(n *yaml.Node, what string, least, most int64) (int64, bool) {
	s, ok := r.Text(n, what)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < least || v > most {
		r.Fail(n, fmt.Sprintf("write a whole number from %d to %d", least, most), "%s is %q", what, Clip(s))
		return 0, false
	}
	return v, true
}

// Number gives a decimal number.
func (r *Reader) Number(n *yaml.Node, what string) (float64, bool) {
	s, ok := r.Text(n, what)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || strings.ContainsAny(s, "xX_pPnN") {
		r.Fail(n, "write a number", "%s is %q", what, Clip(s))
		return 0, false
	}
	return v, true
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		if n.ShortTag() == "!!null" {
			return "empty"
		}
		return fmt.Sprintf("the single value %q", Clip(n.Value))
	}
	return "an alias"
}

// Clip keeps a piece of input short enough for a message.
func Clip(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// OneOf checks a word against the list of those that mean something.
func (r *Reader) OneOf(n *yaml.Node, what, word string, words []string) bool {
	for _, w := range words {
		if w == word {
			return true
		}
	}
	remedy := "use one of " + join(words)
	if near := vnet.Nearest(Clip(word), words); near != "" {
		remedy = fmt.Sprintf("did you mean %q? (%s)", near, join(words))
	}
	r.Fail(n, remedy, "%s is %q", what, Clip(word))
	return false
}

func join(words []string) string {
	s := ""
	for i, w := range words {
		switch {
		case i == 0:
		case i == len(words)-1:
			s += " or "
		default:
			s += ", "
		}
		s += w
	}
	return s
}
