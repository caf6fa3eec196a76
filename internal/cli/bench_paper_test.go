package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trellis/test/testenv"
)

func TestPaperRefusesWhereItCannotWrite(t *testing.T) {
	testenv.NeedRoot(t, "is refused sooner without root")
	for _, file := range []string{filepath.Join(t.TempDir(), "none", "x.html"), t.TempDir()} {
		env := newTestEnv(t)
		if got := env.run("bench", "paper", "--quick", file); got == 0 || !strings.Contains(env.err.String(), file) {
			t.Errorf("%s: exit status %d, %s", file, got, env.err.String())
		}
	}
	newTestEnv(t).wantError(exitUsage, "takes no argument", "bench", "paper", "a", "b")
}

// A page that is not whole does not take the place of one that is.
func TestPageIsWholeOrNot(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "paper.html")
	if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := newPage(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.write(func(w io.Writer) error {
		_, _ = io.WriteString(w, "half")
		return io.ErrUnexpectedEOF
	}); err == nil {
		t.Error("a page that cannot be written is written")
	}
	p.discard()
	if p, err = newPage(name); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if read() != "old" {
		t.Errorf("the file is %q", read())
	}
	if err := p.write(func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err }); err != nil || read() != "new" {
		t.Errorf("the file is %q, with the error %v", read(), err)
	}
	p.discard()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}
