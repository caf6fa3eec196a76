package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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
				r.line([]byte(line))
			}
			r.summary()
			if out.String() != string(want) {
				t.Errorf("got\n%s\nwant\n%s", out.String(), want)
			}
		})
	}
}

func TestSplit(t *testing.T) {
	got := split([]string{"./a", "--", "-p", "1", "./b"})
	if len(got) != 2 || !slices.Equal(got[0], []string{"./a"}) || !slices.Equal(got[1], []string{"-p", "1", "./b"}) {
		t.Errorf("got %q", got)
	}
}
