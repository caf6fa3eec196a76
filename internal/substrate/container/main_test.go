package container

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// firstID is the id range that tests use.
const firstID = 0x60000000

// newRuntime makes a Runtime with directories of its own. Everything that it
// still holds at the end of the test is removed, and must be gone then.
func newRuntime(t *testing.T, cfg Config) *Runtime {
	t.Helper()
	testenv.NeedRoot(t, "makes containers")
	if cfg.RunDir == "" {
		cfg.RunDir, cfg.StateDir = t.TempDir(), t.TempDir()
		cfg.Instance = instance(t)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer r.Close()
		removeAll(t, r)
	})
	return r
}

// instance is a tag that no other test or process uses.
func instance(t *testing.T) string {
	sum := Digest([]Service{{Name: t.Name(), Argv: []string{fmt.Sprint(os.Getpid())}}})
	return "t" + sum[:7]
}

func removeAll(t *testing.T, r *Runtime) {
	t.Helper()
	states, err := r.List(context.Background())
	if err != nil {
		t.Error(err)
	}
	var ids []ID
	for _, s := range states {
		ids = append(ids, s.ID)
	}
	if err := r.Remove(context.Background(), ids...); err != nil {
		t.Error(err)
	}
	checkClean(t, r)
}

// checkClean fails if anything is left on the machine in the Runtime's name.
func checkClean(t *testing.T, r *Runtime) {
	t.Helper()
	if states, err := r.List(context.Background()); err != nil || len(states) != 0 {
		t.Errorf("left over: %v, error %v", states, err)
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + r.cgroups.Dir())
	if err != nil || len(groups) != 0 {
		t.Errorf("cgroups left over: %v", groups)
	}
	for _, d := range []string{"nodes", "oci"} {
		entries, err := os.ReadDir(filepath.Join(r.cfg.RunDir, d))
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if e.Name() != ociCache { // which goes with the Runtime
				t.Errorf("%s/%s is left over", d, e.Name())
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(mounts)) {
		// The names of nodes stay mounted while the runtime is open.
		if fields := strings.Fields(line); fields[4] == filepath.Join(r.cfg.RunDir, hostsDir) {
			continue
		}
		if strings.Contains(line, "nodes/") || strings.Contains(line, r.cfg.RunDir) {
			t.Errorf("mount left over or visible: %s", line)
		}
	}
}

func spec(node string) Spec {
	return Spec{ID: ID{"test", node}, IDBase: firstID, Image: "host",
		Limits: Limits{CPU: 1, Memory: 64 << 20, Pids: 64, Disk: 16 << 20}}
}

// mustStart starts and releases a node.
func mustStart(t *testing.T, r *Runtime, s Spec) *Held {
	t.Helper()
	h, err := r.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	return h
}

// run runs a shell command in the node and returns its output and exit code.
func run(t *testing.T, r *Runtime, id ID, command string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	p, err := r.Exec(ctx, id, ExecSpec{Argv: []string{"/bin/sh", "-c", command}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	code, err := p.Wait()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out.String())
	}
	return strings.TrimSpace(out.String()), code
}

// mustRun is run for commands that must succeed.
func mustRun(t *testing.T, r *Runtime, id ID, command string) string {
	t.Helper()
	out, code := run(t, r, id, command)
	if code != 0 {
		t.Fatalf("%s: exit code %d: %s", command, code, out)
	}
	return out
}

// eventually waits for the condition, for 30 s at most: on a busy machine the start of
// a process may take ten.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}
