package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
	"trellis/internal/yamlfile"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// Read reads a file. Its paths are relative to the file's directory. Every
// mistake is reported, a line each: FILE:LINE: what; remedy.
func Read(path string) (*Config, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no configuration %s; write one, or leave --config out for a machine on its own", path)
	} else if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d bytes; it is no configuration of Trellis", path, maxFile)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return parse(path, filepath.Dir(abs), text)
}

// reader walks a document and collects what is wrong with it.
type reader struct {
	yamlfile.Reader
	dir   string
	c     Config
	lines map[string]int // of what is there, by its path
}

var configFile = yamlfile.Kind{
	Second: "write one configuration",
	Large:  "it is no configuration of Trellis",
}

func parse(file, dir string, text []byte) (*Config, error) {
	r := &reader{Reader: yamlfile.Reader{File: file}, dir: dir, c: Config{File: file}, lines: map[string]int{}}
	root, err := r.Parse(text, configFile)
	if err != nil && !errors.Is(err, yamlfile.ErrEmpty) {
		return nil, err
	}
	if err == nil {
		r.mapping(root, "", map[string]func(*yaml.Node){
			"host": r.host, "roles": r.roles, "uplinks": r.uplinks, "capacity": r.capacity,
			"listen":  func(n *yaml.Node) { r.c.Listen = r.address(n, "listen", true) },
			"metrics": func(n *yaml.Node) { r.c.Metrics = r.address(n, "metrics", false) },
			"store":   r.store, "tls": r.tls, "images": r.images,
		})
	}
	if len(r.c.Roles) == 0 {
		r.c.Roles = roles
	}
	if len(r.Errs) == 0 {
		r.together()
	}
	if err := r.Errs.Err(); err != nil {
		return nil, err
	}
	return &r.c, nil
}

// fail notes a mistake that is worded "what; remedy".
func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	r.failAt(n.Line, format, args...)
}

func (r *reader) failAt(line int, format string, args ...any) {
	what, remedy, _ := strings.Cut(fmt.Sprintf(format, args...), "; ")
	r.Errs = append(r.Errs, yamlfile.Error{File: r.File, Line: max(line, 1), What: what, Remedy: remedy})
}

// mapping reads the keys of a mapping, each with its own function.
func (r *reader) mapping(n *yaml.Node, at string, read map[string]func(*yaml.Node)) {
	what, prefix := at, at+"."
	if at == "" {
		what, prefix = "the configuration", ""
	}
	for _, p := range r.Mapping(n, what, slices.Sorted(maps.Keys(read))) {
		r.lines[prefix+p.Key] = p.At.Line
		read[p.Key](p.Value)
	}
}

// word reads a value of one word; false after a mistake.
func (r *reader) word(n *yaml.Node, what string) (string, bool) {
	s, ok := r.Text(n, what)
	if ok && s == "" {
		r.fail(n, "%s has no value; write one, or leave the key out", what)
		return "", false
	}
	return s, ok
}

// list gives the values of a list; one value alone counts as a list of one.
func (r *reader) list(n *yaml.Node, what string) []*yaml.Node {
	if n.Kind == yaml.ScalarNode {
		if _, ok := r.word(n, what); !ok {
			return nil
		}
		return []*yaml.Node{n}
	}
	return r.Sequence(n, what)
}

func (r *reader) host(n *yaml.Node) {
	name, ok := r.word(n, "host")
	if !ok {
		return
	}
	if err := vnet.CheckHost(name); err != nil {
		r.fail(n, "%v", err)
		return
	}
	r.c.Host = name
}

func (r *reader) roles(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
		r.fail(n, "roles is empty; name some, or leave the key out for all")
	}
	for _, e := range r.list(n, "roles") {
		var known []string
		for _, role := range roles {
			known = append(known, string(role))
		}
		if !slices.Contains(known, e.Value) {
			hint := "roles are " + strings.Join(known, ", ")
			if near := vnet.Nearest(e.Value, known); near != "" {
				hint = fmt.Sprintf("did you mean %q?", near)
			}
			r.fail(e, "%q is no role; %s", e.Value, hint)
			continue
		}
		if role := Role(e.Value); !slices.Contains(r.c.Roles, role) {
			r.c.Roles = append(r.c.Roles, role)
		}
	}
	slices.SortFunc(r.c.Roles, func(a, b Role) int { return slices.Index(roles, a) - slices.Index(roles, b) })
}

// maxInterface is the longest name of a network interface: IFNAMSIZ less the
// closing zero.
const maxInterface = 15

func (r *reader) uplinks(n *yaml.Node) {
	first := map[string]int{}
	for _, e := range r.list(n, "uplinks") {
		u := Uplink{XDP: Auto}
		if e.Kind == yaml.ScalarNode {
			r.device(e, &u)
		} else {
			r.mapping(e, "uplinks", map[string]func(*yaml.Node){
				"interface": func(n *yaml.Node) { r.device(n, &u) },
				"addresses": func(n *yaml.Node) { r.addresses(n, &u) },
				"xdp":       func(n *yaml.Node) { r.xdp(n, &u) },
			})
		}
		switch {
		case u.Interface == "":
			r.fail(e, "an uplink has no interface; write `interface: eth1`")
		case first[u.Interface] != 0:
			r.fail(e, "the uplink %s is there twice, first in line %d; leave one out", u.Interface, first[u.Interface])
		default:
			first[u.Interface] = e.Line
			r.c.Uplinks = append(r.c.Uplinks, u)
		}
	}
}

func (r *reader) device(n *yaml.Node, u *Uplink) {
	name, ok := r.word(n, "uplinks.interface")
	if !ok {
		return
	}
	if len(name) > maxInterface || strings.ContainsAny(name, "/ \t\n") || name == "." || name == ".." {
		r.fail(n, "%q cannot be the name of an interface; `ip link` lists those there are", name)
	}
	u.Interface = name
}

func (r *reader) addresses(n *yaml.Node, u *Uplink) {
	for _, e := range r.list(n, "uplinks.addresses") {
		a, err := netip.ParseAddr(e.Value)
		switch {
		case err != nil && strings.Contains(e.Value, "/"):
			r.fail(e, "%q has a prefix length; write the address alone", e.Value)
		case err != nil:
			r.fail(e, "%q is no IP address", e.Value)
		case a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.Is4In6():
			r.fail(e, "other hosts cannot reach %s; name an address of the underlay", a)
		case slices.Contains(u.Addrs, a):
			r.fail(e, "the address %s is there twice; leave one out", a)
		default:
			u.Addrs = append(u.Addrs, a)
		}
	}
}

func (r *reader) xdp(n *yaml.Node, u *Uplink) {
	modes := []string{Auto, Native, Generic}
	if !slices.Contains(modes, n.Value) {
		r.fail(n, "%q is no XDP mode; write one of %s", n.Value, strings.Join(modes, ", "))
		return
	}
	u.XDP = n.Value
}

func (r *reader) capacity(n *yaml.Node) {
	r.mapping(n, "capacity", map[string]func(*yaml.Node){
		"memory": func(n *yaml.Node) {
			size, err := vnet.ParseSize(n.Value)
			switch {
			case err != nil:
				r.fail(n, "capacity.memory: %v", err)
			case size <= 0:
				r.fail(n, "capacity.memory is nothing; leave the role agent out for a host without nodes")
			}
			r.c.Memory = size
		},
		"cpu": func(n *yaml.Node) {
			cores, err := strconv.ParseFloat(n.Value, 64)
			if err != nil || !(cores > 0 && cores <= 1<<16) {
				r.fail(n, "capacity.cpu %q is no number of cores; write one like 8 or 1.5", n.Value)
			}
			r.c.CPU = cores
		},
	})
}

// address reads a host:port; a concrete one where others must reach it.
func (r *reader) address(n *yaml.Node, what string, concrete bool) string {
	v, ok := r.word(n, what)
	if !ok {
		return ""
	}
	host, port, err := net.SplitHostPort(v)
	if err != nil || port == "" {
		r.fail(n, "%s: %q is no address; write HOST:PORT, IPv6 as [ADDRESS]:PORT", what, v)
		return ""
	}
	if p, err := strconv.ParseUint(port, 10, 16); err != nil || concrete && p == 0 {
		r.fail(n, "%s: %q is no port; write one of 1 to 65535", what, port)
		return ""
	}
	a, err := netip.ParseAddr(host)
	if concrete && (host == "" || err == nil && a.IsUnspecified()) {
		r.fail(n, "%s: %q is not where others reach this host; name one of its addresses", what, v)
		return ""
	}
	return v
}

func (r *reader) store(n *yaml.Node) {
	r.mapping(n, "store", map[string]func(*yaml.Node){
		"listen": func(n *yaml.Node) { r.c.StoreListen = r.address(n, "store.listen", true) },
		"endpoints": func(n *yaml.Node) {
			for _, e := range r.list(n, "store.endpoints") {
				u, err := url.Parse(e.Value)
				switch {
				case err != nil || u.Host == "" || u.Port() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil:
					r.fail(e, "store.endpoints: %q is no address of a store; write https://HOST:PORT", e.Value)
				case u.Scheme != "https":
					r.fail(e, "store.endpoints: %q is not https; stores are reached over TLS only", e.Value)
				default:
					r.c.StoreEndpoints = append(r.c.StoreEndpoints, strings.TrimRight(e.Value, "/"))
				}
			}
			if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
				r.fail(n, "store.endpoints is empty; name the store, or leave the key out")
			}
		},
	})
}

func (r *reader) tls(n *yaml.Node) {
	path := func(to *string, what string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			p, ok := r.word(n, "tls."+what)
			if ok && !filepath.IsAbs(p) {
				p = filepath.Join(r.dir, p)
			}
			*to = p
		}
	}
	r.mapping(n, "tls", map[string]func(*yaml.Node){
		"ca": path(&r.c.TLS.CA, "ca"), "cert": path(&r.c.TLS.Cert, "cert"), "key": path(&r.c.TLS.Key, "key"),
	})
}

// together checks what only makes sense together.
func (r *reader) together() {
	at := func(path, format string, args ...any) {
		r.failAt(r.lines[path], format, args...)
	}
	c := &r.c
	if c.StoreListen != "" && len(c.StoreEndpoints) > 0 {
		at("store", "store has both listen and endpoints; a host either holds the store or uses another's")
	}
	if c.Has(VNP) != c.Has(PIP) {
		at("roles", "the roles vnp and pip go together; name both or neither")
	}
	tls := c.TLS.CA != "" && c.TLS.Cert != "" && c.TLS.Key != ""
	if _, some := r.lines["tls"]; some && !tls {
		at("tls", "tls is not complete; name ca, cert and key (`trellis cert` makes them)")
		return
	}
	for key, used := range map[string]bool{
		"listen": c.Listen != "", "store.listen": c.StoreListen != "", "store.endpoints": len(c.StoreEndpoints) > 0,
	} {
		if used && !tls {
			at(key, "%s needs certificates; name them in tls: {ca: …, cert: …, key: …} (`trellis cert` makes them)", key)
		}
	}
	shared := c.StoreListen != "" || len(c.StoreEndpoints) > 0
	switch {
	case !c.Has(Agent) && len(c.Uplinks) > 0:
		at("uplinks", "uplinks are the agent's, and roles leaves the agent out; leave one of them out")
	case !c.Has(Agent) && c.Listen != "":
		at("listen", "listen is the agent's, and roles leaves the agent out; leave one of them out")
	case !c.Has(Agent) && r.lines["images"] != 0:
		at("images", "images are the agent's, and roles leaves the agent out; leave one of them out")
	case c.Listen != "" && !shared:
		at("listen", "listen is for hosts that share a store; write store: {listen: HOST:PORT} here, and store: {endpoints: […]} there")
	case shared && c.Has(Agent) && c.Listen == "":
		at("store", "other hosts must reach the agent of a host that shares a store; write listen: HOST:PORT")
	case !c.Has(PIP) && !shared:
		at("roles", "a host without the roles vnp and pip needs others that have them; write store: {endpoints: […]}")
	}
}
