package routing

import (
	"slices"
	"strings"

	"trellis/internal/vnet"
)

// frrChange gives the change of FRR daemons through vtysh. Lines of a daemon's own
// file that vtysh does not know, or the daemon refuses while it runs, have it
// restarted. An integrated file is changed as it was loaded: what is refused is left
// out, and logged for [frrRefused].
func frrChange(path string, readers []string, was, now []byte) (commands []Command, restart []string) {
	old, new := joinStanzas(parseStanzas(string(was))), joinStanzas(parseStanzas(string(now)))
	integrated := path == frrIntegrated || path == frrExtra
	for _, s := range frrRestarts(old, new) {
		owner := ownerOf(s.line)
		for _, r := range readers {
			if daemon, _, _ := strings.Cut(r, "-"); (daemon == owner || !integrated) && !slices.Contains(restart, r) {
				restart = append(restart, r)
			}
		}
		same := func(t *stanza) bool { return t.line == s.line }
		old, new = slices.DeleteFunc(old, same), slices.DeleteFunc(new, same)
	}
	if len(restart) > 0 && !integrated {
		return nil, restart
	}
	var lines []string
	d := difference{emit: func(line string) { lines = append(lines, line) }}
	d.list(old, new)
	if len(lines) == 0 {
		return nil, restart
	}
	if integrated {
		script := `printf '%s\n' "$@" | /usr/bin/vtysh -n -f /dev/stdin >>/run/trellis/` + frrLoader + `.log 2>&1; ` +
			"[ $? -lt 100 ]" // less: of lines that are refused
		return []Command{{Argv: append([]string{"/bin/sh", "-c", script, "vtysh"}, lines...), OrRestart: readers}}, restart
	}
	daemon, _, _ := strings.Cut(readers[0], "-") // vtysh knows no instances
	argv := []string{"/usr/bin/vtysh", "-d", daemon}
	switch {
	case daemon == "zebra": // of whose lines mgmtd has some
		argv = argv[:1]
	case slices.Contains(frrByMgmtd, daemon):
		argv = []string{"/bin/sh", "-c", `daemon=$0; [ -x ` + frrBin + `mgmtd ] && daemon=mgmtd; exec /usr/bin/vtysh -d $daemon "$@"`, daemon}
	}
	argv = append(argv, "-c", "configure terminal")
	for _, line := range lines {
		argv = append(argv, "-c", line)
	}
	return []Command{{Argv: argv, OrRestart: readers}}, nil
}

// frrByMgmtd are the daemons whose configuration mgmtd has from FRR 10 on.
var frrByMgmtd = []string{"zebra", "staticd", "ripd", "ripngd"}

// frrRestarts lists the routers for whose change a daemon has to be restarted: those
// that go, or have another ID or NET, which FRR changes only by dropping every
// adjacency, or not at all. RIP has no adjacencies, and leaves while it runs.
func frrRestarts(old, new []*stanza) []*stanza {
	ids := func(s *stanza) (lines []string) {
		for _, b := range s.body {
			if strings.Contains(b.line, "router-id ") || strings.HasPrefix(b.line, "net ") {
				lines = append(lines, b.line)
			}
		}
		return lines
	}
	var found []*stanza
	for _, s := range old {
		if owner := ownerOf(s.line); !vnet.FRRCommand(s.line, "router") || strings.Contains(s.line, " vrf ") || slices.Contains(frrByMgmtd, owner) {
			continue
		}
		i := slices.IndexFunc(new, func(now *stanza) bool { return now.line == s.line })
		if i < 0 || !slices.Equal(ids(s), ids(new[i])) {
			found = append(found, s)
		}
	}
	return found
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
	case len(s.body) > 0 && goesByContent(s.line):
		d.enter(&stanza{line: s.line}, s)
	case strings.HasPrefix(s.line, "no "):
		d.emit(strings.TrimPrefix(s.line, "no "))
	default:
		d.emit("no " + s.line)
	}
}

// goesByContent reports whether a context goes only by what it says.
func goesByContent(line string) bool {
	return slices.ContainsFunc([]string{"interface ", "address-family ", "vrf ", "line "}, func(prefix string) bool { return strings.HasPrefix(line, prefix) })
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
// different numbers, the second of which simply replaces the first. That does not hold
// for contexts, nor for lines of which there can be several: areas, entries of lists,
// routes.
func settingKey(s *stanza) string {
	words := strings.Fields(s.line)
	if len(s.body) > 0 || slices.ContainsFunc(words, func(w string) bool { return slices.Contains(several, w) }) {
		return s.line
	}
	for i, w := range words {
		if instance := i == 2 && words[0] == "redistribute"; !instance && strings.Trim(w, "0123456789") == "" {
			words[i] = "#"
		}
	}
	return strings.Join(words, " ")
}

// several are words of lines that differ by a number and stand side by side.
var several = []string{
	"area", "seq", "permit", "deny", "route", "mroute", "route-map", "router", "vni", "index", "import", "import-table", "instance", "vlan", "sequence",
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
