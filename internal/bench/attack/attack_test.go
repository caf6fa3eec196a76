package attack

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	"trellis/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestRun tries one attack, the smallest, through the command line. What it costs is
// for the bench to say.
func TestRun(t *testing.T) {
	testenv.NeedRoot(t, "starts a service")
	testenv.NeedCommand(t, "crun", "python3")
	trellis, err := testenv.Binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(trellis, "bench", "attack", "message-queues", "--seconds", "4", "-o", "json")
	for _, v := range os.Environ() { // a TRELLIS_ADDRESS of the user's is another service
		if !strings.HasPrefix(v, "TRELLIS_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !(errors.As(err, &exit) && strings.Contains(stderr.String(), "not held")) {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var r Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s\n%s", err, &stdout, &stderr)
	}
	if len(r.Results) != 1 || r.Results[0].Attack != "message-queues" || r.Results[0].RateBefore <= 0 || r.Results[0].RateDuring <= 0 || len(r.Results[0].Failed) > 0 {
		t.Errorf("%+v", r.Results)
	}
}

func TestSelect(t *testing.T) {
	all, err := Select(nil)
	if err != nil || len(all) != len(Attacks()) {
		t.Errorf("%v, %v", all, err)
	}
	one, err := Select([]string{"inotify"})
	if err != nil || len(one) != 1 || one[0].Name != "inotify" {
		t.Errorf("%v, %v", one, err)
	}
	if _, err := Select([]string{"nonesuch"}); err == nil || !strings.Contains(err.Error(), "loop-bridges") {
		t.Errorf("an attack that there is not: %v", err)
	}
}

// TestPrograms checks that each attack has its program, each program its attack, and
// that they are programs.
func TestPrograms(t *testing.T) {
	used := map[string]bool{}
	for _, a := range Attacks() {
		if a.Name == "" || a.What == "" {
			t.Errorf("%+v", a)
		}
		for _, f := range a.files {
			used["scripts/"+f] = true
		}
	}
	if err := fs.WalkDir(files, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if strings.HasPrefix(name, "scripts/") && !used[name] {
			t.Errorf("%s is no attack's", name)
		}
		argv, err := command(name, 5)
		if err != nil {
			return err
		}
		if strings.Contains(argv[2], "SECONDS") {
			t.Errorf("%s does not know how long it lasts", name)
		}
		check := []string{"sh", "-n", "-c", argv[2]}
		if path.Ext(name) == ".py" {
			check = []string{"python3", "-c", "import sys; compile(sys.argv[1], 'x', 'exec')", argv[2]}
		}
		if _, err := exec.LookPath(check[0]); err != nil {
			return nil
		}
		if out, err := exec.Command(check[0], check[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestJudge(t *testing.T) {
	held := Result{RateBefore: 10e9, RateDuring: 9.5e9, RateAfter: 11e9, Verb: 0.1, Up: 0.3, Memory: 60 << 20, Limit: 64 << 20}
	held.judge()
	if len(held.NotHeld) > 0 {
		t.Errorf("%v", held.NotHeld)
	}
	for want, r := range map[string]Result{
		"the victim kept 50 %":        {RateBefore: 10e9, RateDuring: 5e9, RateAfter: 10e9},
		"`trellis ls` took 2.0 s":     {Verb: 2, RateDuring: 1},
		"took 20.0 s to come up":      {Up: 20, RateDuring: 1},
		"the machine lost 1024 MiB":   {Memory: 1 << 30, Limit: 640 << 20, RateDuring: 1},
		"it was ended":                {Ended: true, RateDuring: 1},
		"others could not have: ptys": {Failed: []string{"ptys"}, RateDuring: 1},
	} {
		r.judge()
		if len(r.NotHeld) != 1 || !strings.Contains(r.NotHeld[0], want) {
			t.Errorf("%v, want %q", r.NotHeld, want)
		}
	}
}

// TestAll checks that an attack by many nodes has each of them run several programs, and
// all programs run.
func TestAll(t *testing.T) {
	testenv.Measures(t)
	picked, err := Select([]string{"all"})
	if err != nil {
		t.Fatal(err)
	}
	a, nodes, runs := picked[0], 0, map[string]int{}
	for _, n := range a.networks() {
		if strings.Count(n.text, "interface:") != len(n.nodes) {
			t.Errorf("%s", n.text)
		}
		for range n.nodes {
			for _, p := range a.programs(nodes) {
				runs[p]++
			}
			nodes++
		}
	}
	if nodes != 10 || len(runs) != len(a.files) {
		t.Errorf("%d nodes run %v", nodes, runs)
	}
	argv, err := a.command(3, 5)
	if err != nil || len(argv) != 4+a.atOnce || strings.Count(argv[2], "&") != a.atOnce {
		t.Errorf("%q, %v", argv, err)
	}
	if _, err := exec.LookPath("sh"); err == nil {
		if out, err := exec.Command("sh", "-n", "-c", argv[2]).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", argv[2], err, out)
		}
	}
	if argv, err := Command("device-queues", 7); err != nil || argv[0] != "sh" || strings.Contains(argv[2], "SECONDS") {
		t.Errorf("%q, %v", argv, err)
	}
}
