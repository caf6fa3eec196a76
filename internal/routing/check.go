package routing

import (
	"strings"

	"trellis/internal/vnet"
)

// Check asks the software of a routing daemon whether it takes a file of
// configuration that the user brings. The program exits with 0 and prints
// nothing where it does; else it names lines, of the file as the user wrote it.
type Check struct {
	Path   string // of the file, in the node
	Argv   []string
	Daemon vnet.Daemon // whose software is asked
}

// Checks lists the questions about a node's own configurations. Argv is a
// program's as Debian and Ubuntu install it; in it stands dir, a directory that
// holds the node's files under their paths, and an empty vtysh.conf, since who
// checks may not be allowed to read the machine's.
func Checks(n *vnet.Node, dir string) []Check {
	var checks []Check
	for i := range n.Files {
		p := n.Files[i].Path
		for k := range registry {
			if argv := registry[k].check(p, dir); argv != nil {
				checks = append(checks, Check{p, argv, registry[k].name})
				break
			}
		}
	}
	return checks
}

// Refused names a line of the user's own configuration that a daemon has refused
// and runs without, by what the services' logs hold; empty: none.
func (d Daemons) Refused(own []vnet.File, logs map[string]string) string {
	if s := softwareOf(d.Kind); s != nil && s.refused != nil {
		return s.refused(d, own, logs)
	}
	return ""
}

// Complaint is what a daemon's software says of a line.
type Complaint struct {
	Line int    // of the file; 0: of no line in particular
	What string // the daemon's words
}

// ParseComplaints reads what a check has printed.
func ParseComplaints(out string) []Complaint {
	var list []Complaint
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		list = append(list, parseComplaint(line))
	}
	return list
}

func parseComplaint(text string) Complaint {
	for i := range registry {
		if c, ok := registry[i].complaint(text); ok {
			return c
		}
	}
	return Complaint{What: text}
}
