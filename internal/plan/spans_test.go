package plan

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"trellis/internal/vnet"
)

// TestSpans runs the networks in testdata over several substrate nodes. Each
// command `compile` has one line per object:
//
//	host NAME [ADDRESS…] [mtu=N]
//	node NAME on=HOST [fastpath=off]
//	link END END | lan NAME END…    an END is node[/mtu=N][/tx=RATE][/rx=RATE]; link … down
//	ipv4                            no IPv6
//
// and prints what of the plans follows from the placement, or the refusal.
// Rewrite with -rewrite.
func TestSpans(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "compile" {
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			v, hosts, placement := parseNetwork(t, d.Input)
			if err := errors.Join(v.Complete(), v.Validate()); err != nil {
				t.Fatal(err)
			}
			if err := FitLinks(v, placement, hosts); err != nil {
				return "refused:\n" + err.Error() + "\n"
			}
			keys := map[string]uint32{}
			for i, s := range Spans(v, placement) {
				keys[s] = uint32(i + 1)
			}
			plans, err := Compile(v, Allocation{Placement: placement, Hosts: hosts, Keys: keys})
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, host := range slices.Sorted(maps.Keys(plans)) {
				printPlan(&b, host, hosts[host].Instance, v, plans[host])
			}
			return b.String()
		})
	})
}

func parseNetwork(t *testing.T, text string) (*vnet.VNet, map[string]Host, map[string]string) {
	t.Helper()
	v := &vnet.VNet{Name: "v"}
	hosts, placement := map[string]Host{}, map[string]string{}
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	end := func(word string) vnet.Interface {
		parts := strings.Split(word, "/")
		e := vnet.Interface{Node: parts[0]}
		for _, p := range parts[1:] {
			key, value, _ := strings.Cut(p, "=")
			switch key {
			case "mtu":
				e.MTU = number(value)
			case "tx":
				e.Tx.Rate = uint64(number(value))
			case "rx":
				e.Rx.Rate = uint64(number(value))
			default:
				t.Fatalf("%q is no part of an end", p)
			}
		}
		return e
	}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch words[0] {
		case "host":
			h := Host{Instance: "at-" + words[1], MTU: 1500}
			for _, w := range words[2:] {
				if mtu, ok := strings.CutPrefix(w, "mtu="); ok {
					h.MTU = number(mtu)
				} else {
					h.Addrs = append(h.Addrs, netip.MustParseAddr(w))
				}
			}
			hosts[words[1]] = h
		case "node":
			n := vnet.Node{Name: words[1]}
			for _, w := range words[2:] {
				if on, ok := strings.CutPrefix(w, "on="); ok {
					placement[n.Name] = on
				} else if fast, ok := strings.CutPrefix(w, "fastpath="); ok {
					n.FastPath = vnet.FastPath(fast)
				}
			}
			v.Nodes = append(v.Nodes, n)
		case "link", "lan":
			l := vnet.Link{Type: vnet.PointToPoint}
			ends := words[1:]
			if words[0] == "lan" {
				l.Type, l.Name, ends = vnet.LAN, words[1], words[2:]
			}
			for _, w := range ends {
				if w == "down" {
					l.Down = true
					continue
				}
				l.Endpoints = append(l.Endpoints, end(w))
			}
			v.Links = append(v.Links, l)
		case "ipv4":
			v.Addressing.IPv4 = vnet.DefaultIPv4
		default:
			t.Fatalf("%q is no object", words[0])
		}
	}
	return v, hosts, placement
}

// printPlan writes a plan with names in place of devices.
func printPlan(b *strings.Builder, host, instance string, v *vnet.VNet, p *Plan) {
	named := map[string]string{}
	for _, l := range v.Links {
		named[DeviceName(BridgeDevice, instance, v.Name, "@"+l.Name)] = "bridge of " + l.Name
		for _, e := range l.Endpoints {
			object := e.Node + ":" + e.Name
			named[DeviceName(PortDevice, instance, v.Name, object)] = object
		}
	}
	names := func(devices ...string) string {
		for i, d := range devices {
			devices[i] = named[d]
		}
		return strings.Join(devices, " ")
	}
	fmt.Fprintf(b, "%s:\n", host)
	for _, n := range p.Nodes {
		fmt.Fprintf(b, "  node %s", n.Name)
		if n.NoFastPath {
			b.WriteString(", no fast path")
		}
		b.WriteString("\n")
		for _, q := range n.Ports {
			fmt.Fprintf(b, "    %s of %s: MTU %d", names(q.Device), q.Link, q.MTU)
			if !q.Egress.IsZero() {
				fmt.Fprintf(b, ", into the node %s", vnet.FormatRate(q.Egress.Rate))
			}
			if !q.Ingress.IsZero() {
				fmt.Fprintf(b, ", out of the node %s", vnet.FormatRate(q.Ingress.Rate))
			}
			if q.Down {
				b.WriteString(", down")
			}
			b.WriteString("\n")
		}
	}
	for _, j := range p.Joints {
		fmt.Fprintf(b, "  joint of %s: %s\n", j.Link, names(j.A, j.B))
	}
	for _, l := range p.LANs {
		fmt.Fprintf(b, "  %s: %s; MTU %d\n", names(l.Device), names(slices.Clone(l.Ports)...), l.MTU)
	}
	for _, u := range p.Tunnels {
		at := named[u.Device]
		if u.LAN != "" {
			if u.Device != DeviceName(TunnelDevice, instance, v.Name, "@"+u.Link+">"+u.Peer) {
				at = "a strange device on the "
			}
			at += names(u.LAN)
		}
		fmt.Fprintf(b, "  tunnel of %s to %s: %s to %s, key %d, MTU %d, at %s\n", u.Link, u.Peer, u.Local, u.Remote, u.Key, u.MTU, at)
	}
}

// TestSpansAgree checks on random networks that the two ends of each tunnel
// mirror each other, that no two tunnels of a machine share a key, and that
// every end of every link has its port exactly once.
func TestSpansAgree(t *testing.T) {
	for seed := range 200 {
		v, hosts, placement := randomNetwork(t, seed)
		keys := map[string]uint32{}
		for i, s := range Spans(v, placement) {
			if keys[s] != 0 {
				t.Fatalf("seed %d: span %s is there twice", seed, s)
			}
			keys[s] = uint32(i + 1)
		}
		plans, err := Compile(v, Allocation{Placement: placement, Hosts: hosts, Keys: keys})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		type end struct {
			link, here, there string
		}
		tunnels := map[end]Tunnel{}
		ports := map[string]int{}
		used := 0
		for host, p := range plans {
			mine := map[uint32]bool{}
			for _, u := range p.Tunnels {
				if mine[u.Key] {
					t.Errorf("seed %d: %s uses key %d twice", seed, host, u.Key)
				}
				mine[u.Key] = true
				tunnels[end{u.Link, host, u.Peer}] = u
			}
			used += len(mine)
			for _, n := range p.Nodes {
				if placement[n.Name] != host {
					t.Errorf("seed %d: %s is at %s and not at %s", seed, n.Name, host, placement[n.Name])
				}
				for _, q := range n.Ports {
					ports[n.Name+":"+q.Name]++
				}
			}
		}
		if used != 2*len(keys) {
			t.Errorf("seed %d: %d ends of tunnels for %d keys", seed, used, len(keys))
		}
		for e, u := range tunnels {
			back := tunnels[end{e.link, e.there, e.here}]
			if back.Key != u.Key || back.Local != u.Remote || back.Remote != u.Local || back.MTU != u.MTU || u.Local.Is4() != u.Remote.Is4() {
				t.Errorf("seed %d: %+v is answered by %+v", seed, u, back)
			}
		}
		for _, l := range v.Links {
			for _, e := range l.Endpoints {
				if n := ports[e.Node+":"+e.Name]; n != 1 {
					t.Errorf("seed %d: %s:%s has %d ports", seed, e.Node, e.Name, n)
				}
			}
		}
	}
}

// randomNetwork gives a fitting network of up to 12 nodes on up to 5 machines.
func randomNetwork(t *testing.T, seed int) (*vnet.VNet, map[string]Host, map[string]string) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(seed), 3))
	v := &vnet.VNet{Name: "v"}
	hosts, placement := map[string]Host{}, map[string]string{}
	count := 1 + rng.IntN(5)
	for i := range count {
		h := Host{Instance: "i", MTU: 1400 + rng.IntN(200)}
		if rng.IntN(2) == 0 {
			h.Addrs = append(h.Addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}))
		}
		h.Addrs = append(h.Addrs, netip.AddrFrom16([16]byte{0xfd, 15: byte(i + 1)}))
		hosts[fmt.Sprintf("h%d", i)] = h
	}
	for i := range 2 + rng.IntN(11) {
		n := fmt.Sprintf("n%d", i)
		v.Nodes = append(v.Nodes, vnet.Node{Name: n})
		placement[n] = fmt.Sprintf("h%d", rng.IntN(count))
	}
	for range rng.IntN(12) {
		l := vnet.Link{Type: vnet.PointToPoint}
		ends := 2
		if rng.IntN(3) == 0 {
			l.Type, ends = vnet.LAN, 1+rng.IntN(len(v.Nodes))
		}
		for _, i := range rng.Perm(len(v.Nodes))[:ends] {
			l.Endpoints = append(l.Endpoints, vnet.Interface{Node: v.Nodes[i].Name})
		}
		v.Links = append(v.Links, l)
	}
	if err := errors.Join(v.Complete(), v.Validate(), FitLinks(v, placement, hosts)); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return v, hosts, placement
}
