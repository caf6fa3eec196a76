package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
	"trellis/internal/yamlfile"
)

// maxFile bounds a file, in bytes.
const maxFile = 1 << 20

// ReadFile reads the description of a sandbox. Mistakes in it are a [yamlfile.Errors].
func ReadFile(path string) (*Spec, error) {
	data, err := read(path)
	if err != nil {
		if e := new(fs.PathError); errors.As(err, &e) {
			err = e.Err
		}
		return nil, fmt.Errorf("%s: cannot be read: %w; check the path", path, err)
	}
	if len(data) > maxFile {
		return nil, yamlfile.Errors{{File: path, Line: 1, What: "the file is longer than 1 MiB", Remedy: "describe a sandbox, as examples/sandbox-3.yaml does"}}
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
type reader struct{ yamlfile.Reader }

var sandboxFile = yamlfile.Kind{
	Empty:  "name a sandbox and its hosts",
	Second: "describe one sandbox in each file",
	Large:  fmt.Sprintf("describe at most %d hosts", MaxHosts),
}

// parse reads the description of a sandbox; file is for messages.
func parse(file string, data []byte) (*Spec, error) {
	r := &reader{yamlfile.Reader{File: file}}
	root, err := r.Parse(data, sandboxFile)
	if err != nil {
		return nil, err
	}
	s := r.spec(root)
	if err := r.Errs.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// check is Fail where there is something to report.
func (r *reader) check(n *yaml.Node, what, remedy string) {
	if what != "" {
		r.Fail(n, remedy, "%s", what)
	}
}

func (r *reader) spec(n *yaml.Node) *Spec {
	s := &Spec{Underlay: defaultUnderlay}
	top := r.Mapping(n, "the file", []string{"name", "hosts", "underlay"})
	misspelt := len(r.Errs) > 0 // then what is missing may be what that was to be
	named, hosted := misspelt, misspelt
	var underlay *yaml.Node
	for _, e := range top {
		switch e.Key {
		case "name":
			named = true
			if text, ok := r.Text(e.Value, "name"); ok {
				s.Name = text
				what, remedy := checkName(text)
				r.check(e.Value, what, remedy)
			}
		case "hosts":
			hosted = true
			s.Hosts = r.hosts(e)
		case "underlay":
			underlay = e.Value
		}
	}
	if !named {
		r.Fail(n, "add one, like `name: three`", "the sandbox has no name")
	}
	if !hosted {
		r.Fail(n, "add some, like `hosts: {alpha: {}, beta: {}}`", "the sandbox has no hosts")
	}
	if underlay != nil {
		s.Underlay = r.underlay(underlay, len(s.Hosts))
	}
	return s
}

func (r *reader) hosts(at yamlfile.Pair) []Host {
	var hosts []Host
	entries := r.Mapping(at.Value, "hosts", nil)
	if n := len(entries); len(r.Errs) == 0 && (n == 0 || n > MaxHosts) {
		r.Fail(at.At, fmt.Sprintf("name 1 to %d", MaxHosts), "there are %d hosts", n)
	}
	for _, e := range entries {
		what, remedy := checkHost(e.Key)
		r.check(e.At, what, remedy)
		h := Host{Name: e.Key}
		for _, v := range r.Mapping(e.Value, "host "+yamlfile.Clip(e.Key), []string{"memory", "cpu"}) {
			text, ok := r.Text(v.Value, v.Key)
			if !ok {
				continue
			}
			switch v.Key {
			case "memory":
				size, err := vnet.ParseSize(text)
				if err == nil && size <= 0 {
					err = fmt.Errorf("memory %q is no room for a node; write a size like 1GiB", yamlfile.Clip(text))
				}
				if err != nil {
					r.failOf(v.Value, err)
				}
				h.Memory = size
			case "cpu":
				cpu, err := strconv.ParseFloat(text, 64)
				if err != nil || !(cpu > 0 && cpu <= 4096) {
					r.Fail(v.Value, "write a number of cores, like 2 or 0.5", "cpu is %q", yamlfile.Clip(text))
				}
				h.CPU = cpu
			}
		}
		hosts = append(hosts, h)
	}
	return hosts
}

// failOf splits an error of the form "what; remedy".
func (r *reader) failOf(n *yaml.Node, err error) {
	what, remedy, ok := strings.Cut(err.Error(), "; ")
	if !ok {
		remedy = "write another"
	}
	r.Fail(n, remedy, "%s", what)
}

func (r *reader) underlay(n *yaml.Node, hosts int) Underlay {
	u := Underlay{MTU: defaultMTU}
	entries := r.Mapping(n, "underlay", []string{"ipv4", "ipv6", "mtu"})
	var narrow *yaml.Node // an MTU that is too small for IPv6
	for _, e := range entries {
		text, ok := r.Text(e.Value, e.Key)
		if !ok {
			continue
		}
		if e.Key == "mtu" {
			mtu, err := strconv.Atoi(text)
			if err != nil || mtu < LeastMTU || mtu > MostMTU {
				r.Fail(e.Value, fmt.Sprintf("write a number of bytes from %d to %d", LeastMTU, MostMTU), "mtu is %q", yamlfile.Clip(text))
			}
			if u.MTU = mtu; mtu < LeastMTU6 {
				narrow = e.Value
			}
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			r.Fail(e.Value, "write the first address and a length, like 192.0.2.0/24 or 2001:db8::/64", "%s %q is no prefix", e.Key, yamlfile.Clip(text))
			continue
		}
		what, remedy := checkPrefix(e.Key, p, hosts)
		r.check(e.Value, what, remedy)
		if e.Key == "ipv4" {
			u.IPv4 = p
		} else {
			u.IPv6 = p
		}
	}
	if !u.IPv4.IsValid() && !u.IPv6.IsValid() && len(r.Errs) == 0 {
		// Only the MTU was given.
		u.IPv4, u.IPv6 = defaultUnderlay.IPv4, defaultUnderlay.IPv6
	}
	if narrow != nil && u.IPv6.IsValid() && len(r.Errs) == 0 {
		r.Fail(narrow, fmt.Sprintf("give %d at least, or name ipv4 alone", LeastMTU6), "mtu %d is too small for tunnels over IPv6", u.MTU)
	}
	return u
}
