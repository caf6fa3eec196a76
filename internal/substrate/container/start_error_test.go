package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestStartErrorsAreComplete: a runtime says why it failed in its last line, often.
func TestStartErrorsAreComplete(t *testing.T) {
	path := filepath.Join(t.TempDir(), "crun-broken")
	script := "#!/bin/sh\necho 'error running container:' >&2\nsleep 0.05\necho 'the reason' >&2\nseq 100000 >&2\necho 'the end' >&2\nexit 1\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	good := newRuntime(t, Config{}).cfg
	good.Runtime = path
	r, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	_, err = r.Start(t.Context(), spec("a"))
	if err == nil {
		t.Fatal("it started")
	}
	for _, want := range []string{"start container test/a", "error running container: the reason", "the end"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %.300s", want, err)
		}
	}
	if len(err.Error()) > 5000 {
		t.Errorf("%d bytes", len(err.Error()))
	}
	checkClean(t, r)
}
