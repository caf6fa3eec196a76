package container

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

func testRuntime(t *testing.T, cfg Config) *Runtime {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes containers")
	}
	if cfg.RunDir == "" {
		cfg.RunDir, cfg.StateDir = t.TempDir(), t.TempDir()
	}
	cfg.Instance = fmt.Sprintf("t%d", os.Getpid()%1000000)
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		states, err := r.List(context.Background())
		if err != nil {
			t.Error(err)
		}
		for _, s := range states {
			if err := r.Remove(context.Background(), s.ID); err != nil {
				t.Error(err)
			}
		}
		r.Close()
	})
	return r
}

func TestFirst(t *testing.T) {
	r := testRuntime(t, Config{})
	ctx := t.Context()
	id := ID{"net", "a"}
	start := time.Now()
	h, err := r.Start(ctx, Spec{ID: id, IDBase: 1 << 20, Image: "host", Limits: Limits{Memory: 64 << 20, Pids: 64, Disk: 16 << 20, CPU: 0.5},
		Services: []Service{{Name: "sleeper", Argv: []string{"/bin/sleep", "100"}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(start))
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	st, err := r.Stat(id)
	t.Logf("%+v %v", st, err)
	var out bytes.Buffer
	p, err := r.Exec(ctx, id, ExecSpec{Argv: []string{"sh", "-c", "id; mount; ls -la / /dev /etc; ps ax; cat /proc/self/status | grep Cap; hostname; ip a; exit 3"}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	code, err := p.Wait()
	t.Log(code, err, out.String())
	l, err := r.List(ctx)
	t.Logf("%+v %v", l, err)
}
