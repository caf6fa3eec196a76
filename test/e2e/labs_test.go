package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// lab is one of examples/labs: a network whose nodes bring their own daemon
// configuration, so that Trellis generates none and knows no address but those
// that it finds.
type lab struct {
	name  string
	pairs int // of nodes, times the families in which they have addresses, at least
	// from a node to an address that only the daemons' routes lead to.
	echoes []echo
}

type echo struct{ node, to string }

var labs = []lab{
	{"campus-ospf", 30, []echo{{"desk1", "172.20.2.10"}, {"lab", "10.255.20.3"}, {"desk2", "10.255.20.1"}}},
	{"isp-isis-bgp", 40, []echo{{"bakery", "198.51.100.2"}, {"school", "2001:db8:a::1"}, {"bakery", "10.255.30.3"}, {"core", "2001:db8:b::1"}}},
	{"gateway-vrrp", 12, []echo{{"pc", "172.21.0.1"}, {"pc", "10.255.21.9"}, {"uplink", "172.21.0.10"}}},
	{"peering-bird", 12, []echo{{"inner", "10.255.41.1"}, {"peer", "2001:db8:40::1"}}},
	{"branch-rip", 6, []echo{{"north", "10.255.50.3"}, {"south", "10.50.1.1"}}},
}

func (l *lab) dir() string  { return filepath.Join("..", "..", "examples", "labs", l.name) }
func (l *lab) file() string { return filepath.Join(l.dir(), "lab.yaml") }

// must runs a verb that has to succeed, for a subtest.
func must(t *testing.T, s *testenv.Service, args ...string) string {
	t.Helper()
	stdout, stderr, code := s.Trellis(args...)
	if code != 0 {
		t.Errorf("trellis %s: exit status %d: %s%s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

func needLabDaemons(t *testing.T) {
	t.Helper()
	needFRR(t)
	testenv.NeedCommand(t, "bird", "ping")
}

// What users bring runs unchanged: `up` ends, with a true word on convergence,
// and `ping` tries the addresses that the daemons have set.
func TestLabsWithTheirOwnConfiguration(t *testing.T) {
	t.Parallel()
	needLabDaemons(t)
	s := testenv.StartService(t, testenv.Options{})
	for i := range labs {
		s.Must("up", labs[i].file(), "--wait=false")
	}
	for i := range labs {
		l := &labs[i]
		t.Run(l.name, func(t *testing.T) {
			out := must(t, s, "up", l.file(), "--timeout", "90s")
			if !strings.Contains(out, "converged") {
				t.Errorf("up does not say that the network has converged: %s", out)
			}
			// At once: that is what the word promises.
			for _, e := range l.echoes {
				must(t, s, "exec", l.name+"/"+e.node, "--", "ping", "-c", "1", "-W", "5", e.to)
			}
			p := decode[ping](t, must(t, s, "ping", l.name, "-o", "json"))
			if p.Reachable != p.Pairs || p.Pairs < l.pairs {
				t.Errorf("%d of %d pairs reachable, want all of at least %d: %+v", p.Reachable, p.Pairs, l.pairs, p.Failed)
			}
			if v := show(t, s, l.name); v.State != "running" {
				t.Errorf("its state is %q: %s", v.State, v.Message)
			}
			if out := must(t, s, "up", l.file()); !strings.Contains(out, "nothing to change") {
				t.Errorf("a second up: %s", out)
			}
		})
	}
	// The second gateway takes over the shared address.
	t.Run("gateway-vrrp fails over", func(t *testing.T) {
		s.Must("exec", "gateway-vrrp/gw1", "--", "ip", "link", "set", "eth1", "down")
		eventually(t, 30*time.Second, "pc reaches uplink through gw2", func() bool {
			_, _, code := s.Trellis("exec", "gateway-vrrp/pc", "--", "ping", "-c", "1", "-W", "1", "10.255.21.9")
			return code == 0
		})
	})
	s.Must("down", "--all")
	nothingLeft(t, s)
}

// A mistake in a configuration of the user's is a failure with the daemon's own
// words, and never "converged".
func TestALabWithAMistakeIsNotConverged(t *testing.T) {
	t.Parallel()
	needLabDaemons(t)
	s := testenv.StartService(t, testenv.Options{})
	for _, c := range []struct{ lab, file, from, to, node, want string }{
		{"branch-rip", "ripd.conf", "router rip", "rooter rip", "hub", "ripd refuses line 1 of /etc/frr/ripd.conf"},
		{"peering-bird", "edge.conf", "protocol device", "protokol device", "edge", "bird"},
		{"campus-ospf", "core1.conf", "router ospf", "router ospff", "core1", "refuses line 14 of /etc/frr/frr.conf: router ospff"},
	} {
		t.Run(c.lab, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), c.lab)
			if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "examples", "labs", c.lab))); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, c.file)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			broken := strings.Replace(string(text), c.from, c.to, 1)
			if broken == string(text) {
				t.Fatalf("%s has no %q", c.file, c.from)
			}
			if err := os.WriteFile(path, []byte(broken), 0o600); err != nil {
				t.Fatal(err)
			}
			stdout, stderr, code := s.Trellis("up", filepath.Join(dir, "lab.yaml"), "--timeout", "12s")
			if code == 0 || strings.Contains(stdout, "converged") {
				t.Errorf("exit status %d: %s%s", code, stdout, stderr)
			}
			for _, want := range []string{c.node, c.want} {
				if !strings.Contains(stderr, want) {
					t.Errorf("the message does not name %q: %s", want, stderr)
				}
			}
			s.Trellis("down", c.lab)
		})
	}
}
