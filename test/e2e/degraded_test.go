package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/test/testenv"
)

// pair is a small network.
const pair = `name: %s
routing: static
nodes: {a: {}, b: {}}
links: [[a, b]]
`

func TestManyUpsAtOnce(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	t.Run("of one name", func(t *testing.T) {
		one, other := write(t, "one.yaml", fmt.Sprintf(pair, "same")), write(t, "other.yaml", strings.NewReplacer("b: {}", "b: {}, c: {}", "[[a, b]]", "[[a, b], [b, c]]").Replace(fmt.Sprintf(pair, "same")))
		codes := together(t, s, []string{"up", one}, []string{"up", other}, []string{"up", one}, []string{"up", other})
		for i, c := range codes {
			// One that another overtakes may say so; it must not hang, nor break the network.
			if c.code != 0 && (c.code != 1 || c.sentences() != 1) {
				t.Errorf("up %d: exit status %d: %s", i, c.code, c.stderr)
			}
		}
		s.Must("up", other)
		if v := show(t, s, "same"); len(v.Nodes) != 3 || v.State != "running" {
			t.Errorf("show says %+v", v)
		}
		s.Must("ping", "same")
		s.Must("down", "same")
	})
	t.Run("of ten names", func(t *testing.T) {
		var ups, downs [][]string
		for i := range 10 {
			name := fmt.Sprintf("net%d", i)
			ups = append(ups, []string{"up", write(t, name+".yaml", fmt.Sprintf(pair, name))})
			downs = append(downs, []string{"down", name})
		}
		for _, c := range together(t, s, ups...) {
			if c.code != 0 {
				t.Errorf("up: exit status %d: %s", c.code, c.stderr)
			}
		}
		for i := range 10 {
			s.Must("ping", fmt.Sprintf("net%d", i))
		}
		for _, c := range together(t, s, downs...) {
			if c.code != 0 {
				t.Errorf("down: exit status %d: %s", c.code, c.stderr)
			}
		}
	})
	nothingLeft(t, s)
}

// outcome is how a run of the program ended.
type outcome struct {
	stdout, stderr string
	code           int
}

// sentences counts the error messages for people.
func (o outcome) sentences() (n int) {
	for line := range strings.Lines(o.stderr) {
		if strings.HasPrefix(line, "trellis: ") {
			n++
		}
	}
	return n
}

// together runs the program several times at once.
func together(t *testing.T, s *testenv.Service, runs ...[]string) []outcome {
	t.Helper()
	outcomes := make([]outcome, len(runs))
	var all sync.WaitGroup
	for i, args := range runs {
		all.Go(func() {
			var out, errs bytes.Buffer
			cmd := s.Command(t.Context(), append(args, "--timeout", "90s")...)
			cmd.Stdout, cmd.Stderr = &out, &errs
			err := s.NS.Start(cmd)
			if err == nil {
				err = cmd.Wait()
			}
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Errorf("run trellis %v: %v", args, err)
				return
			}
			outcomes[i] = outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
		})
	}
	all.Wait()
	return outcomes
}

func TestAHundredNetworksSideBySide(t *testing.T) {
	testenv.Measures(t)
	s := testenv.StartService(t, testenv.Options{})
	const n = 110
	for i := range n {
		name := fmt.Sprintf("n%03d", i)
		s.Must("up", write(t, name+".yaml", fmt.Sprintf(pair, name)), "--timeout", "30s")
	}
	if all := decode[[]struct{ State string }](t, s.Must("ls", "-o", "json")); len(all) != n {
		t.Errorf("%d networks are listed, want %d", len(all), n)
	} else {
		for i, v := range all {
			if v.State != "running" {
				t.Errorf("network %d is %s", i, v.State)
			}
		}
	}
	for i := 0; i < n; i += 10 {
		s.Must("ping", fmt.Sprintf("n%03d", i))
	}
	s.Must("down", "n000")
	s.Must("down", "--all")
	nothingLeft(t, s)
}

// refuse runs `up` and expects it to fail with one sentence that names what.
func refuse(t *testing.T, s *testenv.Service, file string, code int, what ...string) {
	t.Helper()
	stdout, stderr, got := s.Trellis("up", file, "--timeout", "10s")
	if got != code {
		t.Errorf("exit status %d, want %d: %s%s", got, code, stdout, stderr)
	}
	if code == 1 && (outcome{stderr: stderr}).sentences() != 1 {
		t.Errorf("not one sentence: %s", stderr)
	}
	for _, w := range what {
		if !strings.Contains(stderr, w) {
			t.Errorf("the message does not say %q: %s", w, stderr)
		}
	}
}

func TestWhatCannotBeMadeIsRefusedInOneSentence(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	network := func(nodes, links string) string {
		return write(t, "net.yaml", "name: no\nrouting: static\nnodes: "+nodes+"\nlinks: "+links+"\n")
	}
	// Whatever fails leaves nothing once it is taken down; and what is known
	// before anything is made leaves nothing at all.
	for _, c := range []struct {
		name, nodes, links string
		early              bool
		says               []string
	}{
		{"a directory that is not there", "{a: {image: /nonexistent/rootfs}, b: {}}", "[[a, b]]", true, []string{"/nonexistent/rootfs"}},
		{"an archive that is none", "{a: {image: " + write(t, "x.tar", strings.Repeat("no archive ", 100)) + "}, b: {}}", "[[a, b]]", false, []string{"x.tar"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			refuse(t, s, network(c.nodes, c.links), 1, c.says...)
			s.Must("down", "no")
			nothingLeft(t, s)
		})
	}
	t.Run("a delay without netem", func(t *testing.T) {
		if _, err := testenv.NewNetNS(t).Command("tc", "qdisc", "add", "dev", "lo", "root", "netem").CombinedOutput(); err == nil {
			t.Skip("needs a kernel without netem")
		}
		s.Must("up", write(t, "ok.yaml", fmt.Sprintf(pair, "no")))
		before := show(t, s, "no")
		refuse(t, s, write(t, "ok.yaml", strings.Replace(fmt.Sprintf(pair, "no"), "[[a, b]]", "[{endpoints: [a, b], delay: 10ms}]", 1)), 1, "netem")
		if _, stderr, code := s.Trellis("link", "set", "no", before.Links[0].Name, "--delay", "10ms"); code != 1 || !strings.Contains(stderr, "netem") {
			t.Errorf("link set --delay: exit status %d, %s", code, stderr)
		}
		s.Must("up", write(t, "ok.yaml", fmt.Sprintf(pair, "no")))
		if after := show(t, s, "no"); after.pid(t, "a") != before.pid(t, "a") {
			t.Error("the node was restarted")
		}
		s.Must("ping", "no")
		s.Must("down", "no")
	})
	t.Run("a name that the root context has", func(t *testing.T) {
		file := write(t, "pair.yaml", fmt.Sprintf(pair, "no"))
		s.Must("up", file)
		device := show(t, s, "no").device(t, "a", "eth1")
		s.Must("down", "no")
		s.NS.IPBatch(t, "link add "+device+" type veth peer name squatter")
		refuse(t, s, file, 1, device)
		if out := s.NS.IP(t, "-br", "link", "show", device); !strings.Contains(out, device) {
			t.Error("the machine's own interface was taken away")
		}
		s.NS.IPBatch(t, "link del "+device)
		s.Must("up", file)
		s.Must("ping", "no")
		s.Must("down", "no")
	})
	nothingLeft(t, s)
}

func TestMissingRuntime(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "pair.yaml", fmt.Sprintf(pair, "p"))
	for _, runtime := range []string{"/nonexistent/crun", "no-such-runtime"} {
		t.Run(runtime, func(t *testing.T) {
			dir := t.TempDir()
			binary, err := testenv.Binary()
			if err != nil {
				t.Fatal(err)
			}
			// Either the service does not start, or it cannot make networks.
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var errs bytes.Buffer
			cmd := exec.CommandContext(ctx, binary, "serve", "--runtime", runtime, "--run-dir", filepath.Join(dir, "run"), "--state-dir", filepath.Join(dir, "state"))
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
			cmd.Stderr = &errs
			if err := s.NS.Start(cmd); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // its exit status is in ProcessState
			if ctx.Err() != nil {
				t.Errorf("serve runs without a runtime: %s", errs.String())
			}
			if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(errs.String(), runtime) || (outcome{stderr: errs.String()}).sentences() != 1 {
				t.Errorf("exit status %d: %s", cmd.ProcessState.ExitCode(), errs.String())
			}
			if mounts, err := os.ReadFile("/proc/mounts"); err != nil || bytes.Contains(mounts, []byte(dir)) {
				t.Errorf("a mount is left below %s: %v", dir, err)
			}
		})
	}
	s.Must("up", file)
}

// TestFullDisk lets the state directory run full.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	small := t.TempDir()
	testenv.NeedRoot(t, "makes network namespaces")
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=200m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := testenv.StartService(t, testenv.Options{Args: []string{"--state-dir", small}})
	kept := write(t, "kept.yaml", fmt.Sprintf(pair, "kept"))
	s.Must("up", kept)
	gone := write(t, "gone.yaml", fmt.Sprintf(pair, "gone"))
	s.Must("up", gone)
	// The disk runs full while a network is made: its exec takes that long.
	more := write(t, "more.yaml", strings.Replace(fmt.Sprintf(pair, "more"), "a: {}", `a: {exec: ["sleep 5"]}`, 1))
	upped := make(chan outcome, 1)
	go func() { upped <- upWithin(s, more, "8s") }()
	eventually(t, 20*time.Second, "more is being made", func() bool {
		out, _, code := s.Trellis("exec", "more/a", "--", "pgrep", "-x", "sleep")
		return code == 0 && strings.TrimSpace(out) != ""
	})
	filler := filepath.Join(small, "filler")
	fill(t, filler)
	// What runs goes on running; what is asked for is done, or refused in a
	// sentence that names the disk.
	for _, o := range []outcome{upWithin(s, write(t, "late.yaml", fmt.Sprintf(pair, "late")), "15s"), <-upped} {
		if o.code != 1 || o.sentences() != 1 || !strings.Contains(o.stderr, "the disk that holds "+small) {
			t.Errorf("up on a full disk: exit status %d: %s", o.code, o.stderr)
		}
	}
	s.Must("exec", "kept/a", "--", "ping", "-c1", "-W2", "b")
	fill(t, filler) // what the service has freed meanwhile as well
	s.Must("down", "gone")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if !s.Running() {
		t.Fatal("the service has ended")
	}
	// Nobody asks for it again.
	eventually(t, 30*time.Second, "more runs", func() bool {
		return strings.Contains(s.Must("show", "more"), "more: running")
	})
	s.Must("ping", "kept")
	s.Must("ping", "more")
	s.Must("down", "--all")
	s.Stop() // before its state directory goes
	s.Restart(testenv.Options{Args: []string{"--remove-all"}})
}

// fill takes all that is free on the file system of a file.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{64 << 10, 1} {
		for block := make([]byte, size); err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
}

func upWithin(s *testenv.Service, file, timeout string) (o outcome) {
	_, o.stderr, o.code = s.Trellis("up", file, "--timeout", timeout)
	return o
}

// TestStrictUmask starts the service as a root user with a strict umask does.
// The mask is the process's, so that no other test runs meanwhile.
func TestStrictUmask(t *testing.T) {
	old := unix.Umask(0o077)
	t.Cleanup(func() { unix.Umask(old) })
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "strict.yaml", fmt.Sprintf(pair, "strict")))
	s.Must("ping", "strict")
	s.Must("down", "strict")
}

// TestInterrupt presses Ctrl-C in the middle of an `up`.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "ring.yaml", fmt.Sprintf(shapes["ring"], "ring", "ospf"))
	for _, after := range []time.Duration{10, 60, 300, 1000} {
		var errs bytes.Buffer
		cmd := s.Command(t.Context(), "up", file)
		cmd.Stderr = &errs
		if err := s.NS.Start(cmd); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after * time.Millisecond)
		begin := time.Now()
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 1 && code != -1 || time.Since(begin) > 2*time.Second {
			t.Errorf("after %d ms: exit status %d, %v later: %s", after, code, time.Since(begin), errs.String())
		}
		// Before the program could set up its signals, the signal ends it.
		if out := (outcome{stderr: errs.String()}); cmd.ProcessState.ExitCode() == 1 && (out.sentences() != 1 || !strings.Contains(out.stderr, "trellis down ring")) {
			t.Errorf("after %d ms it does not say how to go on: %s", after, out.stderr)
		}
		s.Must("down", "ring")
		nothingLeft(t, s)
	}
}
