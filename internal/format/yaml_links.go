package format

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
)

// both is a value for each direction of a link. From a link, up is from the
// first end to the others; from one end, up is what its node sends.
type both[T any] struct {
	up, down T
	said     bool
	split    bool // written as {up:, down:}
	line     int
}

// shapeSpec is what the file says of a link's directions.
type shapeSpec struct {
	rate          both[uint64]
	delay, jitter both[time.Duration]
	loss          both[float64]
}

// linkSpec is what the file says of a link, or of every link.
type linkSpec struct {
	name      string
	typ       vnet.LinkType
	ends      []endSpec
	down      bool
	shape     shapeSpec
	mtu, cost both[int] // up alone is used
	lines     map[string]int
}

// endSpec is what the file says of one end.
type endSpec struct {
	e         vnet.Interface
	shape     shapeSpec
	mtu, cost both[int]
	line      int
	lines     map[string]int
}

func (r *yamlReader) linkDefaults(n *yaml.Node) linkSpec {
	s := linkSpec{lines: map[string]int{}}
	for _, p := range r.mapping(n, "defaults.link", linkDefaultKeys) {
		r.commonKey(p, "defaults.link", &s.shape, &s.mtu, &s.cost)
	}
	return s
}

// link reads the short form, [a, b], or the long one, a mapping.
func (r *yamlReader) link(n *yaml.Node, what string) linkSpec {
	s := linkSpec{lines: map[string]int{}}
	if n.Kind == yaml.SequenceNode {
		s.ends = r.endpoints(n, what)
		return s
	}
	pairs := r.mapping(n, what, linkKeys)
	for _, p := range pairs {
		if p.key == "name" {
			if s.name, _ = r.text(p.value, what+": name"); s.name != "" {
				what = fmt.Sprintf("link %q", clip(s.name))
			}
		}
	}
	stated := false
	for _, p := range pairs {
		s.lines[p.key] = p.at.Line
		switch p.key {
		case "endpoints":
			s.ends = r.endpoints(p.value, what)
		case "type":
			if t, ok := r.text(p.value, what+": type"); ok && r.oneOf(p.value, what+": type", t, linkTypes) {
				s.typ = vnet.LinkType(t)
			}
		case "state", "down":
			if stated {
				r.fail(p.at, "keep one of them", "%s says both state and down", what)
			}
			stated = true
			words := states
			if p.key == "down" {
				words = []string{"true", "false"}
			}
			if t, ok := r.text(p.value, what+": "+p.key); ok && r.oneOf(p.value, what+": "+p.key, t, words) {
				s.down = t == "down" || t == "true"
			}
		default:
			r.commonKey(p, what, &s.shape, &s.mtu, &s.cost)
		}
	}
	if _, ok := s.lines["endpoints"]; !ok && len(pairs) > 0 {
		r.fail(n, "add endpoints: [a, b]", "%s has no endpoints", what)
	}
	return s
}

// commonKey reads a key that links, ends and defaults share.
func (r *yamlReader) commonKey(p pair, what string, shape *shapeSpec, mtu, cost *both[int]) {
	name := what + ": " + p.key
	switch p.key {
	case "rate":
		shape.rate = direction(r, p, name, func(s string) (uint64, error) {
			if s == "unlimited" {
				return 0, nil
			}
			return vnet.ParseRate(s)
		})
	case "delay":
		shape.delay = direction(r, p, name, vnet.ParseDelay)
	case "jitter":
		shape.jitter = direction(r, p, name, vnet.ParseDelay)
	case "loss":
		shape.loss = direction(r, p, name, vnet.ParseLoss)
	case "mtu":
		v, _ := r.integer(p.value, name, vnet.MinMTU, vnet.MaxMTU)
		*mtu = both[int]{up: int(v), said: true, line: p.at.Line}
	case "cost":
		v, _ := r.integer(p.value, name, 0, vnet.MaxCost)
		*cost = both[int]{up: int(v), said: true, line: p.at.Line}
	}
}

// direction reads one value for both directions, or {up:, down:}. A direction
// that is left out is a perfect wire's.
func direction[T any](r *yamlReader, p pair, what string, parse func(string) (T, error)) both[T] {
	out := both[T]{said: true, line: p.at.Line}
	one := func(n *yaml.Node, what string) (v T) {
		s, ok := r.text(n, what)
		if !ok {
			return v
		}
		v, err := parse(s)
		if err != nil {
			r.failWith(n, what, err)
		}
		return v
	}
	if p.value.Kind != yaml.MappingNode {
		out.up = one(p.value, what)
		out.down = out.up
		return out
	}
	out.split = true
	for _, d := range r.mapping(p.value, what, directionKeys) {
		if d.key == "up" {
			out.up = one(d.value, what+": up")
		} else {
			out.down = one(d.value, what+": down")
		}
	}
	return out
}

func (r *yamlReader) endpoints(n *yaml.Node, what string) []endSpec {
	items := r.sequence(n, what+": endpoints")
	if len(items) > vnet.MaxLANEnds {
		r.fail(n, "split it into several LANs", "%s has %d ends, a LAN has %d at most", what, len(items), vnet.MaxLANEnds)
		return nil
	}
	var out []endSpec
	for i, item := range items {
		who := fmt.Sprintf("%s: endpoint %d", what, i+1)
		end := endSpec{line: item.Line, lines: map[string]int{}}
		if item.Kind == yaml.ScalarNode {
			s, ok := r.text(item, who)
			if !ok {
				continue
			}
			name, iface, given := strings.Cut(s, ":")
			if given && iface == "" || name == "" {
				r.fail(item, "write node or node:interface", "%s is %q", who, clip(s))
				continue
			}
			end.e.Node, end.e.Name = name, iface
		} else {
			r.longEndpoint(item, who, &end)
		}
		out = append(out, end)
	}
	return out
}

func (r *yamlReader) longEndpoint(n *yaml.Node, who string, end *endSpec) {
	for _, p := range r.mapping(n, who, endpointKeys) {
		what := who + ": " + p.key
		end.lines[p.key] = p.at.Line
		switch p.key {
		case "node":
			end.e.Node, _ = r.text(p.value, what)
		case "interface":
			end.e.Name, _ = r.text(p.value, what)
		case "mac":
			s, ok := r.text(p.value, what)
			if !ok {
				continue
			}
			mac, err := vnet.ParseMAC(s)
			if err != nil || mac.IsZero() {
				r.fail(p.value, "write an address like 02:00:00:00:00:01, in quotes", "%s is %q", what, clip(s))
			}
			end.e.MAC = mac
		case "addresses":
			for _, s := range r.texts(p.value, what) {
				prefix, err := netip.ParsePrefix(s)
				if err != nil {
					r.fail(p.value, "write an address with its prefix length, like 192.0.2.1/24", "%s has %q", what, clip(s))
					continue
				}
				end.e.Addrs = append(end.e.Addrs, prefix)
			}
		default:
			r.commonKey(p, who, &end.shape, &end.mtu, &end.cost)
		}
	}
	if _, ok := end.lines["node"]; !ok {
		r.fail(n, "add node: NAME", "%s has no node", who)
	}
}

// resolveLink gives the model's link: what an end says goes over what the link
// says, and that over the defaults.
func (r *yamlReader) resolveLink(at string, s, def linkSpec) vnet.Link {
	l := vnet.Link{Name: s.name, Type: s.typ, Down: s.down}
	if l.Type == "" {
		l.Type = vnet.PointToPoint
	}
	for _, key := range []string{"name", "type"} {
		if line, ok := s.lines[key]; ok {
			r.lines[at+"."+key] = line
		}
	}
	for i := range s.ends {
		end := &s.ends[i]
		where := fmt.Sprintf("%s.endpoints[%d]", at, i)
		r.lines[where] = end.line
		for key, field := range map[string]string{"mac": ".mac", "addresses": ".addrs", "interface": ".name"} {
			if line, ok := end.lines[key]; ok {
				r.lines[where+field] = line
			}
		}
		e := end.e
		mtu := over(end.mtu, over(s.mtu, def.mtu))
		cost := over(end.cost, over(s.cost, def.cost))
		e.MTU, e.Cost = mtu.up, cost.up
		rate := resolve(r, l.Type, i, s.shape.rate, def.shape.rate, end.shape.rate, &e.Tx.Rate, &e.Rx.Rate, true)
		delay := resolve(r, l.Type, i, s.shape.delay, def.shape.delay, end.shape.delay, &e.Tx.Delay, &e.Rx.Delay, false)
		jitter := resolve(r, l.Type, i, s.shape.jitter, def.shape.jitter, end.shape.jitter, &e.Tx.Jitter, &e.Rx.Jitter, false)
		loss := resolve(r, l.Type, i, s.shape.loss, def.shape.loss, end.shape.loss, &e.Tx.Loss, &e.Rx.Loss, false)
		for field, line := range map[string]int{"mtu": mtu.line, "cost": cost.line, "rate": rate, "delay": delay, "jitter": jitter, "loss": loss} {
			if line > 0 {
				r.lines[where+"."+field] = line
				r.lines[where+".tx."+field] = line
				r.lines[where+".rx."+field] = line
			}
		}
		l.Endpoints = append(l.Endpoints, e)
	}
	return l
}

func over[T any](first, second both[T]) both[T] {
	if first.said {
		return first
	}
	return second
}

// resolve sets what one end sends (tx) and receives (rx) and gives the line that
// says so.
//
// On a point-to-point link each end's tx is one direction of the link. On a LAN
// a value for the link holds for each end's cable: a rate in both directions; a
// delay, jitter or loss once, towards the node, so that a frame from one node to
// another meets it once and not twice.
func resolve[T comparable](r *yamlReader, typ vnet.LinkType, end int, link, def, own both[T], tx, rx *T, twice bool) int {
	if typ != vnet.LAN {
		if own.said {
			*tx = own.up
			if own.split && !isZero(own.down) {
				r.errs = append(r.errs, Error{File: r.file, Line: own.line,
					What:   "an end of a point-to-point link shapes only what it sends",
					Remedy: "write `up` here and at the other end, or {up:, down:} at the link"})
			}
			return own.line
		}
		v := over(link, def)
		*tx = v.up
		if end > 0 {
			*tx = v.down
		}
		return v.line
	}
	v := over(own, over(link, def))
	if v.split || twice {
		*tx, *rx = v.up, v.down
	} else {
		*rx = v.down
	}
	return v.line
}

func isZero[T comparable](v T) bool {
	var zero T
	return v == zero
}
