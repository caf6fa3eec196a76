package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// square sends what goes from a to c by way of b; whatever happens at d leaves
// that alone.
const square = `name: ch
routing: {protocol: ospf, timers: fast}
nodes:
  a: {}
  b: {}
  c: {}
  d: {}
links:
  - {name: ab, endpoints: ["a:b0", "b:a0"]}
  - {name: bc, endpoints: ["b:c0", "c:b0"]}
  - {name: cd, endpoints: ["c:d0", "d:c0"], cost: 100}
  - {name: da, endpoints: ["d:a0", "a:d0"], cost: 100}
`

// change is an edit of the network's file and what must come of it.
type change struct {
	name      string
	old, new  string   // the edit
	steps     []string // of the dry run: "op object"
	restarted []string // nodes that get a new container, or go
	check     func(t *testing.T, s *testenv.Service)
}

func changes() []change {
	inNode := func(node, command, want string) func(*testing.T, *testenv.Service) {
		return func(t *testing.T, s *testenv.Service) {
			t.Helper()
			if out := s.Must("exec", "ch/"+node, "--", "sh", "-c", command); !strings.Contains(out, want) {
				t.Errorf("%s in node %s says %q, not %q", command, node, out, want)
			}
		}
	}
	return []change{
		{
			name: "a node added", old: "links:\n", new: "  e: {}\nlinks:\n  - {name: de, endpoints: [\"d:e0\", \"e:d0\"]}\n",
			steps: []string{
				"start e", "add-port d:e0", "add-port e:d0", "join d:e0 - e:d0", "carrier d:e0", "carrier e:d0", "address d", "address e",
				"reload d", "release e",
			},
			check: inNode("a", "ping -c1 -W2 e", " 0% packet loss"),
		},
		{
			name: "a link added", old: "links:\n", new: "links:\n  - {name: ce, endpoints: [\"c:e0\", \"e:c0\"], cost: 100}\n",
			steps: []string{
				"add-port c:e0", "add-port e:c0", "join c:e0 - e:c0", "carrier c:e0", "carrier e:c0", "address c", "address e", "reload c", "reload e",
			},
			check: inNode("c", "ip -br link show dev e0", "e0"),
		},
		{
			name: "a rate changed", old: `"a:d0"], cost: 100`, new: `"a:d0"], cost: 100, rate: 10mbit`,
			steps: []string{"shape d:a0", "shape a:d0", "join d:a0 - a:d0"},
		},
		{
			name: "a rate changed again", old: `rate: 10mbit`, new: `rate: {up: 20mbit, down: 30mbit}`,
			steps: []string{"shape d:a0", "shape a:d0"},
		},
		{
			name: "an MTU changed", old: `"d:c0"], cost: 100`, new: `"d:c0"], cost: 100, mtu: 1400`,
			steps: []string{"resize c:d0", "resize d:c0", "address c", "address d"},
			check: inNode("d", "ip link show c0", "mtu 1400"),
		},
		{
			name: "limits changed", old: "  d: {}", new: "  d: {memory: 200MiB, cpu: 0.5, pids: 300}",
			steps: []string{"limit d"},
			check: func(t *testing.T, s *testenv.Service) {
				t.Helper()
				n := decode[struct {
					Limits struct {
						CPU    float64
						Memory int64
						Pids   int
					}
				}](t, s.Must("show", "ch/d", "-o", "json"))
				if n.Limits.CPU != 0.5 || n.Limits.Memory != 200<<20 || n.Limits.Pids != 300 {
					t.Errorf("show says %+v", n.Limits)
				}
			},
		},
		{
			name: "a cost changed", old: `"d:c0"], cost: 100`, new: `"d:c0"], cost: 150`,
			steps: []string{"reload c", "reload d"},
		},
		{
			name: "routing timers changed", old: "  d: {memory: 200MiB, cpu: 0.5, pids: 300}", new: "  d: {memory: 200MiB, cpu: 0.5, pids: 300, routing: {timers: default}}",
			steps: []string{"reload a", "reload c", "reload d", "reload e"},
			check: inNode("d", "vtysh -c 'show ip ospf interface a0'", "Hello 10s, Dead 40s"),
		},
		{
			name: "and changed back", old: ", routing: {timers: default}}", new: "}",
			steps: []string{"reload a", "reload c", "reload d", "reload e"},
			check: inNode("d", "vtysh -c 'show ip ospf interface a0'", "Hello 1s, Dead 4s"),
		},
		{
			name: "files of a node changed", old: "  d: {memory: 200MiB, cpu: 0.5, pids: 300}", new: "  d: {files: {/etc/motd: {content: hello}}}",
			steps: []string{"limit d", "reload d"},
			check: inNode("d", "cat /etc/motd", "hello"),
		},
		{
			name: "environment of a node changed", old: "  d: {files: {/etc/motd: {content: hello}}}", new: "  d: {files: {/etc/motd: {content: hello}}, env: {WHO: d}}",
			steps: []string{
				"stop d", "carrier-loss a:d0", "carrier-loss c:d0", "carrier-loss e:d0", "carrier a:d0", "carrier c:d0", "carrier e:d0", "start d", "remove-port d:a0", "remove-port d:c0", "remove-port d:e0",
				"add-port d:a0", "add-port d:c0", "add-port d:e0", "join c:d0 - d:c0", "join d:a0 - a:d0", "join d:e0 - e:d0",
				"shape d:a0", "carrier d:a0", "carrier d:c0", "carrier d:e0", "address d", "release d",
			},
			restarted: []string{"d"},
			check:     inNode("d", "cat /etc/motd", "hello"),
		},
		{
			name: "a link removed", old: "  - {name: ce, endpoints: [\"c:e0\", \"e:c0\"], cost: 100}\n", new: "",
			steps: []string{"remove-port c:e0", "remove-port e:c0", "reload c", "reload e"},
		},
		{
			name: "a node removed", old: "  e: {}\nlinks:\n  - {name: de, endpoints: [\"d:e0\", \"e:d0\"]}\n", new: "links:\n",
			steps: []string{
				"stop e", "remove-port d:e0", "remove-port e:d0", "reload d",
			},
			restarted: []string{"e"},
		},
	}
}

// TestChangesTouchOnlyWhatDiffers edits a running network step by step while
// packets flow through a part of it that no edit is about.
func TestChangesTouchOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	text := square
	s.Must("up", write(t, "ch.yaml", text))
	f := startFlow(t, s, "ch", "a", "c")
	begin := time.Now()
	for _, c := range changes() {
		ok := t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(text, c.old) {
				t.Fatalf("nothing to edit: %q is not in\n%s", c.old, text)
			}
			text = strings.Replace(text, c.old, c.new, 1)
			file := write(t, "ch.yaml", text)
			before := show(t, s, "ch")

			want := slices.Sorted(slices.Values(c.steps))
			if got := dryRun(t, s, file, before.interfaces()); !slices.Equal(got, want) {
				t.Errorf("steps %q\nwant  %q", got, want)
			}
			if after := show(t, s, "ch"); !maps.Equal(before.pids(), after.pids()) || len(before.Links) != len(after.Links) {
				t.Errorf("a dry run has changed the network: before %+v\nafter  %+v", before, after)
			}

			r := decode[struct{ Changes int }](t, s.Must("up", file, "-o", "json"))
			if r.Changes != len(want) {
				t.Errorf("up says %d changes, want %d", r.Changes, len(want))
			}
			after := show(t, s, "ch")
			for _, n := range before.Nodes {
				changed := after.pids()[n.Name] != n.PID
				if changed != slices.Contains(c.restarted, n.Name) {
					t.Errorf("the process of %s was %d and is %d", n.Name, n.PID, after.pids()[n.Name])
				}
			}
			for _, n := range after.Nodes {
				if n.Restarts != 0 || n.State != "running" {
					t.Errorf("node %s is %s after %d restarts", n.Name, n.State, n.Restarts)
				}
			}
			if c.check != nil {
				c.check(t, s)
			}
			if out := s.Must("up", file); !strings.Contains(out, "nothing to change") {
				t.Errorf("a second up says %q", out)
			}
			if got := dryRun(t, s, file, nil); len(got) != 0 {
				t.Errorf("then there are steps: %q", got)
			}
		})
		if !ok {
			t.Fatal("the next edits build on this one")
		}
	}
	mustBeFullSince(t, s, "a", "b", begin)
	mustBeFullSince(t, s, "b", "c", begin)
	f.mustNotHaveLost(t)
	if p := decode[ping](t, s.Must("ping", "ch", "-o", "json")); p.Pairs != 24 || p.Reachable != 24 {
		t.Errorf("ping says %+v", p)
	}
	s.Must("down", "ch")
	nothingLeft(t, s)
}

// dryRun gives the steps of `up --dry-run` as "op object", sorted. What goes may
// be called by its device: names has the interfaces' names of devices.
func dryRun(t *testing.T, s *testenv.Service, file string, names map[string]string) []string {
	t.Helper()
	r := decode[struct{ Steps []struct{ Op, Object string } }](t, s.Must("up", "--dry-run", file, "-o", "json"))
	var steps []string
	for _, p := range r.Steps {
		if name, ok := names[p.Object]; ok {
			p.Object = name
		}
		steps = append(steps, p.Op+" "+p.Object)
	}
	slices.Sort(steps)
	return steps
}

// interfaces gives the interfaces' names, "node:interface", by device.
func (v shown) interfaces() map[string]string {
	names := make(map[string]string)
	for _, l := range v.Links {
		for _, e := range l.Ends {
			names[e.Device] = e.Node + ":" + e.Name
		}
	}
	return names
}

// mustBeFullSince fails the test if node's OSPFv2 adjacency with a neighbour is
// younger than since.
func mustBeFullSince(t *testing.T, s *testenv.Service, node, neighbour string, since time.Time) {
	t.Helper()
	id := show(t, s, "ch").loopback(t, neighbour).String()
	least := time.Since(since)
	out := s.Must("exec", "ch/"+node, "--", "vtysh", "-c", fmt.Sprintf("show ip ospf neighbor %s json", id))
	found := decode[map[string][]struct {
		Converged    string
		UpTimeInMsec int64
	}](t, out)[id]
	if len(found) != 1 || found[0].Converged != "Full" || time.Duration(found[0].UpTimeInMsec)*time.Millisecond < least {
		t.Errorf("the adjacency of %s with %s is not full for %v: %s", node, neighbour, least, out)
	}
}

// TestLinksOfOneFamily brings up a network whose links have IPv4 addresses
// only: it has converged when the IPv4 routes are there.
func TestLinksOfOneFamily(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "four.yaml", `name: four
routing: static
nodes: {a: {}, b: {}, c: {}}
links:
  - endpoints: [{node: a, addresses: [192.0.2.1/30]}, {node: b, addresses: [192.0.2.2/30]}]
  - endpoints: [{node: b, addresses: [198.51.100.1/30]}, {node: c, addresses: [198.51.100.2/30]}]
`)
	s.Must("up", file, "--timeout", "20s")
	s.Must("exec", "four/a", "--", "ping", "-4", "-c1", "-W2", "c")
	s.Must("down", "four")
	nothingLeft(t, s)
}

// TestUnnamedInterfacesStay takes the first of three unnamed links out: the
// other two keep their names, devices and addresses.
func TestUnnamedInterfacesStay(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	const nodes = "name: star\nrouting: static\nnodes: {hub: {}, a: {}, b: {}, c: {}}\nlinks:\n"
	file := write(t, "star.yaml", nodes+"  - [hub, a]\n  - [hub, b]\n  - [hub, c]\n")
	s.Must("up", file)
	before := s.Must("exec", "star/hub", "--", "ip", "-br", "addr", "show", "dev", "eth3")
	file = write(t, "star.yaml", nodes+"  - [hub, b]\n  - [hub, c]\n")
	if steps := s.Must("up", file, "--dry-run"); strings.Contains(steps, "add-port") {
		t.Errorf("taking a link out makes ports:\n%s", steps)
	}
	s.Must("up", file)
	if after := s.Must("exec", "star/hub", "--", "ip", "-br", "addr", "show", "dev", "eth3"); after != before {
		t.Errorf("before %q, after %q", before, after)
	}
	s.Must("down", "star")
	nothingLeft(t, s)
}
