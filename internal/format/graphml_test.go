package format

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var rewrite = flag.Bool("rewrite", false, "write what the tests get as what they want")

// TestGraphMLBecomesTheseNetworks holds each testdata/*.graphml to the warnings
// and the YAML in the file beside it.
func TestGraphMLBecomesTheseNetworks(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.graphml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			v, warnings, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			for _, w := range warnings {
				fmt.Fprintf(&got, "# %d: %s\n", w.Line, w.What)
			}
			got.Write(roundTrip(t, v))
			golden := strings.TrimSuffix(path, ".graphml") + ".yaml"
			if *rewrite {
				if err := os.WriteFile(golden, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", golden, diff)
			}
		})
	}
}

func TestBadGraphMLIsRefusedWithPlaceAndRemedy(t *testing.T) {
	for _, c := range []struct{ name, xml, want string }{
		{"nothing", "", "1: there is no XML in the file; give a GraphML file, or a YAML one named *.yaml"},
		{"another root", "<rspec/>", "1: the root element is <rspec>, not <graphml>; give a file with one <graphml> element"},
		{"no graph", "<graphml/>", "1: the graph has no nodes; give a GraphML file with nodes and edges"},
		{"cut off", "<graphml>\n<graph>\n<node id='a'>", "3: not valid XML: unexpected EOF; export the file again, in UTF-8"},
		{"an entity", "<graphml>\n<graph><node id='&x;'/></graph></graphml>", "2: not valid XML: invalid character entity &x;; export the file again, in UTF-8"},
		{"a document type", "<?xml version='1.0'?>\n<!DOCTYPE graphml SYSTEM 'http://example.net/x.dtd'>\n<graphml/>", "2: document type declarations and entities are not accepted; remove the <!…> part"},
		{"an unknown encoding", "<?xml version='1.0' encoding='koi8-r'?><graphml/>", `1: not valid XML: xml: opening charset "koi8-r": the encoding "koi8-r" is not understood: save the file as UTF-8; export the file again, in UTF-8`},
		{"two graphs", "<graphml><graph/>\n<graph/></graphml>", "2: the file holds a second graph; keep one graph in each file"},
		{"an id twice", "<graphml><graph>\n<node id='a'/>\n<node id='a'/></graph></graphml>", `3: node id "a" is there twice (first in line 2); give every node an id of its own`},
		{"a dangling edge", "<graphml><graph>\n<node id='a'/>\n<edge source='a' target='b'/></graph></graphml>", `3: an edge ends at node "b", which does not exist; add the node, or remove the edge`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := Read("bad.graphml", []byte(c.xml), nil)
			var errs Errors
			if !errors.As(err, &errs) || len(errs) != 1 {
				t.Fatalf("got %v", err)
			}
			if got := strings.TrimPrefix(err.Error(), "bad.graphml:"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestOtherEncodingsAndNames(t *testing.T) {
	latin := "<?xml version='1.0' encoding='ISO-8859-1'?><graphml><key id='l' for='node' attr.name='label'/><graph><node id='a'><data key='l'>Z\xfcrich</data></node></graph></graphml>"
	// Without a known extension the content decides, and the file names the network.
	v, _, err := Read("/some/where/My Network 2", []byte(latin), nil)
	if err != nil {
		t.Fatal(err)
	}
	if v.Name != "my-network-2" || v.Nodes[0].Name != "zurich" {
		t.Errorf("network %q, node %q", v.Name, v.Nodes[0].Name)
	}
	v, _, err = Read("-", []byte("name: x\nnodes: {a: {}}\n"), nil)
	if err != nil || v.Name != "x" {
		t.Errorf("%v, %v", v, err)
	}
}

func TestLargeGraphsGetComputedRoutes(t *testing.T) {
	for nodes, want := range map[int]string{100: "ospf", 101: "static"} {
		var b strings.Builder
		b.WriteString("<graphml><graph>")
		for i := range nodes {
			fmt.Fprintf(&b, "<node id='%d'/>", i)
		}
		b.WriteString("</graph></graphml>")
		v, _, err := Read("g.graphml", []byte(b.String()), nil)
		if err != nil {
			t.Fatal(err)
		}
		if string(v.Routing.Protocol) != want {
			t.Errorf("%d nodes: %s", nodes, v.Routing.Protocol)
		}
	}
}
