package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestBenchScale(t *testing.T) {
	profiles, network := t.TempDir(), filepath.Join(t.TempDir(), "chain.yaml")
	if err := os.WriteFile(network, []byte("name: chain\nnodes: {a: {}, b: {}, c: {}}\nlinks: [[a, b], [b, c]]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd, stdout, stderr := command(t, "--suite", "scale", network, "--nodes", "30",
		"--parts", "zoo,verbs,adopt,down,grid", "--settle", "10ms", "--profile", profiles)
	before := homes(t)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, stderr, stdout)
	}
	var r ScaleReport
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, stdout)
	}
	figures := map[string]float64{}
	for _, p := range r.Parts {
		for _, f := range p.Figures {
			figures[p.Name+" "+f.Name] = f.Median
		}
	}
	for name, want := range map[string][2]float64{ // least and most
		"zoo up":                {0.01, 120},
		"zoo rate10":            {0.01, 10000},
		"zoo serviceGoroutines": {10, 10000},
		"zoo serviceFiles":      {10, 10000},
		"zoo serviceMemory":     {10 << 20, 1 << 30},
		"verbs list":            {0.0001, 30},
		"verbs setLinkOne":      {0.0001, 30},
		"adopt adopted":         {0.01, 120},
		"adopt sent":            {500, 1e6},
		"adopt lost":            {0, 0},
		"adopt ended":           {0, 0},
		"down down":             {0.001, 120},
		"grid down":             {0.001, 120},
	} {
		if got, ok := figures[name]; !ok || got < want[0] || got > want[1] {
			t.Errorf("%s is %v (measured: %v), want %v to %v", name, got, ok, want[0], want[1])
		}
	}
	if zoo := r.Parts[0]; zoo.Nodes != 30 || zoo.Networks != 10 {
		t.Errorf("%d networks with %d nodes were brought up, want 10 with 30", zoo.Networks, zoo.Nodes)
	}
	if left := newHomes(t, before); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	files, err := filepath.Glob(filepath.Join(profiles, "verbs-*.pprof"))
	if err != nil || len(files) == 0 {
		t.Errorf("the verbs have left no profile: %v", err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() == 0 {
			t.Errorf("profile %s: %v, %v", f, info, err)
		}
	}
}
