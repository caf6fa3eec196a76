package format

import (
	"fmt"
	"strings"

	"trellis/internal/vnet"
	"trellis/internal/yamlfile"
)

// yamlReader walks one parsed document and collects what is wrong with it.
type yamlReader struct {
	yamlfile.Reader
	open Open
	// folder is where relative paths of images start; "" where nobody knows.
	folder string
	lines  places
	files  map[string]file // what references to files gave, by path
	named  map[string]int  // lines of the nodes, by name
	// unread names what could not be read completely, by its path in the model, so
	// that what the model lacks of it is not reported as well.
	unread map[string]bool
}

func newYAMLReader(name string, open Open) *yamlReader {
	return &yamlReader{
		Reader: yamlfile.Reader{File: name}, open: open,
		lines: places{"": 1}, files: map[string]file{}, named: map[string]int{}, unread: map[string]bool{},
	}
}

var networkFile = yamlfile.Kind{
	Empty:  "describe a network with name, nodes and links",
	Second: "describe one network in each file",
	Large:  fmt.Sprintf("describe at most %d nodes and %d links", vnet.MaxNodes, vnet.MaxLinks),
}

// readYAML reads the native format, with the settings over it.
func readYAML(name string, data []byte, open Open, o Options) (*vnet.VNet, []Warning, error) {
	r := newYAMLReader(name, open)
	r.folder = o.folder
	root, err := r.Parse(data, networkFile)
	if err != nil {
		return nil, nil, err
	}
	r.apply(root, o.Set)
	v := r.network(root)
	if err := r.check(v, o.Machine); err != nil {
		return nil, nil, err
	}
	return v, nil, nil
}

// check completes and validates what could be read, and gives all that is wrong:
// with the file, and with the network as far as it could be read.
func (r *yamlReader) check(v *vnet.VNet, machine *vnet.Machine) error {
	if !r.Exhausted() {
		errs, err := modelErrors(v, machine)
		if err != nil {
			return fmt.Errorf("%s: %w", r.File, err)
		}
		for _, e := range errs {
			if !r.consequence(v, e.Path) {
				r.Note(r.lines.line(e.Path), Error{What: e.What, Remedy: e.Remedy})
			}
		}
	}
	return r.Errs.Err()
}

// consequence reports whether what the model lacks at a path only follows from
// something that could not be read.
func (r *yamlReader) consequence(v *vnet.VNet, path string) bool {
	if len(r.unread) == 0 {
		return false
	}
	for p := path; p != ""; p = p[:max(strings.LastIndexByte(p, '.'), strings.LastIndexByte(p, '['), 0)] {
		if r.unread[p] {
			return true
		}
	}
	link := strings.HasPrefix(path, "links[")
	switch {
	case r.unread[""]: // a key that nobody knows may have meant to be what is missing
		return path == "name" || len(v.Nodes) == 0 && (path == "nodes" || link)
	case r.unread["nodes"]:
		return link
	case r.unread["addressing"]:
		return strings.HasSuffix(path, ".mtu") || strings.Contains(path, "addressing")
	}
	return strings.Contains(path, "routing") || link && strings.Contains(path, "addressing")
}

// noteUnread marks a path where mistakes were found since there were so many.
func (r *yamlReader) noteUnread(path string, before int) {
	if len(r.Errs) > before {
		r.unread[path] = true
	}
}
