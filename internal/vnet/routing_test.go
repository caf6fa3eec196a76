package vnet

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// pair describes two nodes and a link between them.
func pair(r Routing) *VNet {
	return &VNet{
		Name: "v", Routing: r, Nodes: []Node{{Name: "a"}, {Name: "b"}},
		Links: []Link{{Endpoints: []Interface{{Node: "a"}, {Node: "b"}}}},
	}
}

func frrConf(text string) []File { return []File{{Path: "/etc/frr/frr.conf", Content: []byte(text)}} }

// TestAddressesOff checks who is given addresses, and who not.
func TestAddressesOff(t *testing.T) {
	for name, c := range map[string]struct {
		change                func(*VNet)
		loopbacks, ends, more string // of a; of a's end; of b's end: families
	}{
		"given out":        {func(*VNet) {}, "46", "46", "46"},
		"network":          {func(v *VNet) { v.Addressing.Mode = AddressesNone }, "", "", ""},
		"node":             {func(v *VNet) { v.Nodes[0].Addressing = AddressesNone }, "", "", ""},
		"link":             {func(v *VNet) { v.Links[0].Addressing = AddressesNone }, "46", "", ""},
		"host":             {func(v *VNet) { v.Nodes[0].Kind = Host }, "", "46", "46"},
		"unnumbered":       {func(v *VNet) { v.Links[0].Addressing = AddressesUnnumbered }, "46", "4", "4"},
		"own loopback":     {func(v *VNet) { v.Nodes[0].Files = frrConf("interface lo\n ip address 192.0.2.1/32\n") }, "", "46", "46"},
		"own interface":    {func(v *VNet) { v.Nodes[0].Files = frrConf("interface eth1\n ip address 192.0.2.1/24\n") }, "46", "", "4"},
		"own host address": {func(v *VNet) { v.Nodes[0].Files = frrConf("interface eth1\n ip address 192.0.2.1/32\n") }, "46", "", ""},
		"other contexts":   {func(v *VNet) { v.Nodes[0].Files = frrConf("interface eth1\nexit\n ip address 192.0.2.1/24\n") }, "46", "46", "46"},
		"named, none": {func(v *VNet) {
			v.Addressing.Mode = AddressesNone
			v.Links[0].Endpoints[0].Addrs = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}
		}, "", "4", ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := pair(Routing{})
			c.change(v)
			if err := v.Complete(); err != nil {
				t.Fatal(err)
			}
			if err := v.Validate(); err != nil {
				t.Fatal(err)
			}
			families := func(addrs []netip.Addr) (out string) {
				for _, a := range addrs {
					if a.Is4() {
						out += "4"
					} else {
						out += "6"
					}
				}
				return out
			}
			of := func(list []netip.Prefix) (addrs []netip.Addr) {
				for _, p := range list {
					addrs = append(addrs, p.Addr())
				}
				return addrs
			}
			got := []string{families(v.Nodes[0].Loopbacks), families(of(v.Links[0].Endpoints[0].Addrs)), families(of(v.Links[0].Endpoints[1].Addrs))}
			if want := []string{c.loopbacks, c.ends, c.more}; !reflect.DeepEqual(got, want) {
				t.Errorf("families of a's loopbacks, its end, b's end: %q, want %q", got, want)
			}
		})
	}
}

// TestOtherEndsJoinConfiguredSubnets checks what the other ends of a link get where a
// node's own configuration of FRR addresses one.
func TestOtherEndsJoinConfiguredSubnets(t *testing.T) {
	const four = "ip address 192.0.2.1/29\n ip address 192.0.2.2/29\n vrrp 5 ip 192.0.2.3"
	for name, c := range map[string]struct {
		nodes string
		conf  map[string]string // lines under eth1, by node
		named map[string]string // addresses in the description, by node
		want  string            // of the nodes in order; or the error
	}{
		"/31":               {"a b", map[string]string{"a": "ip address 192.0.2.1/31"}, nil, "[] [192.0.2.0/31]"},
		"/30":               {"a b", map[string]string{"a": "ip address 192.0.2.2/30"}, nil, "[] [192.0.2.1/30]"},
		"/127":              {"a b", map[string]string{"b": "ipv6 address 2001:db8::/127"}, nil, "[2001:db8::1/127] []"},
		"both families":     {"a b", map[string]string{"a": "ip address 192.0.2.1/30\n ipv6 address 2001:db8::1/126"}, nil, "[] [192.0.2.2/30 2001:db8::2/126]"},
		"host addresses":    {"a b", map[string]string{"a": "ip address 192.0.2.1/32\n ipv6 address 2001:db8::1/128"}, nil, "[] []"},
		"link-local":        {"a b", map[string]string{"a": "ipv6 address fe80::1/64\n ip address 192.0.2.2/30"}, nil, "[] [192.0.2.1/30]"},
		"a peer":            {"a b", map[string]string{"a": "ip address 192.0.2.1 peer 192.0.2.2/32"}, nil, "[] []"},
		"several":           {"a b", map[string]string{"a": "ip address 192.0.2.1/32\n ip address 192.0.2.5/30\n ip address 198.51.100.1/24"}, nil, "[] [192.0.2.6/30]"},
		"both ends":         {"a b", map[string]string{"a": "ip address 192.0.2.1/30", "b": "ip address 192.0.2.2/30"}, nil, "[] []"},
		"a LAN":             {"a b c", map[string]string{"a": four, "b": "ip address 192.0.2.4/29\n ip address 192.0.2.5/29"}, nil, "[] [] [192.0.2.6/29]"},
		"the description's": {"a b c", map[string]string{"a": "ip address 192.0.2.1/24\n ipv6 address 2001:db8::1/126"}, map[string]string{"b": "198.51.100.1/30"}, "[] [198.51.100.1/30] [198.51.100.2/30 2001:db8::2/126]"},
		"full":              {"a b c", map[string]string{"a": "ip address 192.0.2.1/30", "b": "ip address 192.0.2.2/30"}, nil, `links[0].endpoints[2]: no free address in 192.0.2.0/30 for node "c"`},
		"full /31":          {"a b", map[string]string{"a": "ip address 192.0.2.0/31\n ip address 192.0.2.1/31"}, nil, `links[0].endpoints[1]: no free address in 192.0.2.0/31 for node "b"`},
		"full /127":         {"a b", map[string]string{"a": "ipv6 address 2001:db8::/127\n ipv6 address 2001:db8::1/127"}, nil, `no free address in 2001:db8::/127 for node "b"`},
	} {
		t.Run(name, func(t *testing.T) {
			v := describe(c.nodes, c.nodes)
			for i := range v.Nodes {
				n := v.Nodes[i].Name
				if lines, ok := c.conf[n]; ok {
					v.Nodes[i].Files = frrConf("interface eth1\n " + lines + "\n")
				}
				if addr, ok := c.named[n]; ok {
					v.Links[0].Endpoints[i].Addrs = []netip.Prefix{netip.MustParsePrefix(addr)}
				}
			}
			err := v.Complete()
			if strings.HasPrefix(c.want, "[") {
				if err == nil {
					err = v.Validate()
				}
				var got []string
				for _, e := range v.Links[0].Endpoints {
					got = append(got, fmt.Sprint(e.Addrs))
				}
				if err != nil || strings.Join(got, " ") != c.want {
					t.Errorf("addresses %s, %v; want %s", strings.Join(got, " "), err, c.want)
				}
				return
			}
			var errs Errors
			if !errors.As(err, &errs) || !strings.Contains(errs[0].Path+": "+errs[0].What, c.want) {
				t.Errorf("%v; want %s", err, c.want)
			}
		})
	}
}

// A subnet that others join is not drawn for another link.
func TestConfiguredSubnetsAreNotDrawn(t *testing.T) {
	drawn := mustComplete(t, describe("a b c d", "ab=a b", "cd=c d")).Links[1].Endpoints[0].Addrs[0]
	v := describe("a b c d", "ab=a b", "cd=c d")
	v.Nodes[0].Files = frrConf("interface eth1\n ip address " + drawn.String() + "\n")
	mustComplete(t, v)
	if got := v.Links[1].Endpoints[0].Addrs[0]; got.Masked() == drawn.Masked() {
		t.Errorf("link cd has drawn %s, which node a has", got)
	}
}

// TestOwnConfigurationNamesTheDaemon checks that a configuration among the files
// is run, unless the node starts software of its own.
func TestOwnConfigurationNamesTheDaemon(t *testing.T) {
	bird := []File{{Path: BIRDConfig}}
	for name, c := range map[string]struct {
		node Node
		want Daemon
		bad  string
	}{
		"nothing":         {Node{}, "", ""},
		"frr":             {Node{Files: frrConf("")}, FRR, ""},
		"frr daemon":      {Node{Files: []File{{Path: "/etc/frr/ospfd.conf"}}}, FRR, ""},
		"frr daemons":     {Node{Files: []File{{Path: "/etc/frr/daemons"}}}, FRR, ""},
		"vtysh alone":     {Node{Files: []File{{Path: "/etc/frr/vtysh.conf"}}}, "", ""},
		"bird":            {Node{Files: bird}, BIRD, ""},
		"static and bird": {Node{Files: bird, Routing: Routing{Protocol: Static}}, BIRD, ""},
		"own command":     {Node{Files: bird, Cmd: []string{"bird"}}, "", ""},
		"own image":       {Node{Files: bird, Image: "lab:1"}, BIRD, ""}, // which may have a command
		"both for images": {Node{Files: append(frrConf(""), bird...), Image: "lab:1"}, "", ""},
		"both":            {Node{Files: append(frrConf(""), bird...)}, FRR, "configurations of FRR and of BIRD"},
		"no configuration": {Node{Routing: Routing{Protocol: None, Daemon: BIRD}}, BIRD,
			"asks for bird and for no protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			v := pair(Routing{})
			c.node.Name = "a"
			v.Nodes[0] = c.node
			if err := v.Complete(); err != nil {
				t.Fatal(err)
			}
			if got := v.Nodes[0].Routing.Daemon; got != c.want {
				t.Errorf("daemon %q, want %q", got, c.want)
			}
			err := v.Validate()
			if (err != nil) != (c.bad != "") || err != nil && !strings.Contains(err.Error(), c.bad) {
				t.Errorf("error %v, want %q", err, c.bad)
			}
		})
	}
}

// TestRoutingThatCannotBe names what is wrong.
func TestRoutingThatCannotBe(t *testing.T) {
	for want, change := range map[string]func(*VNet){
		"is a host and asks for ospf": func(v *VNet) { v.Nodes[0].Kind, v.Nodes[0].Routing.Protocol = Host, OSPF },
		"of the unknown kind":         func(v *VNet) { v.Nodes[0].Kind = "switch" },
		"names an IGP besides ospf":   func(v *VNet) { v.Nodes[0].Routing = Routing{Protocol: OSPF, IGP: RIP} },
		"unknown IGP":                 func(v *VNet) { v.Nodes[0].Routing = Routing{Protocol: BGP, IGP: Static} },
		"bird, which does not speak":  func(v *VNet) { v.Nodes[0].Routing = Routing{Protocol: BGP, IGP: ISIS, Daemon: BIRD} },
		"is not longer than hello":    func(v *VNet) { v.Nodes[0].Routing.Intervals = Intervals{Hello: 5e9, Dead: 5e9} },
		"timer hello is 1.5s":         func(v *VNet) { v.Nodes[0].Routing.Intervals = Intervals{Hello: 15e8} },
		"timers spf are":              func(v *VNet) { v.Nodes[0].Routing.Intervals.SPF[2], v.Nodes[0].Routing.Intervals.SPF[0] = 1e9, 2e9 },
		"speaks no BGP":               func(v *VNet) { v.Nodes[0].Routing.RouteReflector = true },
		"a node's own":                func(v *VNet) { v.Routing.DefaultRoute = true },
		"no end of it speaks rip":     func(v *VNet) { v.Links[0].Routing.Protocol = RIP },
		"has the area":                func(v *VNet) { v.Links[0].Routing.Area = "x" },
		"only point-to-point links":   func(v *VNet) { v.Links[0].Type, v.Links[0].Addressing = LAN, AddressesUnnumbered },
		"no loopback address":         func(v *VNet) { v.Links[0].Addressing, v.Addressing.Mode = AddressesUnnumbered, AddressesNone },
		"which bgp under frr of node": func(v *VNet) { v.Links[0].Addressing, v.Routing.Protocol = AddressesUnnumbered, BGP },
		"has 101 routers, which need 5050 BGP sessions": func(v *VNet) {
			v.Routing.Protocol = BGP
			for i := range 101 {
				v.Nodes = append(v.Nodes, Node{Name: fmt.Sprintf("r%d", i), ASN: 64512})
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			v := pair(Routing{Protocol: OSPF})
			change(v)
			if err := v.Complete(); err != nil {
				t.Fatal(err)
			}
			if err := v.Validate(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		})
	}
}

// TestInsideAnAS checks which IGP the routers of one AS speak.
func TestInsideAnAS(t *testing.T) {
	v := pair(Routing{Protocol: BGP})
	v.Nodes = append(v.Nodes, Node{Name: "c"}, Node{Name: "d", ASN: 64513, Routing: Routing{IGP: RIP}})
	v.Nodes[0].ASN, v.Nodes[1].ASN = 64512, 64512
	if err := v.Complete(); err != nil {
		t.Fatal(err)
	}
	for i, want := range []Protocol{OSPF, OSPF, None, RIP} {
		if got := v.Nodes[i].Routing.IGP; got != want {
			t.Errorf("IGP of %s is %q, want %q", v.Nodes[i].Name, got, want)
		}
	}
}

// TestNameAddresses checks what names stand for.
func TestNameAddresses(t *testing.T) {
	v := pair(Routing{Protocol: OSPF})
	v.Nodes = append(v.Nodes, Node{Name: "h", Kind: Host}, Node{Name: "n", Routing: Routing{Protocol: None}})
	v.Links = append(v.Links, Link{Type: LAN, Endpoints: []Interface{{Node: "b"}, {Node: "h"}, {Node: "n"}}})
	if err := v.Complete(); err != nil {
		t.Fatal(err)
	}
	names := v.NameAddresses()
	ends := v.Links[1].Endpoints
	host := []netip.Addr{ends[1].Addrs[0].Addr(), ends[1].Addrs[1].Addr()}
	none := append([]netip.Addr{ends[2].Addrs[0].Addr(), ends[2].Addrs[1].Addr()}, v.Nodes[3].Loopbacks...)
	if want := map[string][]netip.Addr{"a": v.Nodes[0].Loopbacks, "b": v.Nodes[1].Loopbacks, "h": host, "n": none}; !reflect.DeepEqual(names, want) {
		t.Errorf("names stand for %v, want %v", names, want)
	}
}
