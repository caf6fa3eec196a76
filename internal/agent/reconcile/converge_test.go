package reconcile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"trellis/internal/plan"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
)

// TestStepsSuffice carries out the steps between random plans in a model of the
// kernel, cut short anywhere and disturbed in between, and then once to the
// end: after that nothing may be left to do, and the kernel must hold exactly
// what the plan asks for.
func TestStepsSuffice(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		have := Kernel{Nodes: map[string]Node{}, Devices: map[string]Device{}}
		for range 1 + rng.IntN(4) {
			want := parsePlan(t, randomPlan(rng))
			wait := map[string]bool{}
			if rng.IntN(4) == 0 {
				wait[pick(rng, "a", "b", "c")] = true
			}
			steps := Diff(want, have, wait)
			cut := rng.IntN(len(steps) + 1)
			for _, s := range steps[:cut] {
				carryOut(t, &have, want, s)
			}
			crash(rng, &have)
			have.Routes, have.NoFastPath = randomRoutes(t, rng), pick(rng, "", "", "the kernel is old")
		}
		want := parsePlan(t, randomPlan(rng))
		if rng.IntN(8) == 0 {
			want = &plan.Plan{VNet: "v"}
		}
		for _, s := range Diff(want, have, nil) {
			carryOut(t, &have, want, s)
		}
		if left := Diff(want, have, nil); len(left) > 0 {
			t.Fatalf("seed %d: after all steps %d are left, first %q", seed, len(left), left[0])
		}
		if got, wanted := describe(have, want), describe(converged(want, nil, have), want); got != wanted {
			t.Fatalf("seed %d: the kernel holds\n%s\ninstead of\n%s", seed, got, wanted)
		}
	}
}

// crash makes of a kernel what is left when the service is killed: nodes that
// were not released end, with their namespaces and so their devices. Now and
// then something else happens as well.
func crash(rng *rand.Rand, k *Kernel) {
	for name, n := range k.Nodes {
		if !n.Running {
			continue
		}
		if rng.IntN(6) == 0 {
			n.NoFastPath = pick(rng, "", "a route with an MTU")
			k.Nodes[name] = n
		}
		if n.Limits.Pids == held || rng.IntN(6) == 0 {
			k.Nodes[name] = Node{}
			for d := range k.Devices {
				if strings.HasPrefix(d, "dev-"+name+":") && rng.IntN(5) > 0 { // its namespace may linger
					delete(k.Devices, d)
				}
			}
		}
	}
	for d, v := range k.Devices {
		switch rng.IntN(12) {
		case 0:
			v.Up = !v.Up
		case 1:
			v.Attached, v.Peer, v.PeerMAC, v.Path = false, "", vnet.MAC{}, tunnel.Path{}
		case 3:
			v.Receives, v.Fast, v.Isolated = false, false, false
		case 2:
			if v.Bridge || strings.HasPrefix(d, "tunnel-") { // nobody shapes those
				continue
			}
			v.Egress.Rate++
		case 4:
			if !v.Helper {
				continue
			}
			v.Helper, v.Ingress, v.Peer, v.PeerMAC, v.Master, v.Path = false, vnet.Shape{}, "", vnet.MAC{}, "", tunnel.Path{}
		case 5:
			if !v.Helper {
				continue
			}
			v.Ingress = vnet.Shape{}
		default:
			continue
		}
		k.Devices[d] = v
	}
}

// held in place of a limit marks a node that is not released in the model.
const held = -1

// carryOut is what the agent's steps do to the kernel.
func carryOut(t *testing.T, k *Kernel, p *plan.Plan, s Step) {
	marks := MarksOf(p)
	var node *plan.Node
	var port *plan.Port
	for i := range p.Nodes {
		if p.Nodes[i].Name == s.Node {
			node = &p.Nodes[i]
		}
		for j := range p.Nodes[i].Ports {
			if p.Nodes[i].Ports[j].Device == s.Device {
				port = &p.Nodes[i].Ports[j]
			}
		}
	}
	var end *plan.Tunnel
	for i := range p.Tunnels {
		if p.Tunnels[i].Device == s.Device {
			end = &p.Tunnels[i]
		}
	}
	n := k.Nodes[s.Node]
	d, there := k.Devices[s.Device]
	switch s.Op {
	case Stop:
		delete(k.Nodes, s.Node)
		return // its devices are removed by steps of their own
	case RemovePort, RemoveBridge:
		delete(k.Devices, s.Device)
		if owner, ifname, ok := strings.Cut(strings.TrimPrefix(s.Device, "dev-"), ":"); ok {
			delete(k.Nodes[owner].Interfaces, ifname) // the other end of the pair
		}
		return
	case Start:
		if _, ok := k.Nodes[s.Node]; ok {
			t.Fatalf("%s, but it is there", s)
		}
		n = Node{Running: true, Marks: marks(node), Daemons: node.Daemons.With(node.Files), Limits: plan.Limits{Pids: held}, Interfaces: map[string]Interface{}}
		n.Marks.Routes, n.Marks.Exec = "", ""
	case AddBridge:
		for _, l := range p.LANs {
			if l.Device == s.Device {
				d = Device{Bridge: true, Up: true, MTU: l.MTU, Attached: true}
			}
		}
	case AddPort:
		if there {
			t.Fatalf("%s, but it is there", s)
		}
		if !n.Running {
			t.Fatalf("%s, but its node is not there", s)
		}
		d = Device{MTU: port.MTU}
		n.Interfaces = maps.Clone(n.Interfaces)
		n.Interfaces[port.Name] = Interface{MAC: port.MAC, MTU: port.MTU}
	case AddTunnel:
		if there {
			t.Fatalf("%s, but it is there", s)
		}
		d = Device{MTU: end.MTU}
	case AddHelper:
		if !there || d.Helper {
			t.Fatalf("%s, but there is no device, or it has one", s)
		}
		// What the port did itself it does until it is joined with the helper.
		d.Helper, d.Attached, d.Peer, d.PeerMAC, d.Shaped, d.Rate = true, false, "", vnet.MAC{}, false, 0
	case RemoveHelper:
		if !there || !d.Helper {
			t.Fatalf("%s, but there is none", s)
		}
		if d.Attached { // it was in the port's stead
			d.Master, d.Path = "", tunnel.Path{}
		}
		d.Helper, d.Ingress, d.Peer, d.PeerMAC, d.Shaped, d.Rate = false, vnet.Shape{}, "", vnet.MAC{}, false, 0
	case Receive:
		if !there {
			t.Fatalf("%s, but there is no device", s)
		}
		if !d.Attached {
			d.Peer, d.Path = "", tunnel.Path{}
		}
		d.Attached, d.Receives = true, true
	case FastPath:
		if !d.Receives {
			t.Fatalf("%s, but its far end has no program", s)
		}
		d.Fast = s.On
	case Unplug:
		if !there {
			t.Fatalf("%s, but there is no device", s)
		}
		d.Master, d.Peer, d.PeerMAC, d.Shaped, d.Rate, d.Path = "", "", vnet.MAC{}, false, 0, tunnel.Path{}
	case Connect:
		if !there || !d.Receives {
			t.Fatalf("%s, but there is no device that receives", s)
		}
		for name, other := range k.Devices { // a key is one device's
			if name != s.Device && other.Path.Key == end.Key && other.Path != (tunnel.Path{}) {
				other.Path = tunnel.Path{}
				k.Devices[name] = other
			}
		}
		if end.LAN == "" && d.Helper == port.Ingress.IsZero() {
			t.Fatalf("%s, but its helper is missing, or in the way", s)
		}
		d.Path = PathOf(end, *k, d.Path)
		d.Attached, d.Peer, d.PeerMAC, d.Shaped = true, "", vnet.MAC{}, false
		if end.LAN == "" {
			d.Master, d.Ingress, d.PeerMAC = "", port.Ingress, helperMAC(port)
			d.Rate = Rates(p)[s.Device]
		}
	case Join:
		other, ok := k.Devices[s.Peer]
		if !there || !ok {
			t.Fatalf("%s, but an end is missing", s)
		}
		if d.Helper || other.Helper {
			t.Fatalf("%s, but a helper is in the way", s)
		}
		ports := map[string]plan.Port{}
		for _, n := range p.Nodes {
			for _, q := range n.Ports {
				ports[q.Device] = q
			}
		}
		d.Attached, d.Peer, d.PeerMAC, d.Shaped = true, s.Peer, ports[s.Peer].MAC, !ports[s.Peer].Egress.IsZero()
		other.Attached, other.Peer, other.PeerMAC, other.Shaped = true, s.Device, ports[s.Device].MAC, !ports[s.Device].Egress.IsZero()
		d.Master, other.Master = "", ""
		d.Rate, other.Rate = Rates(p)[s.Device], Rates(p)[s.Peer]
		d.Path, other.Path = tunnel.Path{}, tunnel.Path{}
		k.Devices[s.Peer] = other
	case Enslave:
		if _, ok := k.Devices[s.Peer]; !ok || !there {
			t.Fatalf("%s, but there is no bridge or port", s)
		}
		if end != nil {
			d.Master, d.Isolated = s.Peer, true
			break
		}
		if d.Helper == port.Ingress.IsZero() {
			t.Fatalf("%s, but its helper is missing, or in the way", s)
		}
		d.Attached, d.Master, d.Peer, d.Shaped, d.Ingress, d.Path = true, s.Peer, "", false, port.Ingress, tunnel.Path{}
		d.PeerMAC, d.Rate = helperMAC(port), 0
	case Shape:
		if !d.Helper && !port.Ingress.IsZero() {
			t.Fatalf("%s, but it has no helper", s)
		}
		d.Egress, d.Ingress = port.Egress, port.Ingress
		if d.Shaped || d.Helper {
			d.Rate = Rates(p)[s.Device]
		}
	case Resize:
		if d.MTU = 0; end != nil {
			d.MTU = end.MTU
		} else {
			d.MTU = port.MTU
		}
	case Address:
		n.Loopbacks, n.Interfaces = node.Loopbacks, map[string]Interface{}
		if n.Marks.Routes != "" {
			n.Marks.Routes = "lost" // those over what was made anew
		}
		for _, q := range node.Ports {
			if _, ok := k.Devices[q.Device]; !ok {
				t.Fatalf("%s, but it has no %s", s, q.Name)
			}
			n.Interfaces[q.Name] = Interface{MAC: q.MAC, MTU: q.MTU, Up: true, Addrs: q.Addrs}
		}
	case Route:
		n.Marks.Routes = marks(node).Routes
	case Carrier:
		d.Up = s.On
	case CarrierLoss:
		if !d.Up {
			t.Fatalf("%s, but it has none", s)
		}
		d.Up = false
	case Limit:
		n.Limits = node.Limits
	case Reload:
		n.Marks.Soft, n.Marks.Files = marks(node).Soft, marks(node).Files
		n.Daemons = node.Daemons.With(node.Files)
	case Release:
		n.Limits = node.Limits
	case Exec:
		n.Marks.Exec = marks(node).Exec
	default:
		t.Fatalf("no model of %q", s.Op)
	}
	if s.Node != "" {
		k.Nodes[s.Node] = n
	}
	if s.Device != "" {
		k.Devices[s.Device] = d
	}
}

// helperMAC is the address that a port's helper pair knows.
func helperMAC(p *plan.Port) vnet.MAC {
	if p.Ingress.IsZero() {
		return vnet.MAC{}
	}
	return p.MAC
}

// randomPlan writes a plan of up to four nodes in the words of parsePlan.
func randomPlan(rng *rand.Rand) string {
	var b strings.Builder
	names := []string{"a", "b", "c", "d"}[:1+rng.IntN(4)]
	for _, n := range names {
		fmt.Fprintf(&b, "node %s conf=%d", n, rng.IntN(2))
		if rng.IntN(4) == 0 {
			b.WriteString(" image=other")
		}
		if rng.IntN(4) == 0 {
			b.WriteString(" exec=true")
		}
		if rng.IntN(4) == 0 {
			b.WriteString(" slow")
		}
		if rng.IntN(4) == 0 {
			b.WriteString(" route=192.0.2.0/24")
		}
		b.WriteString("\n")
	}
	next := map[string]int{}
	ref := func() string {
		n := pick(rng, names...)
		next[n]++
		return fmt.Sprintf("%s:eth%d", n, next[n])
	}
	for range rng.IntN(4) {
		line := "link " + ref() + " " + ref()
		for _, o := range []string{" rate=1000", " mtu=9000", " down"} {
			if rng.IntN(3) == 0 {
				line += o
			}
		}
		b.WriteString(line + "\n")
	}
	if rng.IntN(2) == 0 {
		line := "lan x " + ref() + " " + ref()
		if rng.IntN(2) == 0 {
			line += " up=500"
		}
		line += pick(rng, "", "", " to=beta", " to=gamma,beta")
		b.WriteString(line + "\n")
	}
	swap := rng.IntN(2) // the keys of two tunnels may change places
	for i := range rng.IntN(3) {
		fmt.Fprintf(&b, "tunnel %s %s key=%d%s\n", ref(), pick(rng, "beta", "gamma"), 10+(i+swap)%2, pick(rng, "", " up=700"))
	}
	return b.String()
}

func pick(rng *rand.Rand, of ...string) string { return of[rng.IntN(len(of))] }

// randomRoutes gives the routes to none, one or both of the other machines.
func randomRoutes(t *testing.T, rng *rand.Rand) map[tunnel.Endpoints]tunnel.Route {
	var words []string
	for _, host := range []string{"beta", "gamma"} {
		if rng.IntN(3) > 0 {
			words = append(words, host+"="+pick(rng, "1500", "9000"))
		}
	}
	return parseRoutes(t, words)
}

// describe writes a kernel down, without what a comparison must not see. A far
// end that need not receive any more may, as long as nothing is forwarded there.
func describe(k Kernel, want *plan.Plan) string {
	receives := converged(want, nil, k).Devices
	var lines []string
	for name, n := range k.Nodes {
		for i, v := range n.Interfaces {
			lines = append(lines, fmt.Sprint("inside ", name, " ", i, " ", v))
		}
		lines = append(lines, fmt.Sprint("node ", name, " ", n.Running, n.Marks, n.Limits, n.Loopbacks))
	}
	for name, d := range k.Devices {
		if d.Master != "" {
			d.Peer, d.Shaped = "", false
		}
		d.Receives = d.Receives && receives[name].Receives
		lines = append(lines, fmt.Sprint("device ", name, " ", d))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
