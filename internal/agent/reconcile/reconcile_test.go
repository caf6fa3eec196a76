package reconcile

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"trellis/internal/plan"
	"trellis/internal/routing"
	"trellis/internal/tunnel"
	"trellis/internal/vnet"
)

// TestTranscripts runs the scenarios in testdata. Each file starts with an
// empty kernel; its commands are
//
//	want             the plan, one line per object (see parsePlan); prints the steps
//	converge         the kernel becomes what the plan asks for; prints the steps that are left
//	kernel           changes the kernel behind the plan's back; prints the steps that mend it
//	wait             nodes whose restart is held back; prints the steps
//	routes             what the underlay knows: the machines that can be reached, each
//	                 with the MTU on the way there; prints the steps
//	no-fast-path     why the machine has no fast path, if it has none; prints the steps
//
// Rewrite the expected output with -rewrite.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		want, have := &plan.Plan{}, Kernel{}
		wait := map[string]bool{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "want":
				want = parsePlan(t, d.Input)
			case "converge":
				have = converged(want, wait, have)
			case "routes":
				have.Routes = parseRoutes(t, strings.Fields(d.Input))
			case "no-fast-path":
				have.NoFastPath = strings.TrimSpace(d.Input)
			case "kernel":
				for line := range strings.Lines(d.Input) {
					disturb(t, d, &have, strings.Fields(line))
				}
			case "wait":
				clear(wait)
				for _, n := range strings.Fields(d.Input) {
					wait[n] = true
				}
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
			}
			steps := Diff(want, have, wait)
			if len(steps) == 0 {
				return "nothing to do\n"
			}
			var b strings.Builder
			for _, s := range steps {
				fmt.Fprintln(&b, s)
			}
			return b.String()
		})
	})
}

// parsePlan reads lines such as
//
//	node a [image=I] [memory=N] [conf=TEXT] [daemon=NAME] [file=NAME] [exec=CMD] [route=PREFIX] [slow]
//	link a:eth1 b:eth1 [rate=N] [mtu=N] [mac=N] [down] [addr=A,B]
//	lan NAME a:eth2 b:eth2 c:eth1 [up=N] [to=HOST,HOST] [pulled=b:eth2]
//	tunnel a:eth3 HOST [up=N] [key=N]
func parsePlan(t *testing.T, text string) *plan.Plan {
	p := &plan.Plan{VNet: "v", IDBase: 1 << 20}
	nodes := map[string]*plan.Node{}
	var names []string
	port := func(ref, link string, opts map[string]string) string {
		n, name, _ := strings.Cut(ref, ":")
		if nodes[n] == nil {
			t.Fatalf("unknown node in %q", ref)
		}
		mtu := 1500
		if s, ok := opts["mtu"]; ok {
			mtu = atoi(t, s)
		}
		mac := byte(len(nodes[n].Ports))
		if s, ok := opts["mac"]; ok {
			mac = byte(atoi(t, s))
		}
		_, down := opts["down"]
		nodes[n].Ports = append(nodes[n].Ports, plan.Port{
			Name: name, Device: "dev-" + ref, MTU: mtu, Link: link, Down: down,
			MAC: vnet.MAC{2, 0, 0, 0, 0, mac},
		})
		return "dev-" + ref
	}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		opts := map[string]string{}
		words = slices.DeleteFunc(words, func(w string) bool {
			k, v, ok := strings.Cut(w, "=")
			ok = ok || w == "down" || w == "slow"
			if ok {
				opts[k] = v
			}
			return ok
		})
		switch words[0] {
		case "node":
			n := &plan.Node{Name: words[1], Image: "host", Limits: plan.Limits{Memory: 1 << 28, Pids: 512}}
			if v, ok := opts["image"]; ok {
				n.Image = v
			}
			if v, ok := opts["memory"]; ok {
				n.Limits.Memory = int64(atoi(t, v))
			}
			if v, ok := opts["conf"]; ok {
				n.Daemons = routing.Daemons{
					Kind: vnet.FRR, Services: []routing.Service{{Name: "ospfd", Argv: []string{"/ospfd"}}},
					Files: []vnet.File{{Path: "/etc/frr/ospfd.conf", Content: []byte(strings.ReplaceAll(v, "_", " ") + "\n")}},
				}
			}
			if v, ok := opts["daemon"]; ok {
				n.Daemons.Services = append(n.Daemons.Services, routing.Service{Name: v, Argv: []string{"/" + v}})
			}
			if v, ok := opts["file"]; ok {
				n.Files = []vnet.File{{Path: "/etc/" + v, Content: []byte(v)}}
			}
			if v, ok := opts["exec"]; ok {
				n.Exec = []string{v}
			}
			if v, ok := opts["route"]; ok {
				p.Prefixes = []netip.Prefix{netip.MustParsePrefix(v)}
				n.Routes = plan.RouteTable{Groups: slices.Grow(n.Routes.Groups, 1)[:1], Via: []byte{1}}
			}
			_, n.NoFastPath = opts["slow"]
			n.Loopbacks = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/32", len(names)+1))}
			nodes[n.Name] = n
			names = append(names, n.Name)
		case "link":
			link := words[1] + "-" + words[2]
			a, b := port(words[1], link, opts), port(words[2], link, opts)
			p.Joints = append(p.Joints, plan.Joint{Link: link, A: a, B: b})
			for i, ref := range words[1:3] {
				n, _, _ := strings.Cut(ref, ":")
				last := &nodes[n].Ports[len(nodes[n].Ports)-1]
				if s, ok := opts["rate"]; ok {
					last.Egress.Rate = uint64(atoi(t, s))
				}
				if s, ok := opts["addr"]; ok {
					last.Addrs = []netip.Prefix{netip.MustParsePrefix(strings.Split(s, ",")[i])}
				}
			}
		case "lan":
			lan := plan.LAN{Link: words[1], Device: "bridge-" + words[1], MTU: 1500}
			for _, ref := range words[2:] {
				lan.Ports = append(lan.Ports, port(ref, words[1], opts))
				n, _, _ := strings.Cut(ref, ":")
				last := &nodes[n].Ports[len(nodes[n].Ports)-1]
				if s, ok := opts["up"]; ok {
					last.Ingress.Rate = uint64(atoi(t, s))
				}
				last.Down = last.Down || opts["pulled"] == ref
			}
			p.LANs = append(p.LANs, lan)
			if to, ok := opts["to"]; ok {
				for _, host := range strings.Split(to, ",") {
					tunnel := tunnelTo(t, host, words[1])
					tunnel.Device, tunnel.LAN, tunnel.Key = "tunnel-"+words[1]+"-"+host, lan.Device, uint32(len(p.Tunnels)+1000)
					p.Tunnels = append(p.Tunnels, tunnel)
				}
			}
		case "tunnel":
			tunnel := tunnelTo(t, words[2], words[1]+"-"+words[2])
			tunnel.Device, tunnel.Key = port(words[1], tunnel.Link, opts), uint32(len(p.Tunnels)+1)
			if s, ok := opts["key"]; ok {
				tunnel.Key = uint32(atoi(t, s))
			}
			n, _, _ := strings.Cut(words[1], ":")
			if s, ok := opts["up"]; ok {
				nodes[n].Ports[len(nodes[n].Ports)-1].Ingress.Rate = uint64(atoi(t, s))
			}
			p.Tunnels = append(p.Tunnels, tunnel)
		default:
			t.Fatalf("unknown object %q", words[0])
		}
	}
	for _, n := range names {
		p.Nodes = append(p.Nodes, *nodes[n])
	}
	return p
}

// machines are the other substrate nodes of the scenarios.
var machines = map[string]netip.Addr{
	"beta": netip.MustParseAddr("192.0.2.2"), "gamma": netip.MustParseAddr("192.0.2.3"),
}

func tunnelTo(t *testing.T, host, link string) plan.Tunnel {
	remote, ok := machines[host]
	if !ok {
		t.Fatalf("there is no machine %q", host)
	}
	return plan.Tunnel{Link: link, Peer: host, Local: netip.MustParseAddr("192.0.2.1"), Remote: remote, MTU: 1500}
}

// parseRoutes reads words such as beta=9000.
func parseRoutes(t *testing.T, words []string) map[tunnel.Endpoints]tunnel.Route {
	routes := map[tunnel.Endpoints]tunnel.Route{}
	for _, w := range words {
		host, mtu, _ := strings.Cut(w, "=")
		end := tunnelTo(t, host, "")
		routes[tunnel.Endpoints{Local: end.Local, Remote: end.Remote}] = tunnel.Route{Uplink: 2, NextHop: vnet.MAC{2, 0, 0, 0, 0, 0xfe}, MTU: atoi(t, mtu)}
	}
	return routes
}

// converged is the kernel that a plan describes, on a machine that is like have.
func converged(p *plan.Plan, wait map[string]bool, have Kernel) Kernel {
	k := Kernel{Nodes: map[string]Node{}, Devices: map[string]Device{}, Routes: have.Routes, NoFastPath: have.NoFastPath}
	marks := MarksOf(p)
	ports := map[string]plan.Port{}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if wait[n.Name] {
			continue
		}
		node := Node{Running: true, Marks: marks(n), Daemons: n.Daemons.With(n.Files), Limits: n.Limits, Loopbacks: n.Loopbacks, Interfaces: map[string]Interface{}}
		for _, port := range n.Ports {
			node.Interfaces[port.Name] = Interface{MAC: port.MAC, MTU: port.MTU, Up: true, Addrs: port.Addrs}
			k.Devices[port.Device] = Device{Up: !port.Down, MTU: port.MTU, Egress: port.Egress, Helper: !port.Ingress.IsZero(), Ingress: port.Ingress}
			ports[port.Device] = port
		}
		node.NoFastPath = have.Nodes[n.Name].NoFastPath
		k.Nodes[n.Name] = node
	}
	for _, j := range p.Joints {
		for _, way := range [][2]string{{j.A, j.B}, {j.B, j.A}} {
			if d, ok := k.Devices[way[0]]; ok {
				if _, there := k.Devices[way[1]]; !there { // its node waits
					d.Up = false
				}
				d.Attached, d.Peer, d.PeerMAC, d.Shaped = true, way[1], ports[way[1]].MAC, !ports[way[1]].Egress.IsZero()
				d.Receives = len(p.Tunnels) > 0 && !ports[way[0]].Egress.NeedsNetem()
				d.Rate = Rates(p)[way[0]]
				k.Devices[way[0]] = d
			}
		}
	}
	for i := range p.Tunnels {
		t := &p.Tunnels[i]
		d, ok := k.Devices[t.Device]
		switch {
		case t.LAN != "":
			d = Device{Up: true, MTU: t.MTU, Master: t.LAN, Isolated: true}
		case !ok:
			continue // its node waits
		}
		d.Attached, d.Receives = true, true
		if port := ports[t.Device]; t.LAN == "" && !port.Ingress.IsZero() {
			d.PeerMAC, d.Rate = port.MAC, Rates(p)[t.Device]
		}
		d.Path = PathOf(t, k, have.Devices[t.Device].Path)
		k.Devices[t.Device] = d
	}
	for i := range p.Nodes {
		for _, port := range p.Nodes[i].Ports {
			if d, ok := k.Devices[port.Device]; ok && d.Receives && !p.Nodes[i].NoFastPath && k.NoFastPath == "" && have.Nodes[p.Nodes[i].Name].NoFastPath == "" {
				d.Fast = true
				k.Devices[port.Device] = d
			}
		}
	}
	for _, l := range p.LANs {
		k.Devices[l.Device] = Device{Bridge: true, Up: true, MTU: l.MTU, Attached: true}
		for _, port := range l.Ports {
			if d, ok := k.Devices[port]; ok {
				d.Attached, d.Master = true, l.Device
				if p := ports[port]; !p.Ingress.IsZero() {
					d.PeerMAC = p.MAC
				}
				k.Devices[port] = d
			}
		}
	}
	return k
}

// disturb changes the kernel as a crash, a tenant or an administrator might.
func disturb(t *testing.T, d *datadriven.TestData, k *Kernel, words []string) {
	device := func(name string, change func(*Device)) {
		v, ok := k.Devices[name]
		if !ok {
			d.Fatalf(t, "no device %q", name)
		}
		change(&v)
		k.Devices[name] = v
	}
	switch words[0] {
	case "die": // a node's init ended, and its namespaces with it
		n := k.Nodes[words[1]]
		n.Running, n.Interfaces, n.Loopbacks = false, nil, nil
		k.Nodes[words[1]] = n
		for name := range k.Devices {
			if strings.HasPrefix(name, "dev-"+words[1]+":") {
				delete(k.Devices, name)
			}
		}
	case "vanish": // all trace of a container is gone, its devices are not yet
		delete(k.Nodes, words[1])
	case "delete":
		delete(k.Devices, words[1])
	case "stray":
		k.Devices[words[1]] = Device{Bridge: len(words) > 2}
	case "unqueue":
		device(words[1], func(v *Device) { v.Egress = vnet.Shape{} })
	case "detach":
		device(words[1], func(v *Device) { v.Attached, v.Peer, v.PeerMAC, v.Path = false, "", vnet.MAC{}, tunnel.Path{} })
	case "unhelp": // the pair that shapes what the node sends has gone
		device(words[1], func(v *Device) {
			v.Helper, v.Ingress, v.Peer, v.PeerMAC, v.Master, v.Path = false, vnet.Shape{}, "", vnet.MAC{}, "", tunnel.Path{}
		})
	case "made": // the pair has been made, and no more
		device(words[1], func(v *Device) { v.Helper, v.Attached = true, false })
	case "unrate": // the fast path does not know the rate of what the node sends
		device(words[1], func(v *Device) { v.Rate = 0 })
	case "mix": // two of a LAN's tunnels exchange frames
		device(words[1], func(v *Device) { v.Isolated = false })
	case "uncover": // the far end has lost its program
		device(words[1], func(v *Device) { v.Receives, v.Fast = false, false })
	case "free":
		device(words[1], func(v *Device) { v.Master = "" })
	case "lower":
		device(words[1], func(v *Device) { v.Up = false })
	case "rename": // the tenant renamed its interface
		n, ifname, _ := strings.Cut(words[1], ":")
		delete(k.Nodes[n].Interfaces, ifname)
	case "policy": // the tenant has set up what keeps its packets on its stack, or taken it away
		n := k.Nodes[words[1]]
		n.NoFastPath = strings.Join(words[2:], " ")
		k.Nodes[words[1]] = n
	case "readdress":
		n, ifname, _ := strings.Cut(words[1], ":")
		v := k.Nodes[n].Interfaces[ifname]
		v.Addrs = nil
		k.Nodes[n].Interfaces[ifname] = v
	default:
		d.Fatalf(t, "unknown disturbance %q", words[0])
	}
}

func atoi(t *testing.T, s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
