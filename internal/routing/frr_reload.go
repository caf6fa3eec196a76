package routing

import (
	"slices"
	"strings"
)

// frrChange plans the change of one FRR daemon through vtysh.
func frrChange(p *ReloadPlan, daemon string, was, now []byte) {
	old, new := parseStanzas(string(was)), parseStanzas(string(now))
	if !slices.Equal(restartLines(old), restartLines(new)) {
		p.Restart = append(p.Restart, daemon)
		return
	}
	var commands []string
	d := difference{emit: func(line string) { commands = append(commands, "-c", line) }}
	d.list(old, new)
	if len(commands) > 0 {
		p.Commands = append(p.Commands, append([]string{"/usr/bin/vtysh", "-d", daemon, "-c", "configure terminal"}, commands...))
	}
}

// restartLines gives the lines that a daemon must be restarted for. Some say who the
// router is, which FRR changes only by dropping every adjacency, or not at all.
// The others come from the user's files and may be another daemon's, which vtysh
// would fail on.
func restartLines(list []*stanza) []string {
	var lines []string
	for _, s := range list {
		switch {
		case strings.HasPrefix(s.line, "router "):
			lines = append(lines, s.line)
			for _, b := range s.body {
				if strings.Contains(b.line, "router-id ") || strings.HasPrefix(b.line, "net ") {
					lines = append(lines, b.line)
				}
			}
		case strings.HasPrefix(s.line, "interface "):
			for _, b := range s.body {
				if interfaceOwner(b.line) == "" {
					lines = append(lines, s.line, b.line)
				}
			}
		case ownerOf(s.line) == "" && !generatedLine(s.line):
			lines = append(lines, string(renderStanzas([]*stanza{s})))
		}
	}
	return lines
}

// generatedLine reports whether a top-level line without an owner is one of
// those that Generate writes.
func generatedLine(line string) bool {
	for _, prefix := range []string{"hostname ", "zebra ", "access-list " + offsetList + " ", "ipv6 access-list " + offsetList + " ", "ipv6 prefix-list " + noPrefixes + " "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// difference turns two lists of stanzas into the commands between them.
type difference struct {
	emit func(line string)
	// gone holds the beginnings "neighbor ADDRESS " of neighbours that are
	// removed as a whole.
	gone []string
}

// list emits what leads from the context's old content to its new one:
// removals in reverse order first, then additions and changes.
func (d *difference) list(old, new []*stanza) {
	for _, s := range old {
		if name, ok := neighborOf(s.line); ok && !slices.ContainsFunc(new, func(t *stanza) bool {
			other, ok := neighborOf(t.line)
			return ok && other == name
		}) {
			d.gone = append(d.gone, name)
		}
	}
	kept := func(s *stanza) bool { return find(new, s) != nil }
	for _, s := range slices.Backward(old) {
		if !kept(s) {
			d.remove(s)
		}
	}
	for _, s := range new {
		was := find(old, s)
		switch {
		case len(s.body) > 0:
			d.enter(s, was)
		case was != nil && len(was.body) > 0:
			d.enter(s, was) // emptied
		case was == nil || was.line != s.line:
			d.emit(s.line)
		}
	}
}

// enter emits the difference inside a context.
func (d *difference) enter(s, was *stanza) {
	var old []*stanza
	if was != nil {
		old = was.body
	}
	var inside []string
	sub := difference{emit: func(line string) { inside = append(inside, line) }, gone: d.gone}
	sub.list(old, s.body)
	if len(inside) == 0 {
		return
	}
	d.emit(s.line)
	for _, line := range inside {
		d.emit(line)
	}
	d.emit(closing(s.line))
}

// remove emits the removal of a stanza.
func (d *difference) remove(s *stanza) {
	name, creates := neighborOf(s.line)
	for _, gone := range d.gone {
		if !strings.HasPrefix(s.line, gone) {
			continue
		}
		if creates && name == gone {
			d.emit("no " + strings.TrimSpace(gone))
		}
		return // the neighbour takes its other lines along
	}
	switch {
	case len(s.body) > 0 && !strings.HasPrefix(s.line, "router "):
		// Interfaces and address families go only by what they say.
		d.enter(&stanza{line: s.line}, s)
	case strings.HasPrefix(s.line, "no "):
		d.emit(strings.TrimPrefix(s.line, "no "))
	default:
		d.emit("no " + s.line)
	}
}

// find gives the stanza of list that s is, or is another value of; nil if there
// is none.
func find(list []*stanza, s *stanza) *stanza {
	at := slices.IndexFunc(list, func(t *stanza) bool { return t.line == s.line })
	if at < 0 {
		key := settingKey(s)
		at = slices.IndexFunc(list, func(t *stanza) bool { return settingKey(t) == key })
	}
	if at < 0 {
		return nil
	}
	return list[at]
}

// settingKey gives what two lines have in common that set the same thing to
// different numbers, the second of which simply replaces the first. That holds
// neither for areas, nor for entries of numbered lists, nor for contexts.
func settingKey(s *stanza) string {
	if len(s.body) > 0 || strings.Contains(s.line, " area ") || strings.Contains(s.line, " seq ") {
		return s.line
	}
	words := strings.Fields(s.line)
	for i, w := range words {
		if strings.Trim(w, "0123456789") == "" {
			words[i] = "#"
		}
	}
	return strings.Join(words, " ")
}

// neighborOf gives the beginning "neighbor ADDRESS " of the line that creates a
// BGP neighbour.
func neighborOf(line string) (string, bool) {
	words := strings.Fields(line)
	if len(words) == 4 && words[0] == "neighbor" && words[2] == "remote-as" {
		return "neighbor " + words[1] + " ", true
	}
	return "", false
}
