package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// SandboxOptions of [StartSandbox].
type SandboxOptions struct {
	Hosts    []string // names; alpha, beta, gamma if none is given
	Memory   string   // of each host, 1GiB if empty
	Underlay string   // YAML of the underlay, {ipv4: 192.0.2.0/24, ipv6: "2001:db8::/64", mtu: 1500} if empty
}

// sandboxFile is the description of a test's sandbox, in its directory.
const sandboxFile = "sandbox.yaml"

// Sandbox is several substrate nodes in namespaces of their own, each with a
// service of its own, made by `trellis sandbox`.
type Sandbox struct {
	Name     string
	RunDir   string // of the sandboxes; that of a host is in Hosts
	StateDir string
	Hosts    []*Host // as given; the first one keeps the store

	t      testing.TB
	binary string
	dir    string
	// spaces holds the network namespaces that it has had, so that their numbers
	// mean nothing else while the test runs.
	spaces []*os.File
}

// Host is a substrate node of a sandbox.
type Host struct {
	Name     string
	RunDir   string
	Instance string
	PID      int // of its service; 0: it does not run
	State    string
	Cut      []string
	PathMTU  int

	sandbox *Sandbox
}

// StartSandbox makes a sandbox and waits until its hosts have joined. When the
// test ends, it takes the sandbox down and fails the test if anything is left of
// it. It skips the test where it does not run as root.
func StartSandbox(t testing.TB, o SandboxOptions) *Sandbox {
	t.Helper()
	NeedRoot(t, "makes network namespaces")
	NeedCommand(t, "ip", "nsenter", "crun")
	sweepStale(t)
	binary, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", prefix())
	if err != nil {
		t.Fatal(err)
	}
	s := &Sandbox{
		Name: "t", RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state"),
		t: t, binary: binary, dir: dir,
	}
	if len(o.Hosts) == 0 {
		o.Hosts = []string{"alpha", "beta", "gamma"}
	}
	if o.Memory == "" {
		o.Memory = "1GiB"
	}
	text := "name: " + s.Name + "\nhosts:\n"
	for _, h := range o.Hosts {
		text += "  " + h + ": {memory: " + o.Memory + ", cpu: 2}\n"
	}
	if o.Underlay != "" {
		text += "underlay: " + o.Underlay + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, sandboxFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	s.Sandbox("up", s.File())
	s.refresh()
	return s
}

// File is the path of the sandbox's description.
func (s *Sandbox) File() string { return filepath.Join(s.dir, sandboxFile) }

func (s *Sandbox) pin(host string) string {
	return filepath.Join(s.RunDir, "sandbox", s.Name, "netns", host)
}

// refresh reads what `trellis sandbox ls` says.
func (s *Sandbox) refresh() {
	s.t.Helper()
	var all []struct{ Hosts []*Host }
	text := s.Sandbox("ls", "-o", "json")
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 1 {
		s.t.Fatalf("sandbox ls: %v\n%s", err, text)
	}
	s.Hosts = all[0].Hosts
	for _, h := range s.Hosts {
		h.sandbox = s
	}
}

// Host gives a host as it is now.
func (s *Sandbox) Host(name string) *Host {
	s.t.Helper()
	s.refresh()
	for _, h := range s.Hosts {
		if h.Name == name {
			return h
		}
	}
	s.t.Fatalf("the sandbox has no host %s", name)
	return nil
}

// Sandbox runs a verb of `trellis sandbox`, which must succeed, and returns its
// standard output.
func (s *Sandbox) Sandbox(args ...string) string {
	s.t.Helper()
	stdout, stderr, code := s.TrySandbox(nil, args...)
	if code != 0 {
		s.t.Fatalf("trellis sandbox %s: exit status %d\n%s%s\n%s", strings.Join(args, " "), code, stdout, stderr, s.tail())
	}
	if args[0] == "up" {
		s.hold()
	}
	return stdout
}

// hold opens the sandbox's namespaces.
func (s *Sandbox) hold() {
	s.t.Helper()
	pins, err := filepath.Glob(s.pin("*"))
	if err != nil || len(pins) == 0 {
		s.t.Fatalf("the sandbox has the namespaces %q, %v", pins, err)
	}
	for _, pin := range pins {
		f, err := os.Open(pin)
		if err != nil {
			s.t.Fatal(err)
		}
		s.spaces = append(s.spaces, f)
	}
}

// TrySandbox runs a verb of `trellis sandbox`, with more for its environment.
func (s *Sandbox) TrySandbox(env []string, args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	env = append(env, "TRELLIS_RUN_DIR="+s.RunDir, "TRELLIS_STATE_DIR="+s.StateDir)
	return run(s.t, s.binary, env, append([]string{"sandbox"}, args...))
}

// TryAnywhere runs the command line as one does who knows of no host.
func (s *Sandbox) TryAnywhere(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	return run(s.t, s.binary, []string{"TRELLIS_RUN_DIR=" + s.RunDir}, args)
}

// Interrupted runs a verb of `trellis sandbox` and kills it after some time,
// whatever it is at. What it has started stays.
func (s *Sandbox) Interrupted(after time.Duration, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), after)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, append([]string{"sandbox"}, args...)...)
	cmd.Env = append(os.Environ(), "TRELLIS_RUN_DIR="+s.RunDir, "TRELLIS_STATE_DIR="+s.StateDir)
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// Trellis runs the command line against the first host.
func (s *Sandbox) Trellis(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	return s.Hosts[0].Trellis(args...)
}

// Must is Trellis where nothing but success will do.
func (s *Sandbox) Must(args ...string) string {
	s.t.Helper()
	return s.Hosts[0].Must(args...)
}

// Trellis runs the command line against the host.
func (h *Host) Trellis(args ...string) (stdout, stderr string, code int) {
	h.sandbox.t.Helper()
	return run(h.sandbox.t, h.sandbox.binary, []string{"TRELLIS_RUN_DIR=" + h.RunDir}, args)
}

// Command returns a command that runs the command line against the host.
func (h *Host) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, h.sandbox.binary, args...)
	cmd.Env = append(os.Environ(), "TRELLIS_RUN_DIR="+h.RunDir)
	return cmd
}

// Must is Trellis where nothing but success will do: it returns the standard
// output, and ends the test at any exit status but 0.
func (h *Host) Must(args ...string) string {
	t := h.sandbox.t
	t.Helper()
	stdout, stderr, code := h.Trellis(args...)
	if code != 0 {
		t.Fatalf("trellis %s: exit status %d\n%s%s\n%s", strings.Join(args, " "), code, stdout, stderr, h.sandbox.tail())
	}
	return stdout
}

// Do runs f on a thread in the network namespace of a host, or of the fabric.
func (s *Sandbox) Do(host string, f func() error) error {
	file, err := os.Open(s.pin(host))
	if err != nil {
		return err
	}
	defer file.Close()
	return (&NetNS{file}).Do(f)
}

// Exec runs a command in the network of a host, or of the fabric.
func (s *Sandbox) Exec(host string, argv ...string) string {
	s.t.Helper()
	return s.Sandbox(append([]string{"exec", host, "--"}, argv...)...)
}

// run runs the command line, for at most five minutes.
func run(t testing.TB, binary string, env, args []string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	// Services that it starts keep none of the two open.
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run trellis %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// tail is the end of each host's log.
func (s *Sandbox) tail() string {
	logs, err := filepath.Glob(filepath.Join(s.StateDir, "sandbox", s.Name, "*", "trellis.log"))
	if err != nil {
		return err.Error()
	}
	var all strings.Builder
	for _, path := range logs {
		b, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		const most = 8 << 10
		fmt.Fprintf(&all, "--- log of %s ---\n%s", filepath.Base(filepath.Dir(path)), b[max(0, len(b)-most):])
	}
	return all.String()
}

// Leftovers returns what is left of the sandbox on the machine: cgroups,
// processes, mounts, files.
func (s *Sandbox) Leftovers() ([]string, error) {
	var left []string
	mounts, err := mountsBelow(s.dir)
	for _, m := range mounts {
		left = append(left, "mount "+m)
	}
	for _, h := range s.Hosts {
		groups, e := Cgroups(h.Instance)
		err = errors.Join(err, e)
		for _, g := range groups {
			left = append(left, "cgroup "+g)
		}
	}
	processes, e := s.processes()
	err = errors.Join(err, e)
	left = append(left, processes...)
	for _, dir := range []string{s.RunDir, s.StateDir} {
		e := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if path != dir {
				left = append(left, "file "+path)
			}
			return err
		})
		err = errors.Join(err, e)
	}
	return left, err
}

// processes returns the processes in the sandbox's namespaces, and in the cgroups
// of its hosts.
func (s *Sandbox) processes() ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	own := map[uint64]bool{}
	for _, space := range s.spaces {
		var st unix.Stat_t
		if err := unix.Fstat(int(space.Fd()), &st); err != nil {
			return nil, err
		}
		own[st.Ino] = true // all namespaces are on one device
	}
	var found []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || ended(pid) {
			continue
		}
		// A process may end at any moment: what cannot be read is not there.
		groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		var ns unix.Stat_t
		ours := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &ns) == nil && own[ns.Ino]
		for _, h := range s.Hosts {
			ours = ours || strings.Contains(string(groups), "/trellis-"+h.Instance+"/")
		}
		if ours {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			found = append(found, fmt.Sprintf("process %d %s", pid, strings.TrimSpace(string(name))))
		}
	}
	return found, nil
}

// end takes the sandbox down, and says what did not go.
func (s *Sandbox) end() {
	if s.t.Failed() {
		s.t.Log(s.tail())
	}
	if _, stderr, code := s.TrySandbox(nil, "down"); code != 0 {
		s.t.Errorf("trellis sandbox down: exit status %d\n%s", code, stderr)
		return // the next test run tries again
	}
	left, err := s.Leftovers()
	if err != nil {
		s.t.Errorf("look at what is left: %v", err)
	}
	for _, what := range left {
		s.t.Errorf("left behind after sandbox down: %s", what)
	}
	for _, space := range s.spaces {
		space.Close()
	}
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Error(err)
	}
}

// sweepSandbox removes a sandbox that a process which is gone has left.
func sweepSandbox(t testing.TB, dir string) {
	binary, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"TRELLIS_RUN_DIR=" + filepath.Join(dir, "run"), "TRELLIS_STATE_DIR=" + filepath.Join(dir, "state")}
	if _, stderr, code := run(t, binary, env, []string{"sandbox", "down"}); code != 0 {
		t.Errorf("sweep the sandbox in %s: %s", dir, stderr)
	}
}
