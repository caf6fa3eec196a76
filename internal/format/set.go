package format

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
	"trellis/internal/yamlfile"
)

// apply puts settings KEY=VALUE over a document, before anything is read from
// it: the same reader then checks keys and values, and names the setting where it
// would name a line.
//
// A key is a path of the document's keys joined by dots. A node is named under
// nodes as in the file or by its name, a link under links by its name; what holds
// a dot is put in double quotes.
func (r *yamlReader) apply(root *yaml.Node, settings []string) {
	for _, s := range settings {
		r.Origins = append(r.Origins, "--set "+yamlfile.Clip(s))
		set := setting{r: r, root: root, line: -len(r.Origins)}
		if what, remedy := set.apply(s); what != "" {
			r.Fail(&yaml.Node{Line: set.line}, remedy, "%s", what)
		}
	}
}

// setting is one of them on its way into the document.
type setting struct {
	r    *yamlReader
	root *yaml.Node
	line int // that stands for the setting in messages
}

func (s *setting) apply(text string) (what, remedy string) {
	key, value, ok := cutSetting(text)
	if !ok {
		return "it is not of the form KEY=VALUE", "write it like routing.protocol=static"
	}
	path, ok := splitKey(key)
	if !ok {
		return fmt.Sprintf("%q is not a key", yamlfile.Clip(key)), `write words joined by dots, in double quotes where they hold dots: nodes.a.sysctls."net.ipv4.ip_forward"`
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(value), &doc); err != nil {
		return fmt.Sprintf("%q cannot be read as a YAML value", yamlfile.Clip(value)), "put it in quotes"
	}
	v := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}
	if len(doc.Content) > 0 {
		v = doc.Content[0]
	}
	s.mark(v)
	return s.put(s.root, path, v)
}

// cutSetting splits at the first equals sign outside of quotes.
func cutSetting(text string) (key, value string, ok bool) {
	quoted := false
	for i, c := range text {
		switch {
		case c == '"':
			quoted = !quoted
		case c == '=' && !quoted:
			return text[:i], text[i+1:], i > 0
		}
	}
	return "", "", false
}

// splitKey splits at dots outside of quotes.
func splitKey(key string) (path []string, ok bool) {
	quoted := false
	word := ""
	for _, c := range key {
		switch {
		case c == '"':
			quoted = !quoted
		case c == '.' && !quoted:
			path = append(path, word)
			word = ""
		default:
			word += string(c)
		}
	}
	path = append(path, word)
	return path, !quoted && !slices.Contains(path, "")
}

// mark has messages about a value name the setting.
func (s *setting) mark(n *yaml.Node) {
	n.Line = s.line
	for _, c := range n.Content {
		s.mark(c)
	}
}

// put sets the value at a path below a mapping.
func (s *setting) put(n *yaml.Node, path []string, v *yaml.Node) (what, remedy string) {
	for depth := 0; ; depth++ {
		if n.Kind != yaml.MappingNode {
			return "", "" // the reader reports that the document is none
		}
		key := path[depth]
		if depth == 1 && path[0] == "nodes" {
			if key, what, remedy = s.nodeKey(n, key); what != "" {
				return what, remedy
			}
		}
		at := find(n, key)
		if depth == len(path)-1 {
			if at >= 0 {
				n.Content[at], n.Content[at+1] = s.word(key), v
			} else {
				n.Content = append(n.Content, s.word(key), v)
			}
			return "", ""
		}
		var next *yaml.Node
		if at >= 0 {
			next = own(n, at+1)
		} else {
			next = merged(n, key)
			if next == nil {
				next = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: s.line}
			}
			n.Content = append(n.Content, s.word(key), next)
		}
		if depth == 0 && key == "links" {
			item, rest, what, remedy := s.link(next, path[1:])
			if what != "" {
				return what, remedy
			}
			// The rest of the path is that of a key in the link.
			n, path, depth = item, append([]string{"", ""}, rest...), 1
			continue
		}
		parent := ""
		if depth > 0 {
			parent = path[depth-1]
		}
		if !lengthen(next, parent, key) {
			return fmt.Sprintf("%s holds a single value or a list, and no key %q", strings.Join(path[:depth+1], "."), yamlfile.Clip(path[depth+1])), "set it as a whole"
		}
		n = next
	}
}

func (s *setting) word(key string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key, Line: s.line}
}

// find gives the index of a key in a mapping, or -1.
func find(n *yaml.Node, key string) int {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if k := n.Content[i]; k.Kind == yaml.ScalarNode && k.Value == key {
			return i
		}
	}
	return -1
}

// own gives a child that may be changed for this place alone: a copy where it is
// an alias, or where aliases repeat it.
func own(n *yaml.Node, i int) *yaml.Node {
	switch c := n.Content[i]; {
	case c.Kind == yaml.AliasNode && c.Alias != nil:
		n.Content[i] = clone(c.Alias)
	case c.Anchor != "":
		n.Content[i] = clone(c)
	}
	return n.Content[i]
}

func clone(n *yaml.Node) *yaml.Node {
	c := *n
	c.Anchor = ""
	c.Content = make([]*yaml.Node, len(n.Content))
	for i := range n.Content {
		c.Content[i] = clone(n.Content[i])
	}
	return &c
}

// merged gives a copy of what a mapping gets for a key by `<<: *base`, or nil.
func merged(n *yaml.Node, key string) *yaml.Node {
	at := find(n, "<<")
	if at < 0 {
		return nil
	}
	sources := []*yaml.Node{n.Content[at+1]}
	if sources[0].Kind == yaml.SequenceNode {
		sources = sources[0].Content
	}
	for _, source := range sources {
		if source.Kind == yaml.AliasNode && source.Alias != nil {
			source = source.Alias
		}
		if source.Kind != yaml.MappingNode {
			continue
		}
		if i := find(source, key); i >= 0 {
			return clone(source.Content[i+1])
		}
	}
	return nil
}

// lengthen turns the short form of a value into the mapping that it stands for,
// and reports whether there is one.
func lengthen(n *yaml.Node, parent, key string) bool {
	if n.Kind == yaml.MappingNode {
		return true
	}
	value := *n
	n.Kind, n.Tag, n.Value, n.Style, n.Content = yaml.MappingNode, "!!map", "", 0, nil
	long := func(keys ...string) bool {
		for _, k := range keys {
			v := value
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: k, Line: value.Line}, &v)
		}
		return true
	}
	switch {
	case value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null", key == "addressing":
		return true
	case value.Kind != yaml.ScalarNode:
	case key == "routing":
		return long("protocol")
	case key == "timers":
		return long("set")
	case parent == "files":
		return long("source")
	case slices.Contains(shapeKeys, key):
		return long("up", "down")
	}
	*n = value
	return false
}

// nodeKey gives the key in the file of the node that a setting names.
func (s *setting) nodeKey(nodes *yaml.Node, name string) (key, what, remedy string) {
	var names []string
	for i := 0; i+1 < len(nodes.Content); i += 2 {
		k := nodes.Content[i].Value
		if k == name || nodeTitle.MatchString(k) && vnet.NodeLabel(fold(k)) == name {
			return k, "", ""
		}
		names = append(names, k)
	}
	return "", fmt.Sprintf("there is no node %q", yamlfile.Clip(name)), meant(name, names, "nodes")
}

// meant words which of the names was probably meant.
func meant(word string, names []string, what string) string {
	if near := vnet.Nearest(yamlfile.Clip(word), names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if len(names) > 8 {
		names = append(names[:8:8], "…")
	}
	if len(names) == 0 {
		return "the network has no " + what
	}
	return fmt.Sprintf("the %s are %s", what, strings.Join(names, ", "))
}

// link finds the link that a path begins with, by its name, which may be an
// automatic one and hold dots. It gives the link as a mapping, and the rest of the
// path.
func (s *setting) link(links *yaml.Node, path []string) (item *yaml.Node, rest []string, what, remedy string) {
	probe := newYAMLReader(s.r.File, s.r.open)
	v := probe.network(s.root)
	_ = v.Complete() // whatever is wrong, links get their names
	names := make([]string, len(v.Links))
	for i := range v.Links {
		names[i] = v.Links[i].Name
	}
	for n := len(path) - 1; n > 0; n-- {
		i := slices.Index(names, strings.Join(path[:n], "."))
		if i < 0 || links.Kind != yaml.SequenceNode || i >= len(links.Content) {
			continue
		}
		item := own(links, i)
		if item.Kind == yaml.SequenceNode { // the short form
			ends := *item
			*item = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: ends.Line, Content: []*yaml.Node{
				{Kind: yaml.ScalarNode, Tag: "!!str", Value: "endpoints", Line: ends.Line}, &ends,
			}}
		}
		return item, path[n:], "", ""
	}
	if len(path) < 2 {
		return nil, nil, "it names no key of a link", "write links.NAME.KEY=VALUE"
	}
	return nil, nil, fmt.Sprintf("there is no link %q", yamlfile.Clip(path[0])), meant(path[0], names, "links")
}
