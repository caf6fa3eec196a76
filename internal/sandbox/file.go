package sandbox

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
)

// maxFile bounds a file, in bytes.
const maxFile = 1 << 20

// Fault is a mistake in a file.
type Fault struct {
	File         string
	Line         int // 1 for the first
	What, Remedy string
}

// Faults are the mistakes in a file, by line. There is at least one.
type Faults []Fault

// Error gives a line "FILE:LINE: what; remedy" for each.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, e := range f {
		lines[i] = fmt.Sprintf("%s:%d: %s; %s", e.File, e.Line, e.What, e.Remedy)
	}
	return strings.Join(lines, "\n")
}

// ReadFile reads the description of a sandbox. Mistakes in it are [Faults].
func ReadFile(path string) (*Spec, error) {
	data, err := read(path)
	if err != nil {
		if e := new(fs.PathError); errors.As(err, &e) {
			err = e.Err
		}
		return nil, fmt.Errorf("%s: cannot be read: %w; check the path", path, err)
	}
	if len(data) > maxFile {
		return nil, Faults{{path, 1, "the file is longer than 1 MiB", "describe a sandbox, as examples/sandbox-3.yaml does"}}
	}
	return parse(path, data)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// reader walks one document and collects what is wrong with it.
type reader struct {
	file   string
	faults Faults
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// parse reads the description of a sandbox; file is for messages.
func parse(file string, data []byte) (*Spec, error) {
	r := &reader{file: file}
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		return nil, Faults{{file, 1, "the file is empty", "name a sandbox and its hosts"}}
	case err != nil:
		m := yamlLine.FindStringSubmatch(err.Error())
		line := 1
		if m != nil && m[1] != "" {
			line, _ = strconv.Atoi(m[1]) // digits
		}
		return nil, Faults{{file, line, "not valid YAML: " + yamlLine.ReplaceAllString(err.Error(), ""), "check the indentation, the quotes and the brackets about there"}}
	case !errors.Is(dec.Decode(&more), io.EOF):
		return nil, Faults{{file, max(more.Line, 1), "the file holds a second document", "describe one sandbox in each file"}}
	}
	s := r.spec(doc.Content[0])
	if len(r.faults) > 0 {
		slices.SortStableFunc(r.faults, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
		return nil, r.faults
	}
	return s, nil
}

func (r *reader) fail(n *yaml.Node, remedy, what string, args ...any) {
	r.faults = append(r.faults, Fault{r.file, max(n.Line, 1), fmt.Sprintf(what, args...), remedy})
}

// check is fail where there is something to say.
func (r *reader) check(n *yaml.Node, what, remedy string) {
	if what != "" {
		r.fail(n, remedy, "%s", what)
	}
}

// entry is a key and its value.
type entry struct {
	key   string
	at    *yaml.Node
	value *yaml.Node
}

// mapping gives the entries of a mapping in their order. With a list of keys,
// others are faults. Nothing at all counts as an empty mapping.
func (r *reader) mapping(n *yaml.Node, what string, known ...string) []entry {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "write it as `key: value` lines", "%s is no mapping", what)
		return nil
	}
	var all []entry
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if v.Kind == yaml.AliasNode {
			v = v.Alias
		}
		switch first, twice := seen[k.Value]; {
		case k.Kind != yaml.ScalarNode:
			r.fail(k, "use a word as the key", "a key of %s is no word", what)
			continue
		case twice:
			r.fail(k, "keep one of them", "key %q is there twice in %s (first in line %d)", clip(k.Value), what, first)
			continue
		case len(known) > 0 && !slices.Contains(known, k.Value):
			remedy := "the keys are " + strings.Join(known, ", ")
			if near := vnet.Nearest(clip(k.Value), known); near != "" {
				remedy = fmt.Sprintf("did you mean %q?", near)
			}
			r.fail(k, remedy, "unknown key %q in %s", clip(k.Value), what)
			continue
		}
		seen[k.Value] = k.Line
		all = append(all, entry{k.Value, k, v})
	}
	return all
}

// text gives a single value as it is written.
func (r *reader) text(n *yaml.Node, what string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		r.fail(n, "write one, or leave the key out", "%s has no single value", what)
		return "", false
	}
	return n.Value, true
}

func (r *reader) spec(n *yaml.Node) *Spec {
	s := &Spec{Underlay: defaultUnderlay}
	top := r.mapping(n, "the file", "name", "hosts", "underlay")
	misspelt := len(r.faults) > 0 // then what is missing may be what that was to be
	named, hosted := misspelt, misspelt
	var underlay *yaml.Node
	for _, e := range top {
		switch e.key {
		case "name":
			named = true
			if text, ok := r.text(e.value, "name"); ok {
				s.Name = text
				what, remedy := checkName(text)
				r.check(e.value, what, remedy)
			}
		case "hosts":
			hosted = true
			s.Hosts = r.hosts(e)
		case "underlay":
			underlay = e.value
		}
	}
	if !named {
		r.fail(n, "add one, like `name: three`", "the sandbox has no name")
	}
	if !hosted {
		r.fail(n, "add some, like `hosts: {alpha: {}, beta: {}}`", "the sandbox has no hosts")
	}
	if underlay != nil {
		s.Underlay = r.underlay(underlay, len(s.Hosts))
	}
	return s
}

func (r *reader) hosts(at entry) []Host {
	var hosts []Host
	entries := r.mapping(at.value, "hosts")
	if n := len(entries); len(r.faults) == 0 && (n == 0 || n > MaxHosts) {
		r.fail(at.at, fmt.Sprintf("name 1 to %d", MaxHosts), "there are %d hosts", n)
	}
	for _, e := range entries {
		what, remedy := checkHost(e.key)
		r.check(e.at, what, remedy)
		h := Host{Name: e.key}
		for _, v := range r.mapping(e.value, "host "+clip(e.key), "memory", "cpu") {
			text, ok := r.text(v.value, v.key)
			if !ok {
				continue
			}
			switch v.key {
			case "memory":
				size, err := vnet.ParseSize(text)
				if err == nil && size <= 0 {
					err = fmt.Errorf("memory %q is no room for a node; write a size like 1GiB", clip(text))
				}
				if err != nil {
					r.faultOf(v.value, err)
				}
				h.Memory = size
			case "cpu":
				cpu, err := strconv.ParseFloat(text, 64)
				if err != nil || !(cpu > 0 && cpu <= 4096) {
					r.fail(v.value, "write a number of cores, like 2 or 0.5", "cpu is %q", clip(text))
				}
				h.CPU = cpu
			}
		}
		hosts = append(hosts, h)
	}
	return hosts
}

// faultOf takes an error of the form "what; remedy" apart.
func (r *reader) faultOf(n *yaml.Node, err error) {
	what, remedy, ok := strings.Cut(err.Error(), "; ")
	if !ok {
		remedy = "write another"
	}
	r.fail(n, remedy, "%s", what)
}

func (r *reader) underlay(n *yaml.Node, hosts int) Underlay {
	u := Underlay{MTU: defaultMTU}
	entries := r.mapping(n, "underlay", "ipv4", "ipv6", "mtu")
	var narrow *yaml.Node // an MTU that is too small for IPv6
	for _, e := range entries {
		text, ok := r.text(e.value, e.key)
		if !ok {
			continue
		}
		if e.key == "mtu" {
			mtu, err := strconv.Atoi(text)
			if err != nil || mtu < LeastMTU || mtu > MostMTU {
				r.fail(e.value, fmt.Sprintf("write a number of bytes from %d to %d", LeastMTU, MostMTU), "mtu is %q", clip(text))
			}
			if u.MTU = mtu; mtu < LeastMTU6 {
				narrow = e.value
			}
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			r.fail(e.value, "write the first address and a length, like 192.0.2.0/24 or 2001:db8::/64", "%s %q is no prefix", e.key, clip(text))
			continue
		}
		what, remedy := checkPrefix(e.key, p, hosts)
		r.check(e.value, what, remedy)
		if e.key == "ipv4" {
			u.IPv4 = p
		} else {
			u.IPv6 = p
		}
	}
	if !u.IPv4.IsValid() && !u.IPv6.IsValid() && len(r.faults) == 0 {
		// Only the MTU was given.
		u.IPv4, u.IPv6 = defaultUnderlay.IPv4, defaultUnderlay.IPv6
	}
	if narrow != nil && u.IPv6.IsValid() && len(r.faults) == 0 {
		r.fail(narrow, fmt.Sprintf("give %d at least, or name ipv4 alone", LeastMTU6), "mtu %d is too small for tunnels over IPv6", u.MTU)
	}
	return u
}
