package cli

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	trellisv1 "trellis/api/trellis/v1"
)

const theirs = `name: theirs
nodes:
  a: {image: /srv/x.tar, cmd: "run \x1b[2J me", files: {/x: FILE}}
  b: {image: /srv/x.tar, exec: [echo b], cpu: 0.5, on: beta}
  c: {exec: [echo b, echo c], sysctls: {net.ipv4.ip_forward: "0"}, files: {/etc/frr/frr.conf: {content: "hostname c\n"}}}
links: [[a, b], [b, c]]
`

func TestReview(t *testing.T) {
	_, env := startFake(t)
	other := t.TempDir()
	secret := filepath.Join(other, "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := env.file("theirs.yaml", strings.Replace(theirs, "FILE", secret, 1))
	if status := env.run("validate", "--review", file); status != exitUsage || !strings.Contains(env.err.String(), "theirs.yaml:3: ") || !strings.Contains(env.err.String(), "--allow-path "+other) {
		t.Errorf("a file from elsewhere: exit status %d, %s", status, env.err.String())
	}
	if status := env.run("validate", "--review", "--allow-path", other, file); status != exitDone {
		t.Fatalf("exit status %d: %s", status, env.err.String())
	}
	out := env.out.String()
	for _, want := range []string{
		"files of this machine from outside of its folder:\n  " + secret + "\n",
		"images:\n  /srv/x.tar  (a, b)\n",
		"  /bin/sh -c run  [2J me  (a)\n  echo b  (b, c)\n  echo c  (c)\n",
		"routing configurations of its own:\n  /etc/frr/frr.conf (11B)  (c)\n",
		"  net.ipv4.ip_forward=0  (c)\n",
		"machines by name:\n  beta  (b)\n",
		"theirs: 3 nodes, 2 links; together up to ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the review lacks %q:\n%s", want, out)
		}
	}
	if strings.ContainsRune(out, 0x1b) {
		t.Error("a file steers the terminal")
	}
	if status := env.run("validate", "--review", "-o", "json", "--allow-path", other, file); status != exitDone {
		t.Fatalf("exit status %d: %s", status, env.err.String())
	}
	var results []validResult
	if err := json.Unmarshal(env.out.Bytes(), &results); err != nil || len(results) != 1 || results[0].Review == nil || len(results[0].Review.Commands) != 3 {
		t.Errorf("%v: %s", err, env.out.String())
	}
	if status := env.run("validate", "--review", env.file("plain.yaml", triangle)); status != exitDone || !strings.Contains(env.out.String(), "nothing beyond the ordinary") {
		t.Errorf("a plain file: exit status %d, %s", status, env.out.String())
	}
}

// TestUpAsksFirst: without a terminal and --yes, nothing reaches the service.
func TestUpAsksFirst(t *testing.T) {
	f, env := startFake(t)
	var asked atomic.Bool
	f.apply = func(context.Context, *trellisv1.ApplyRequest, *connect.ServerStream[trellisv1.ApplyResponse]) error {
		asked.Store(true)
		return connect.NewError(connect.CodeFailedPrecondition, errors.New("asked"))
	}
	applied := asked.Load
	file := env.file("triangle.yaml", triangle)
	if status := env.run("up", "--review", file); status != exitFailed || !strings.Contains(env.err.String(), "nothing was done") || applied() {
		t.Errorf("exit status %d, applied %v: %s", status, applied(), env.err.String())
	}
	if status := env.run("up", "--yes", file); status != exitUsage || applied() {
		t.Errorf("--yes alone: exit status %d, %s", status, env.err.String())
	}
	if status := env.run("up", "--review", "--yes", file); status != exitFailed || !applied() || !strings.Contains(env.err.String(), "nothing beyond") {
		t.Errorf("exit status %d, applied %v: %s", status, applied(), env.err.String())
	}
}
