package container

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// logsOf reads all of a service's log.
func logsOf(t *testing.T, r *Runtime, id ID, q LogQuery) string {
	t.Helper()
	var b strings.Builder
	if err := r.Logs(t.Context(), id, q, func(_ string, text []byte) error { b.Write(text); return nil }); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestLogs(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	shell := func(name, script string) Service {
		return Service{Name: name, Argv: []string{"/bin/sh", "-c", script}}
	}
	s.Services = []Service{
		shell("failing", "echo wrong in line 3 >&2; exit 3"),
		shell("chatty", "i=0; while [ $i -lt 2000 ]; do echo line $i of many; i=$((i+1)); done; exec sleep 1000"),
		shell("ticking", "while :; do date +%N; sleep 0.05; done"),
		shell("stray", "setsid sleep 1000 & exit 0"), // holds its output open
	}
	mustStart(t, r, s)
	eventually(t, "all have printed", func() bool {
		return strings.Contains(logsOf(t, r, s.ID, LogQuery{Service: "failing"}), "ended with status 3") &&
			strings.Contains(logsOf(t, r, s.ID, LogQuery{Service: "chatty"}), "line 1999 of many\n") &&
			strings.Contains(logsOf(t, r, s.ID, LogQuery{Service: "stray"}), "ended with status 0")
	})
	if got := r.LastLine(s.ID, "failing"); got != "wrong in line 3" {
		t.Errorf("the last line is %q", got)
	}
	chatty := logsOf(t, r, s.ID, LogQuery{Service: "chatty"})
	if n := len(chatty); n < 16<<10 || n > 33<<10 {
		t.Errorf("%d bytes of a chatty service are kept", n)
	}
	for i, line := range strings.Split(strings.TrimSuffix(chatty, "\n"), "\n") {
		if want := 2000 - strings.Count(chatty, "\n") + i; i > 0 && line != fmt.Sprintf("line %d of many", want) {
			t.Fatalf("line %d is %q", want, line)
		}
	}
	if got := logsOf(t, r, s.ID, LogQuery{Service: "chatty", Tail: 2}); got != "line 1998 of many\nline 1999 of many\n" {
		t.Errorf("the last two lines: %q", got)
	}
	// Follow sees what comes, and ends with the node.
	ended := make(chan error, 1)
	lines := make(chan string, 1000)
	go func() {
		ended <- r.Logs(context.Background(), s.ID, LogQuery{Service: "ticking", Follow: true, Tail: 1}, func(_ string, text []byte) error {
			lines <- string(text)
			return nil
		})
	}()
	for range 3 {
		select {
		case <-lines:
		case <-time.After(10 * time.Second):
			t.Fatal("nothing comes")
		}
	}
	for _, c := range []struct{ service, want string }{{"none", "it has failing, chatty, ticking, stray"}} {
		var none *NoServiceError
		err := r.Logs(t.Context(), s.ID, LogQuery{Service: c.service}, nil)
		if !errors.As(err, &none) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.service, err)
		}
	}
	if err := r.Stop(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("following goes on after the node's end")
	}
}

// TestHostileLogs: what a node's root makes of its logs can neither lead out of the
// node nor hold the reader up.
func TestHostileLogs(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Services = []Service{{Name: "x", Argv: []string{"/bin/sleep", "1000"}}}
	mustStart(t, r, s)
	for name, script := range map[string]string{
		"a link":           "ln -s /etc/passwd /run/trellis/x.log",
		"a link out":       "ln -s /proc/1/root/etc/shadow /run/trellis/x.log",
		"a pipe":           "mkfifo /run/trellis/x.log",
		"a pipe before it": "echo ok > /run/trellis/x.log; mkfifo /run/trellis/x.log.1",
		"a directory":      "mkdir /run/trellis/x.log",
		"a huge file":      "truncate -s 10G /run/trellis/x.log",
		"a linked parent":  "rmdir /run/trellis; ln -s /etc /run/trellis; cp /etc/passwd /etc/x.log",
	} {
		mustRun(t, r, s.ID, "rm -rf /run/trellis; mkdir /run/trellis; "+script)
		done := make(chan string, 1)
		go func() {
			n := 0
			err := r.Logs(context.Background(), s.ID, LogQuery{}, func(_ string, text []byte) error { n += len(text); return nil })
			done <- fmt.Sprint(err, " ", n <= 2*maxLogRead)
		}()
		select {
		case got := <-done:
			if got != "<nil> true" {
				t.Errorf("%s: %s", name, got)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%s holds the reader up", name)
		}
	}
}
