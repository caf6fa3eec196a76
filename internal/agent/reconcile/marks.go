package reconcile

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"trellis/internal/plan"
	"trellis/internal/vnet"
)

// Marks are digests of the parts of a [plan.Node] that were applied last; what
// they cover cannot be read back from the kernel.
type Marks struct {
	Boot Boot
	// Files are those of the user's files, by path. Others can be written into a
	// running node; one that goes cannot, since it may hide one of the image's.
	Files  map[string]string `json:",omitempty"`
	Soft   string            // what can be changed in a running node: daemons and their configuration
	Routes string            // the computed routes
	Exec   string            // the commands to run after start, once they ran
}

// Boot are the digests of what only a new container can change; "" of what is not there.
type Boot struct {
	Image       string
	Command     string `json:",omitempty"`
	Environment string `json:",omitempty"`
	Exec        string `json:",omitempty"`
	Sysctls     string `json:",omitempty"`
	Disk        string `json:",omitempty"`
	Software    string `json:",omitempty"` // the kind of routing software
}

// Restarts tells why a node with the marks needs a new container to have the wanted
// ones; "": it needs none.
func (m Marks) Restarts(want Marks) string {
	var changed []string
	for _, part := range []struct{ name, have, want string }{
		{"image", m.Boot.Image, want.Boot.Image},
		{"command", m.Boot.Command, want.Boot.Command},
		{"environment", m.Boot.Environment, want.Boot.Environment},
		{"exec commands", m.Boot.Exec, want.Boot.Exec},
		{"sysctls", m.Boot.Sysctls, want.Boot.Sysctls},
		{"disk", m.Boot.Disk, want.Boot.Disk},
		{"routing software", m.Boot.Software, want.Boot.Software},
	} {
		if part.have != part.want {
			changed = append(changed, part.name)
		}
	}
	if len(changed) > 0 {
		return "its " + strings.Join(changed, ", ") + " changed"
	}
	for _, path := range sortedKeys(m.Files) {
		if _, ok := want.Files[path]; !ok {
			return path + " is no longer one of its files"
		}
	}
	return ""
}

// ChangedFiles lists, in order, the user's files that a node with the marks has
// otherwise, or not at all.
func (m Marks) ChangedFiles(want Marks) []string {
	var paths []string
	for path, digest := range want.Files {
		if m.Files[path] != digest {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// MarksOf returns a function that gives the marks of the plan's nodes. What all
// nodes share is digested once.
func MarksOf(p *plan.Plan) func(*plan.Node) Marks {
	prefixes := digest(p.Prefixes)
	return func(n *plan.Node) Marks {
		m := Marks{Boot: Boot{
			Image: digest(struct {
				IDBase uint32
				Image  string
			}{p.IDBase, n.Image}),
		}}
		if len(n.Cmd) > 0 || n.Restart != "" {
			m.Boot.Command = digest(struct {
				Cmd     []string
				Restart vnet.Restart
			}{n.Cmd, n.Restart})
		}
		if len(n.Env) > 0 {
			m.Boot.Environment = digest(n.Env)
		}
		if len(n.Exec) > 0 {
			m.Boot.Exec = digest(n.Exec)
			m.Exec = m.Boot.Exec
		}
		if len(n.Sysctls) > 0 {
			m.Boot.Sysctls = digest(n.Sysctls)
		}
		if n.Limits.Disk != 0 {
			m.Boot.Disk = digest(n.Limits.Disk)
		}
		if n.Daemons.Kind != "" {
			m.Boot.Software = digest(struct {
				Kind any
				Dirs []string
			}{n.Daemons.Kind, n.Daemons.Dirs})
			m.Soft = digest(struct{ Files, Services any }{n.Daemons.Files, n.Daemons.Services})
		}
		if len(n.Files) > 0 {
			m.Files = make(map[string]string, len(n.Files))
			for _, f := range n.Files {
				m.Files[f.Path] = digest(f)
			}
		}
		if !n.Routes.IsZero() {
			m.Routes = digest(struct {
				Routes   plan.RouteTable
				Prefixes string
			}{n.Routes, prefixes})
		}
		return m
	}
}

// digest is the first 96 bits of SHA-256 over the value's JSON, which is
// canonical for the types of a plan: structs in order, maps sorted by key.
func digest(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("reconcile: a plan that cannot be marshalled: %v", err)) // no type of a plan can fail
	}
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}
