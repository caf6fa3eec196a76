package vnet

import (
	"fmt"
	"slices"
	"strings"
)

// Machine is what a substrate node has of what not all have.
type Machine struct {
	Netem    bool            // delay, jitter and loss
	Programs map[string]bool // routing daemons, by name: zebra, ospfd, bird
	// Calls gives the daemons that a node's own files call for; nil: nobody knows.
	Calls func(*Node) []string
	// Sysctls tries the sysctls of a node, and gives what is wrong with those that
	// cannot be set; nil: nobody knows.
	Sysctls func(map[string]string) map[string]error
}

const netemRemedy = "load sch_netem (modprobe sch_netem), use a kernel with CONFIG_NET_SCH_NETEM, or go on without by `trellis up --partial`"

// Unsupported gives what a completed description asks for and the machine lacks.
func (v *VNet) Unsupported(m Machine) Errors {
	c := &checker{v: v}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if n.Image != DefaultImage {
			continue // an image brings its own programs
		}
		at, lacks := fmt.Sprintf("nodes[%d].routing", i), func(p string) bool { return !m.Programs[p] }
		needed := n.programs()
		missing := slices.DeleteFunc(slices.Clone(needed), func(p string) bool { return !lacks(p) })
		if m.Calls != nil && len(needed) > 0 && len(missing) == 0 {
			for _, p := range m.Calls(n) {
				if lacks(p) {
					missing = append(missing, p)
					at = fmt.Sprintf("nodes[%d].files", i)
				}
			}
		}
		if len(missing) > 0 {
			remedy := "install it (`trellis doctor` names the package), or give the node an image that has it"
			if first := needed[0]; !lacks(first) {
				remedy = fmt.Sprintf("the installed %s goes without: give the node an image that has it, or leave out what needs it", n.Routing.Daemon.Kind().Title)
			}
			c.add(at, remedy, "node %q needs %s, which this machine does not have", clip(n.Name), strings.Join(missing, ", "))
		}
	}
	c.trySysctls(m)
	for i := range v.Links {
		if what := v.Links[i].netemKeys(); what != "" && !m.Netem {
			c.add(fmt.Sprintf("links[%d].endpoints[0].%s", i, firstWord(what)), netemRemedy,
				"link %q asks for %s, which needs netem, and the kernel of this machine has none", clip(v.Links[i].Name), what)
		}
	}
	return c.errs
}

// trySysctls tries the sysctls of all nodes, once for each set of them.
func (c *checker) trySysctls(m Machine) {
	if m.Sysctls == nil {
		return
	}
	tried := map[string]map[string]error{} // by their names and values
	for i := range c.v.Nodes {
		n := &c.v.Nodes[i]
		if len(n.Sysctls) == 0 {
			continue
		}
		set := fmt.Sprint(n.Sysctls) // sorted by key
		if tried[set] == nil {
			tried[set] = m.Sysctls(n.Sysctls)
		}
		for _, k := range sortedKeys(n.Sysctls) {
			if err := tried[set][k]; err != nil {
				what, remedy := SysctlTrouble(k, n.Sysctls[k], err)
				c.add(fmt.Sprintf("nodes[%d].sysctls.%s", i, k), remedy, "node %q: %s", clip(n.Name), what)
			}
		}
	}
}

// LeaveOut takes out of a completed description what the machine lacks and the
// network can go on without, and gives it in words.
func (v *VNet) LeaveOut(m Machine) []string {
	var out []string
	if m.Netem {
		return nil
	}
	for i := range v.Links {
		l := &v.Links[i]
		what := l.netemKeys()
		if what == "" {
			continue
		}
		out = append(out, fmt.Sprintf("%s of link %s (the kernel has no netem)", what, l.Name))
		for ei := range l.Endpoints {
			for _, s := range []*Shape{&l.Endpoints[ei].Tx, &l.Endpoints[ei].Rx} {
				*s = Shape{Rate: s.Rate}
			}
		}
	}
	return out
}

// netemKeys names what of a link needs netem, "" where nothing does.
func (l *Link) netemKeys() string {
	var keys []string
	has := func(key string, of func(Shape) bool) {
		if slices.ContainsFunc(l.Endpoints, func(e Interface) bool { return of(e.Tx) || of(e.Rx) }) {
			keys = append(keys, key)
		}
	}
	has("delay", func(s Shape) bool { return s.Delay != 0 })
	has("jitter", func(s Shape) bool { return s.Jitter != 0 })
	has("loss", func(s Shape) bool { return s.Loss != 0 })
	return strings.Join(keys, ", ")
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, ",")
	return word
}
