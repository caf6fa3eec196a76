package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trellis/internal/vnet"
)

// buffer is a bytes.Buffer that may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func TestExec(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r *Runtime) {
		s := spec("a")
		mustStart(t, r, s)
		var out, errs buffer
		p, err := r.Exec(t.Context(), s.ID, ExecSpec{
			Argv: []string{"/bin/sh", "-c", "cat; echo $COLOR >&2; exit 9"}, Env: []string{"COLOR=red"},
			Stdin: strings.NewReader("input"), Stdout: &out, Stderr: &errs,
		})
		if err != nil {
			t.Fatal(err)
		}
		code, err := p.Wait()
		if code != 9 || err != nil || out.String() != "input" || errs.String() != "red\n" {
			t.Errorf("exit code %d, %v; output %q, %q", code, err, out.String(), errs.String())
		}
		if err := p.Signal(syscall.SIGTERM); err == nil {
			t.Error("a process that has ended can be signalled")
		}
		if _, code := run(t, r, s.ID, "kill -TERM $$"); code != 128+int(syscall.SIGTERM) {
			t.Errorf("exit code %d after SIGTERM", code)
		}
		if _, code := run(t, r, s.ID, "/nowhere/program"); code != 127 {
			t.Errorf("exit code %d of a missing program", code)
		}
		// An input that never ends must not keep the process' end from being seen.
		hang, _ := io.Pipe()
		defer hang.Close()
		if p, err = r.Exec(t.Context(), s.ID, ExecSpec{Argv: []string{"/bin/true"}, Stdin: hang}); err != nil {
			t.Fatal(err)
		}
		if code, err := p.Wait(); code != 0 || err != nil {
			t.Error(code, err)
		}
		// Within the node's groups, with no more than the node's rights.
		if out := mustRun(t, r, s.ID, "grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status"); strings.Count(out, "203dfb") != 2 ||
			!strings.Contains(out, "NoNewPrivs:\t1") || !strings.Contains(out, "Seccomp:\t2") {
			t.Errorf("rights: %s", out)
		}
		if _, err := r.Exec(t.Context(), ID{"test", "none"}, ExecSpec{Argv: []string{"/bin/true"}}); err == nil {
			t.Error("ran in a container that is not there")
		}
	})
}

func TestExecSignalAndCancel(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r *Runtime) {
		s := spec("a")
		mustStart(t, r, s)
		var out buffer
		p, err := r.Exec(t.Context(), s.ID, ExecSpec{Argv: []string{"/bin/sh", "-c", "trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done"}, Stdout: &out})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the process is ready", func() bool { return out.String() == "ready\n" })
		if err := p.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		if code, err := p.Wait(); code != 5 || err != nil {
			t.Errorf("exit code %d, %v", code, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if p, err = r.Exec(ctx, s.ID, ExecSpec{Argv: []string{"/bin/sleep", "1000"}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "sleep runs", func() bool { return strings.Contains(mustRun(t, r, s.ID, "ps ax"), "sleep 1000") })
		cancel()
		if _, err := p.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("after cancel: %v", err)
		}
		eventually(t, "sleep has ended", func() bool { return !strings.Contains(mustRun(t, r, s.ID, "ps ax"), "sleep 1000") })
	})
}

// A file system for each node costs all of them memory, so a node of the machine's
// own programs has none that nobody asked for.
func TestFileSystemsOfANode(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r *Runtime) {
		s := spec("a")
		h := mustStart(t, r, s)
		types := func() map[string]int {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", h.Pid()))
			if err != nil {
				t.Fatal(err)
			}
			seen, out := map[string]bool{}, map[string]int{}
			for line := range strings.Lines(string(b)) {
				f := strings.Fields(line)
				if !seen[f[2]] {
					seen[f[2]] = true
					out[f[slices.Index(f, "-")+1]]++
				}
			}
			return out
		}
		before := types()
		if before["devpts"] != 0 || before["proc"] != 1 || before["sysfs"] != 0 || r.oci.mountsInProc && before["tmpfs"] != 3 {
			t.Errorf("it has %v; want its own procfs and tmpfs, and the shared /dev and hosts", before)
		}
		for range 2 {
			if out := mustRun(t, r, s.ID, "stat -f -c %T /dev/pts; stat -L -c '%a %t' /dev/ptmx"); out != "devpts\n666 5" {
				t.Errorf("its /dev/pts says %q", out)
			}
		}
		if got := types(); got["devpts"] != 1 {
			t.Errorf("after two commands it has %v", got)
		}
	})
}

func TestExecTerminal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r *Runtime) {
		s := spec("a")
		mustStart(t, r, s)
		var out buffer
		keys, typed := io.Pipe()
		p, err := r.Exec(t.Context(), s.ID, ExecSpec{Argv: []string{"/bin/bash", "--norc"}, TTY: true, Rows: 33, Cols: 101, Stdin: keys, Stdout: &out})
		if err != nil {
			t.Fatal(err)
		}
		say := func(line, answer string) {
			t.Helper()
			if _, err := typed.Write([]byte(line)); err != nil {
				t.Fatal(err)
			}
			eventually(t, line+" is answered by "+answer+" in "+out.String(), func() bool { return strings.Contains(out.String(), answer) })
		}
		say("tty; stty size\n", "33 101")
		if !strings.Contains(out.String(), "/dev/pts/0") {
			t.Errorf("the terminal is not the node's own: %s", out.String())
		}
		if err := p.Resize(44, 123); err != nil {
			t.Fatal(err)
		}
		// The size takes a signal and two relays to get there.
		time.Sleep(200 * time.Millisecond)
		say("stty size\n", "44 123")
		say("sleep 1000\n", "sleep 1000")
		time.Sleep(100 * time.Millisecond)
		say("\x1a", "Stopped") // job control
		// With stopped jobs bash would refuse to exit, and never end.
		say("kill -9 %1; while jobs %1 >/dev/null 2>&1; do sleep 0.05; done; echo go''ne\n", "gone")
		say("exit 6\n", "exit 6")
		select {
		case <-p.done:
		case <-time.After(20 * time.Second):
			t.Fatalf("the shell does not end: %s", out.String())
		}
		if code, err := p.Wait(); code != 6 || err != nil {
			t.Errorf("exit code %d, %v: %s", code, err, out.String())
		}
	})
}

// TestExecEndsWithItsContext: what a command has started ends with it.
func TestExecEndsWithItsContext(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	mustStart(t, r, s)
	ctx, cancel := context.WithCancel(t.Context())
	p, err := r.Exec(ctx, s.ID, ExecSpec{Argv: []string{"/bin/sh", "-c", "sleep 1000 && true"}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { _, code := run(t, r, s.ID, "pgrep -x sleep"); return code == 0 })
	cancel()
	if _, err := p.Wait(); err == nil {
		t.Error("it ended well")
	}
	if out, code := run(t, r, s.ID, "pgrep -x sleep"); code == 0 {
		t.Errorf("still runs: %s", out)
	}
}

func TestCommandRestarts(t *testing.T) {
	r := newRuntime(t, Config{})
	for name, c := range map[string]struct {
		restart vnet.Restart
		status  int
		again   bool
	}{"never": {vnet.RestartNever, 1, false}, "failed": {vnet.RestartOnFailure, 1, true}, "well": {vnet.RestartOnFailure, 0, false}, "always": {vnet.RestartAlways, 0, true}} {
		s := spec(name)
		s.Restart = c.restart
		s.Cmd = []string{"/bin/sh", "-c", fmt.Sprintf("echo run; exit %d", c.status)}
		mustStart(t, r, s)
		eventually(t, name+" has ended", func() bool {
			st, _ := r.Services(s.ID)
			return len(st) == 1 && (c.again && st[0].Restarts >= 2 || !c.again && st[0].State == ServiceExited && st[0].Exit == c.status)
		})
	}
}
