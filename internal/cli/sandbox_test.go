package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeSandbox makes what a client sees of a sandbox below env's run directory:
// its record, and the lock of each host whose service runs. It gives the
// environments of these hosts.
func fakeSandbox(t *testing.T, env *testEnv, name string, hosts []string, running ...string) []*testEnv {
	t.Helper()
	run, state := filepath.Join(env.RunDir, "sandbox", name), filepath.Join(env.RunDir, "state", "sandbox", name)
	var list []string
	for _, h := range hosts {
		list = append(list, fmt.Sprintf(`{"name":%q}`, h))
	}
	for _, dir := range []string{run, state} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	record := fmt.Sprintf(`{"name":%q,"hosts":[%s],"underlay":{"ipv4":"192.0.2.0/24","mtu":1500}}`, name, strings.Join(list, ","))
	if err := os.WriteFile(filepath.Join(state, "sandbox.json"), []byte(record), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(state, filepath.Join(run, "state")); err != nil {
		t.Fatal(err)
	}
	var envs []*testEnv
	for _, h := range running {
		e := newTestEnv(t)
		e.RunDir = filepath.Join(run, h)
		if err := os.Mkdir(e.RunDir, 0o755); err != nil {
			t.Fatal(err)
		}
		// Whoever has this file open, with its id in it, is the service.
		lock, err := os.Create(filepath.Join(e.RunDir, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { lock.Close() })
		fmt.Fprintln(lock, os.Getpid())
		envs = append(envs, e)
	}
	return envs
}

func TestVerbsAskTheSandboxWhereNothingElseRuns(t *testing.T) {
	env := newTestEnv(t)
	fakeSandbox(t, env, "three", []string{"zulu", "mike", "alpha"}, "alpha", "mike")
	host := *env
	host.Env = &Env{RunDir: filepath.Join(env.RunDir, "sandbox", "three", "mike")}
	f, machine := startFake(t)
	f.listen(t, &host)

	// zulu, the first one, does not run.
	const note = "trellis: no service runs on this machine itself; asking host mike of sandbox three\n"
	if got := env.run("ls"); got != 0 || env.err.String() != note || !strings.Contains(env.out.String(), "triangle") {
		t.Errorf("ls: exit status %d\n%s%s", got, env.out.String(), env.err.String())
	}

	// A service of the machine's own, or an address, comes first.
	fakeSandbox(t, machine, "other", []string{"a"}, "a")
	if got := machine.run("ls"); got != 0 || machine.err.String() != "" {
		t.Errorf("ls beside a service: exit status %d, %s", got, machine.err.String())
	}
	env.RunDir = filepath.Dir(filepath.Dir(filepath.Dir(host.RunDir)))
	env.wantError(1, "no service answers at unix:///nowhere", "ls", "--address", "unix:///nowhere")
}

func TestSeveralSandboxesAreAQuestion(t *testing.T) {
	env := newTestEnv(t)
	fakeSandbox(t, env, "one", []string{"a"}, "a")
	fakeSandbox(t, env, "two", []string{"a", "b"}, "b")
	fakeSandbox(t, env, "asleep", []string{"a"})
	env.wantError(1, "several sandboxes (one, two); name a host of one with --run-dir "+env.RunDir+"/sandbox/SANDBOX/HOST", "ls")
}

func TestASandboxThatIsDownIsNotAsked(t *testing.T) {
	env := newTestEnv(t)
	fakeSandbox(t, env, "one", []string{"a"})
	env.wantError(1, "no service answers at unix://"+env.RunDir, "ls")
}

func TestMistakesWithSandboxes(t *testing.T) {
	env := newTestEnv(t)
	state := filepath.Join(env.RunDir, "s")
	bad := env.file("bad.yaml", "name: a\nhosts:\n  b: {memroy: 1GiB}\n")
	env.wantError(2, bad+`:3: unknown key "memroy" in host b; did you mean "memory"?`, "sandbox", "up", bad, "--state-dir", state)
	env.wantError(2, "/nowhere.yaml: cannot be read: no such file or directory", "sandbox", "up", "/nowhere.yaml", "--state-dir", state)
	env.wantError(2, "needs a --state-dir of its own", "sandbox", "ls")
	env.wantError(2, `unknown verb "sandbox lss"; did you mean "ls"?`, "sandbox", "lss")
	env.wantError(2, "the form is `trellis sandbox cut HOST [HOST]`", "sandbox", "cut", "--state-dir", state)
	env.wantError(2, `"wide" is no number of bytes`, "sandbox", "mtu", "a", "wide", "--state-dir", state)
	env.wantError(2, "delay", "sandbox", "delay", "a", "soon", "--state-dir", state)
	env.wantError(1, "there is no sandbox; `trellis sandbox up FILE` makes one", "sandbox", "cut", "a", "--state-dir", state)
	env.want(0, "no sandbox; `trellis sandbox up FILE` makes one\n", "sandbox", "ls", "--state-dir", state)
	env.want(0, "[]\n", "sandbox", "ls", "-o", "json", "--state-dir", state)
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("a mistake has made %s: %v", state, err)
	}
}
