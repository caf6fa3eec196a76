package format

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// checkRead holds a reader to its promises on any bytes: it ends soon, it
// either loads a network that survives conversion or refuses the file with
// located errors, and it does the same the second time.
func checkRead(t *testing.T, name string, data []byte) {
	start := time.Now()
	v, warnings, err := Read(name, data, nil)
	if took := time.Since(start); took > 5*time.Second {
		t.Fatalf("reading %d bytes took %s", len(data), took)
	}
	again, againWarnings, againErr := Read(name, data, nil)
	if (err == nil) != (againErr == nil) || err != nil && err.Error() != againErr.Error() {
		t.Fatalf("first %v, then %v", err, againErr)
	}
	if err != nil {
		var errs Errors
		if !errors.As(err, &errs) || len(errs) == 0 {
			t.Fatalf("%T is not a list of errors: %v", err, err)
		}
		for _, e := range errs {
			if e.File != name || e.Line < 1 || e.What == "" || strings.Contains(e.What, "\n") {
				t.Fatalf("an error without its place or text: %#v", e)
			}
		}
		return
	}
	if diff := cmp.Diff(v, again, byValue...); diff != "" {
		t.Fatalf("reading twice differs:\n%s", diff)
	}
	if diff := cmp.Diff(warnings, againWarnings); diff != "" {
		t.Fatalf("reading twice warns differently:\n%s", diff)
	}
	roundTrip(t, v)
}

// seeds gives the contents of the files that match a pattern.
func seeds(f *testing.F, pattern string) {
	f.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

func FuzzYAML(f *testing.F) {
	seeds(f, filepath.Join("..", "..", "examples", "*.yaml"))
	seeds(f, filepath.Join("testdata", "*.yaml"))
	for _, c := range append(goodYAML, badYAML...) {
		f.Add([]byte(c.yaml))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkRead(t, "fuzz.yaml", data) })
}

func FuzzGraphML(f *testing.F) {
	seeds(f, filepath.Join("testdata", "*.graphml"))
	f.Fuzz(func(t *testing.T, data []byte) { checkRead(t, "fuzz.graphml", data) })
}

func TestReadersRefuseWhatWouldCostTooMuch(t *testing.T) {
	deep := strings.Repeat("[", 200_000)
	bomb := "a: &a [" + strings.Repeat("x,", 2000) + "x]\n"
	for i := 'b'; i < 'k'; i++ {
		bomb += string(i) + ": &" + string(i) + " [" + strings.Repeat("*"+string(i-1)+",", 500) + "x]\n"
	}
	merge := "x: &a {k: v}\n"
	nodes := "name: x\nbase: &b {env: {" + strings.Repeat("a: 1, ", 1) + "}}\nnodes:\n"
	env := make([]string, 1000)
	for i := range env {
		env[i] = "e" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + strings.Repeat("y", i/26) + ": 1"
	}
	aliased := "name: x\ndefaults: {node: &n {env: {" + strings.Join(env, ", ") + "}}}\nnodes:\n"
	var many strings.Builder
	many.WriteString(aliased)
	for i := range 9000 {
		many.WriteString("  n" + strings.Repeat("a", i%50) + string(rune('a'+i%26)) + strings.Repeat("b", i/1300) + strings.Repeat("c", i%13) + ": *n\n")
	}
	cases := map[string]string{
		"10mb.yaml":     "a: &a [" + strings.Repeat("x,", 5<<20) + "x]\nb: [*a, *a]\n",
		"aliases.yaml":  bomb,
		"deep.yaml":     deep,
		"merge.yaml":    merge + strings.Repeat("<<: *a\n", 10_000),
		"nodes.yaml":    nodes + strings.Repeat("  n: *b\n", 100_000),
		"values.yaml":   "name: x\nnodes: {" + strings.Repeat("a,", 700_000) + "}\n",
		"many.yaml":     many.String(),
		"comments.yaml": strings.Repeat("#\n", 900_000),
		"spaces.yaml":   strings.Repeat(" ", 7<<20) + "a",
		"quotes.yaml":   strings.Repeat("'", 4<<20),
		"anchors.yaml":  strings.Repeat("&a ", 1<<20),
		"bang.yaml":     strings.Repeat("! ", 1<<20),
		"bars.yaml":     strings.Repeat("|\n", 400_000),
		"self.yaml":     "a: &a\n  <<: *a\n  b: *a\nnodes: *a\n",
		"deep.graphml":  strings.Repeat("<graphml>", 500_000),
		"lol.graphml":   `<!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY a "&lol;&lol;">]><graphml>&a;</graphml>`,
		"xxe.graphml":   `<!DOCTYPE g [<!ENTITY x SYSTEM "file:///etc/passwd">]><graphml><graph><node id="&x;"/></graph></graphml>`,
		"nodes.graphml": "<graphml><graph>" + strings.Repeat("<node/>", 1_000_000),
		"keys.graphml":  "<graphml>" + strings.Repeat(`<key id="a" attr.name="b"/>`, 250_000),
		"ends.yaml":     "name: x\nnodes: {a: {}}\nlinks: [[" + strings.Repeat("a,", 499_000) + "a]]\n",
		"links.yaml":    "name: x\nnodes: {a: {}}\nlinks: [" + strings.Repeat("[a,a,a,a,a,a],", 120_000) + "[a]]\n",
		"attrs.graphml": "<graphml " + strings.Repeat(`a="b" `, 1_000_000) + "/>",
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := processorTime(t)
			_, _, err := Read(name, []byte(text), nil)
			took := processorTime(t) - start
			runtime.ReadMemStats(&after)
			if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 1024 {
				t.Errorf("allocated %d MiB", mib)
			}
			if err == nil {
				t.Fatal("was accepted")
			}
			if took > 4*time.Second {
				t.Errorf("took %s", took)
			}
			t.Logf("%s, %d bytes: %s", took.Round(time.Millisecond), len(text), firstLine(err))
		})
	}
}

// processorTime is what this process has used of the processors so far; it does not
// grow while other processes keep this one waiting.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The largest networks are read in under two seconds.
func TestTenThousandNodesAreReadQuickly(t *testing.T) {
	const side = 100
	var native, graphml strings.Builder
	native.WriteString("name: grid\nnodes:\n")
	graphml.WriteString("<graphml><key id='l' for='node' attr.name='label'/><graph>")
	for i := range side * side {
		fmt.Fprintf(&native, "  n%d: {}\n", i)
		fmt.Fprintf(&graphml, "<node id='%d'><data key='l'>City %d</data></node>\n", i, i)
	}
	native.WriteString("links:\n")
	edge := func(a, b int) {
		fmt.Fprintf(&native, "  - [n%d, n%d]\n", a, b)
		fmt.Fprintf(&graphml, "<edge source='%d' target='%d'/>\n", a, b)
	}
	for i := range side * side {
		if i%side < side-1 {
			edge(i, i+1)
		}
		if i+side < side*side {
			edge(i, i+side)
		}
	}
	graphml.WriteString("</graph></graphml>")
	for name, text := range map[string]string{"grid.yaml": native.String(), "grid.graphml": graphml.String()} {
		start := processorTime(t)
		v, _, err := Read(name, []byte(text), nil)
		took := processorTime(t) - start
		if err != nil || len(v.Nodes) != side*side || len(v.Links) != 2*side*(side-1) {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%s: %s", name, took)
		if took > 2*time.Second {
			t.Errorf("%s took %s of processor time", name, took)
		}
	}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func TestFilesBeyondTheLimitAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big.yaml")
	if err := os.WriteFile(path, bytes.Repeat([]byte("# long\n"), MaxFile/7+1), 0o600); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, _, err := Load(path); err == nil || !strings.Contains(err.Error(), "larger than 8MiB") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %s", took)
	}
	if _, _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); err == nil || !strings.Contains(err.Error(), "there is no such file") {
		t.Errorf("got %v", err)
	}
}
