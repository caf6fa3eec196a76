package format

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
	"trellis/internal/yamlfile"
)

// perDirection is a value for each direction of a link. From a link, up is from the
// first end to the others; from one end, up is what its node sends.
type perDirection[T any] struct {
	up, down T
	set      bool
	split    bool // written as {up:, down:}
	line     int
}

// shapeSpec is what the file says of a link's directions.
type shapeSpec struct {
	rate          perDirection[uint64]
	delay, jitter perDirection[time.Duration]
	loss          perDirection[float64]
}

// linkSpec is what the file says of a link, or of every link.
type linkSpec struct {
	name      string
	typ       vnet.LinkType
	ends      []endSpec
	down      bool
	overlap   bool
	shape     shapeSpec
	mtu, cost perDirection[int] // up alone is used

	addressing vnet.AddressMode
	routing    vnet.LinkRouting

	lines map[string]int // of the keys that are there
}

// endSpec is what the file says of one end.
type endSpec struct {
	e         vnet.Interface
	shape     shapeSpec
	mtu, cost perDirection[int]
	line      int
	lines     map[string]int
}

func (r *yamlReader) linkDefaults(n *yaml.Node) linkSpec {
	s := linkSpec{lines: map[string]int{}}
	for _, p := range r.Mapping(n, "defaults.link", linkDefaultKeys) {
		s.lines[p.Key] = p.At.Line
		r.linkKey(p, "defaults.link", &s)
	}
	return s
}

// linkKey reads a key that links and their defaults share.
func (r *yamlReader) linkKey(p yamlfile.Pair, what string, s *linkSpec) {
	switch p.Key {
	case "addressing":
		s.addressing, _ = r.addressMode(p.Value, what+": addressing", true)
	case "routing":
		s.routing = r.linkRouting(p.Value, what+": routing")
	default:
		r.commonKey(p, what, &s.shape, &s.mtu, &s.cost)
	}
}

// link reads the short form, [a, b], or the long one, a mapping.
func (r *yamlReader) link(n *yaml.Node, what string) linkSpec {
	s := linkSpec{lines: map[string]int{}}
	if n.Kind == yaml.SequenceNode {
		s.ends = r.endpoints(n, what)
		return s
	}
	pairs := r.Mapping(n, what, linkKeys)
	for _, p := range pairs {
		if p.Key == "name" {
			if s.name, _ = r.Text(p.Value, what+": name"); s.name != "" {
				what = fmt.Sprintf("link %q", yamlfile.Clip(s.name))
			}
		}
	}
	stated := false
	for _, p := range pairs {
		s.lines[p.Key] = p.At.Line
		switch p.Key {
		case "endpoints":
			s.ends = r.endpoints(p.Value, what)
		case "type":
			s.typ = vnet.LinkType(r.word(p.Value, what+": type", linkTypes))
		case "state", "down":
			s.down = r.state(p, what, &stated)
		case "overlap":
			s.overlap = r.word(p.Value, what+": overlap", truths) == "true"
		default:
			r.linkKey(p, what, &s)
		}
	}
	if _, ok := s.lines["endpoints"]; !ok && len(pairs) > 0 {
		r.Fail(n, "add endpoints: [a, b]", "%s has no endpoints", what)
	}
	return s
}

// state reads state: up or down, or down: true or false. One of them may be there.
func (r *yamlReader) state(p yamlfile.Pair, what string, stated *bool) (down bool) {
	if *stated {
		r.Fail(p.At, "keep one of them", "%s says both state and down", what)
	}
	*stated = true
	words := states
	if p.Key == "down" {
		words = truths
	}
	t := r.word(p.Value, what+": "+p.Key, words)
	return t == "down" || t == "true"
}

// commonKey reads a key that links, ends and defaults share.
func (r *yamlReader) commonKey(p yamlfile.Pair, what string, shape *shapeSpec, mtu, cost *perDirection[int]) {
	name := what + ": " + p.Key
	switch p.Key {
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
		v, _ := r.Integer(p.Value, name, vnet.MinMTU, vnet.MaxMTU)
		*mtu = perDirection[int]{up: int(v), set: true, line: p.At.Line}
	case "cost":
		v, _ := r.Integer(p.Value, name, 0, vnet.MaxCost)
		*cost = perDirection[int]{up: int(v), set: true, line: p.At.Line}
	}
}

// direction reads one value for both directions, or {up:, down:}. A direction
// that is left out is a perfect wire's.
func direction[T any](r *yamlReader, p yamlfile.Pair, what string, parse func(string) (T, error)) perDirection[T] {
	out := perDirection[T]{set: true, line: p.At.Line}
	one := func(n *yaml.Node, what string) (v T) {
		s, ok := r.Text(n, what)
		if !ok {
			return v
		}
		v, err := parse(s)
		if err != nil {
			r.FailWith(n, what, err)
		}
		return v
	}
	if p.Value.Kind != yaml.MappingNode {
		out.up = one(p.Value, what)
		out.down = out.up
		return out
	}
	out.split = true
	for _, d := range r.Mapping(p.Value, what, directionKeys) {
		if d.Key == "up" {
			out.up = one(d.Value, what+": up")
		} else {
			out.down = one(d.Value, what+": down")
		}
	}
	return out
}

func (r *yamlReader) endpoints(n *yaml.Node, what string) []endSpec {
	items := r.Sequence(n, what+": endpoints")
	if len(items) > vnet.MaxLANEnds {
		r.Fail(n, "split it into several LANs", "%s has %d ends, a LAN has %d at most", what, len(items), vnet.MaxLANEnds)
		return nil
	}
	var out []endSpec
	for i, item := range items {
		who := fmt.Sprintf("%s: endpoint %d", what, i+1)
		end := endSpec{line: item.Line, lines: map[string]int{}}
		if item.Kind == yaml.ScalarNode {
			s, ok := r.Text(item, who)
			if !ok {
				continue
			}
			name, iface, hasInterface := strings.Cut(s, ":")
			if hasInterface && iface == "" || name == "" {
				r.Fail(item, "write node or node:interface", "%s is %q", who, yamlfile.Clip(s))
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
	stated := false
	for _, p := range r.Mapping(n, who, endpointKeys) {
		what := who + ": " + p.Key
		end.lines[p.Key] = p.At.Line
		switch p.Key {
		case "node":
			end.e.Node, _ = r.Text(p.Value, what)
		case "interface":
			end.e.Name, _ = r.Text(p.Value, what)
		case "mac":
			s, ok := r.Text(p.Value, what)
			if !ok {
				continue
			}
			mac, err := vnet.ParseMAC(s)
			if err != nil || mac.IsZero() {
				r.Fail(p.Value, "write an address like 02:00:00:00:00:01, in quotes", "%s is %q", what, yamlfile.Clip(s))
			}
			end.e.MAC = mac
		case "addresses":
			for _, s := range r.Texts(p.Value, what) {
				prefix, err := netip.ParsePrefix(s)
				if err != nil {
					r.Fail(p.Value, "write an address with its prefix length, like 192.0.2.1/24", "%s has %q", what, yamlfile.Clip(s))
					continue
				}
				end.e.Addrs = append(end.e.Addrs, prefix)
			}
		case "state", "down":
			end.e.Down = r.state(p, who, &stated)
		default:
			r.commonKey(p, who, &end.shape, &end.mtu, &end.cost)
		}
	}
	if _, ok := end.lines["node"]; !ok {
		r.Fail(n, "add node: NAME", "%s has no node", who)
	}
}

// resolveLink gives the model's link: what an end says goes over what the link
// says, and that over the defaults.
func (r *yamlReader) resolveLink(at string, s, def linkSpec) vnet.Link {
	l := vnet.Link{Name: s.name, Type: s.typ, Down: s.down, Overlap: s.overlap}
	if l.Type == "" {
		l.Type = vnet.PointToPoint
	}
	l.Addressing, l.Routing = s.addressing, s.routing
	if _, set := s.lines["addressing"]; !set && !(l.Type == vnet.LAN && def.addressing == vnet.AddressesUnnumbered) {
		l.Addressing = def.addressing
	}
	if _, set := s.lines["routing"]; !set {
		l.Routing = def.routing
	}
	for _, key := range []string{"name", "type", "addressing", "routing"} {
		if line, ok := s.lines[key]; ok {
			r.lines[at+"."+key] = line
		} else if line, ok := def.lines[key]; ok {
			r.lines[at+"."+key] = line
		}
	}
	for i := range s.ends {
		end := &s.ends[i]
		where := fmt.Sprintf("%s.endpoints[%d]", at, i)
		r.lines[where] = end.line
		for key, field := range map[string]string{"mac": ".mac", "addresses": ".addrs", "interface": ".name", "state": ".down", "down": ".down"} {
			if line, ok := end.lines[key]; ok {
				r.lines[where+field] = line
			}
		}
		e := end.e
		e.Node = r.nodeNamed(e.Node)
		mtu := firstSet(end.mtu, firstSet(s.mtu, def.mtu))
		cost := firstSet(end.cost, firstSet(s.cost, def.cost))
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

func firstSet[T any](first, second perDirection[T]) perDirection[T] {
	if first.set {
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
func resolve[T comparable](r *yamlReader, typ vnet.LinkType, end int, link, def, own perDirection[T], tx, rx *T, twice bool) int {
	if typ != vnet.LAN {
		if own.set {
			*tx = own.up
			if own.split && !isZero(own.down) {
				r.Errs = append(r.Errs, Error{File: r.File, Line: own.line,
					What:   "an end of a point-to-point link shapes only what it sends",
					Remedy: "write `up` here and at the other end, or {up:, down:} at the link"})
			}
			return own.line
		}
		v := firstSet(link, def)
		*tx = v.up
		if end > 0 {
			*tx = v.down
		}
		return v.line
	}
	v := firstSet(own, firstSet(link, def))
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
