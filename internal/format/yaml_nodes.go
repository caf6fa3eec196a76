package format

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
	"trellis/internal/yamlfile"
)

// nodeSpec is what the file says of a node, or of every node.
type nodeSpec struct {
	n     vnet.Node
	set   map[string]bool // the keys that are there
	lines map[string]int  // of those keys, by the model's field names
}

// file is one placed file, or a reference that could not be followed.
type file struct {
	content []byte
	err     error
}

// node reads the mapping of a node or of defaults.node.
func (r *yamlReader) node(n *yaml.Node, what string, known []string) nodeSpec {
	s := nodeSpec{set: map[string]bool{}, lines: map[string]int{}}
	for _, p := range r.Mapping(n, what, known) {
		s.set[p.Key] = true
		s.lines[p.Key] = p.At.Line
		r.nodeKey(&s, p, what+": "+p.Key)
	}
	return s
}

func (r *yamlReader) nodeKey(s *nodeSpec, p yamlfile.Pair, what string) {
	n := &s.n
	switch p.Key {
	case "image":
		n.Image = r.image(p.Value, what)
	case "cmd":
		n.Cmd = r.Texts(p.Value, what)
		if p.Value.Kind == yaml.ScalarNode && len(n.Cmd) == 1 {
			n.Cmd = []string{"/bin/sh", "-c", n.Cmd[0]}
		}
	case "cpu":
		n.CPU, _ = r.Number(p.Value, what)
	case "memory":
		n.Memory = r.size(p.Value, what, vnet.MinMemory, vnet.MaxMemory)
	case "disk":
		n.Disk = r.size(p.Value, what, vnet.MinDisk, vnet.MaxDisk)
	case "pids":
		v, _ := r.Integer(p.Value, what, vnet.MinPids, vnet.MaxPids)
		n.Pids = int(v)
	case "env":
		n.Env = r.textMap(s, p, what, true)
	case "sysctls":
		n.Sysctls = r.textMap(s, p, what, false)
	case "exec":
		n.Exec = r.Texts(p.Value, what)
	case "files":
		for _, f := range r.Mapping(p.Value, what, nil) {
			if placed, ok := r.placedFile(f, what+" "+yamlfile.Clip(f.Key)); ok {
				n.Files = append(n.Files, placed)
			}
		}
	case "routing":
		n.Routing = r.routing(p.Value, what)
	case "kind":
		n.Kind = vnet.Kind(r.word(p.Value, what, kinds))
	case "addressing":
		n.Addressing, _ = r.addressMode(p.Value, what, false)
	case "display":
		n.Display, _ = r.Text(p.Value, what)
	case "restart":
		n.Restart = vnet.Restart(r.word(p.Value, what, restarts))
	case "exec-timeout":
		s.lines["execTimeout"] = p.At.Line
		n.ExecTimeout = r.interval(p.Value, what)
	case "on":
		n.On, _ = r.Text(p.Value, what)
	case "fastpath":
		n.FastPath = vnet.FastPath(r.word(p.Value, what, fastPaths))
	case "repair":
		n.Repair = vnet.Repair(r.word(p.Value, what, repairs))
	case "asn":
		v, _ := r.Integer(p.Value, what, 1, 1<<32-2)
		n.ASN = uint32(v)
	case "loopback", "loopbacks":
		if s.set["loopback"] && s.set["loopbacks"] {
			r.Fail(p.At, "keep one of them", "%s: loopback and loopbacks are the same key", what)
		}
		s.lines["loopbacks"] = p.At.Line
		n.Loopbacks = r.addresses(p.Value, what)
	case "anycast":
		n.Anycast = r.addresses(p.Value, what)
	case "router-id":
		s.lines["routerID"] = p.At.Line
		n.RouterID, _ = r.address(p.Value, what)
	case "position":
		n.Position = &vnet.Position{}
		coordinates := 0
		for _, c := range r.Mapping(p.Value, what, positionKeys) {
			v, ok := r.Number(c.Value, what+": "+c.Key)
			if c.Key == "latitude" {
				n.Position.Latitude = v
			} else {
				n.Position.Longitude = v
			}
			coordinates++
			if !ok {
				return
			}
		}
		if coordinates != 2 {
			r.Fail(p.At, "write {latitude: 47.6, longitude: -122.3}", "%s needs both coordinates", what)
		}
	}
}

// image reads the reference of an image. A relative path becomes an absolute one, for
// who reads the image has another working directory.
func (r *yamlReader) image(n *yaml.Node, what string) string {
	ref, ok := r.Text(n, what)
	if !ok || !vnet.RelativeImage(ref) || r.folder == "" {
		return ref
	}
	path := filepath.Join(r.folder, ref)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		r.Fail(n, "name one that is there, relative to this file", "%s: there is no %s", what, yamlfile.Clip(path))
	}
	return path
}

// size reads a size within bounds.
func (r *yamlReader) size(n *yaml.Node, what string, least, most int64) int64 {
	s, ok := r.Text(n, what)
	if !ok {
		return 0
	}
	v, err := vnet.ParseSize(s)
	if err != nil {
		r.FailWith(n, what, err)
		return 0
	}
	if v < least || v > most {
		r.Fail(n, fmt.Sprintf("use %s to %s", vnet.FormatSize(least), vnet.FormatSize(most)), "%s is %q", what, yamlfile.Clip(s))
		return 0
	}
	return v
}

// textMap reads a mapping of texts. A variable without a value is empty where
// that makes sense. The line of each entry is noted.
func (r *yamlReader) textMap(s *nodeSpec, of yamlfile.Pair, what string, mayBeEmpty bool) map[string]string {
	pairs := r.Mapping(of.Value, what, nil)
	if len(pairs) == 0 {
		return nil
	}
	out := make(map[string]string, len(pairs))
	for _, p := range pairs {
		s.lines[of.Key+"."+p.Key] = p.At.Line
		if mayBeEmpty && p.Value.Kind == yaml.ScalarNode && p.Value.ShortTag() == "!!null" {
			out[p.Key] = ""
			continue
		}
		if s, ok := r.Text(p.Value, what+" "+yamlfile.Clip(p.Key)); ok {
			out[p.Key] = s
		}
	}
	return out
}

// placedFile reads "path: local file" or "path: {content: …, mode: …}".
func (r *yamlReader) placedFile(p yamlfile.Pair, what string) (vnet.File, bool) {
	f := vnet.File{Path: p.Key, Mode: 0o644}
	if p.Value.Kind == yaml.ScalarNode {
		source, ok := r.Text(p.Value, what)
		if !ok {
			return f, false
		}
		f.Content, ok = r.openFile(p.Value, what, source)
		return f, ok
	}
	origin := ""
	good := true
	for _, k := range r.Mapping(p.Value, what, fileKeys) {
		s, ok := r.Text(k.Value, what+": "+k.Key)
		if !ok {
			good = false
			continue
		}
		if k.Key == "mode" {
			mode, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
			if err != nil || mode == 0 || mode > 0o7777 {
				r.Fail(k.Value, "write permission bits in octal, like 0644", "%s: mode is %q", what, yamlfile.Clip(s))
				good = false
				continue
			}
			f.Mode = uint32(mode)
			continue
		}
		if origin != "" {
			r.Fail(k.At, "keep one of them", "%s has both %s and %s", what, origin, k.Key)
			good = false
			continue
		}
		origin = k.Key
		switch k.Key {
		case "source":
			f.Content, ok = r.openFile(k.Value, what, s)
			good = good && ok
		case "content":
			f.Content = []byte(s)
		case "base64":
			content, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(s), ""))
			if err != nil {
				r.Fail(k.Value, "encode it as `base64` does", "%s: base64 cannot be decoded", what)
				good = false
			}
			f.Content = content
		}
	}
	if origin == "" && good {
		r.Fail(p.At, "say source (a file beside this one), content or base64", "%s has no content", what)
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
	reason, remedy := "cannot be read", "name a file relative to this one, or give its content with content"
	var errs Errors
	var one Error
	switch {
	case errors.As(got.err, &errs) && len(errs) > 0:
		if reason = errs[0].What; errors.Is(errs[0].Err, errTooLarge) {
			remedy = "put it into the node's image: an image may be a directory of this machine or a tar archive"
		}
	case errors.As(got.err, &one):
		if reason = one.What; errors.Is(one.Err, errOutside) {
			remedy = one.Remedy
		}
	default:
		reason += ": " + got.err.Error()
	}
	r.Errs = append(r.Errs, Error{
		File: r.File, Line: max(n.Line, 1), Err: got.err,
		What:   fmt.Sprintf("%s: file %q: %s", what, yamlfile.Clip(source), reason),
		Remedy: remedy,
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
	for _, key := range []string{"image", "cpu", "memory", "disk", "pids", "cmd", "env", "sysctls", "exec", "files", "execTimeout", "restart", "kind", "addressing", "display", "routing", "on", "fastpath", "repair", "asn", "loopbacks", "anycast", "routerID", "position"} {
		line(key)
	}
	inherit(own, "image", &n.Image, def.n.Image)
	inherit(own, "cpu", &n.CPU, def.n.CPU)
	inherit(own, "memory", &n.Memory, def.n.Memory)
	inherit(own, "disk", &n.Disk, def.n.Disk)
	inherit(own, "pids", &n.Pids, def.n.Pids)
	inherit(own, "on", &n.On, def.n.On)
	inherit(own, "fastpath", &n.FastPath, def.n.FastPath)
	inherit(own, "repair", &n.Repair, def.n.Repair)
	inherit(own, "cmd", &n.Cmd, slices.Clone(def.n.Cmd))
	inherit(own, "exec", &n.Exec, slices.Clone(def.n.Exec))
	inherit(own, "routing", &n.Routing, def.n.Routing)
	inherit(own, "kind", &n.Kind, def.n.Kind)
	inherit(own, "addressing", &n.Addressing, def.n.Addressing)
	inherit(own, "exec-timeout", &n.ExecTimeout, def.n.ExecTimeout)
	n.Env = r.mergeMaps(def.n.Env, n.Env)
	n.Sysctls = r.mergeMaps(def.n.Sysctls, n.Sysctls)
	for key := range n.Env {
		line("env." + key)
	}
	for key := range n.Sysctls {
		line("sysctls." + key)
	}
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
	if !own.set[key] {
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
