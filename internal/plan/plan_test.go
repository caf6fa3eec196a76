package plan

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"trellis/internal/routing"
	"trellis/internal/vnet"
)

// network completes a description, as a reader would.
func network(t *testing.T, v *vnet.VNet) *vnet.VNet {
	t.Helper()
	if err := v.Complete(); err != nil {
		t.Fatal(err)
	}
	if err := v.Validate(); err != nil {
		t.Fatal(err)
	}
	return v
}

func node(name string, p vnet.Protocol) vnet.Node {
	return vnet.Node{Name: name, Routing: vnet.Routing{Protocol: p}}
}

func link(kind vnet.LinkType, nodes ...string) vnet.Link {
	l := vnet.Link{Type: kind}
	for _, n := range nodes {
		l.Endpoints = append(l.Endpoints, vnet.Interface{Node: n})
	}
	return l
}

// compile gives the plan of a VNet that is all on one substrate node.
func compile(t *testing.T, v *vnet.VNet) *Plan {
	t.Helper()
	plans, err := Compile(v, Allocation{
		IDBase: 1 << 28, Generation: 3, Placement: AllOn(v, "h"), Hosts: map[string]Host{"h": {Instance: "test"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return plans["h"]
}

// TestShapesFollowTheFrames checks on which side of a link each rate lands: on
// a point-to-point link what one end sends is shaped at the other's port; on a
// LAN each port has both.
func TestShapesFollowTheFrames(t *testing.T) {
	v := &vnet.VNet{Name: "v", Nodes: []vnet.Node{node("a", vnet.None), node("b", vnet.None)}}
	p2p, lan := link(vnet.PointToPoint, "a", "b"), link(vnet.LAN, "a", "b")
	p2p.Endpoints[0].Tx.Rate, p2p.Endpoints[1].Tx.Rate = 1000, 2000
	lan.Endpoints[0].Tx.Rate, lan.Endpoints[0].Rx.Rate = 3000, 4000
	v.Links = []vnet.Link{p2p, lan}
	p := compile(t, network(t, v))
	a, b := p.Nodes[0].Ports, p.Nodes[1].Ports
	for _, c := range []struct {
		what      string
		got, want uint64
	}{
		{"into a", a[0].Egress.Rate, 2000},
		{"into b", b[0].Egress.Rate, 1000},
		{"out of a, point to point", a[0].Ingress.Rate, 0},
		{"from the LAN into a", a[1].Egress.Rate, 4000},
		{"from a into the LAN", a[1].Ingress.Rate, 3000},
		{"from the LAN into b", b[1].Egress.Rate, 0},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d bit/s, want %d", c.what, c.got, c.want)
		}
	}
	if p.Joints[0].A != a[0].Device || p.Joints[0].B != b[0].Device {
		t.Errorf("the joint %+v does not join %s and %s", p.Joints[0], a[0].Device, b[0].Device)
	}
	if got, want := p.LANs[0].Ports, []string{a[1].Device, b[1].Device}; !reflect.DeepEqual(got, want) {
		t.Errorf("ports of the LAN: %v, want %v", got, want)
	}
}

// TestDestinations checks who waits for routes to whom.
func TestDestinations(t *testing.T) {
	down := link(vnet.PointToPoint, "c", "d")
	down.Down = true
	lan := link(vnet.LAN, "d", "e", "h")
	for i := range lan.Endpoints { // IPv4 only
		lan.Endpoints[i].Addrs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24)}
	}
	v := network(t, &vnet.VNet{
		Name: "v",
		Nodes: []vnet.Node{
			node("a", vnet.OSPF), node("b", vnet.OSPF), node("c", vnet.Static), node("d", vnet.Static),
			node("e", vnet.Static), node("h", vnet.None), node("lonely", vnet.OSPF),
		},
		Links: []vnet.Link{
			link(vnet.PointToPoint, "a", "b"), link(vnet.PointToPoint, "b", "c"), down,
			lan, link(vnet.PointToPoint, "h", "lonely"),
		},
	})
	p := compile(t, v)
	got := map[string][]int{}
	for _, n := range p.Nodes {
		got[n.Name] = n.Components
	}
	want := map[string][]int{"a": {0, 2}, "b": {0, 2}, "c": nil, "d": {1}, "e": {1}, "h": nil, "lonely": nil}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("components %v, want %v", got, want)
	}
	for i, is4 := range []bool{true, true, false} {
		if d := p.Destinations[i]; len(d) != 2 || d[0].Is4() != is4 || d[1].Is4() != is4 {
			t.Errorf("destinations %d: %v, want two loopbacks of one family", i, d)
		}
	}
}

// TestCompileIsDeterministic compiles the same network twice.
func TestCompileIsDeterministic(t *testing.T) {
	make := func() *Plan {
		v := &vnet.VNet{Name: "ring"}
		for i := range 30 {
			v.Nodes = append(v.Nodes, node(fmt.Sprintf("n%d", i), vnet.Static))
			v.Links = append(v.Links, link(vnet.PointToPoint, fmt.Sprintf("n%d", i), fmt.Sprintf("n%d", (i+1)%30)))
		}
		return compile(t, network(t, v))
	}
	if a, b := make(), make(); !reflect.DeepEqual(a, b) {
		t.Error("two compilations of one network differ")
	}
}

// TestRouteTable takes random routes through the compact form and back.
func TestRouteTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	names := []string{"a", "b", "c"}
	configs := map[string]routing.Config{}
	for _, n := range names {
		var routes []routing.Route
		for i := range 300 {
			if rng.IntN(3) == 0 {
				continue
			}
			r := routing.Route{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)}
			for h := range 1 + rng.IntN(3) {
				r.Hops = append(r.Hops, routing.NextHop{
					Gateway: netip.AddrFrom4([4]byte{192, 0, 2, byte(rng.IntN(200))}), Interface: fmt.Sprintf("eth%d", h),
				})
			}
			routes = append(routes, r)
		}
		configs[n] = routing.Config{Routes: routes}
	}
	prefixes, tables := compactRoutes(names, configs)
	for _, n := range names {
		got, err := tables[n].Expand(prefixes)
		if err != nil {
			t.Fatal(err)
		}
		want := map[netip.Prefix][]routing.NextHop{}
		for _, r := range configs[n].Routes {
			want[r.Prefix] = r.Hops
		}
		for _, r := range got {
			if !reflect.DeepEqual(want[r.Prefix], r.Hops) {
				t.Errorf("%s: route to %s by %v, want %v", n, r.Prefix, r.Hops, want[r.Prefix])
			}
			delete(want, r.Prefix)
		}
		if len(want) > 0 {
			t.Errorf("%s: %d routes are lost", n, len(want))
		}
	}
	broken := tables["a"]
	broken.Via = broken.Via[:len(broken.Via)/2]
	if _, err := broken.Expand(prefixes); err == nil {
		t.Error("half a table is taken for a whole one")
	}
	broken.Via = append([]byte{200, 1}, tables["a"].Via...)
	if _, err := broken.Expand(prefixes); err == nil {
		t.Error("a group that is not there is taken for one")
	}
}

// TestDeviceNames checks that names fit the kernel and keep owners apart.
func TestDeviceNames(t *testing.T) {
	seen := map[string]string{}
	for _, instance := range []string{"trellis", "other"} {
		for _, v := range []string{"v", "w"} {
			for i := range 2000 {
				object := fmt.Sprintf("node%d:eth1", i)
				name := DeviceName(PortDevice, instance, v, object)
				if len(name) > maxDeviceName {
					t.Fatalf("%q is too long for a device", name)
				}
				if other, ok := seen[name]; ok {
					t.Fatalf("%s of %s/%s and %s have one name", object, instance, v, other)
				}
				seen[name] = instance + "/" + v + "/" + object
			}
		}
	}
}

// TestSharedAddressesAreNoDestinations: nobody waits for routes to what several have.
func TestSharedAddressesAreNoDestinations(t *testing.T) {
	v := &vnet.VNet{Name: "x", Nodes: []vnet.Node{node("a", vnet.OSPF), node("b", vnet.OSPF), {Name: "h", Kind: vnet.Host}, {Name: "i", Kind: vnet.Host}},
		Links: []vnet.Link{link(vnet.PointToPoint, "a", "b"), link(vnet.PointToPoint, "a", "h"), link(vnet.PointToPoint, "b", "i")}}
	shared := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.9"): true, netip.MustParseAddr("192.168.1.2"): true}
	for i := range 2 {
		v.Nodes[i].Anycast = []netip.Addr{netip.MustParseAddr("192.0.2.9")}
		l := &v.Links[i+1]
		l.Overlap = true
		l.Endpoints[0].Addrs = []netip.Prefix{netip.MustParsePrefix("192.168.1.1/24")}
		l.Endpoints[1].Addrs = []netip.Prefix{netip.MustParsePrefix("192.168.1.2/24")}
	}
	p := compile(t, network(t, v))
	if len(p.Destinations) != 2 {
		t.Fatalf("destinations: %v", p.Destinations)
	}
	for _, list := range p.Destinations {
		if len(list) != 2 { // the loopbacks of a and b
			t.Errorf("destinations: %v", list)
		}
		for _, a := range list {
			if shared[a] {
				t.Errorf("%v is a destination", a)
			}
		}
	}
	if n := p.Nodes[0]; len(n.Loopbacks) != 3 || n.Loopbacks[2] != netip.MustParsePrefix("192.0.2.9/32") || len(n.Anycast) != 1 {
		t.Errorf("lo of a: %v, of which others have %v", n.Loopbacks, n.Anycast)
	}
}
