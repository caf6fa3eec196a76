package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// TestExecThatBlocks: a server that is started by exec is named with its node, does not
// hold up a corrected description, and is ended in time; cmd keeps what stays.
func TestExecThatBlocks(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	description := func(node string) string {
		return "name: ex\nnodes:\n  a: " + node + "\n  b: {}\nlinks: [[a, b]]\n"
	}
	blocked := write(t, "blocked.yaml", description(`{exec: ["sleep 1000 && true"], exec-timeout: 3s}`))
	_, out, code := s.Trellis("up", "--timeout", "60s", blocked)
	for _, want := range []string{"sleep 1000", "ex/a", "3s", "cmd"} {
		if code == 0 || !strings.Contains(out, want) {
			t.Errorf("status %d, and %q is not in: %s", code, want, out)
		}
	}
	// A newer description does not wait for the older one's command.
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	long := write(t, "long.yaml", description(`{exec: ["sleep 1000 && true"], exec-timeout: 50s}`))
	older := s.Command(ctx, "up", long)
	if err := older.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the command runs", func() bool {
		out, _, code := s.Trellis("exec", "ex/a", "--", "pgrep", "-x", "sleep")
		return code == 0 && strings.TrimSpace(out) != ""
	})
	begun := time.Now()
	s.Must("up", write(t, "mended.yaml", description(`{cmd: "exec sleep 1000"}`)))
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("the corrected description took %s", d)
	}
	_ = older.Process.Kill()
	_ = older.Wait()
	eventually(t, 20*time.Second, "the command of cmd runs", func() bool {
		out := s.Must("show", "ex/a")
		return strings.Contains(out, "command") && strings.Contains(out, "running")
	})
	// What stays is started again when it ends.
	s.Must("exec", "ex/a", "--", "pkill", "-x", "sleep")
	eventually(t, 20*time.Second, "it runs again", func() bool {
		out, _, code := s.Trellis("exec", "ex/a", "--", "pgrep", "-x", "sleep")
		return code == 0 && strings.TrimSpace(out) != ""
	})
	s.Must("down", "ex")
	nothingLeft(t, s)
}

// TestExecRunsOnce: what has run is not run again when a newer description comes
// while the next command runs.
func TestExecRunsOnce(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	description := func(more string) string {
		return "name: ex\nnodes:\n  a: {exec: [\"echo first >> /tmp/ran\", \"sleep 0.5 && echo second >> /tmp/ran\", \"sleep 5 && echo third >> /tmp/ran\"]}\n  b: {}\n" +
			more + "links: [[a, b]]\n"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	older := s.Command(ctx, "up", write(t, "older.yaml", description("")))
	if err := older.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = older.Wait() }()
	eventually(t, 20*time.Second, "the second command runs", func() bool {
		_, _, code := s.Trellis("exec", "ex/a", "--", "test", "-e", "/tmp/ran")
		return code == 0
	})
	s.Must("up", write(t, "newer.yaml", description("  c: {}\n")), "--timeout", "30s")
	if out := s.Must("exec", "ex/a", "--", "cat", "/tmp/ran"); out != "first\nsecond\nthird\n" {
		t.Errorf("the commands have left %q", out)
	}
	s.Must("down", "ex")
	nothingLeft(t, s)
}
