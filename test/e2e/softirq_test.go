package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// circle sends one frame into what a node's root has built.
const circle = `import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
s.send(bytes.fromhex(sys.argv[2]) + bytes.fromhex("020000000001" "88b5") + b"round and round" * 8)
`

// twoBridges joins two bridges by two veth pairs: what is broadcast goes round for ever.
const twoBridges = `ip link add b0 type bridge && ip link add b1 type bridge
ip link add v0 type veth peer name v1 && ip link add w0 type veth peer name w1
for i in v0 w0; do ip link set $i master b0 up; done
for i in v1 w1; do ip link set $i master b1 up; done`

// message is what show says of a node.
func (v shown) message(t *testing.T, name string) string {
	t.Helper()
	for _, n := range v.Nodes {
		if n.Name == name {
			return n.Message
		}
	}
	t.Fatalf("%s has no node %s", v.Name, name)
	return ""
}

// received counts what arrived at a device of a node.
func received(t *testing.T, s *testenv.Service, node, device string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s.Must("exec", node, "--", "awk", fmt.Sprintf("/%s:/ {print $3}", device), "/proc/net/dev")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func guarded(t *testing.T, s *testenv.Service) {
	t.Helper()
	eventually(t, 20*time.Second, "the service tells whether it guards softirqs", func() bool { return strings.Contains(s.Log(), "softirqs are ") })
	if strings.Contains(s.Log(), "softirqs are not guarded") {
		t.Skip("this kernel cannot trace packets: see the service's log")
	}
}

// TestALoopInANodeIsStopped has packets circle within a node, whose CPU limit does not
// bound that.
func TestALoopInANodeIsStopped(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedCommand(t, "python3", "awk")
	s := testenv.StartService(t, testenv.Options{})
	guarded(t, s)
	s.Must("up", write(t, "honest.yaml", fmt.Sprintf(pair, "honest")))
	mischief := write(t, "mischief.yaml", "name: mischief\nrouting: static\ndefaults: {node: {cpu: 0.1}}\nnodes: {m: {}, n: {}}\nlinks: [[m, n]]\n")
	s.Must("up", mischief)
	s.Must("exec", "mischief/m", "--", "sh", "-c", twoBridges)
	// The frame may find the bridges down: those that the kernel sends when they come up
	// circle as well.
	offend := func() {
		t.Helper()
		s.Must("exec", "mischief/m", "--", "sh", "-c", "(ip link set b0 up; ip link set b1 up; python3 -c '"+circle+"' b0 ffffffffffff) >/dev/null 2>&1 &")
	}
	stopped := func(want string) {
		t.Helper()
		eventually(t, 30*time.Second, "the loop is stopped, and the node named", func() bool {
			return strings.Contains(show(t, s, "mischief").message(t, "m"), want)
		})
		before := received(t, s, "mischief/m", "v0")
		time.Sleep(100 * time.Millisecond)
		if after := received(t, s, "mischief/m", "v0"); after-before > 1000 { // it would be tens of thousands
			t.Errorf("packets circle on: %d, and then %d", before, after)
		}
	}
	// What the node's own processes do, to see whether they are frozen.
	s.Must("exec", "mischief/m", "--", "sh", "-c", "(while :; do echo >>/tmp/beat; sleep 0.02; done) >/dev/null 2>&1 &")
	beat := func() string { return s.Must("exec", "mischief/m", "--", "stat", "-c", "%s", "/tmp/beat") }

	offend()
	stopped("set down: packets that circled there took")
	if m := show(t, s, "mischief").message(t, "m"); strings.Contains(m, "frozen") {
		t.Errorf("the first offence freezes the node: %s", m)
	}
	offend()
	stopped("frozen for 10s")
	before := beat()
	time.Sleep(200 * time.Millisecond)
	if after := beat(); before != after {
		t.Errorf("the node's processes go on: %s, and then %s", before, after)
	}
	eventually(t, 30*time.Second, "the node's processes go on", func() bool { return beat() != before })
	if state, _ := show(t, s, "mischief").node(t, "n"); state != "running" {
		t.Errorf("the node that has done nothing is %s", state)
	}
	if state, _ := show(t, s, "honest").node(t, "a"); state != "running" {
		t.Errorf("the other network's node is %s", state)
	}
	// A node that is frozen can be taken down.
	offend()
	stopped("frozen for 20s")
	// Another network of the same name has not done anything yet.
	s.Must("down", "mischief")
	s.Must("up", mischief)
	s.Must("exec", "mischief/m", "--", "sh", "-c", twoBridges)
	offend()
	stopped("set down: packets that circled there took")
	if m := show(t, s, "mischief").message(t, "m"); strings.Contains(m, "frozen") {
		t.Errorf("another network's offences count: %s", m)
	}
	s.Must("down", "--all")
	nothingLeft(t, s)
}

// TestALoopOverLinksIsStopped has two nodes bridge the two links that they share.
func TestALoopOverLinksIsStopped(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedCommand(t, "python3")
	for _, c := range []struct{ what, to string }{{"broadcast", "ffffffffffff"}, {"to nobody", "02aabbccddee"}} {
		t.Run(c.what, func(t *testing.T) {
			s := testenv.StartService(t, testenv.Options{})
			guarded(t, s)
			s.Must("up", write(t, "mischief.yaml", `name: mischief
routing: static
nodes: {m: {}, n: {}}
links:
  - name: wire
    endpoints: [{node: m, interface: eth1}, {node: n, interface: eth1}]
  - name: seg
    type: lan
    endpoints: [{node: m, interface: lan0}, {node: n, interface: lan0}]
`))
			for _, node := range []string{"m", "n"} {
				s.Must("exec", "mischief/"+node, "--", "sh", "-c", "ip link add br0 type bridge && ip link set eth1 master br0 && ip link set lan0 master br0 && ip link set br0 up")
			}
			s.Must("exec", "mischief/m", "--", "python3", "-c", circle, "eth1", c.to)
			eventually(t, 30*time.Second, "the loop is stopped, and a node named", func() bool {
				v := show(t, s, "mischief")
				return strings.Contains(v.message(t, "m")+v.message(t, "n"), "br0 set down: packets that circled there took")
			})
			s.Must("down", "--all")
			nothingLeft(t, s)
		})
	}
}

// TestALoopThatRewritesIsStopped has packets circle within a node that changes each of
// them in each round, so that none is seen again: what tells is that there are far more
// than have come.
func TestALoopThatRewritesIsStopped(t *testing.T) {
	testenv.Measures(t)
	testenv.NeedCommand(t, "python3", "awk", "nft")
	s := testenv.StartService(t, testenv.Options{})
	guarded(t, s)
	s.Must("up", write(t, "mischief.yaml", "name: mischief\nrouting: static\ndefaults: {node: {cpu: 0.1}}\nnodes: {m: {}, n: {}}\nlinks: [[m, n]]\n"))
	const rewrite = `
nft add table netdev t || exit 3
for i in v1 w1; do
	nft "add chain netdev t $i { type filter hook ingress device $i priority 0; }" || exit 3
	nft "add rule netdev t $i @nh,32,32 set numgen inc mod 1000000" || exit 3
done`
	if _, stderr, code := s.Trellis("exec", "mischief/m", "--", "sh", "-c", twoBridges+rewrite); code != 0 {
		t.Skipf("this kernel cannot rewrite packets by nftables: %s", stderr)
	}
	s.Must("exec", "mischief/m", "--", "sh", "-c", "(ip link set b0 up; ip link set b1 up; python3 -c '"+circle+"' b0 ffffffffffff) >/dev/null 2>&1 &")
	eventually(t, 30*time.Second, "the loop is stopped, and the node named", func() bool {
		return strings.Contains(show(t, s, "mischief").message(t, "m"), "set down: packets that circled there took")
	})
	before := received(t, s, "mischief/m", "v0")
	time.Sleep(100 * time.Millisecond)
	if after := received(t, s, "mischief/m", "v0"); after-before > 1000 {
		t.Errorf("packets circle on: %d, and then %d", before, after)
	}
	s.Must("down", "--all")
	nothingLeft(t, s)
}
