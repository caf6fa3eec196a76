package format

import (
	"time"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
)

var (
	protocols     = []string{"none", "static", "ospf", "isis", "bgp", "rip"}
	igps          = []string{"none", "ospf", "isis", "rip"}
	linkProtocols = []string{"none", "ospf", "isis", "bgp", "rip"}
	daemons       = vnet.DaemonNames()
	timerSets     = []string{"default", "fast"}
	truths        = []string{"true", "false"}
)

// routing reads "ospf" or {protocol: ospf, daemon: bird, timers: fast}.
func (r *yamlReader) routing(n *yaml.Node, what string) (out vnet.Routing) {
	if n.Kind == yaml.ScalarNode {
		out.Protocol = vnet.Protocol(r.word(n, what, protocols))
		return out
	}
	for _, p := range r.Mapping(n, what, routingKeys) {
		what := what + ": " + p.Key
		switch p.Key {
		case "protocol":
			out.Protocol = vnet.Protocol(r.word(p.Value, what, protocols))
		case "igp":
			out.IGP = vnet.Protocol(r.word(p.Value, what, igps))
		case "daemon":
			out.Daemon = vnet.Daemon(r.word(p.Value, what, daemons))
		case "timers":
			out.Timers, out.Intervals = r.timers(p.Value, what)
		case "area":
			out.Area = r.area(p.Value, what)
		case "default-route":
			out.DefaultRoute = r.truth(p.Value, what)
		case "route-reflector":
			out.RouteReflector = r.truth(p.Value, what)
		}
	}
	return out
}

// timers reads "fast" or {hello: 2s, dead: 8s, spf: [100ms, 1s, 5s]}, which
// replace single timers of a set.
func (r *yamlReader) timers(n *yaml.Node, what string) (set vnet.Timers, i vnet.Intervals) {
	if n.Kind == yaml.ScalarNode {
		return vnet.Timers(r.word(n, what, timerSets)), i
	}
	for _, p := range r.Mapping(n, what, timerKeys) {
		what := what + ": " + p.Key
		switch p.Key {
		case "set":
			set = vnet.Timers(r.word(p.Value, what, timerSets))
		case "hello":
			i.Hello = r.interval(p.Value, what)
		case "dead":
			i.Dead = r.interval(p.Value, what)
		case "spf":
			items := r.Sequence(p.Value, what)
			if len(items) != len(i.SPF) {
				r.Fail(p.Value, "write [first, next, most], like [100ms, 1s, 5s]", "%s has %d values", what, len(items))
				continue
			}
			for k, item := range items {
				i.SPF[k] = r.duration(item, what)
			}
			if i.SPF[2] == 0 {
				r.Fail(p.Value, "write [first, next, most], like [100ms, 1s, 5s]", "%s leaves no time at most", what)
			}
		}
	}
	return set, i
}

// interval reads a time that cannot be 0.
func (r *yamlReader) interval(n *yaml.Node, what string) time.Duration {
	before := len(r.Errs)
	d := r.duration(n, what)
	if d == 0 && len(r.Errs) == before {
		r.Fail(n, "write a time like 2s, or leave the key out", "%s is 0", what)
	}
	return d
}

func (r *yamlReader) duration(n *yaml.Node, what string) time.Duration {
	s, ok := r.Text(n, what)
	if !ok {
		return 0
	}
	d, err := vnet.ParseDelay(s)
	if err != nil {
		r.Fail(n, "write a time like 2s or 500ms", "%s is %q", what, s)
	}
	return d
}

// linkRouting reads "none" or {protocol: ospf, area: 1, passive: true}.
func (r *yamlReader) linkRouting(n *yaml.Node, what string) (out vnet.LinkRouting) {
	if n.Kind == yaml.ScalarNode {
		out.Protocol = vnet.Protocol(r.word(n, what, linkProtocols))
		return out
	}
	for _, p := range r.Mapping(n, what, linkRoutingKeys) {
		what := what + ": " + p.Key
		switch p.Key {
		case "protocol":
			out.Protocol = vnet.Protocol(r.word(p.Value, what, linkProtocols))
		case "area":
			out.Area = r.area(p.Value, what)
		case "passive":
			out.Passive = r.truth(p.Value, what)
		}
	}
	return out
}

// area reads 1 or 0.0.0.1.
func (r *yamlReader) area(n *yaml.Node, what string) vnet.Area {
	s, ok := r.Text(n, what)
	if !ok {
		return ""
	}
	a, err := vnet.ParseArea(s)
	if err != nil {
		r.FailWith(n, what, err)
	}
	return a
}

// word reads one of a list of words, or gives "".
func (r *yamlReader) word(n *yaml.Node, what string, words []string) string {
	if s, ok := r.Text(n, what); ok && r.OneOf(n, what, s, words) {
		return s
	}
	return ""
}

func (r *yamlReader) truth(n *yaml.Node, what string) bool {
	return r.word(n, what, truths) == "true"
}
