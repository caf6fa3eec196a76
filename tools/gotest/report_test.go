package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The transcripts are real output of `go test -json`, with the times taken out;
// each .want file is what a person should see of the .json file beside it.
func TestReportShowsWhatMatters(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			in, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(strings.TrimSuffix(file, ".json") + ".want")
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			r := newReport(&out)
			for line := range strings.Lines(string(in)) {
				r.line("", []byte(line))
			}
			r.summary()
			if out.String() != string(want) {
				t.Errorf("got\n%s\nwant\n%s", out.String(), want)
			}
		})
	}
}

func TestSplit(t *testing.T) {
	got := split([]string{"./a", "--", "-p", "1", "./b"}, "--")
	if len(got) != 2 || !slices.Equal(got[0], []string{"./a"}) || !slices.Equal(got[1], []string{"-p", "1", "./b"}) {
		t.Errorf("got %q", got)
	}
}

// The same package may run twice at once, and each run has its own output.
func TestRunsAtOnceAreKeptApart(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	for _, run := range []string{"plain", "filters"} {
		r.event(run, event{Action: "output", Package: "p", Test: "TestA", Output: "said by " + run + "\n"})
	}
	r.event("plain", event{Action: "pass", Package: "p", Test: "TestA"})
	r.event("filters", event{Action: "fail", Package: "p", Test: "TestA"})
	if want := "=== FAIL: p TestA (filters)\nsaid by filters\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestSummaryNamesThePhases(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	r.phases = parsePhases("lint 12,,build x,build 3")
	r.phase("plain", 61*time.Second)
	r.summary()
	if want := "phases: lint 12 s, build 3 s, plain 61 s\n0 passed, 0 failed, 0 skipped\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestSummaryNamesTheSlowest(t *testing.T) {
	var out strings.Builder
	r := newReport(&out)
	for _, e := range []event{
		{Action: "pass", Package: "p", Test: "TestQuick", Elapsed: 0.1},
		{Action: "pass", Package: "p", Test: "TestSlow", Elapsed: 6},
		{Action: "pass", Package: "p", Test: "TestSlow/part", Elapsed: 6},
		{Action: "pass", Package: "q", Test: "TestSlower", Elapsed: 61.25},
	} {
		r.event("", e)
	}
	r.summary()
	if want := "  61.2 s  q TestSlower\n   6.0 s  p TestSlow\n4 passed, 0 failed, 0 skipped\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestParseAtOnce(t *testing.T) {
	rest, n, err := parseAtOnce([]string{"3", "./a", "--", "./b"})
	if err != nil || n != 3 || !slices.Equal(rest, []string{"./a", "--", "./b"}) {
		t.Errorf("%q, %d, %v", rest, n, err)
	}
	for _, stage := range [][]string{nil, {"./a"}, {"0", "./a"}, {"-1"}} {
		if _, _, err := parseAtOnce(stage); err == nil {
			t.Errorf("%q is taken", stage)
		}
	}
}
