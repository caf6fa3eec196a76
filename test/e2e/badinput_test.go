package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// TestBadInput gives `up` and `validate` files that are wrong in one place
// each: the answer names it, with exit status 2, before anything is touched.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	// The line that is wrong is the one that %s stands in.
	two := "name: bad\nnodes:\n  a: {}\n  b: {}\nlinks:\n  - %s\n"
	bomb := func() string {
		var b strings.Builder
		b.WriteString("name: bad\nx0: &x0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n")
		for i := 1; i < 12; i++ {
			fmt.Fprintf(&b, "x%d: &x%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i-1), 10), ", "))
		}
		b.WriteString("nodes: {a: {}}\n")
		return b.String()
	}()
	graphml := func(head, body string) string {
		return `<?xml version="1.0"?>` + "\n" + head + `<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="undirected">` + body + "</graph></graphml>\n"
	}
	for _, c := range []struct {
		name, file, text string
		line             int // 0: any
		says             string
	}{
		{"unknown key", "a.yaml", "name: bad\nnodes:\n  a: {memry: 64MiB}\n", 3, "memory"},
		{"unknown key at the top", "a.yaml", "name: bad\nnode: {}\nnodes: {a: {}}\n", 2, "nodes"},
		{"wrong type", "a.yaml", "name: bad\nnodes:\n  a:\n    files: 7\n", 4, "files"},
		{"a list for a mapping", "a.yaml", "name: bad\nnodes: [a, b]\n", 2, "nodes"},
		{"duplicate name", "a.yaml", "name: bad\nnodes:\n  a: {}\n  a: {}\n", 4, "a"},
		{"duplicate link", "a.yaml", "name: bad\nnodes: {a: {}, b: {}}\nlinks:\n  - {name: l, endpoints: [a, b]}\n  - {name: l, endpoints: [a, b]}\n", 5, "l"},
		{"dangling endpoint", "a.yaml", fmt.Sprintf(two, "[a, nobody]"), 6, "nobody"},
		{"one end", "a.yaml", fmt.Sprintf(two, "[a]"), 6, "end"},
		{"interface named twice", "a.yaml", fmt.Sprintf(two, `["a:eth1", b]`) + "  - [\"a:eth1\", b]\n", 7, "eth1"},
		{"interface with a bad name", "a.yaml", fmt.Sprintf(two, `["a:this-name-is-too-long", b]`), 6, "this-name-is-too-long"},
		{"address clash", "a.yaml", fmt.Sprintf(two, "[{node: a, addresses: [10.9.0.1/24]}, {node: b, addresses: [10.9.0.1/24]}]"), 6, "10.9.0.1"},
		{"address that is none", "a.yaml", fmt.Sprintf(two, "[{node: a, addresses: [10.9.0.300/24]}, b]"), 6, "10.9.0.300"},
		{"rate of 0", "a.yaml", fmt.Sprintf(two, "{endpoints: [a, b], rate: 0}"), 6, "rate"},
		{"rate of 0mbit", "a.yaml", fmt.Sprintf(two, "{endpoints: [a, b], rate: 0mbit}"), 6, "rate"},
		{"rate with an unknown unit", "a.yaml", fmt.Sprintf(two, "{endpoints: [a, b], rate: 10 furlongs}"), 6, "furlongs"},
		{"rate that is negative", "a.yaml", fmt.Sprintf(two, "{endpoints: [a, b], rate: -1mbit}"), 6, "rate"},
		{"MTU too small", "a.yaml", fmt.Sprintf(two, "{endpoints: [a, b], mtu: 60}"), 6, "60"},
		{"MTU too large", "a.yaml", fmt.Sprintf(two, "{endpoints: [a, b], mtu: 70000}"), 6, "70000"},
		{"loss of more than all", "a.yaml", fmt.Sprintf(two, "{endpoints: [a, b], loss: 120%}"), 6, "loss"},
		{"unknown protocol", "a.yaml", "name: bad\nrouting: ofps\nnodes: {a: {}}\n", 2, "ospf"},
		{"unknown daemon", "a.yaml", "name: bad\nrouting: {protocol: ospf, daemon: quagga}\nnodes: {a: {}}\n", 2, "frr"},
		{"a bad name", "a.yaml", "name: Bad_Name\nnodes: {a: {}}\n", 1, "Bad_Name"},
		{"no name", "a.yaml", "nodes: {a: {}}\n", 0, "name"},
		{"a file that is not there", "a.yaml", "name: bad\nnodes:\n  a:\n    files: {/etc/x: no-such-file}\n", 4, "no-such-file"},
		{"no YAML", "a.yaml", "name: bad\nnodes: {a: {}\n", 0, ""},
		{"binary", "a.yaml", "\x00\x01\x02\xff\xfe", 0, ""},
		{"nothing", "a.yaml", "", 0, ""},
		{"a bomb of aliases", "a.yaml", bomb, 0, ""},
		{"10 MB", "a.yaml", "name: bad\nnodes:\n" + strings.Repeat("  # ten megabytes of nothing\n", 10<<20/28), 0, ""},
		{"10 MB of depth", "a.yaml", "name: bad\nnodes: " + strings.Repeat("[", 7<<20), 0, ""},
		{"external entity", "a.graphml", graphml("<!DOCTYPE g [<!ENTITY x SYSTEM \"file:///etc/hostname\">]>\n", `<node id="&x;"/>`), 2, ""},
		{"a bomb of entities", "a.graphml", graphml("<!DOCTYPE g [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;\">]>\n", `<node id="&b;"/>`), 2, ""},
		{"an edge to nowhere", "a.graphml", graphml("", "\n<node id=\"0\"/>\n<edge source=\"0\" target=\"7\"/>"), 4, "7"},
		{"XML that breaks off", "a.graphml", `<?xml version="1.0"?>` + "\n<graphml><graph>", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := write(t, c.file, c.text)
			for _, verb := range []string{"up", "validate"} {
				begin := time.Now()
				stdout, stderr, code := s.Trellis(verb, file)
				if code != 2 {
					t.Errorf("%s: exit status %d, want 2: %s%s", verb, code, stdout, stderr)
				}
				// 10 MB on two busy cores; a bomb would take for ever.
				if d := time.Since(begin); d > 5*time.Second {
					t.Errorf("%s takes %v", verb, d)
				}
				output := stdout + stderr
				if c.line > 0 && !strings.Contains(output, fmt.Sprintf("%s:%d: ", file, c.line)) {
					t.Errorf("%s does not name line %d: %s", verb, c.line, output)
				}
				if !strings.Contains(output, file+":") || !strings.Contains(output, c.says) {
					t.Errorf("%s does not name the file, or %q: %s", verb, c.says, output)
				}
				if len(output) > 2000 {
					t.Errorf("%s says %d bytes", verb, len(output))
				}
			}
		})
	}
	if out := decode[[]any](t, s.Must("ls", "-o", "json")); len(out) != 0 {
		t.Errorf("there are networks: %v", out)
	}
	nothingLeft(t, s)
}

func TestBadCommandLines(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "pair.yaml", fmt.Sprintf(pair, "p"))
	for _, args := range [][]string{
		{"upp", file}, {"up"}, {"up", file, "more"}, {"up", file, "--timeout", "soon"}, {"up", file, "-o", "xml"}, {"up", file, "--no-such-flag"},
		{"down"}, {"down", "p", "--all"}, {"show"}, {"exec", "p", "--", "true"}, {"exec", "p/a"}, {"console", "p"}, {"capture", "p/a"},
		{"ping"}, {"graph", "p", "-o", "png"}, {"convert", file, "-o", "nothing"}, {"link", "set", "p"}, {"ping", "p", "--sample", "-1"},
	} {
		if stdout, stderr, code := s.Trellis(args...); code != 2 || (outcome{stderr: stderr}).sentences() != 1 {
			t.Errorf("trellis %s: exit status %d: %s%s", strings.Join(args, " "), code, stdout, stderr)
		}
	}
	if _, stderr, code := s.Trellis("up", "/no/such/file.yaml"); code != 2 && code != 1 || !strings.Contains(stderr, "/no/such/file.yaml") {
		t.Errorf("up of a file that is not there: exit status %d: %s", code, stderr)
	}
	nothingLeft(t, s)
}
