package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// shapes are networks that any protocol must make reachable. The %s are the
// name and the routing.
var shapes = map[string]string{
	// A ring: two ways from each node to the one across.
	"ring": `name: %s
routing: %s
defaults: {node: {image: host}}
nodes: {a: {}, b: {}, c: {}, d: {}}
links: [[a, b], [b, c], [c, d], [d, a]]
`,
	// A segment with three nodes, and one behind.
	"lan": `name: %s
routing: %s
defaults: {node: {image: host}}
nodes: {a: {}, b: {}, c: {}, d: {}}
links:
  - {name: seg, type: lan, endpoints: [a, b, c]}
  - [c, d]
`,
	// Two pairs and a node alone.
	"parts": `name: %s
routing: %s
defaults: {node: {image: host}}
nodes: {a: {}, b: {}, c: {}, d: {}, alone: {}}
links: [[a, b], [c, d]]
`,
}

// pairs are how many pairs of nodes, times families, can reach each other.
var pairs = map[string]int{"ring": 24, "lan": 24, "parts": 8}

func TestProtocolsConverge(t *testing.T) {
	t.Parallel()
	needFRR(t)
	testenv.NeedCommand(t, "bird")
	protocolsConverge(t, "host")
}

// TestProtocolsConvergeUnderDebian13 does the same with FRR 10 and BIRD 2.17.
func TestProtocolsConvergeUnderDebian13(t *testing.T) {
	t.Parallel()
	protocolsConverge(t, testenv.Debian13(t))
}

func protocolsConverge(t *testing.T, image string) {
	s := testenv.StartService(t, testenv.Options{})
	type network struct{ name, shape, routing, file string }
	var all []network
	for i, c := range []struct{ routing, shapes string }{
		{"{protocol: ospf, timers: fast}", "ring lan parts"},
		{"{protocol: isis, timers: fast}", "ring lan"},
		{"{protocol: bgp, timers: fast}", "ring lan"},
		{"{protocol: rip, timers: fast}", "ring lan"},
		{"{protocol: ospf, daemon: bird, timers: fast}", "ring lan"},
		{"{protocol: bgp, daemon: bird, timers: fast}", "ring lan"},
		{"{protocol: rip, daemon: bird, timers: fast}", "ring lan"},
		{"{protocol: bgp, timers: default}", "ring"},
		{"static", "ring lan parts"},
	} {
		for _, shape := range strings.Fields(c.shapes) {
			n := network{fmt.Sprintf("%s%d", shape, i), shape, c.routing, ""}
			n.file = write(t, "net.yaml", strings.Replace(fmt.Sprintf(shapes[shape], n.name, n.routing), "image: host", "image: "+image, 1))
			all = append(all, n)
		}
	}
	// They converge side by side, which is mostly waiting for timers.
	for _, n := range all {
		s.Must("up", n.file, "--wait=false")
	}
	for _, n := range all {
		t.Run(n.shape+" "+strings.Trim(n.routing, "{}"), func(t *testing.T) {
			if _, stderr, code := s.Trellis("up", n.file, "--timeout", "90s"); code != 0 {
				lines := strings.Split(strings.TrimSpace(stderr), "\n")
				t.Fatalf("%s has not converged: %s\n%s", n.name, lines[len(lines)-1], routesOf(s, n.name, stderr))
			}
			// Converged means reachable now. Nodes of other parts are not.
			out, stderr, _ := s.Trellis("ping", n.name, "-o", "json")
			p := decode[ping](t, out)
			if p.Reachable != pairs[n.shape] || len(p.Failed) != p.Pairs-p.Reachable {
				t.Errorf("%d pairs are reachable, want %d: %+v %s", p.Reachable, pairs[n.shape], p.Failed, stderr)
			}
		})
	}
	s.Must("down", "--all")
	nothingLeft(t, s)
}

// routesOf gives what the kernel and FRR know of routes in the node that an error
// message of up says has no route first, and what BGP knows in all.
func routesOf(s *testenv.Service, network, message string) string {
	var node string
	if _, err := fmt.Sscanf(message[strings.LastIndex(message, "after "):], "after %s %s has", new(string), &node); err != nil {
		return "no node to look at: " + err.Error()
	}
	var b strings.Builder
	run := func(node string, command ...string) {
		stdout, stderr, _ := s.Trellis(append([]string{"exec", network + "/" + node, "--"}, command...)...)
		fmt.Fprintf(&b, "--- %s: %s\n%s%s", node, strings.Join(command, " "), stdout, stderr)
	}
	for _, bgp := range strings.Fields("a b c d") {
		run(bgp, "sh", "-c", "vtysh -c 'show bgp summary' | grep -E '^[0-9a-f]+[.:]'; vtysh -c 'show bgp ipv6' | grep '^ \\*'; vtysh -c 'show bgp neighbors' | grep -E 'BGP neighbor is|state =|local:|Nexthop|reset|dropped|BGP Connect'")
		stdout, stderr, _ := s.Trellis("logs", network+"/"+bgp)
		fmt.Fprintf(&b, "--- %s: logs\n%s%s", bgp, stdout, stderr)
	}
	run(node, "sh", "-c", "ip addr; ip -4 route; ip -6 route; ip neigh; vtysh -c 'show bgp nexthop' -c 'show ipv6 route'")
	return b.String()
}

func TestEqualCostPathsAreBothUsed(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	for _, routing := range []string{"static", "{protocol: ospf, timers: fast}"} {
		t.Run(routing, func(t *testing.T) {
			s.Must("up", write(t, "ring.yaml", fmt.Sprintf(shapes["ring"], "ring", routing)))
			across := show(t, s, "ring").loopback(t, "c")
			// OSPF may have found one of the two ways first.
			eventually(t, 30*time.Second, "two ways from a to c", func() bool {
				out := s.Must("exec", "ring/a", "--", "ip", "-4", "route", "show", across.String())
				return strings.Count(out, "nexthop via ") == 2 && strings.Contains(out, "dev eth1") && strings.Contains(out, "dev eth2")
			})
			s.Must("down", "ring")
		})
	}
}

func TestMixedDaemonsAndHosts(t *testing.T) {
	t.Parallel()
	needFRR(t)
	testenv.NeedCommand(t, "bird")
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "mixed.yaml", `name: mixed
routing: {protocol: ospf, timers: fast}
nodes:
  frr1: {}
  bird1: {routing: {daemon: bird}}
  frr2: {}
links:
  - [frr1, bird1]
  - {name: seg, type: lan, endpoints: [bird1, frr2]}
`), "--timeout", "60s")
	if p := decode[ping](t, s.Must("ping", "mixed", "-o", "json")); p.Pairs != 12 || p.Reachable != 12 {
		t.Errorf("ping says %+v", p)
	}
}

// A network that cannot converge is left as it is, and said to be so.
func TestUpSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	// Node c keeps to itself as far as OSPFv2 goes.
	file := write(t, "mute.yaml", `name: mute
routing: {protocol: ospf, timers: fast}
nodes:
  a: {}
  b: {}
  c: {files: {/etc/frr/ospfd.conf: {content: "router ospf\n ospf router-id 10.9.9.9\n"}}}
links: [[a, b], [b, c]]
`)
	begin := time.Now()
	stdout, stderr, code := s.Trellis("up", file, "--timeout", "6s")
	if code != 1 || time.Since(begin) > 15*time.Second {
		t.Errorf("exit status %d after %v, want 1 after 6s: %s", code, time.Since(begin), stdout)
	}
	v := show(t, s, "mute")
	for _, want := range []string{"a", "b", "c", v.loopback(t, "a").String(), v.loopback(t, "c").String(), "mute"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("the message does not name %s: %s", want, stderr)
		}
	}
	if v.State != "converging" && v.State != "degraded" {
		t.Errorf("its state is %q", v.State)
	}
	// What is there of it works, sooner or later, and the repaired file converges.
	var p ping
	eventually(t, 30*time.Second, "the other pairs reach each other", func() bool {
		out, _, _ := s.Trellis("ping", "mute", "-o", "json")
		p = decode[ping](t, out)
		return p.Reachable >= 8
	})
	if p.Pairs != 12 || p.Reachable != 8 {
		t.Errorf("ping says %+v", p)
	}
	for _, f := range p.Failed {
		if f.Family != "ipv4" || (f.From != "c") == (f.To != "c") {
			t.Errorf("a pair failed that should not: %+v", f)
		}
	}
	s.Must("up", write(t, "mute.yaml", `name: mute
routing: {protocol: ospf, timers: fast}
nodes: {a: {}, b: {}, c: {}}
links: [[a, b], [b, c]]
`))
	s.Must("ping", "mute")
}

func TestADownLinkSplitsANetwork(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	text := `name: cut
routing: {protocol: ospf, timers: fast}
nodes: {a: {}, b: {}, c: {}}
links:
  - [a, b]
  - {name: bc, endpoints: [b, c]}
`
	s.Must("up", write(t, "cut.yaml", text))
	s.Must("link", "set", "cut", "bc", "--down")
	eventually(t, 20*time.Second, "c cannot be reached", func() bool {
		out, _, code := s.Trellis("ping", "cut", "-o", "json", "--echo-timeout", "300ms")
		return code == 1 && decode[ping](t, out).Reachable == 4
	})
	// `up` puts the file in force again, and waits for it.
	s.Must("up", write(t, "cut.yaml", text))
	s.Must("ping", "cut")
}

// A file of the Topology Zoo goes straight into `up`.
func TestGraphMLIsBroughtUp(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "Small.graphml", `<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key attr.name="label" attr.type="string" for="node" id="d0"/>
  <key attr.name="Latitude" attr.type="double" for="node" id="d1"/>
  <key attr.name="Longitude" attr.type="double" for="node" id="d2"/>
  <key attr.name="LinkSpeedRaw" attr.type="double" for="edge" id="d3"/>
  <key attr.name="Network" attr.type="string" for="graph" id="d4"/>
  <graph edgedefault="undirected">
    <data key="d4">Small</data>
    <node id="0"><data key="d0">São Paulo</data><data key="d1">-23.5</data><data key="d2">-46.6</data></node>
    <node id="1"><data key="d0">Porto</data><data key="d1">41.1</data><data key="d2">-8.6</data></node>
    <node id="2"><data key="d0">Porto</data></node>
    <edge source="0" target="1"><data key="d3">10000000</data></edge>
    <edge source="1" target="2"/>
    <edge source="1" target="2"/>
  </graph>
</graphml>
`)
	s.Must("up", file)
	v := show(t, s, "small")
	names := []string{}
	for _, n := range v.Nodes {
		names = append(names, n.Name)
	}
	if got := strings.Join(names, " "); got != "sao-paulo porto porto-2" && got != "porto porto-2 sao-paulo" {
		t.Errorf("the nodes are %s", got)
	}
	if len(v.Links) != 3 {
		t.Errorf("the links are %+v", v.Links)
	}
	if out := testenv.Run(t, s.NS.Command("tc", "qdisc", "show", "dev", v.device(t, "sao-paulo", "eth1"))); !strings.Contains(out, "10Mbit") {
		t.Errorf("the link of 10 Mbit/s has the qdisc %s", out)
	}
	s.Must("ping", "small")
	// The same by way of YAML is the same.
	if out := s.Must("up", write(t, "small.yaml", s.Must("convert", file, "-o", "yaml"))); !strings.Contains(out, "nothing to change") {
		t.Errorf("the converted file changes the network: %s", out)
	}
}

// TestZooNetwork brings up a network of the Zoo's own where it is at hand.
func TestZooNetwork(t *testing.T) {
	t.Parallel()
	const file = "../../../shared/data/zoo/Abilene.graphml"
	if _, err := os.Stat(file); err != nil {
		t.Skipf("needs the Internet Topology Zoo beside the repository: %v", err)
	}
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", file, "--timeout", "90s")
	if p := decode[ping](t, s.Must("ping", "abilene", "-o", "json")); p.Pairs != 220 || p.Reachable != 220 {
		t.Errorf("ping says %+v", p)
	}
	if p := decode[ping](t, s.Must("ping", "abilene", "--sample", "20", "-o", "json")); p.Pairs != 40 || p.Reachable != p.Pairs {
		t.Errorf("ping --sample 20 says %+v", p)
	}
}
