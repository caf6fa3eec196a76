package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestArrange(t *testing.T) {
	v1 := []hierarchy{{mount: "/cg/cpu", controllers: []string{"rw", "cpu", "cpuacct"}}, {mount: "/cg/memory", controllers: []string{"rw", "memory"}},
		{mount: "/cg/devices", controllers: []string{"rw", "devices"}}}
	pids := hierarchy{mount: "/cg/pids", controllers: []string{"rw", "pids"}}
	cases := []struct {
		name    string
		v1      []hierarchy
		v2      string
		unified []string
		layout  string // controllers by mount
		missing string
	}{
		{"v1", append(slices.Clone(v1), pids), "", nil, "/cg/cpu=cpu+cpuacct /cg/memory=memory /cg/pids=pids", ""},
		{"hybrid, all in v1", append(slices.Clone(v1), pids), "/cg/unified", nil, "/cg/cpu=cpu+cpuacct /cg/memory=memory /cg/pids=pids", ""},
		{"hybrid, pids in v2", v1, "/cg/unified", []string{"io", "pids"}, "/cg/cpu=cpu+cpuacct /cg/memory=memory /cg/unified=pids", ""},
		{"v2", nil, "/cg", []string{"cpuset", "cpu", "io", "memory", "pids"}, "/cg=cpu+memory+pids", ""},
		{"v2 without memory", nil, "/cg", []string{"cpu", "pids"}, "", "memory"},
		{"nothing", nil, "", nil, "", "cpu and memory and pids"},
	}
	for _, c := range cases {
		tree, err := arrange("x", c.v1, c.v2, c.unified)
		if c.missing != "" {
			if err == nil || !strings.Contains(err.Error(), c.missing) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, h := range tree.hierarchies {
			got = append(got, h.mount+"="+strings.Join(h.controllers, "+"))
		}
		if layout := strings.Join(got, " "); layout != c.layout {
			t.Errorf("%s: %s, want %s", c.name, layout, c.layout)
		}
	}
}

// TestV2Files lets the tree work on plain directories that look like cgroup v2.
func TestV2Files(t *testing.T) {
	top := t.TempDir()
	files := func(dir string) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"cgroup.subtree_control", "cpu.max", "memory.max", "memory.swap.max", "pids.max"} {
			if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, d := range []string{"", "x", "x/a", "x/a/b"} {
		files(filepath.Join(top, d))
	}
	tree, err := arrange("x", nil, top, needed)
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Create("a/b", Limits{CPU: 0.25, Memory: 1 << 20, Pids: 7}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"x/a/b/cpu.max": "25000 100000", "x/a/b/memory.max": "1048576", "x/a/b/memory.swap.max": "0", "x/a/b/pids.max": "7",
		"x/a/b/cgroup.subtree_control": "",
	} {
		if b, err := os.ReadFile(filepath.Join(top, file)); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v; want %q", file, b, err, want)
		}
	}
	for _, d := range []string{"", "x", "x/a"} {
		if b, _ := os.ReadFile(filepath.Join(top, d, "cgroup.subtree_control")); len(b) == 0 {
			t.Errorf("no controllers are handed on from %q", d)
		}
	}
	if got := tree.EntryFiles("a/b"); len(got) != 1 || got[0] != top+"/x/a/b/cgroup.procs" {
		t.Errorf("entry files %v", got)
	}
}
