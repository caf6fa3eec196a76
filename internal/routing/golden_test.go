package routing

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"trellis/internal/vnet"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func itoa(n int) string { return strconv.Itoa(n) }

func writeFile(t testing.TB, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(name, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// everyRouting lists all protocols that a daemon speaks, under each daemon and
// with both sets of timers.
func everyRouting() []vnet.Routing {
	var list []vnet.Routing
	for _, timers := range []vnet.Timers{vnet.TimersDefault, vnet.TimersFast} {
		for _, p := range []vnet.Protocol{vnet.OSPF, vnet.ISIS, vnet.BGP, vnet.RIP} {
			for _, d := range []vnet.Daemon{vnet.FRR, vnet.BIRD} {
				if p != vnet.ISIS || d != vnet.BIRD {
					list = append(list, vnet.Routing{Protocol: p, Daemon: d, Timers: timers})
				}
			}
		}
	}
	return list
}

func nameOf(r vnet.Routing) string {
	return string(r.Protocol) + "-" + string(r.Daemon) + "-" + string(r.Timers)
}

// sample describes a small network with one of everything: a point-to-point
// link with a cost, one without IPv6, a LAN with a host, and a link to a host
// alone.
func sample(r vnet.Routing) *described {
	d := describe(r, "a-b", "a-c")
	d.Links[0].Endpoints[0].Cost = 7
	d.link(vnet.LAN, "a", "b", "c", "host").Name = "lan"
	d.link(vnet.PointToPoint, "a", "host").Name = "stub"
	d.Node("host").Routing.Protocol = vnet.None
	for i := range d.Nodes {
		n := &d.Nodes[i]
		n.ASN = uint32(65001 + i)
		n.Loopbacks = []netip.Addr{netip.AddrFrom4([4]byte{10, 255, 0, byte(i + 1)}), netip.MustParseAddr(fmt.Sprintf("fd00:ff::%d", i+1))}
	}
	for i := range d.Links {
		for j := range d.Links[i].Endpoints {
			e := &d.Links[i].Endpoints[j]
			e.Addrs = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i + 1), byte(j + 1)}), 24)}
			if i != 1 {
				e.Addrs = append(e.Addrs, netip.MustParsePrefix(fmt.Sprintf("fd00:%d::%d/64", i+1, j+1)))
			}
		}
	}
	return d
}

// TestGolden compares what node a of the sample network gets with
// testdata/PROTOCOL-DAEMON-TIMERS.conf; go test -run Golden -update rewrites the
// files.
func TestGolden(t *testing.T) {
	for _, r := range everyRouting() {
		t.Run(nameOf(r), func(t *testing.T) {
			compareGolden(t, nameOf(r), sample(r).generate(t)["a"].Daemons)
		})
	}
}

// compareGolden compares all files and services with one golden file.
func compareGolden(t *testing.T, name string, d Daemons) {
	t.Helper()
	var b strings.Builder
	for _, f := range d.Files {
		b.WriteString("==> " + f.Path + "\n" + string(f.Content))
	}
	for _, s := range d.Services {
		b.WriteString("==> service " + s.Name + "\n")
		b.WriteString(strings.Join(append(s.Env[:len(s.Env):len(s.Env)], s.Argv...), " ") + "\n")
		if s.After != "" {
			b.WriteString("after " + s.After + "\n")
		}
	}
	file := filepath.Join("testdata", name+".conf")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, file, []byte(b.String()))
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("%s has changed; if that is meant, run go test -run %s -update.\nnow:\n%s", file, t.Name(), got)
	}
}
