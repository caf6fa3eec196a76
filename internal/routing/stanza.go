package routing

import (
	"fmt"
	"slices"
	"strings"
)

// stanza is one line of FRR configuration with the lines that it opens a
// context for. A whole configuration is a list of them.
type stanza struct {
	line string
	body []*stanza
}

// block is a context under construction.
type block struct {
	list *[]*stanza
}

// add appends a line, formatted, to the context.
func (b block) add(format string, args ...any) {
	*b.list = append(*b.list, &stanza{line: fmt.Sprintf(format, args...)})
}

// open appends a line, formatted, that opens a context.
func (b block) open(format string, args ...any) block {
	s := &stanza{line: fmt.Sprintf(format, args...)}
	*b.list = append(*b.list, s)
	return block{&s.body}
}

// renderStanzas writes the configuration as FRR does: one space of indentation a
// level, contexts closed explicitly.
func renderStanzas(list []*stanza) []byte {
	var b strings.Builder
	writeStanzas(&b, list, "")
	return []byte(b.String())
}

func writeStanzas(b *strings.Builder, list []*stanza, indent string) {
	for _, s := range list {
		b.WriteString(indent + s.line + "\n")
		if len(s.body) == 0 {
			continue
		}
		writeStanzas(b, s.body, indent+" ")
		b.WriteString(indent + closing(s.line) + "\n")
	}
}

// closing gives the command that leaves the context that line opens.
func closing(line string) string {
	if strings.HasPrefix(line, "address-family ") {
		return "exit-address-family"
	}
	return "exit"
}

// parseStanzas reads FRR configuration. Indentation decides what belongs to
// what, as in everything that FRR itself writes; comments and the commands that
// only close a context are dropped.
func parseStanzas(text string) []*stanza {
	root := &stanza{}
	type level struct {
		indent int
		s      *stanza
	}
	stack := []level{{-1, root}}
	for raw := range strings.Lines(text) {
		line := strings.TrimSpace(raw)
		if line == "" || line[0] == '!' || line[0] == '#' || line == "end" ||
			line == "exit" || strings.HasPrefix(line, "exit-") {
			continue
		}
		indent := len(raw) - len(strings.TrimLeft(raw, " \t"))
		for stack[len(stack)-1].indent >= indent {
			stack = stack[:len(stack)-1]
		}
		s := &stanza{line: line}
		parent := stack[len(stack)-1].s
		parent.body = append(parent.body, s)
		stack = append(stack, level{indent, s})
	}
	return joinStanzas(root.body)
}

// joinStanzas joins the contexts of a list that are opened more than once, where
// they are first.
func joinStanzas(list []*stanza) []*stanza {
	first := map[string]*stanza{}
	var joined []*stanza
	for _, s := range list {
		if len(s.body) == 0 {
			joined = append(joined, s)
			continue
		}
		if was, ok := first[s.line]; ok {
			was.body = append(was.body, s.body...)
			continue
		}
		first[s.line] = &stanza{line: s.line, body: slices.Clone(s.body)}
		joined = append(joined, first[s.line])
	}
	for _, s := range first {
		s.body = joinStanzas(s.body)
	}
	return joined
}
