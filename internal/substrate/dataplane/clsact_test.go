package dataplane_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
)

// withoutTCX, in the environment, has the tests of this package use the filters of
// older kernels, which are held to every promise that the links keep.
const withoutTCX = "TRELLIS_TEST_WITHOUT_TCX"

// filterLab is a lab that uses filters, with one wire.
func filterLab(t *testing.T) (*lab, []*nstest.Node, [2]string) {
	t.Helper()
	t.Setenv(withoutTCX, "1")
	l := newLab(t)
	n := nodes(t, 2)
	ports := l.wire(t, n[0], "eth1", n[1], "eth1")
	n[0].Configure(t, "eth1", "10.0.0.1/24")
	n[1].Configure(t, "eth1", "10.0.0.2/24")
	return l, n, ports
}

// TestFiltersSayWhoseTheyAre, and leave nothing when they go.
func TestFiltersSayWhoseTheyAre(t *testing.T) {
	l, n, ports := filterLab(t)
	n[0].Must(t, "ping -c 1 -W 1 10.0.0.2")
	for direction, program := range map[string]string{"ingress": "port_in", "egress": "port_out"} {
		if out := nstest.Sh(t, "tc filter show dev "+ports[0]+" "+direction); !strings.Contains(out, "trellis:"+program+" direct-action") {
			t.Errorf("at the %s:\n%s", direction, out)
		}
	}
	must(t, l.Remove("net"))
	for _, p := range ports {
		if out := nstest.Sh(t, "tc qdisc show dev "+p); strings.Contains(out, "clsact") {
			t.Errorf("%s still has its qdisc:\n%s", p, out)
		}
	}
	if _, err := os.Lstat(filepath.Join(l.dir, "net")); !os.IsNotExist(err) {
		t.Errorf("the records are left: %v", err)
	}
}

// TestLostFilterIsMended takes filters away by hand; a device without one is not
// said to be attached, and attaching mends it.
func TestLostFilterIsMended(t *testing.T) {
	for _, loss := range []string{
		"tc filter del dev %s ingress",
		"tc filter del dev %s egress",
		"tc qdisc del dev %s clsact",
	} {
		t.Run(loss, func(t *testing.T) {
			l, n, ports := filterLab(t)
			nstest.Sh(t, fmt.Sprintf(loss, ports[0]))
			d := mustOpen(t, l.dir)
			must2(d.Resync("net"))
			found, err := d.Read("net")
			must(t, err)
			if len(found) != 1 || found[0].Device != ports[1] {
				t.Fatalf("attached are said to be %v", found)
			}
			must(t, d.Attach("net", ports[0], nstest.Index(t, ports[0]), dataplane.Port))
			if found, err = d.Read("net"); err != nil || len(found) != 2 {
				t.Fatalf("after mending: %v, %v", found, err)
			}
			n[0].Must(t, "ping -c 1 -W 1 10.0.0.2")
		})
	}
}

// TestLostRecords forgets the whole bpffs: the filters stay and keep frames from
// the root context, and attaching again takes them over.
func TestLostRecords(t *testing.T) {
	l, n, ports := filterLab(t)
	must(t, l.Close())
	must(t, dataplane.Unmount(l.dir))
	n[0].Must(t, "ping -c 1 -W 1 10.0.0.2")
	must(t, dataplane.Mount(l.dir))
	d := mustOpen(t, l.dir)
	if found, err := d.Read(); err != nil || len(found) != 0 {
		t.Fatalf("%v, %v", found, err)
	}
	ends := [2]dataplane.End{}
	for i, p := range ports {
		ends[i].Index = nstest.Index(t, p)
		must(t, d.Attach("net", p, ends[i].Index, dataplane.Port))
	}
	must(t, d.Join(ends[0], ends[1]))
	n[0].Must(t, "ping -c 1 -W 1 10.0.0.2")
	must(t, port.Delete(ports[:]...))
	must(t, d.Remove("net"))
}

// TestFromFiltersToLinks opens, on a kernel that has tcx, what filters carry.
func TestFromFiltersToLinks(t *testing.T) {
	l, n, ports := filterLab(t)
	d, err := dataplane.Open(l.dir)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	if found, err := d.Read(); err != nil || len(found) != 2 {
		t.Fatalf("%v, %v", found, err)
	}
	n[0].Must(t, "ping -c 1 -W 1 10.0.0.2")
	must(t, d.Remove("net", ports[0]))
	must(t, d.Attach("net", ports[0], nstest.Index(t, ports[0]), dataplane.Port))
	must(t, d.Join(dataplane.End{Index: nstest.Index(t, ports[0])}, dataplane.End{Index: nstest.Index(t, ports[1])}))
	must(t, port.SetUp(map[string]bool{ports[0]: true}))
	n[0].Must(t, "ping -c 2 -i 0.1 -W 1 10.0.0.2")
}
