package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trellis/test/testenv"
)

// sentence fails the test unless a text is one line that holds all of the words.
func sentence(t *testing.T, text string, words ...string) {
	t.Helper()
	if strings.Count(text, "\n") != 1 {
		t.Errorf("not one line: %s", text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("the message does not say %q: %s", w, text)
		}
	}
}

// TestAHostThatCannotServeIsRefused starts a host with each mistake that its
// configuration or its machine can have, and then without.
func TestAHostThatCannotServeIsRefused(t *testing.T) {
	t.Parallel()
	s := testenv.StartSandbox(t, testenv.SandboxOptions{Hosts: []string{"alpha", "beta"}})
	s.Must("up", write(t, "x.yaml", "name: x\nrouting: static\nnodes: {a: {on: alpha}, b: {on: beta}}\nlinks: [[a, b]]\n"))
	before := show(t, s, "x").pids()
	path := filepath.Join(s.StateDir, "sandbox", s.Name, "beta", "trellis.yaml")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		from, to string   // what is replaced in the configuration
		inside   []string // run in the host's network before
		after    []string // and after
		want     []string
	}{
		"an interface that is not there": {from: "interface: eth1", to: "interface: eth9", want: []string{"eth9"}},
		"an interface that is down": {
			inside: []string{"ip", "link", "set", "dev", "eth1", "down"}, want: []string{"eth1", "down"},
		},
		"an MTU that is too small": {
			inside: []string{"ip", "link", "set", "dev", "eth1", "mtu", "1321"},
			after:  []string{"ip", "link", "set", "dev", "eth1", "mtu", "1500"},
			want:   []string{"eth1", "1321", "1322"},
		},
		"an address that it does not have": {from: "[192.0.2.3, ", to: "[192.0.2.77, ", want: []string{"192.0.2.77"}},
		"another's name":                   {from: "host: beta", to: "host: alpha", want: []string{"alpha"}},
		"an unknown key":                   {from: "uplinks:", to: "uplink:", want: []string{path, `"uplink"`, `"uplinks"`}},
		"a mode that there is not":         {from: "interface: eth1", to: "interface: eth1\n      xdp: fast", want: []string{path, "fast", "native", "generic"}},
		"certificates of nobody":           {from: "beta.pem", to: "gamma.pem", want: []string{"gamma.pem"}},
	} {
		t.Run(name, func(t *testing.T) {
			s.Sandbox("kill", "beta")
			if c.inside != nil {
				s.Exec("beta", c.inside...)
			}
			if c.from != "" {
				bad := strings.Replace(string(good), c.from, c.to, 1)
				if bad == string(good) {
					t.Fatalf("the configuration has no %q:\n%s", c.from, good)
				}
				if err := os.WriteFile(path, []byte(bad), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			_, stderr, code := s.TrySandbox(nil, "start", "beta")
			if code != 1 {
				t.Errorf("exit status %d", code)
			}
			sentence(t, stderr, c.want...)
			if c.after != nil {
				s.Exec("beta", c.after...)
			}
			s.Sandbox("up", s.File()) // sets all of it right
			if after := show(t, s, "x"); after.pids()["a"] != before["a"] || after.pids()["b"] != before["b"] {
				t.Errorf("processes were %v and are %v", before, after.pids())
			}
			s.Must("ping", "x")
		})
	}
}

// TestNetworksThatCannotSpreadAreRefused asks for what the substrate has not.
func TestNetworksThatCannotSpreadAreRefused(t *testing.T) {
	t.Parallel()
	s := testenv.StartSandbox(t, testenv.SandboxOptions{Hosts: []string{"alpha", "beta"}})
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"a host that is not there": {"nodes: {a: {on: alhpa}, b: {}}\nlinks: [[a, b]]\n", []string{`"alhpa"`, `"alpha"`}},
		"an MTU that does not fit": {"nodes: {a: {on: alpha}, b: {on: beta}}\nlinks: [{endpoints: [a, b], mtu: 1500}]\n", []string{"1500", "1458"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, stderr, code := s.Trellis("up", write(t, "x.yaml", "name: x\n"+c.text))
			if code == 0 {
				t.Error("it was accepted")
			}
			sentence(t, stderr, c.want...)
			if out := s.Must("ls", "-o", "json"); strings.Contains(out, `"x"`) {
				t.Errorf("something of it is there: %s", out)
			}
			for _, h := range s.Hosts {
				bare(t, s, h.Name)
			}
		})
	}
}
