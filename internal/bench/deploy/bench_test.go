package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trellis/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// command runs `trellis bench deploy` with the arguments.
func command(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	testenv.NeedRoot(t, "makes network namespaces")
	testenv.NeedCommand(t, "crun")
	trellis, err := testenv.Binary()
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	cmd = exec.Command(trellis, append([]string{"bench", "deploy", "-o", "json"}, args...)...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// A TRELLIS_ADDRESS of the user's would measure their service.
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TRELLIS_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	return cmd, stdout, stderr
}

// homes lists the throw-away services that are there, running or not.
func homes(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, root := range []string{stateRoot, runRoot} {
		paths, err := filepath.Glob(root + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			found[p] = true
		}
	}
	return found
}

// newHomes gives those that were not there before.
func newHomes(t *testing.T, before map[string]bool) []string {
	t.Helper()
	var list []string
	for p := range homes(t) {
		if !before[p] {
			list = append(list, p)
		}
	}
	return list
}

func TestBenchDeploy(t *testing.T) {
	cmd, stdout, stderr := command(t, "--ring", "3", "--hosts", "2", "--routers", "1", "--routing", "static", "--repeat", "2", "--settle", "10ms")
	before := homes(t)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	var r Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, stdout)
	}
	if len(r.Cases) != 2 || r.Machine.CPU == "" || r.Service == "" {
		t.Fatalf("the report is incomplete:\n%s", stdout)
	}
	for i, method := range []string{Loopbacks, Neighbours} {
		c := r.Cases[i]
		if !c.Passed() || len(c.Samples) != 2 {
			t.Errorf("%s did not pass: %+v", c.Name, c)
			continue
		}
		for _, name := range []string{Created, Converged, Unchanged, LinkAdded, Down} {
			if s := c.Summary.Seconds[name]; s.Samples != 2 || s.Min <= 0 || s.Max > 60 {
				t.Errorf("%s: %s takes %+v seconds", c.Name, name, s)
			}
		}
		for _, name := range []string{NodeCgroup, ServiceIdle, ServiceUp, ServiceDown} {
			if s := c.Summary.Bytes[name]; s.Samples != 2 || s.Min < 64<<10 {
				t.Errorf("%s: %s is %+v bytes", c.Name, name, s)
			}
		}
		if s := c.Summary.CPU[CPUUp]; s.Samples != 2 {
			t.Errorf("%s: %s is %+v seconds", c.Name, CPUUp, s)
		}
		if s := c.Samples[0]; s.Reach.Method != method || s.Reach.Pairs == 0 || len(s.Phases) == 0 {
			t.Errorf("%s: %+v, phases %v", c.Name, s.Reach, s.Phases)
		}
	}
	if left := newHomes(t, before); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// awaitCreating waits until a bench has begun to build its network.
func awaitCreating(t *testing.T, started time.Time, before map[string]bool) {
	t.Helper()
	for {
		for _, home := range newHomes(t, before) {
			if log, err := os.ReadFile(filepath.Join(home, "log")); err == nil && bytes.Contains(log, []byte("admitted")) {
				return
			}
		}
		if time.Since(started) > 30*time.Second {
			t.Fatal("no network is admitted after 30 s")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestBenchDeployInterrupted(t *testing.T) {
	cmd, _, stderr := command(t, "--ring", "20", "--settle", "10ms")
	before := homes(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitCreating(t, time.Now(), before)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("it ends with %v and says\n%s", err, stderr)
	}
	if left := newHomes(t, before); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

func TestBenchDeployRemovesWhatAKilledOneHasLeft(t *testing.T) {
	killed, _, _ := command(t, "--ring", "20", "--settle", "10ms")
	before := homes(t)
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	awaitCreating(t, time.Now(), before)
	tag := instance(t, newHomes(t, before))
	for deadline := time.Now().Add(10 * time.Second); len(processes(t, tag)) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no node has started after 10 s")
		}
	}
	if err := killed.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := killed.Wait(); err == nil {
		t.Fatal("it survives SIGKILL")
	}
	left := newHomes(t, before)
	if len(left) == 0 {
		t.Fatal("a bench that was killed has left nothing: there is nothing to test")
	}
	cmd, _, stderr := command(t, "--ring", "3", "--repeat", "1", "--settle", "10ms")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	if !strings.Contains(stderr.String(), "removing what a measurement that was killed has left") {
		t.Errorf("it does not say what it removes:\n%s", stderr)
	}
	if left := newHomes(t, before); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	if pids := processes(t, tag); len(pids) > 0 {
		t.Errorf("the processes %v of the killed one's nodes are left", pids)
	}
}

// instance finds the tag of a throw-away service in its log.
func instance(t *testing.T, left []string) string {
	t.Helper()
	for _, home := range left {
		log, err := os.ReadFile(filepath.Join(home, "log"))
		if err != nil {
			continue // the run directory
		}
		if _, rest, ok := strings.Cut(string(log), "instance="); ok {
			return strings.Fields(rest)[0]
		}
	}
	t.Fatalf("no log in %v names the instance", left)
	return ""
}

// processes gives those that are in a control group of the instance.
func processes(t *testing.T, tag string) (pids []string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		if groups, err := os.ReadFile(p); err == nil && bytes.Contains(groups, []byte("/trellis-"+tag+"/")) {
			pids = append(pids, filepath.Base(filepath.Dir(p)))
		}
	}
	return pids
}
