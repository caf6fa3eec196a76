package format

import (
	"fmt"
	"net/netip"
	"regexp"

	"go.yaml.in/yaml/v3"

	"trellis/internal/vnet"
	"trellis/internal/yamlfile"
)

// The keys of each mapping of the native format. The JSON schema in docs/schema
// has the same ones; a test holds the two together.
var (
	networkKeys     = []string{"name", "routing", "addressing", "defaults", "nodes", "links"}
	routingKeys     = []string{"protocol", "igp", "daemon", "timers", "area", "default-route", "route-reflector"}
	timerKeys       = []string{"set", "hello", "dead", "spf"}
	linkRoutingKeys = []string{"protocol", "area", "passive"}
	addressingKeys  = []string{"ipv4", "ipv6"}
	defaultsKeys    = []string{"node", "link"}
	// What a node may say, and what defaults.node may say for every node.
	nodeDefaultKeys = []string{"image", "cmd", "cpu", "memory", "pids", "disk", "env", "files", "exec", "exec-timeout", "sysctls", "kind", "routing", "addressing", "on", "fastpath", "repair"}
	nodeKeys        = append([]string{"display", "restart", "asn", "loopback", "loopbacks", "anycast", "router-id", "position"}, nodeDefaultKeys...)
	fileKeys        = []string{"source", "content", "base64", "mode"}
	positionKeys    = []string{"latitude", "longitude"}
	// What a link may say, and what defaults.link may say for every link.
	shapeKeys       = []string{"rate", "delay", "jitter", "loss"}
	linkDefaultKeys = append([]string{"mtu", "cost", "addressing", "routing"}, shapeKeys...)
	linkKeys        = append([]string{"endpoints", "name", "type", "state", "down", "overlap"}, linkDefaultKeys...)
	endpointKeys    = append([]string{"node", "interface", "mac", "mtu", "addresses", "cost", "state", "down"}, shapeKeys...)
	directionKeys   = []string{"up", "down"}
)

// network reads the whole document.
func (r *yamlReader) network(root *yaml.Node) *vnet.VNet {
	v := &vnet.VNet{}
	before := len(r.Errs)
	pairs := r.Mapping(root, "the network", networkKeys)
	r.noteUnread("", before)
	var nodeDefaults nodeSpec
	var linkDefaults linkSpec
	for _, p := range pairs { // defaults may stand after what they apply to
		if p.Key == "defaults" {
			for _, d := range r.Mapping(p.Value, "defaults", defaultsKeys) {
				switch d.Key {
				case "node":
					nodeDefaults = r.node(d.Value, "defaults.node", nodeDefaultKeys)
				case "link":
					linkDefaults = r.linkDefaults(d.Value)
				}
			}
		}
	}
	for _, p := range pairs {
		r.lines[p.Key] = p.At.Line
		before := len(r.Errs)
		switch p.Key {
		case "name":
			v.Name, _ = r.Text(p.Value, "name")
		case "routing":
			v.Routing = r.routing(p.Value, "routing")
		case "addressing":
			v.Addressing = r.addressing(p.Value)
		case "nodes":
			for _, n := range r.Mapping(p.Value, "nodes", nil) {
				if len(v.Nodes) > vnet.MaxNodes {
					break // Validate says so
				}
				before := len(r.Errs)
				at := fmt.Sprintf("nodes[%d]", len(v.Nodes))
				r.lines[at] = n.At.Line
				spec := r.node(n.Value, fmt.Sprintf("node %q", yamlfile.Clip(n.Key)), nodeKeys)
				r.nameNode(&spec, n)
				v.Nodes = append(v.Nodes, r.resolveNode(at, spec, nodeDefaults))
				r.noteUnread(at, before)
			}
			if len(v.Nodes) > 0 {
				before = len(r.Errs) // each node has noted its own
			}
		}
		r.noteUnread(p.Key, before)
	}
	for _, p := range pairs { // links may stand before the nodes that they name
		if p.Key == "links" {
			for _, item := range r.Sequence(p.Value, "links") {
				if len(v.Links) > vnet.MaxLinks {
					break // Validate says so
				}
				before := len(r.Errs)
				at := fmt.Sprintf("links[%d]", len(v.Links))
				r.lines[at] = item.Line
				spec := r.link(item, fmt.Sprintf("link %d", len(v.Links)+1))
				v.Links = append(v.Links, r.resolveLink(at, spec, linkDefaults))
				r.noteUnread(at, before)
			}
		}
	}
	return v
}

var (
	fastPaths = []string{"auto", "off"}
	repairs   = []string{"always", "never"}
	kinds     = vnet.KindNames()
	restarts  = []string{"always", "on-failure", "no"}
	linkTypes = []string{"p2p", "lan"}
	states    = []string{"up", "down"}
)

func (r *yamlReader) addressing(n *yaml.Node) (out vnet.Addressing) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() != "!!null" {
		out.Mode, _ = r.addressMode(n, "addressing", false)
		return out
	}
	for _, p := range r.Mapping(n, "addressing", addressingKeys) {
		r.lines["addressing."+p.Key] = p.At.Line
		s, ok := r.Text(p.Value, "addressing: "+p.Key)
		if !ok {
			continue
		}
		prefix, err := netip.ParsePrefix(s)
		if err != nil || prefix.Addr().Is4() != (p.Key == "ipv4") {
			r.Fail(p.Value, "write a prefix like 10.0.0.0/8 for ipv4 or fd00::/48 for ipv6", "addressing: %s is %q", p.Key, yamlfile.Clip(s))
			continue
		}
		if p.Key == "ipv4" {
			out.IPv4 = prefix.Masked()
		} else {
			out.IPv6 = prefix.Masked()
		}
	}
	return out
}

// nodeTitle is a name as people write it that a node may have in the file.
var nodeTitle = regexp.MustCompile(`^[\p{L}0-9]([\p{L}\p{M}0-9 .,'’()-]*[\p{L}\p{M}0-9.)])?$`)

// nameNode gives a node its name, which is made from the one in the file where
// that is none: New York is called new-york, and displayed as it is written.
func (r *yamlReader) nameNode(s *nodeSpec, at yamlfile.Pair) {
	s.n.Name = at.Key
	if label := vnet.NodeLabel(fold(at.Key)); !vnet.ValidNode(at.Key) && nodeTitle.MatchString(at.Key) && label != "" {
		s.n.Name = label
		if !s.set["display"] {
			s.n.Display = at.Key
		}
	}
	if first, taken := r.named[s.n.Name]; taken {
		r.Fail(at.At, "write one of them differently", "node %q gets the name %q, which another node has (line %d)", yamlfile.Clip(at.Key), s.n.Name, first)
		return
	}
	r.named[s.n.Name] = at.At.Line
}

// nodeNamed gives the name of the node that an end of a link means.
func (r *yamlReader) nodeNamed(s string) string {
	if _, known := r.named[s]; known || vnet.ValidNode(s) {
		return s
	}
	label := vnet.NodeLabel(fold(s))
	if _, known := r.named[label]; known && nodeTitle.MatchString(s) {
		return label
	}
	return s
}

// addressMode reads which addresses an object is given that names none itself.
func (r *yamlReader) addressMode(n *yaml.Node, what string, link bool) (vnet.AddressMode, bool) {
	words := []string{"auto", "none"}
	if link {
		words = append(words, "unnumbered")
	}
	s, ok := r.Text(n, what)
	if !ok || !r.OneOf(n, what, s, words) {
		return "", false
	}
	if s == "auto" {
		s = string(vnet.AddressesAuto)
	}
	return vnet.AddressMode(s), true
}

// address reads one address without a prefix length.
func (r *yamlReader) address(n *yaml.Node, what string) (netip.Addr, bool) {
	s, ok := r.Text(n, what)
	if !ok {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		r.Fail(n, "write an address like 10.0.0.1 or fd00::1, without a prefix length", "%s is %q", what, yamlfile.Clip(s))
		return netip.Addr{}, false
	}
	return a, true
}

// addresses reads one address, or a list of them.
func (r *yamlReader) addresses(n *yaml.Node, what string) (out []netip.Addr) {
	items := []*yaml.Node{n}
	if n.Kind != yaml.ScalarNode {
		items = r.Sequence(n, what)
	}
	for _, item := range items {
		if a, ok := r.address(item, what); ok {
			out = append(out, a)
		}
	}
	return out
}
