package format

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"trellis/internal/vnet"
)

var byValue = []cmp.Option{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

// roundTrip writes a network as YAML and loads it again; the result must be the
// same network. It gives the YAML.
func roundTrip(t *testing.T, v *vnet.VNet) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := WriteYAML(&out, v); err != nil {
		t.Fatalf("write: %v", err)
	}
	back, warnings, err := Read("back.yaml", out.Bytes(), nil)
	if err != nil {
		t.Fatalf("what was written does not load: %v\n%s", err, out.Bytes())
	}
	if len(warnings) > 0 {
		t.Fatalf("what was written loads with warnings: %v", warnings)
	}
	if diff := cmp.Diff(v, back, byValue...); diff != "" {
		t.Fatalf("the network (-) loads as another one (+):\n%s\n%s", diff, out.Bytes())
	}
	return out.Bytes()
}

// zoo gives the files of the Topology Zoo that lie beside the repository.
func zoo(t *testing.T) []string {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "shared", "data", "zoo")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("needs the Topology Zoo's files: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.graphml"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestEveryZooNetworkLoadsAndSurvivesConversion(t *testing.T) {
	files := zoo(t)
	if len(files) < 24 {
		t.Fatalf("found %d files", len(files))
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			v, warnings, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			// One edge, Interoute's self-loop, has no place in a network.
			nodes, edges := bytes.Count(data, []byte("<node ")), bytes.Count(data, []byte("<edge "))
			if len(v.Nodes) != nodes || len(v.Links)+len(warnings) != edges {
				t.Errorf("%d nodes and %d links of %d and %d; warnings: %v", len(v.Nodes), len(v.Links), nodes, edges, warnings)
			}
			if (len(warnings) > 0) != strings.HasPrefix(filepath.Base(path), "Interoute") {
				t.Errorf("warnings: %v", warnings)
			}
			again, _, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(v, again, byValue...); diff != "" {
				t.Errorf("loading twice differs:\n%s", diff)
			}
			yaml := roundTrip(t, v)
			if lines := bytes.Count(yaml, []byte("\n")); lines > 10+3*nodes+3*edges {
				t.Errorf("the YAML has %d lines for %d nodes and %d links: it says what need not be said", lines, nodes, edges)
			}
		})
	}
}

// examples/README.md is the list of the examples.
func TestExamplesAreListed(t *testing.T) {
	dir := filepath.Join("..", "..", "examples")
	list, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); (ext == ".yaml" || ext == ".graphml" || e.Name() == "labs") && !strings.Contains(string(list), "("+e.Name()+")") {
			t.Errorf("examples/README.md does not list %s", e.Name())
		}
	}
}

// examples gives the files of examples that describe networks; the others are
// of sandboxes.
func examples(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "*.yaml"))
	files = slices.DeleteFunc(files, func(path string) bool { return strings.HasPrefix(filepath.Base(path), "sandbox-") })
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	return files
}

func TestEveryLabLoads(t *testing.T) {
	labs, err := filepath.Glob(filepath.Join("..", "..", "examples", "labs", "*", "lab.yaml"))
	if err != nil || len(labs) < 5 {
		t.Fatalf("%d labs, %v", len(labs), err)
	}
	for _, path := range labs {
		v, _, err := Load(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if want := filepath.Base(filepath.Dir(path)); v.Name != want {
			t.Errorf("the network is called %s, the folder %s", v.Name, want)
		}
		roundTrip(t, v)
	}
}

func TestEveryExampleLoads(t *testing.T) {
	for _, path := range examples(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			v, _, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if want := strings.TrimSuffix(filepath.Base(path), ".yaml"); v.Name != want {
				t.Errorf("the network is called %s, the file %s", v.Name, want)
			}
			roundTrip(t, v)
		})
	}
	abilene, _, err := Load(filepath.Join("..", "..", "examples", "abilene.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(abilene.Nodes) != 11 || len(abilene.Links) != 14 || len(abilene.Components()) != 1 {
		t.Errorf("Abilene has %d nodes, %d links, %d components", len(abilene.Nodes), len(abilene.Links), len(abilene.Components()))
	}
}
