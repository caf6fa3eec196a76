package e2e

import (
	"strings"
	"testing"

	"trellis/test/testenv"
)

const plainGraph = `<graphml>
  <key id="l" for="node" attr.name="label"/>
  <graph>
    <node id="0"><data key="l">New York</data></node>
    <node id="1"><data key="l">Denver</data></node>
    <edge source="0" target="1"/>
  </graph>
</graphml>
`

// A file's keys are overridden on the command line, whatever its format.
func TestUpTakesSettings(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "pair.graphml", plainGraph)
	s.Must("up", file, "--set", "routing.protocol=static", "--set", "nodes.denver.kind=host", "--set", "name=other")
	out := s.Must("show", "other")
	for _, want := range []string{"routing static", "New York", "Denver"} {
		if !strings.Contains(out, want) {
			t.Errorf("show lacks %q: %s", want, out)
		}
	}
	if p := decode[ping](t, s.Must("ping", "other", "-o", "json")); p.Pairs == 0 || p.Reachable != p.Pairs {
		t.Errorf("ping: %+v", p)
	}
	_, stderr, code := s.Trellis("up", file, "--set", "routing.protocol=sttic")
	if want := `--set routing.protocol=sttic: routing: protocol is "sttic"; did you mean "static"?`; code != 2 || !strings.Contains(stderr, want) {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}

// What the machine lacks is refused with its line, or left out on request.
func TestUpGoesOnWithoutWhatTheMachineLacks(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "slow.yaml", "name: slow\nrouting: static\nnodes: {a: {}, b: {}}\nlinks:\n  - {endpoints: [a, b], rate: 10mbit, delay: 20ms}\n")
	_, stderr, code := s.Trellis("validate", "--here", file)
	if code == 0 {
		t.Skip("this kernel has netem")
	}
	if !strings.Contains(stderr, file+`:5: link "a-b" asks for delay, which needs netem`) || code != 2 {
		t.Errorf("validate --here: exit status %d: %s", code, stderr)
	}
	if _, stderr, code := s.Trellis("up", file); code == 0 || !strings.Contains(stderr, "netem") {
		t.Errorf("up: exit status %d: %s", code, stderr)
	}
	_, stderr, code = s.Trellis("up", "--partial", file)
	if code != 0 || !strings.Contains(stderr, "left out: delay of link a-b") {
		t.Errorf("up --partial: exit status %d: %s", code, stderr)
	}
	s.Must("ping", "slow")
	if out := testenv.Run(t, s.NS.Command("tc", "qdisc", "show", "dev", show(t, s, "slow").device(t, "a", "eth1"))); !strings.Contains(out, "10Mbit") {
		t.Errorf("the rate is gone, too: %s", out)
	}
}
