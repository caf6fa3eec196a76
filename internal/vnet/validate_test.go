package vnet

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Each case breaks one rule of a valid network, in a way that a client of the
// API can; what a file can break is tested in internal/format.
func TestEveryRuleIsKept(t *testing.T) {
	node := func(f func(*Node)) func(*VNet) { return func(v *VNet) { f(&v.Nodes[1]) } }
	end := func(f func(*Interface)) func(*VNet) { return func(v *VNet) { f(&v.Links[0].Endpoints[1]) } }
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	for name, c := range map[string]struct {
		change     func(*VNet)
		path, what string
	}{
		"network name":           {func(v *VNet) { v.Name = strings.Repeat("x", 33) }, "name", "not valid"},
		"no network name":        {func(v *VNet) { v.Name = "" }, "name", "no name"},
		"no nodes":               {func(v *VNet) { v.Nodes, v.Links = nil, nil }, "nodes", "no nodes"},
		"IPv4 pool":              {func(v *VNet) { v.Addressing.IPv4 = prefix("fd00::/8") }, "addressing.ipv4", "cannot be the IPv4 pool"},
		"IPv6 pool":              {func(v *VNet) { v.Addressing.IPv6 = prefix("10.0.0.0/8") }, "addressing.ipv6", "cannot be the IPv6 pool"},
		"multicast pool":         {func(v *VNet) { v.Addressing.IPv4 = prefix("224.0.0.0/8") }, "addressing.ipv4", "cannot be the IPv4 pool"},
		"protocol":               {func(v *VNet) { v.Routing.Protocol = "eigrp" }, "routing", "unknown routing protocol"},
		"no daemon":              {node(func(n *Node) { n.Routing = Routing{Protocol: BGP} }), "nodes[1].routing", "no routing daemon"},
		"daemon":                 {node(func(n *Node) { n.Routing.Daemon = "gated" }), "nodes[1].routing", "unknown routing daemon"},
		"timers":                 {node(func(n *Node) { n.Routing.Timers = "slow" }), "nodes[1].routing", "unknown timers"},
		"node name":              {node(func(n *Node) { n.Name = "b-" }), "nodes[1]", "not a valid node name"},
		"node name twice":        {func(v *VNet) { v.Nodes = append(v.Nodes, v.Nodes[1]) }, "nodes[3]", "there twice"},
		"image":                  {node(func(n *Node) { n.Image = "" }), "nodes[1].image", "is empty"},
		"image text":             {node(func(n *Node) { n.Image = "a\x00b" }), "nodes[1].image", "not text"},
		"relative image":         {node(func(n *Node) { n.Image = "../root.tar" }), "nodes[1].image", "a relative path"},
		"host":                   {node(func(n *Node) { n.On = "\xff" }), "nodes[1].on", "not text"},
		"NaN of CPU":             {node(func(n *Node) { n.CPU = math.NaN() }), "nodes[1].cpu", "out of range"},
		"much CPU":               {node(func(n *Node) { n.CPU = math.Inf(1) }), "nodes[1].cpu", "out of range"},
		"negative memory":        {node(func(n *Node) { n.Memory = -1 }), "nodes[1].memory", "out of range"},
		"little disk":            {node(func(n *Node) { n.Disk = 1 }), "nodes[1].disk", "out of range"},
		"few pids":               {node(func(n *Node) { n.Pids = 1 }), "nodes[1].pids", "out of range"},
		"AS 23456":               {node(func(n *Node) { n.ASN = 23456 }), "nodes[1].asn", "reserved"},
		"position":               {node(func(n *Node) { n.Position = &Position{math.NaN(), 0} }), "nodes[1].position", "not on the globe"},
		"empty command":          {node(func(n *Node) { n.Cmd = []string{""} }), "nodes[1].cmd[0]", "is empty"},
		"long argument":          {node(func(n *Node) { n.Cmd = []string{"a", strings.Repeat("x", MaxStringValue+1)} }), "nodes[1].cmd[1]", "bytes long"},
		"many commands":          {node(func(n *Node) { n.Exec = make([]string, MaxListLength+1) }), "nodes[1].exec", "1025 entries"},
		"variable":               {node(func(n *Node) { n.Env = map[string]string{"A=B": "x"} }), "nodes[1].env", "not a valid environment variable"},
		"variable text":          {node(func(n *Node) { n.Env = map[string]string{"A": "\x00"} }), "nodes[1].env.A", "not text"},
		"sysctl":                 {node(func(n *Node) { n.Sysctls = map[string]string{"vm.swappiness": "1"} }), "nodes[1].sysctls.vm.swappiness", "not a network setting"},
		"sysctl memory":          {node(func(n *Node) { n.Sysctls = map[string]string{"net.ipv4.ipfrag_high_thresh": "1000000000"} }), "nodes[1].sysctls.net.ipv4.ipfrag_high_thresh", "sysctl net.ipv4.ipfrag_high_thresh is"},
		"sysctl floor":           {node(func(n *Node) { n.Sysctls = map[string]string{"net.ipv4.tcp_rmem": "99999 131072 6291456"} }), "nodes[1].sysctls.net.ipv4.tcp_rmem", "sysctl net.ipv4.tcp_rmem is"},
		"sysctl of any":          {node(func(n *Node) { n.Sysctls = map[string]string{"net/ipv6/neigh/eth1.2/unres_qlen_bytes": "0x7fffffff"} }), "nodes[1].sysctls.net/ipv6/neigh/eth1.2/unres_qlen_bytes", ""},
		"sysctl path":            {node(func(n *Node) { n.Sysctls = map[string]string{"net.ipv4./../../kernel.x": "1"} }), "nodes[1].sysctls.net.ipv4./../../kernel.x", "not a network setting"},
		"sysctl of no interface": {node(func(n *Node) { n.Sysctls = map[string]string{"net.mpls.conf.eth9.input": "1"} }), "nodes[1].sysctls.net.mpls.conf.eth9.input", "the interface eth9, which the node does not have"},
		"sysctl of IPv6": {func(v *VNet) {
			v.Links[0].Endpoints[0].Addrs, v.Links[0].Endpoints[1].Addrs = nil, nil
			v.Links[0].Endpoints[1].MTU = 1000
			v.Nodes[1].Sysctls = map[string]string{"net.ipv6.conf." + v.Links[0].Endpoints[1].Name + ".accept_ra": "1"}
		}, "nodes[1].sysctls.net.ipv6.conf.eth1.accept_ra", "an MTU of 1000"},
		"relative file": {node(func(n *Node) { n.Files = []File{{Path: "a", Mode: 1}} }), "nodes[1].files[0]", "not valid"},
		"file above":    {node(func(n *Node) { n.Files = []File{{Path: "/a/../b", Mode: 1}} }), "nodes[1].files[0]", "not valid"},
		"file twice":    {node(func(n *Node) { n.Files = []File{{Path: "/a", Mode: 1}, {Path: "/a", Mode: 1}} }), "nodes[1].files[1]", "there twice"},
		"file in a file apart": {node(func(n *Node) {
			n.Files = []File{{Path: "/a", Mode: 1}, {Path: "/a-b", Mode: 1}, {Path: "/a/b", Mode: 1}}
		}), "nodes[1].files[2]", "lies in /a"},
		"file size": {node(func(n *Node) { n.Files = []File{{Path: "/a", Mode: 1, Content: make([]byte, MaxFileSize+1)}} }), "nodes[1].files[0]", "1048577 bytes"},
		"file mode": {node(func(n *Node) { n.Files = []File{{Path: "/a", Mode: 0o100644}} }), "nodes[1].files[0]", "mode"},
		"payload": {func(v *VNet) {
			for i := range 17 {
				v.Nodes[0].Files = append(v.Nodes[0].Files, File{Path: fmt.Sprintf("/%02d", i), Mode: 1, Content: make([]byte, MaxFileSize)})
			}
		}, "nodes", "more than 16MiB"},
		"loopback":         {node(func(n *Node) { n.Loopbacks[0] = addr("127.0.0.1") }), "nodes[1].loopbacks[0]", "cannot be a loopback"},
		"two of a family":  {node(func(n *Node) { n.Loopbacks = append(n.Loopbacks, addr("192.0.2.1")) }), "nodes[1].loopbacks[2]", "two loopback addresses of one family"},
		"loopback on link": {node(func(n *Node) { n.Loopbacks[0] = addr("192.0.2.1"); n.RouterID = n.Loopbacks[0] }), "links[1].endpoints[0].addrs", "is at b:lo and a:eth2"},
		"router ID":        {node(func(n *Node) { n.RouterID = addr("0.0.0.0") }), "nodes[1].routerID", "no valid router ID"},
		"router ID twice":  {func(v *VNet) { v.Nodes[1].RouterID = v.Nodes[0].RouterID }, "nodes[1].routerID", "is at nodes"},
		"link name":        {func(v *VNet) { v.Links[0].Name = "a b" }, "links[0].name", "not a valid link name"},
		"link type":        {func(v *VNet) { v.Links[0].Type = "bus" }, "links[0].type", "unknown type"},
		"an empty LAN":     {func(v *VNet) { v.Links[0] = Link{Name: "l", Type: LAN} }, "links[0]", "has no ends"},
		"a large LAN":      {func(v *VNet) { v.Links[0].Endpoints = make([]Interface, MaxLANEnds+1) }, "links[0]", "1024 ends"},
		"interface name":   {end(func(e *Interface) { e.Name = "a/b" }), "links[0].endpoints[1].name", "contains '/'"},
		"no MAC":           {end(func(e *Interface) { e.MAC = MAC{} }), "links[0].endpoints[1].mac", "not a unicast address"},
		"broadcast MAC":    {end(func(e *Interface) { e.MAC = MAC{255, 255, 255, 255, 255, 255} }), "links[0].endpoints[1].mac", "not a unicast address"},
		"MTU":              {end(func(e *Interface) { e.MTU = 1279 }), "links[0].endpoints[1].mtu", "out of range"},
		"large MTU":        {end(func(e *Interface) { e.MTU = 65536 }), "links[0].endpoints[1].mtu", "out of range"},
		"fast path":        {node(func(n *Node) { n.FastPath = "on" }), "nodes[1].fastpath", `fastpath is "on"`},
		"repair":           {node(func(n *Node) { n.Repair = "no" }), "nodes[1].repair", `repair is "no"`},
		"cost":             {end(func(e *Interface) { e.Cost = -1 }), "links[0].endpoints[1].cost", "out of range"},
		"rate":             {end(func(e *Interface) { e.Tx.Rate = 999 }), "links[0].endpoints[1].tx.rate", "outside"},
		"delay":            {end(func(e *Interface) { e.Tx.Delay = -1 }), "links[0].endpoints[1].tx.delay", "out of range"},
		"jitter":           {end(func(e *Interface) { e.Tx = Shape{Jitter: time.Second} }), "links[0].endpoints[1].tx.jitter", "out of range"},
		"loss":             {end(func(e *Interface) { e.Tx.Loss = math.NaN() }), "links[0].endpoints[1].tx.loss", "out of range"},
		"receiving":        {end(func(e *Interface) { e.Rx.Rate = 1e6 }), "links[0].endpoints[1]", "only ends of a LAN"},
		"no address":       {end(func(e *Interface) { e.Addrs[0] = netip.Prefix{} }), "links[0].endpoints[1].addrs", "cannot be an interface's address"},
		"mapped address":   {end(func(e *Interface) { e.Addrs[0] = prefix("::ffff:10.0.0.1/120") }), "links[0].endpoints[1].addrs", "cannot be an interface's address"},
		"many addresses":   {end(func(e *Interface) { e.Addrs = make([]netip.Prefix, MaxAddrs+1) }), "links[0].endpoints[1].addrs", "65 addresses"},
		"subnet twice":     {end(func(e *Interface) { e.Addrs[0] = prefix("192.0.2.77/26") }), "links[1].endpoints[0].addrs", "overlaps"},
	} {
		t.Run(name, func(t *testing.T) {
			v := describe("a b c", "a b", "a c", "b c a")
			v.Routing.Protocol = OSPF
			v.Links[1].Endpoints[0].Addrs = []netip.Prefix{prefix("192.0.2.1/24")}
			mustComplete(t, v)
			c.change(v)
			var errs Errors
			if err := v.Validate(); !errors.As(err, &errs) {
				t.Fatalf("got %v", err)
			}
			for _, e := range errs {
				if e.What == "" || e.Remedy == "" || strings.Contains(e.Error(), "\n") {
					t.Errorf("a fault without its text: %#v", e)
				}
				if (e.Path == c.path || c.path == "links[1].endpoints[0].addrs" && strings.HasSuffix(e.Path, ".addrs")) && strings.Contains(e.What, c.what) {
					return
				}
			}
			t.Errorf("no fault at %s with %q among\n%v", c.path, c.what, errs)
		})
	}
}

// Hostile descriptions come straight from the API: nothing may panic, and
// checking must end soon.
func TestNonsenseIsSurvived(t *testing.T) {
	ends := make([]Interface, MaxLANEnds)
	for i := range ends {
		ends[i].Addrs = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8"), {}}
	}
	for _, v := range []*VNet{
		{},
		{Nodes: make([]Node, 100), Links: make([]Link, 100)},
		{Nodes: make([]Node, MaxNodes+1)},
		{Links: []Link{{Type: LAN, Endpoints: ends}, {Endpoints: ends}, {Endpoints: ends[:1]}}},
		{Addressing: Addressing{IPv4: netip.MustParsePrefix("fd00::/127"), IPv6: netip.MustParsePrefix("10.0.0.0/32")}, Nodes: make([]Node, 3), Links: []Link{{Endpoints: ends[:2]}, {Endpoints: make([]Interface, 2)}}},
		{Addressing: Addressing{IPv4: netip.MustParsePrefix("0.0.0.0/0"), IPv6: netip.MustParsePrefix("::/0")}, Nodes: make([]Node, 3), Links: []Link{{Type: LAN, Endpoints: make([]Interface, 5)}}},
	} {
		start := time.Now()
		err := errors.Join(v.Complete(), v.Validate())
		if err == nil {
			t.Errorf("%+v is valid", v)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("took %s", took)
		}
		v.Components()
	}
}

func TestSysctlsOfInterfaces(t *testing.T) {
	for name, want := range map[string][2]string{
		"net.ipv4.ip_forward":                {"net/ipv4/ip_forward", ""},
		"net.ipv4.conf.all.rp_filter":        {"net/ipv4/conf/all/rp_filter", ""},
		"net.ipv6.conf.default.accept_ra":    {"net/ipv6/conf/default/accept_ra", ""},
		"net.ipv4.conf.eth1.rp_filter":       {"net/ipv4/conf/eth1/rp_filter", "eth1"},
		"net.ipv4.conf.eth1.100.rp_filter":   {"net/ipv4/conf/eth1.100/rp_filter", "eth1.100"},
		"net.ipv4.conf.eth1/100.rp_filter":   {"net/ipv4/conf/eth1.100/rp_filter", "eth1.100"},
		"net/ipv6/neigh/eth1.100/unres_qlen": {"net/ipv6/neigh/eth1.100/unres_qlen", "eth1.100"},
		"net.mpls.conf.lo.input":             {"net/mpls/conf/lo/input", "lo"},
		"net.mpls.platform_labels":           {"net/mpls/platform_labels", ""},
		"net.ipv4.conf":                      {"net/ipv4/conf", ""},
	} {
		if got := [2]string{SysctlPath(name), SysctlInterface(name)}; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestIPv6IsNotTurnedOffBesideAddresses: where a sysctl does, the kernel takes none.
func TestIPv6IsNotTurnedOffBesideAddresses(t *testing.T) {
	const all, def, lo, eth1 = "net.ipv6.conf.all.disable_ipv6", "net.ipv6.conf.default.disable_ipv6", "net.ipv6.conf.lo.disable_ipv6", "net.ipv6.conf.eth1.disable_ipv6"
	for name, c := range map[string]struct {
		sysctls  map[string]string
		loopback bool // has an IPv6 address
		link     bool
		want     string // the sysctl that is refused
	}{
		"all, no addresses":         {map[string]string{all: "1"}, false, false, ""},
		"all, loopback":             {map[string]string{all: "1"}, true, false, all},
		"all, link":                 {map[string]string{all: "1"}, false, true, all},
		"all, both":                 {map[string]string{all: "1"}, true, true, all},
		"default, loopback":         {map[string]string{def: "1"}, true, false, ""},
		"default, link":             {map[string]string{def: "1"}, false, true, def},
		"lo, link":                  {map[string]string{lo: "1"}, false, true, ""},
		"lo, loopback":              {map[string]string{lo: "1"}, true, false, lo},
		"interface":                 {map[string]string{eth1: "1"}, false, true, eth1},
		"interface, no address":     {map[string]string{eth1: "1"}, true, false, ""},
		"all but the interface":     {map[string]string{all: "1", eth1: "0"}, false, true, ""},
		"all but interfaces' start": {map[string]string{all: "1", def: "0"}, false, true, ""},
		"all and the interface":     {map[string]string{all: "0", eth1: "1"}, false, true, eth1},
		"not off":                   {map[string]string{all: "0"}, true, true, ""},
	} {
		v := &VNet{Name: "x", Addressing: Addressing{IPv4: DefaultIPv4}, Nodes: []Node{{Name: "a", Sysctls: c.sysctls}, {Name: "b"}},
			Links: []Link{{Endpoints: []Interface{{Node: "a"}, {Node: "b"}}}}}
		if c.loopback {
			v.Nodes[0].Loopbacks = []netip.Addr{netip.MustParseAddr("fd00::1")}
		}
		if c.link {
			v.Links[0].Endpoints[0].Addrs = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}
		}
		if err := v.Complete(); err != nil {
			t.Fatal(err)
		}
		err := v.Validate()
		var errs Errors
		if errors.As(err, &errs); c.want == "" && err != nil || c.want != "" && (len(errs) != 1 || errs[0].Path != "nodes[0].sysctls."+c.want) {
			t.Errorf("%s: %v, want one about %q", name, err, c.want)
		}
	}
}
