package container

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trellis/internal/vnet"
	"trellis/test/testenv"
)

// A kernel may have control groups of both versions and take no programs that bound
// nodes: nodes start all the same.
func TestStartsWithoutConfinement(t *testing.T) {
	r := newRuntime(t, Config{})
	if err := r.confined.Close(); err != nil {
		t.Fatal(err)
	}
	r.confined = nil
	s := spec("a")
	mustStart(t, r, s)
	mustRun(t, r, s.ID, "true")
}

func TestHeldUntilReleased(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Dirs = []string{"/etc/deep/er"}
	if err := r.SetHosts(s.VNet, []byte("192.0.2.1 b\n")); err != nil {
		t.Fatal(err)
	}
	s.Files = []vnet.File{{Path: "/etc/deep/file", Content: []byte("content"), Mode: 0o600}, {Path: "/var/run/x/y", Content: []byte("z")}}
	s.Env = map[string]string{"COLOR": "green"}
	s.Cmd = []string{"/bin/sh", "-c", "echo $COLOR > /tmp/ran; exit 7"}
	s.Fingerprint = "print"
	h, err := r.Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Start(t.Context(), s); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("second start of the same container: %v", err)
	}
	states, err := r.List(t.Context())
	if err != nil || len(states) != 1 {
		t.Fatal(states, err)
	}
	if st := states[0]; !st.Running || st.Released || st.Pid != h.Pid() || st.Fingerprint != "print" || st.Limits != s.Limits || st.ServicesDigest != Digest(nil) {
		t.Errorf("held container is listed as %#v", st)
	}
	time.Sleep(50 * time.Millisecond)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/root/tmp/ran", h.Pid())); !os.IsNotExist(err) {
		t.Errorf("the command ran before the release: %v", err)
	}
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command has ended", func() bool {
		st, err := r.Stat(s.ID)
		return err == nil && len(st.Services) == 1 && st.Services[0] == ServiceStatus{Name: "command", State: ServiceExited, Exit: 7}
	})
	h.Abort() // of a released one: nothing
	want := map[string]string{
		"cat /tmp/ran": "green", "cat /etc/hosts": "192.0.2.1 b", "hostname": "a", "cat /run/x/y": "z",
		"stat -c %a:%u:%g /etc/deep/file": "600:0:0", "stat -c %a:%U /etc/deep/er": "755:root",
		"echo $COLOR": "green", "cat /proc/1/comm": "init", "stat -c %U /etc/frr": "frr",
	}
	for command, answer := range want {
		if out := mustRun(t, r, s.ID, command); out != answer {
			t.Errorf("%s: %q, want %q", command, out, answer)
		}
	}
	if err := r.SetFingerprint(s.ID, "other"); err != nil {
		t.Error(err)
	}
	if states, _ = r.List(t.Context()); !states[0].Released || states[0].Fingerprint != "other" {
		t.Errorf("released container is listed as %#v", states[0])
	}
}

func TestAbort(t *testing.T) {
	r := newRuntime(t, Config{})
	h, err := r.Start(t.Context(), spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	h.Abort()
	h.Abort()
	checkClean(t, r)
	if err := h.Release(); err == nil {
		t.Error("an aborted container can be released")
	}
}

func TestBadStartLeavesNothing(t *testing.T) {
	r := newRuntime(t, Config{})
	bad := map[string]func(*Spec){
		"name":    func(s *Spec) { s.Node = "../x" },
		"id":      func(s *Spec) { s.IDBase = 0 },
		"image":   func(s *Spec) { s.Image = "/nowhere/image.tar" },
		"file":    func(s *Spec) { s.Files = []vnet.File{{Path: "/proc/x", Content: []byte("x")}} },
		"service": func(s *Spec) { s.Services = []Service{{Name: "x", Argv: []string{"relative"}}} },
		"disk":    func(s *Spec) { s.Files = []vnet.File{{Path: "/big", Content: make([]byte, 17<<20)}} },
	}
	for name, spoil := range bad {
		s := spec("a")
		spoil(&s)
		if _, err := r.Start(t.Context(), s); err == nil {
			t.Errorf("%s: started", name)
		}
		checkClean(t, r)
	}
}

func TestAdoption(t *testing.T) {
	cfg := newRuntime(t, Config{}).cfg
	first, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := spec("a")
	s.Services = []Service{{Name: "sleeper", Argv: []string{"/bin/sleep", "1000"}}}
	h := mustStart(t, first, s)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := newRuntime(t, cfg)
	states, err := second.List(t.Context())
	if err != nil || len(states) != 1 {
		t.Fatal(states, err)
	}
	st := states[0]
	if !st.Running || !st.Released || st.Pid != h.Pid() || st.ServicesDigest != Digest(s.Services) {
		t.Errorf("adopted container is listed as %#v", st)
	}
	gone, err := second.Exited(st)
	if err != nil {
		t.Fatal(err)
	}
	mustRun(t, second, s.ID, "true")
	select {
	case <-gone:
		t.Fatal("a running container is reported to have exited")
	default:
	}
	if err := syscall.Kill(st.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		t.Fatal("the exit was not noticed")
	}
	if states, _ = second.List(t.Context()); len(states) != 1 || states[0].Running {
		t.Errorf("dead container is listed as %#v", states)
	}
	if gone, err = second.Exited(states[0]); err != nil {
		t.Fatal(err)
	}
	<-gone
}

func TestManyAtOnce(t *testing.T) {
	r := newRuntime(t, Config{})
	var wg sync.WaitGroup
	var ids []ID
	for i := range 24 {
		s := spec(fmt.Sprintf("n%d", i))
		ids = append(ids, s.ID)
		wg.Go(func() {
			h, err := r.Start(context.Background(), s)
			if err == nil {
				err = h.Release()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		// The runtime's own processes count until the kernel has let go of them.
		eventually(t, id.String()+" is one process in less than 1.5 MiB", func() bool {
			s, err := r.Stat(id)
			return err == nil && s.Pids == 1 && s.Memory > 0 && s.Memory < 3<<19
		})
	}
	if err := r.Remove(t.Context(), ids...); err != nil {
		t.Error(err)
	}
	checkClean(t, r)
}

// TestCrash kills a process at every fault point, and finds what it left.
func TestCrash(t *testing.T) {
	if os.Getenv("TRELLIS_FAULT") != "" {
		crash(t)
		return
	}
	cfg := newRuntime(t, Config{}).cfg
	points := []string{"claimed", "recorded", "cgroups", "assembled", "running", "held", "releasing", "released",
		"killed", "nogroups", "nostate"}
	for _, p := range points {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$")
		cmd.Env = append(os.Environ(), "TRELLIS_FAULT=container/"+p, "TRELLIS_TEST_RUN="+cfg.RunDir,
			"TRELLIS_TEST_STATE="+cfg.StateDir, "TRELLIS_TEST_INSTANCE="+cfg.Instance)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("%s: the process was not killed there: %v: %s", p, err, out)
		}
		r, err := New(cfg) // the service that comes next
		if err != nil {
			t.Fatal(err)
		}
		states, err := r.List(t.Context())
		if err != nil || len(states) != 1 {
			t.Errorf("%s: left %v, %v; want one container to be seen", p, states, err)
			continue
		}
		if p == "released" {
			if !states[0].Running || !states[0].Released {
				t.Errorf("a released node died with the process: %#v", states[0])
			}
			mustRun(t, r, states[0].ID, "true")
		} else {
			eventually(t, p+": its init has ended", func() bool {
				states, err := r.List(t.Context())
				return err == nil && len(states) == 1 && !states[0].Running
			})
		}
		if _, err := r.Start(t.Context(), spec("crash")); err == nil {
			t.Errorf("%s: started on top of leftovers", p)
		}
		if err := r.Remove(t.Context(), states[0].ID); err != nil {
			t.Errorf("%s: %v", p, err)
		}
		checkClean(t, r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// crash is the process that is killed.
func crash(t *testing.T) {
	r, err := New(Config{Instance: os.Getenv("TRELLIS_TEST_INSTANCE"), RunDir: os.Getenv("TRELLIS_TEST_RUN"),
		StateDir: os.Getenv("TRELLIS_TEST_STATE")})
	if err != nil {
		t.Fatal(err)
	}
	mustStart(t, r, spec("crash"))
	if err := r.Remove(context.Background(), ID{"test", "crash"}); err != nil {
		t.Fatal(err)
	}
}

func TestMissingRuntime(t *testing.T) {
	testenv.NeedRoot(t, "makes a runtime")
	t.Setenv("PATH", t.TempDir())
	for name, remedy := range map[string]string{"": "apt-get install crun", "runc": "apt-get install runc", "/nowhere/crun": "give the path"} {
		if _, err := New(Config{Instance: "t", RunDir: t.TempDir(), StateDir: t.TempDir(), Runtime: name}); err == nil || !strings.Contains(err.Error(), remedy) {
			t.Errorf("runtime %q: %v, want a remedy: %s", name, err, remedy)
		}
	}
}
