package format

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
)

// nodeSpec is what the file says of a node, or of every node.
type nodeSpec struct {
	n     vnet.Node
	said  map[string]bool // the keys that are there
	lines map[string]int  // of those keys, by the model's field names
}

// file is one placed file, or a reference that could not be followed.
type file struct {
	content []byte
	err     error
}

// node reads the mapping of a node or of defaults.node.
func (r *yamlReader) node(n *yaml.Node, what string, known []string) nodeSpec {
	s := nodeSpec{said: map[string]bool{}, lines: map[string]int{}}
	for _, p := range r.mapping(n, what, known) {
		s.said[p.key] = true
		s.lines[p.key] = p.at.Line
		r.nodeKey(&s, p, what+": "+p.key)
	}
	return s
}

func (r *yamlReader) nodeKey(s *nodeSpec, p pair, what string) {
	n := &s.n
	switch p.key {
	case "image":
		n.Image, _ = r.text(p.value, what)
	case "cmd":
		n.Cmd = r.texts(p.value, what)
		if p.value.Kind == yaml.ScalarNode && len(n.Cmd) == 1 {
			n.Cmd = []string{"/bin/sh", "-c", n.Cmd[0]}
		}
	case "cpu":
		n.CPU, _ = r.number(p.value, what)
	case "memory":
		n.Memory = r.size(p.value, what, vnet.MinMemory, vnet.MaxMemory)
	case "disk":
		n.Disk = r.size(p.value, what, vnet.MinDisk, vnet.MaxDisk)
	case "pids":
		v, _ := r.integer(p.value, what, vnet.MinPids, vnet.MaxPids)
		n.Pids = int(v)
	case "env":
		n.Env = r.textMap(p.value, what, true)
	case "sysctls":
		n.Sysctls = r.textMap(p.value, what, false)
	case "exec":
		n.Exec = r.texts(p.value, what)
	case "files":
		for _, f := range r.mapping(p.value, what, nil) {
			if placed, ok := r.placedFile(f, what+" "+clip(f.key)); ok {
				n.Files = append(n.Files, placed)
			}
		}
	case "routing":
		n.Routing, _ = r.routing(p.value, what)
	case "on":
		n.On, _ = r.text(p.value, what)
	case "fastpath":
		if s, ok := r.text(p.value, what); ok && r.oneOf(p.value, what, s, fastPaths) {
			n.FastPath = vnet.FastPath(s)
		}
	case "asn":
		v, _ := r.integer(p.value, what, 1, 1<<32-2)
		n.ASN = uint32(v)
	case "loopback", "loopbacks":
		if s.said["loopback"] && s.said["loopbacks"] {
			r.fail(p.at, "keep one of them", "%s: loopback and loopbacks are the same key", what)
		}
		s.lines["loopbacks"] = p.at.Line
		items := []*yaml.Node{p.value}
		if p.value.Kind != yaml.ScalarNode {
			items = r.sequence(p.value, what)
		}
		for _, item := range items {
			if a, ok := r.address(item, what); ok {
				n.Loopbacks = append(n.Loopbacks, a)
			}
		}
	case "router-id":
		s.lines["routerID"] = p.at.Line
		n.RouterID, _ = r.address(p.value, what)
	case "position":
		n.Position = &vnet.Position{}
		given := 0
		for _, c := range r.mapping(p.value, what, positionKeys) {
			v, ok := r.number(c.value, what+": "+c.key)
			if c.key == "latitude" {
				n.Position.Latitude = v
			} else {
				n.Position.Longitude = v
			}
			given++
			if !ok {
				return
			}
		}
		if given != 2 {
			r.fail(p.at, "write {latitude: 47.6, longitude: -122.3}", "%s needs both coordinates", what)
		}
	}
}

// size reads a size within bounds.
func (r *yamlReader) size(n *yaml.Node, what string, least, most int64) int64 {
	s, ok := r.text(n, what)
	if !ok {
		return 0
	}
	v, err := vnet.ParseSize(s)
	if err != nil {
		r.failWith(n, what, err)
		return 0
	}
	if v < least || v > most {
		r.fail(n, fmt.Sprintf("use %s to %s", vnet.FormatSize(least), vnet.FormatSize(most)), "%s is %q", what, clip(s))
		return 0
	}
	return v
}

// textMap reads a mapping of texts. A variable without a value is empty where
// that makes sense.
func (r *yamlReader) textMap(n *yaml.Node, what string, mayBeEmpty bool) map[string]string {
	pairs := r.mapping(n, what, nil)
	if len(pairs) == 0 {
		return nil
	}
	out := make(map[string]string, len(pairs))
	for _, p := range pairs {
		if mayBeEmpty && p.value.Kind == yaml.ScalarNode && p.value.ShortTag() == "!!null" {
			out[p.key] = ""
			continue
		}
		if s, ok := r.text(p.value, what+" "+clip(p.key)); ok {
			out[p.key] = s
		}
	}
	return out
}

// placedFile reads "path: local file" or "path: {content: …, mode: …}".
func (r *yamlReader) placedFile(p pair, what string) (vnet.File, bool) {
	f := vnet.File{Path: p.key, Mode: 0o644}
	if p.value.Kind == yaml.ScalarNode {
		source, ok := r.text(p.value, what)
		if !ok {
			return f, false
		}
		f.Content, ok = r.openFile(p.value, what, source)
		return f, ok
	}
	origin := ""
	good := true
	for _, k := range r.mapping(p.value, what, fileKeys) {
		s, ok := r.text(k.value, what+": "+k.key)
		if !ok {
			good = false
			continue
		}
		if k.key == "mode" {
			mode, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
			if err != nil || mode == 0 || mode > 0o7777 {
				r.fail(k.value, "write permission bits in octal, like 0644", "%s: mode is %q", what, clip(s))
				good = false
				continue
			}
			f.Mode = uint32(mode)
			continue
		}
		if origin != "" {
			r.fail(k.at, "keep one of them", "%s has both %s and %s", what, origin, k.key)
			good = false
			continue
		}
		origin = k.key
		switch k.key {
		case "source":
			f.Content, ok = r.openFile(k.value, what, s)
			good = good && ok
		case "content":
			f.Content = []byte(s)
		case "base64":
			content, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(s), ""))
			if err != nil {
				r.fail(k.value, "encode it as `base64` does", "%s: base64 cannot be decoded", what)
				good = false
			}
			f.Content = content
		}
	}
	if origin == "" && good {
		r.fail(p.at, "say source (a file beside this one), content or base64", "%s has no content", what)
		good = false
	}
	if len(f.Content) == 0 {
		f.Content = nil // an empty file is one value, however it was written
	}
	return f, good
}

// openFile follows a reference, once for each path.
func (r *yamlReader) openFile(n *yaml.Node, what, source string) ([]byte, bool) {
	got, known := r.files[source]
	if !known {
		if r.open == nil {
			got.err = errors.New("references to files are not followed here")
		} else {
			got.content, got.err = r.open(source, vnet.MaxFileSize)
		}
		if len(got.content) == 0 {
			got.content = nil
		}
		r.files[source] = got
	}
	if got.err == nil {
		return got.content, true
	}
	reason := "cannot be read"
	var errs Errors
	var one Error
	switch {
	case errors.As(got.err, &errs) && len(errs) > 0:
		reason = errs[0].What
	case errors.As(got.err, &one):
		reason = one.What
	default:
		reason += ": " + got.err.Error()
	}
	r.errs = append(r.errs, Error{
		File: r.file, Line: max(n.Line, 1), Err: got.err,
		What:   fmt.Sprintf("%s: file %q: %s", what, clip(source), reason),
		Remedy: "name a file relative to this one, or give its content with content",
	})
	return nil, false
}

// resolveNode puts what a node says over the defaults: single values and lists
// replace the default, mappings are merged entry by entry.
func (r *yamlReader) resolveNode(at string, own, def nodeSpec) vnet.Node {
	n := own.n
	line := func(key string) {
		if l, ok := own.lines[key]; ok {
			r.lines[at+"."+key] = l
		} else if l, ok := def.lines[key]; ok {
			r.lines[at+"."+key] = l
		}
	}
	for _, key := range []string{"image", "cpu", "memory", "disk", "pids", "cmd", "env", "sysctls", "exec", "files", "routing", "on", "fastpath", "asn", "loopbacks", "routerID", "position"} {
		line(key)
	}
	inherit(own, "image", &n.Image, def.n.Image)
	inherit(own, "cpu", &n.CPU, def.n.CPU)
	inherit(own, "memory", &n.Memory, def.n.Memory)
	inherit(own, "disk", &n.Disk, def.n.Disk)
	inherit(own, "pids", &n.Pids, def.n.Pids)
	inherit(own, "on", &n.On, def.n.On)
	inherit(own, "fastpath", &n.FastPath, def.n.FastPath)
	inherit(own, "cmd", &n.Cmd, slices.Clone(def.n.Cmd))
	inherit(own, "exec", &n.Exec, slices.Clone(def.n.Exec))
	inherit(own, "routing", &n.Routing, def.n.Routing)
	n.Env = r.mergeMaps(def.n.Env, n.Env)
	n.Sysctls = r.mergeMaps(def.n.Sysctls, n.Sysctls)
	for _, f := range def.n.Files {
		if !slices.ContainsFunc(n.Files, func(o vnet.File) bool { return o.Path == f.Path }) {
			n.Files = append(n.Files, f)
		}
	}
	if len(n.Cmd) == 0 {
		n.Cmd = nil
	}
	if len(n.Exec) == 0 {
		n.Exec = nil
	}
	return n
}

func inherit[T any](own nodeSpec, key string, field *T, def T) {
	if !own.said[key] {
		*field = def
	}
}

func (r *yamlReader) mergeMaps(def, own map[string]string) map[string]string {
	if len(def) == 0 {
		return own
	}
	out := maps.Clone(def)
	maps.Copy(out, own)
	return out
}
