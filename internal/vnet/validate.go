package vnet

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// Validate checks every rule that a completed description must keep and reports
// all that are broken, as an [Errors] in the order of the description.
func (v *VNet) Validate() error {
	if errs := v.checkSizes(); len(errs) > 0 {
		return errs
	}
	c := &checker{v: v, nodes: make(map[string]int, len(v.Nodes))}
	c.network()
	for i := range v.Nodes {
		c.node(i)
	}
	c.payload()
	c.links()
	c.interfaceSysctls()
	c.ipv6Off()
	c.linkRouting()
	c.reflectors()
	c.addresses()
	return c.errs.orNil()
}

// checkSizes refuses a description that is too large to look at in detail.
func (v *VNet) checkSizes() Errors {
	var errs Errors
	if len(v.Nodes) > MaxNodes {
		errs = append(errs, Error{"nodes", fmt.Sprintf("%d nodes are more than the %d that one VNet may have", len(v.Nodes), MaxNodes), "split the network"})
	}
	if len(v.Links) > MaxLinks {
		errs = append(errs, Error{"links", fmt.Sprintf("%d links are more than the %d that one VNet may have", len(v.Links), MaxLinks), "split the network"})
	}
	ends := 0
	for i := range v.Links {
		n := len(v.Links[i].Endpoints)
		ends += n
		if n > MaxLANEnds {
			errs = append(errs, Error{fmt.Sprintf("links[%d]", i), fmt.Sprintf("link %q has %d ends, a LAN has %d at most", v.Links[i].Name, n, MaxLANEnds), "split it into several LANs"})
		}
	}
	if ends > MaxInterfaces {
		errs = append(errs, Error{"links", fmt.Sprintf("%d interfaces are more than the %d that one VNet may have", ends, MaxInterfaces), "split the network"})
	}
	return errs
}

// checker collects what is wrong with one description.
type checker struct {
	v     *VNet
	errs  Errors
	nodes map[string]int                   // index by name
	ends  map[string]map[string]*Interface // see interfaces
}

func (c *checker) add(path, remedy, what string, args ...any) {
	c.errs = append(c.errs, Error{Path: path, What: fmt.Sprintf(what, args...), Remedy: remedy})
}

func (c *checker) network() {
	v := c.v
	if !vnetName.MatchString(v.Name) {
		what := fmt.Sprintf("the network's name %q is not valid", clip(v.Name))
		if v.Name == "" {
			what = "the network has no name"
		}
		c.add("name", "use up to 32 of a-z, 0-9 and '-', not starting with '-'", "%s", what)
	}
	c.routing("routing", "the network", v.Routing)
	if v.Routing.Protocol == Static && v.Routing.Daemon != "" {
		c.add("routing", staticRemedy, "the network asks for static routes and a daemon: static routes are written straight into the kernel")
	}
	if v.Routing.DefaultRoute || v.Routing.RouteReflector {
		c.add("routing", "write it under routing of the nodes that it is for", "default-route and route-reflector are a node's own")
	}
	if m := v.Addressing.Mode; m != AddressesAuto && m != AddressesNone {
		c.add("addressing", "use none, or name the pools ipv4 and ipv6", "the network has the unknown addressing %q", clip(string(m)))
	}
	if p := v.Addressing.IPv4; p.IsValid() && (!p.Addr().Is4() || p.Bits() > 30 || p.Addr().IsMulticast() || p.Addr().IsLoopback()) {
		c.add("addressing.ipv4", "name an IPv4 unicast prefix of length 0 to 30, like 10.0.0.0/8", "%s cannot be the IPv4 pool", p)
	}
	if p := v.Addressing.IPv6; p.IsValid() && (!p.Addr().Is6() || p.Addr().Is4In6() || p.Bits() > 120 || p.Addr().IsMulticast() || p.Addr().IsLinkLocalUnicast()) {
		c.add("addressing.ipv6", "name an IPv6 unicast prefix of length 0 to 120, like fd00::/48", "%s cannot be the IPv6 pool", p)
	}
	if len(v.Nodes) == 0 {
		c.add("nodes", "name at least one node under nodes", "the network has no nodes")
	}
}

func (c *checker) node(i int) {
	n := &c.v.Nodes[i]
	at := fmt.Sprintf("nodes[%d]", i)
	who := fmt.Sprintf("node %q", clip(n.Name))
	if !nodeName.MatchString(n.Name) {
		c.add(at, "use a DNS label: up to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit", "%q is not a valid node name", clip(n.Name))
	}
	if first, dup := c.nodes[n.Name]; dup {
		c.add(at, "give every node a name of its own", "%s is there twice (nodes %d and %d)", who, first+1, i+1)
	} else {
		c.nodes[n.Name] = i
	}
	c.kind(at, who, n)
	c.routing(at+".routing", who, n.Routing)
	c.ownDaemon(at, who, n)
	c.text(at+".image", who+": image", n.Image, false)
	if RelativeImage(n.Image) {
		c.add(at+".image", "give the absolute path", "%s: image %q is a relative path, and nothing says from where", who, clip(n.Image))
	}
	c.text(at+".on", who+": on", n.On, true)
	if n.FastPath != FastPathAuto && n.FastPath != FastPathOff {
		c.add(at+".fastpath", "use auto or off", "%s: fastpath is %q", who, clip(string(n.FastPath)))
	}
	if n.Repair != RepairAlways && n.Repair != RepairNever {
		c.add(at+".repair", "use always or never", "%s: repair is %q", who, clip(string(n.Repair)))
	}
	if math.IsNaN(n.CPU) || n.CPU != 0 && (n.CPU < MinCPU || n.CPU > MaxCPU) {
		c.add(at+".cpu", fmt.Sprintf("use %g to %g cores, or leave cpu out for no limit", MinCPU, MaxCPU), "%s: cpu %g is out of range", who, n.CPU)
	}
	c.size(at+".memory", who+": memory", n.Memory, MinMemory, MaxMemory)
	c.size(at+".disk", who+": disk", n.Disk, MinDisk, MaxDisk)
	if n.Pids < MinPids || n.Pids > MaxPids {
		c.add(at+".pids", fmt.Sprintf("use %d to %d", MinPids, MaxPids), "%s: pids %d is out of range", who, n.Pids)
	}
	if n.ASN == 0 || n.ASN == 23456 || n.ASN == 65535 || n.ASN == math.MaxUint32 {
		c.add(at+".asn", "use a number from 64512 to 65534 or 4200000000 to 4294967294", "%s: AS number %d is reserved (RFC 7607, RFC 6793, RFC 7300)", who, n.ASN)
	}
	if p := n.Position; p != nil && !(math.Abs(p.Latitude) <= 90 && math.Abs(p.Longitude) <= 180) {
		c.add(at+".position", "give degrees: latitude -90 to 90, longitude -180 to 180", "%s: position %g, %g is not on the globe", who, p.Latitude, p.Longitude)
	}
	if n.Display != "" && !ValidDisplay(n.Display) {
		c.add(at+".display", fmt.Sprintf("use up to %d bytes of one line, without spaces at its ends", MaxDisplay), "%s: %q cannot be a display name", who, clip(n.Display))
	}
	switch n.Restart {
	case "":
	case RestartAlways, RestartOnFailure, RestartNever:
		if len(n.Cmd) == 0 && n.Image == DefaultImage {
			c.add(at+".restart", "add cmd, or leave restart out: routing daemons are always started again", "%s says when to restart its command and has none", who)
		}
	default:
		c.add(at+".restart", "use always, on-failure or no", "%s: restart is %q", who, clip(string(n.Restart)))
	}
	if n.ExecTimeout != 0 && (n.ExecTimeout < MinExecTimeout || n.ExecTimeout > MaxExecTimeout) {
		c.add(at+".execTimeout", fmt.Sprintf("use %s to %s", MinExecTimeout, MaxExecTimeout), "%s: exec-timeout %s is out of range", who, n.ExecTimeout)
	}
	c.nodeLists(at, who, n)
}

func (c *checker) size(at, what string, n, least, most int64) {
	if n < least || n > most {
		c.add(at, fmt.Sprintf("use %s to %s", FormatSize(least), FormatSize(most)), "%s %s is out of range", what, FormatSize(n))
	}
}

// text checks a string that ends up in a command line, a file or a message.
func (c *checker) text(at, what, s string, mayBeEmpty bool) {
	switch {
	case s == "" && !mayBeEmpty:
		c.add(at, "give it a value", "%s is empty", what)
	case len(s) > MaxStringValue:
		c.add(at, fmt.Sprintf("keep it under %s, or put it in a file", FormatSize(MaxStringValue)), "%s is %d bytes long", what, len(s))
	case strings.ContainsRune(s, 0) || !utf8.ValidString(s):
		c.add(at, "write it in UTF-8 without NUL characters", "%s is not text", what)
	}
}

func (c *checker) list(at, what string, n int) bool {
	if n > MaxListLength {
		c.add(at, fmt.Sprintf("keep it to %d", MaxListLength), "%s has %d entries", what, n)
		return false
	}
	return true
}

func (c *checker) nodeLists(at, who string, n *Node) {
	if c.list(at+".cmd", who+": cmd", len(n.Cmd)) {
		for j, s := range n.Cmd {
			c.text(fmt.Sprintf("%s.cmd[%d]", at, j), who+": cmd", s, j > 0)
		}
	}
	if c.list(at+".exec", who+": exec", len(n.Exec)) {
		for j, s := range n.Exec {
			c.text(fmt.Sprintf("%s.exec[%d]", at, j), who+": exec", s, false)
		}
	}
	if c.list(at+".env", who+": env", len(n.Env)) {
		for _, k := range sortedKeys(n.Env) {
			if !envName.MatchString(k) {
				c.add(at+".env", "use letters, digits and '_', not starting with a digit", "%s: %q is not a valid environment variable name", who, clip(k))
				continue
			}
			c.text(at+".env."+k, who+": env "+k, n.Env[k], true)
		}
	}
	if c.list(at+".sysctls", who+": sysctls", len(n.Sysctls)) {
		for _, k := range sortedKeys(n.Sysctls) {
			if !sysctlName.MatchString(k) || strings.Contains(k, "..") || strings.Contains(k, "//") {
				c.add(at+".sysctls."+k, "use names under net., like net.ipv4.ip_forward: the others belong to the machine", "%s: sysctl %q is not a network setting", who, clip(k))
				continue
			}
			c.text(at+".sysctls."+k, who+": sysctl "+k, n.Sysctls[k], false)
			c.sysctl(at, who, k, n.Sysctls[k])
		}
	}
	if c.list(at+".files", who+": files", len(n.Files)) {
		paths := make(map[string]bool, len(n.Files))
		for j := range n.Files {
			c.file(fmt.Sprintf("%s.files[%d]", at, j), who, &n.Files[j], paths)
			paths[n.Files[j].Path] = true
		}
	}
}

// file checks a placed file; earlier holds the paths of those before it, which
// are sorted, so that a directory comes before what lies in it.
func (c *checker) file(at, who string, f *File, earlier map[string]bool) {
	c.text(at, who+": file path", f.Path, false)
	switch {
	case !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" || len(f.Path) >= 4096:
		c.add(at, "use a clean absolute path, like /etc/frr/frr.conf", "%s: file path %q is not valid", who, clip(f.Path))
	case earlier[f.Path]:
		c.add(at, "name each file once", "%s: file %s is there twice", who, clip(f.Path))
	default:
		for dir := path.Dir(f.Path); dir != "/"; dir = path.Dir(dir) {
			if earlier[dir] {
				c.add(at, "choose one of the two", "%s: file %s lies in %s, which is a file too", who, clip(f.Path), clip(dir))
				break
			}
		}
	}
	if len(f.Content) > MaxFileSize {
		c.add(at, fmt.Sprintf("keep files to %s, or put them in the image", FormatSize(MaxFileSize)), "%s: file %s has %d bytes", who, clip(f.Path), len(f.Content))
	}
	if f.Path == FRRSettingsPath {
		_, errs := ParseFRRSettings(string(f.Content))
		for _, e := range errs {
			c.add(at, e.Remedy, "%s: line %d of %s: %s", who, e.Line, f.Path, e.What)
		}
	}
	if f.Mode == 0 || f.Mode > 0o7777 {
		c.add(at, "use permission bits like 0644", "%s: file %s has the mode %#o", who, clip(f.Path), f.Mode)
	}
}

// payload bounds what a description carries in all.
func (c *checker) payload() {
	total := 0
	for i := range c.v.Nodes {
		n := &c.v.Nodes[i]
		for _, s := range n.Cmd {
			total += len(s)
		}
		for _, s := range n.Exec {
			total += len(s)
		}
		for k, s := range n.Env {
			total += len(k) + len(s)
		}
		for k, s := range n.Sysctls {
			total += len(k) + len(s)
		}
		for j := range n.Files {
			total += len(n.Files[j].Path) + len(n.Files[j].Content)
		}
	}
	if total > MaxPayload {
		c.add("nodes", "put large files in the image", "the files, commands and environments of all nodes have %d bytes, more than %s", total, FormatSize(MaxPayload))
	}
}

// addresses checks loopbacks and router IDs; those of interfaces are checked
// with their links.
func (c *checker) addresses() {
	owner := map[netip.Addr]string{}
	routerID := map[netip.Addr]string{}
	for i := range c.v.Nodes {
		n := &c.v.Nodes[i]
		for j, a := range n.Loopbacks {
			at := fmt.Sprintf("nodes[%d].loopbacks[%d]", i, j)
			switch {
			case !usable(a) || a.IsLinkLocalUnicast():
				c.add(at, "use a unicast address like 10.0.0.1 or fd00::1", "node %q: %s cannot be a loopback address", n.Name, a)
			case slices.ContainsFunc(n.Loopbacks[:j], func(b netip.Addr) bool { return b.Is4() == a.Is4() }):
				c.add(at, "keep one of them", "node %q has two loopback addresses of one family", n.Name)
			case owner[a] != "":
				c.add(at, "give each node its own, or write it as anycast of each node that has it", "loopback address %s is at nodes %q and %q", a, owner[a], n.Name)
			}
			owner[a] = n.Name
		}
		switch id := n.RouterID; {
		case !id.Is4() || id.IsUnspecified():
			c.add(fmt.Sprintf("nodes[%d].routerID", i), "write it like an IPv4 address that is not 0.0.0.0", "node %q has no valid router ID", n.Name)
		case routerID[id] != "":
			c.add(fmt.Sprintf("nodes[%d].routerID", i), "give each node its own", "router ID %s is at nodes %q and %q", id, routerID[id], n.Name)
		default:
			routerID[id] = n.Name
		}
	}
	c.anycast(owner)
	c.subnets(owner)
}

// anycast checks the addresses of lo that several nodes may have; owner holds those
// that one node has, and gets them.
func (c *checker) anycast(owner map[netip.Addr]string) {
	shared := map[netip.Addr]string{}
	for i := range c.v.Nodes {
		n := &c.v.Nodes[i]
		if len(n.Anycast) > MaxAddrs {
			c.add(fmt.Sprintf("nodes[%d].anycast", i), fmt.Sprintf("keep it to %d", MaxAddrs), "node %q has %d anycast addresses", n.Name, len(n.Anycast))
			continue
		}
		for j, a := range n.Anycast {
			at := fmt.Sprintf("nodes[%d].anycast[%d]", i, j)
			switch {
			case !usable(a) || a.IsLinkLocalUnicast():
				c.add(at, "use a unicast address like 10.0.0.1 or fd00::1", "node %q: %s cannot be an anycast address", n.Name, a)
			case !n.Kind.Traits().Loopback:
				c.add(at, "leave it out, or say kind: "+string(Router), "node %q is a %s, which has no loopback addresses", n.Name, n.Kind)
			case slices.Contains(n.Anycast[:j], a):
				c.add(at, "name it once", "node %q has the anycast address %s twice", n.Name, a)
			case owner[a] != "":
				c.add(at, "give it another, or write it as anycast of both", "anycast address %s of node %q is the loopback of node %q", a, n.Name, owner[a])
			}
			shared[a] = n.Name
		}
	}
	for a, n := range shared {
		owner[a] = n
	}
}

// usable reports whether a node can own an address: unicast, no zone, and not
// one that means the machine itself or another family.
func usable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
