package format

import (
	"fmt"
	"net/netip"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
)

// The keys of each mapping of the native format. The JSON schema in docs/schema
// has the same ones; a test holds the two together.
var (
	networkKeys    = []string{"name", "routing", "addressing", "defaults", "nodes", "links"}
	routingKeys    = []string{"protocol", "daemon", "timers"}
	addressingKeys = []string{"ipv4", "ipv6"}
	defaultsKeys   = []string{"node", "link"}
	// What a node may say, and what defaults.node may say for every node.
	nodeDefaultKeys = []string{"image", "cmd", "cpu", "memory", "pids", "disk", "env", "files", "exec", "sysctls", "routing", "on", "fastpath"}
	nodeKeys        = append([]string{"asn", "loopback", "loopbacks", "router-id", "position"}, nodeDefaultKeys...)
	fileKeys        = []string{"source", "content", "base64", "mode"}
	positionKeys    = []string{"latitude", "longitude"}
	// What a link may say, and what defaults.link may say for every link.
	shapeKeys       = []string{"rate", "delay", "jitter", "loss"}
	linkDefaultKeys = append([]string{"mtu", "cost"}, shapeKeys...)
	linkKeys        = append([]string{"endpoints", "name", "type", "state", "down"}, linkDefaultKeys...)
	endpointKeys    = append([]string{"node", "interface", "mac", "mtu", "addresses", "cost"}, shapeKeys...)
	directionKeys   = []string{"up", "down"}
)

// network reads the whole document.
func (r *yamlReader) network(root *yaml.Node) *vnet.VNet {
	v := &vnet.VNet{}
	pairs := r.mapping(root, "the network", networkKeys)
	var nodeDefaults nodeSpec
	var linkDefaults linkSpec
	for _, p := range pairs { // defaults may stand after what they apply to
		if p.key == "defaults" {
			for _, d := range r.mapping(p.value, "defaults", defaultsKeys) {
				switch d.key {
				case "node":
					nodeDefaults = r.node(d.value, "defaults.node", nodeDefaultKeys)
				case "link":
					linkDefaults = r.linkDefaults(d.value)
				}
			}
		}
	}
	for _, p := range pairs {
		r.lines[p.key] = p.at.Line
		switch p.key {
		case "name":
			v.Name, _ = r.text(p.value, "name")
		case "routing":
			v.Routing, _ = r.routing(p.value, "routing")
		case "addressing":
			v.Addressing = r.addressing(p.value)
		case "nodes":
			for _, n := range r.mapping(p.value, "nodes", nil) {
				if len(v.Nodes) > vnet.MaxNodes {
					break // Validate says so
				}
				at := fmt.Sprintf("nodes[%d]", len(v.Nodes))
				r.lines[at] = n.at.Line
				spec := r.node(n.value, fmt.Sprintf("node %q", clip(n.key)), nodeKeys)
				spec.n.Name = n.key
				v.Nodes = append(v.Nodes, r.resolveNode(at, spec, nodeDefaults))
			}
		case "links":
			for _, item := range r.sequence(p.value, "links") {
				if len(v.Links) > vnet.MaxLinks {
					break // Validate says so
				}
				at := fmt.Sprintf("links[%d]", len(v.Links))
				r.lines[at] = item.Line
				spec := r.link(item, fmt.Sprintf("link %d", len(v.Links)+1))
				v.Links = append(v.Links, r.resolveLink(at, spec, linkDefaults))
			}
		}
	}
	return v
}

// routing reads "ospf" or {protocol: ospf, daemon: bird, timers: fast}.
func (r *yamlReader) routing(n *yaml.Node, what string) (out vnet.Routing, ok bool) {
	if n.Kind == yaml.ScalarNode {
		s, ok := r.text(n, what)
		if !ok || !r.oneOf(n, what, s, protocols) {
			return out, false
		}
		return vnet.Routing{Protocol: vnet.Protocol(s)}, true
	}
	for _, p := range r.mapping(n, what, routingKeys) {
		s, ok := r.text(p.value, what+": "+p.key)
		if !ok {
			continue
		}
		switch p.key {
		case "protocol":
			if r.oneOf(p.value, what+": protocol", s, protocols) {
				out.Protocol = vnet.Protocol(s)
			}
		case "daemon":
			if r.oneOf(p.value, what+": daemon", s, daemons) {
				out.Daemon = vnet.Daemon(s)
			}
		case "timers":
			if r.oneOf(p.value, what+": timers", s, timers) {
				out.Timers = vnet.Timers(s)
			}
		}
	}
	return out, true
}

var (
	protocols = []string{"none", "static", "ospf", "isis", "bgp", "rip"}
	daemons   = []string{"frr", "bird"}
	timers    = []string{"default", "fast"}
	fastPaths = []string{"auto", "off"}
	linkTypes = []string{"p2p", "lan"}
	states    = []string{"up", "down"}
)

// oneOf checks a word against the list of those that mean something.
func (r *yamlReader) oneOf(n *yaml.Node, what, word string, words []string) bool {
	for _, w := range words {
		if w == word {
			return true
		}
	}
	remedy := "use one of " + join(words)
	if near := vnet.Nearest(clip(word), words); near != "" {
		remedy = fmt.Sprintf("did you mean %q? (%s)", near, join(words))
	}
	r.fail(n, remedy, "%s is %q", what, clip(word))
	return false
}

func join(words []string) string {
	s := ""
	for i, w := range words {
		switch {
		case i == 0:
		case i == len(words)-1:
			s += " or "
		default:
			s += ", "
		}
		s += w
	}
	return s
}

func (r *yamlReader) addressing(n *yaml.Node) (out vnet.Addressing) {
	for _, p := range r.mapping(n, "addressing", addressingKeys) {
		r.lines["addressing."+p.key] = p.at.Line
		s, ok := r.text(p.value, "addressing: "+p.key)
		if !ok {
			continue
		}
		prefix, err := netip.ParsePrefix(s)
		if err != nil || prefix.Addr().Is4() != (p.key == "ipv4") {
			r.fail(p.value, "write a prefix like 10.0.0.0/8 for ipv4 or fd00::/48 for ipv6", "addressing: %s is %q", p.key, clip(s))
			continue
		}
		if p.key == "ipv4" {
			out.IPv4 = prefix.Masked()
		} else {
			out.IPv6 = prefix.Masked()
		}
	}
	return out
}

// address reads one address without a prefix length.
func (r *yamlReader) address(n *yaml.Node, what string) (netip.Addr, bool) {
	s, ok := r.text(n, what)
	if !ok {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		r.fail(n, "write an address like 10.0.0.1 or fd00::1, without a prefix length", "%s is %q", what, clip(s))
		return netip.Addr{}, false
	}
	return a, true
}
