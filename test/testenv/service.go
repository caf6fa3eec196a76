package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// How long a service may take to answer after its start, and to end when asked.
const (
	startTimeout = 30 * time.Second
	stopTimeout  = 30 * time.Second
)

// Options of [StartService].
type Options struct {
	Args []string // more arguments for `trellis serve`
	Env  []string // NAME=value, more for the service's environment
}

// Service is an instance of Trellis with a network namespace, a state directory
// and a run directory of its own. The namespace is its root context.
type Service struct {
	NS       *NetNS
	StateDir string
	RunDir   string
	Instance string // tag of what it owns

	t        testing.TB
	options  Options
	binary   string
	dir      string
	cmd      *exec.Cmd
	exited   chan struct{} // closed when cmd has ended
	baseline map[string]bool
}

var services atomic.Int32

// StartService starts an instance and waits until it answers. When the test
// ends, it takes down what the instance runs, ends it, and fails the test if
// anything is left of it. It skips the test where it does not run as root.
func StartService(t testing.TB, o Options) *Service {
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
	s := &Service{
		NS:       NewNetNS(t),
		StateDir: filepath.Join(dir, "state"),
		RunDir:   filepath.Join(dir, "run"),
		Instance: instance(os.Getpid(), int(services.Add(1))),
		t:        t, options: o, binary: binary, dir: dir,
	}
	if err := os.WriteFile(filepath.Join(dir, tagFile), []byte(s.Instance), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	s.start()
	if s.baseline, err = s.everything(); err != nil {
		t.Fatalf("look at what a new service has: %v", err)
	}
	return s
}

// prefix starts the names of the directories of this process.
func prefix() string { return fmt.Sprintf("%s%d-", dirPrefix, os.Getpid()) }

// instance makes a tag of at most eight of a-z and 0-9 that no other living
// process uses.
func instance(pid, n int) string {
	return fmt.Sprintf("e%s%02s", strconv.FormatInt(int64(pid), 36), strconv.FormatInt(int64(n%(36*36)), 36))
}

// start runs `trellis serve` and waits until it takes connections.
func (s *Service) start() {
	s.t.Helper()
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	args := append([]string{"serve", "--state-dir", s.StateDir, "--run-dir", s.RunDir, "--instance", s.Instance}, s.options.Args...)
	s.cmd = exec.Command(s.binary, args...)
	s.cmd.Env = append(os.Environ(), s.options.Env...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.NS.Start(s.cmd); err != nil {
		s.t.Fatalf("start the service: %v", err)
	}
	exited := make(chan struct{})
	s.exited = exited
	cmd := s.cmd
	go func() {
		cmd.Wait() // how it ended is in cmd.ProcessState
		close(exited)
	}()
	socket := filepath.Join(s.RunDir, "trellis.sock")
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			return
		}
		select {
		case <-exited:
			s.t.Fatalf("the service ended at once: %v\n%s", cmd.ProcessState, s.tail())
		default:
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the service does not listen on %s after %v\n%s", socket, startTimeout, s.tail())
		}
	}
}

func (s *Service) log() string { return filepath.Join(s.dir, "serve.log") }

// Log gives what the service has logged.
func (s *Service) Log() string {
	b, err := os.ReadFile(s.log())
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// tail is the end of the service's log.
func (s *Service) tail() string {
	b, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}
	const most = 16 << 10
	return "--- log of trellis serve ---\n" + string(b[max(0, len(b)-most):])
}

// PID returns the process id of the service.
func (s *Service) PID() int { return s.cmd.Process.Pid }

// Running reports whether the service's process lives.
func (s *Service) Running() bool {
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

// WaitExit waits until the service's process has ended by itself, as it does at
// a fault point.
func (s *Service) WaitExit(timeout time.Duration) error {
	select {
	case <-s.exited:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("the service still runs after %v", timeout)
	}
}

// Kill9 kills the service's process, and nothing else, without warning.
func (s *Service) Kill9() {
	s.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Fatalf("kill the service: %v", err)
	}
	<-s.exited
}

// Stop ends the service's process as a service manager would.
func (s *Service) Stop() {
	s.t.Helper()
	if err := s.terminate(); err != nil {
		s.t.Fatalf("%v\n%s", err, s.tail())
	}
}

func (s *Service) terminate() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the service: %w", err)
	}
	select {
	case <-s.exited:
		return nil
	case <-time.After(stopTimeout):
		s.cmd.Process.Kill()
		<-s.exited
		return fmt.Errorf("the service did not end within %v of SIGTERM", stopTimeout)
	}
}

// Restart starts the service again, stopping it first if it runs. Options, if
// given, take the place of the former ones.
func (s *Service) Restart(o ...Options) {
	s.t.Helper()
	if s.Running() {
		s.Stop()
	}
	if len(o) > 0 {
		s.options = o[0]
	}
	s.start()
}

// Trellis runs the command line against this instance.
func (s *Service) Trellis(args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := s.Command(ctx, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := s.NS.Start(cmd); err != nil {
		s.t.Fatalf("run trellis %s: %v", strings.Join(args, " "), err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatalf("run trellis %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Command returns a command that runs the command line against this instance,
// for tests that talk to it while it runs. Start it with NS.Start.
func (s *Service) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.binary, args...)
	cmd.Env = append(os.Environ(), "TRELLIS_RUN_DIR="+s.RunDir, "TRELLIS_STATE_DIR="+s.StateDir)
	return cmd
}

// Must is Trellis where nothing but success will do: it returns the standard
// output, and ends the test at any exit status but 0.
func (s *Service) Must(args ...string) string {
	s.t.Helper()
	stdout, stderr, code := s.Trellis(args...)
	if code != 0 {
		s.t.Fatalf("trellis %s: exit status %d\n%s%s\n%s", strings.Join(args, " "), code, stdout, stderr, s.tail())
	}
	return stdout
}

// end takes everything down, and says what did not go.
func (s *Service) end() {
	if s.t.Failed() {
		s.t.Log(s.tail())
	}
	defer sweep(s.t, s.dir, s.Instance)
	// What was put into its environment, a fault for instance, is not for the end.
	if s.Running() && len(s.options.Env) > 0 {
		s.Kill9()
	}
	if !s.Running() {
		s.options.Env = nil
		s.start()
	}
	if _, stderr, code := s.Trellis("down", "--all"); code != 0 {
		s.t.Errorf("trellis down --all: exit status %d\n%s", code, stderr)
	}
	if err := s.terminate(); err != nil {
		s.t.Error(err)
	}
	left, err := s.everything()
	if err != nil {
		s.t.Errorf("look at what is left: %v", err)
	}
	for what := range left {
		if kind, _, _ := strings.Cut(what, " "); kind != "file" {
			s.t.Errorf("left behind after down --all and the end of the service: %s", what)
		}
	}
}
