package e2e

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"trellis/test/testenv"
)

// ill is a network of a node whose daemon's configuration, the user's own, is wrong,
// of one whose command fails, and of one that is well.
const ill = `name: ill
routing: {protocol: ospf, timers: fast}
nodes:
  a:
    files:
      /etc/frr/ospfd.conf:
        content: |
          router ospf
           no-such-word 7
  b: {cmd: [/bin/sh, -c, "echo cannot open the door >&2; exit 4"]}
  c: {cmd: [/bin/sh, -c, "while :; do echo tick; sleep 0.2; done"]}
links: [[a, b], [b, c]]
`

// TestLogsAndRestart: what a daemon says of its configuration, and how a command
// ended, is seen by logs and in the state; a node and a daemon can be restarted.
func TestLogsAndRestart(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", "--wait=false", write(t, "ill.yaml", ill))
	eventually(t, 20*time.Second, "the log names the wrong word", func() bool {
		out, _, _ := s.Trellis("logs", "ill/a", "ospfd")
		return strings.Contains(out, "no-such-word")
	})
	eventually(t, 20*time.Second, "the state tells of the failed command", func() bool {
		out := s.Must("show", "ill/b")
		return strings.Contains(out, "degraded") && strings.Contains(out, "command ends with status 4") && strings.Contains(out, "cannot open the door")
	})
	// Of several faults ls names that of the first node, and each is found in its time.
	eventually(t, 20*time.Second, "ls tells of the wrong word", func() bool {
		out := s.Must("ls")
		return strings.Contains(out, "degraded") && strings.Contains(out, "no-such-word")
	})
	if out := s.Must("logs", "ill/c", "--tail", "2"); strings.Count(out, "command: tick\n") != 2 {
		t.Errorf("the last two lines: %q", out)
	}
	for args, want := range map[string]string{
		"logs ill/a nosuch": "zebra", "logs ill/nosuch": "no node", "logs ill": "VNET/NODE", "logs ill/a -n -1": "negative",
		"restart ill/c nosuch": "command", "restart ill/nosuch": "no node",
	} {
		if _, out, code := s.Trellis(strings.Fields(args)...); code == 0 || !strings.Contains(out, want) {
			t.Errorf("%s: status %d, %s", args, code, out)
		}
	}
	// Follow ends with the node.
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	follow := s.Command(ctx, "logs", "-f", "--tail", "1", "ill/c")
	lines := startFollowing(t, follow)
	before := show(t, s, "ill")
	s.Must("restart", "ill/c")
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Error(err)
	}
	if err := follow.Wait(); err != nil {
		t.Errorf("logs -f ends with %v", err)
	}
	if !strings.Contains(string(rest), "command: tick\n") {
		t.Errorf("followed %q", rest)
	}
	after := show(t, s, "ill")
	if after.pids()["c"] == before.pids()["c"] || after.pids()["a"] != before.pids()["a"] {
		t.Errorf("processes were %v and are %v", before.pids(), after.pids())
	}
	if state, restarts := after.node(t, "c"); state != "running" || restarts != 0 {
		t.Errorf("the restarted node is %s after %d failures", state, restarts)
	}
	s.Must("exec", "ill/c", "--", "ip", "link", "show", "eth1")
	pid := strings.TrimSpace(s.Must("exec", "ill/c", "--", "pidof", "zebra"))
	s.Must("restart", "ill/c", "zebra")
	eventually(t, 20*time.Second, "zebra is another process", func() bool {
		now, _, code := s.Trellis("exec", "ill/c", "--", "pidof", "zebra")
		return code == 0 && strings.TrimSpace(now) != pid
	})
	// An interrupt ends following well.
	follow = s.Command(ctx, "logs", "-f", "--tail", "1", "ill/c")
	startFollowing(t, follow)
	if err := follow.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := follow.Wait(); err != nil {
		t.Errorf("an interrupted logs -f ends with %v", err)
	}
	s.Must("down", "ill")
	nothingLeft(t, s)
}

// startFollowing starts a `logs -f` and gives its output once it follows.
func startFollowing(t *testing.T, follow *exec.Cmd) *bufio.Reader {
	t.Helper()
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for range 2 { // the last one that there was, and one that comes
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatalf("logs -f prints nothing: %v", err)
		}
	}
	return lines
}
