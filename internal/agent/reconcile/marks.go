package reconcile

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"trellis/internal/plan"
	"trellis/internal/vnet"
)

// MarksOf returns a function that gives the marks of the plan's nodes. What all
// nodes share is digested once.
func MarksOf(p *plan.Plan) func(*plan.Node) Marks {
	prefixes := digest(p.Prefixes)
	return func(n *plan.Node) Marks {
		m := Marks{
			Boot: digest(struct {
				IDBase   uint32
				Image    string
				Cmd      []string
				Restart  vnet.Restart `json:",omitempty"`
				Env      map[string]string
				Files    any
				Exec     []string
				Sysctls  map[string]string
				Disk     int64
				Kind     any
				Services any // see routing.Reload
				Dirs     []string
			}{p.IDBase, n.Image, n.Cmd, n.Restart, n.Env, n.Files, n.Exec, n.Sysctls, n.Limits.Disk, n.Daemons.Kind, n.Daemons.Services, n.Daemons.Dirs}),
			Soft: digest(struct{ Files any }{n.Daemons.Files}),
		}
		if !n.Routes.IsZero() {
			m.Routes = digest(struct {
				Routes   plan.RouteTable
				Prefixes string
			}{n.Routes, prefixes})
		}
		if len(n.Exec) > 0 {
			m.Exec = digest(n.Exec)
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
