package e2e

import (
	"strings"
	"testing"

	"trellis/test/testenv"
)

// TestExamplesReachEveryone runs the examples of hosts, systems, areas and
// unnumbered links: once they have converged, everybody reaches everybody.
func TestExamplesReachEveryone(t *testing.T) {
	t.Parallel()
	needFRR(t)
	testenv.NeedCommand(t, "ping")
	s := testenv.StartService(t, testenv.Options{})
	examples := []struct {
		name  string
		pairs int // of nodes, times families
		echo  [2]string
	}{
		{"lan", 4 * 3 * 2, [2]string{"r1", "host"}},
		{"systems", 12 * 11 * 2, [2]string{"alice", "web"}},
		{"ospf-areas", 8 * 7 * 2, [2]string{"x2", "pc"}},
		{"unnumbered", 3 * 2 * 2, [2]string{"r1", "r3"}},
	}
	for _, e := range examples {
		s.Must("up", example(t, e.name+".yaml"), "--wait=false")
	}
	for _, e := range examples {
		t.Run(e.name, func(t *testing.T) {
			s.Must("up", example(t, e.name+".yaml"), "--timeout", "90s")
			p := decode[ping](t, s.Must("ping", e.name, "-o", "json"))
			if p.Reachable != e.pairs || p.Pairs != e.pairs {
				t.Errorf("%d of %d pairs are reachable, want %d: %+v", p.Reachable, p.Pairs, e.pairs, p.Failed)
			}
			for _, family := range []string{"-4", "-6"} {
				s.Must("exec", e.name+"/"+e.echo[0], "--", "ping", family, "-c", "1", "-W", "2", e.echo[1])
			}
		})
	}
	s.Must("down", "--all")
	nothingLeft(t, s)
}

// TestNamesOfNeighbours: without routing a name leads to a direct neighbour on
// the link to it, whichever of its interfaces that is; hosts forward nothing on
// their own behalf and reach others through their gateway.
func TestNamesOfNeighbours(t *testing.T) {
	t.Parallel()
	testenv.NeedCommand(t, "ping")
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "net.yaml", `name: names
routing: none
nodes: {a: {}, b: {}, c: {}, h: {kind: host}}
links: [[a, b], [b, c], [c, h]]
`))
	for _, pair := range []string{"a b", "b a", "b c", "c b", "c h", "h c", "h b"} {
		from, to, _ := strings.Cut(pair, " ")
		for _, family := range []string{"-4", "-6"} {
			if pair == "h b" {
				// c passes on what h sends to it; b has no route back.
				if _, _, code := s.Trellis("exec", "names/h", "--", "ping", family, "-c", "1", "-W", "1", to); code == 0 {
					t.Error("b answers h without a route to it")
				}
				continue
			}
			s.Must("exec", "names/"+from, "--", "ping", family, "-c", "1", "-W", "2", to)
		}
	}
	s.Must("down", "--all")
}
