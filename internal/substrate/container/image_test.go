package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// rootFS makes a root file system with the machine's shell, and the libraries
// that it needs.
func rootFS(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ldd", "/bin/sh").Output()
	if err != nil {
		t.Skipf("needs ldd: %v", err)
	}
	files := append(regexp.MustCompile(`/\S+`).FindAllString(string(out), -1), "/bin/sh", "/bin/cat")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(f)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, f), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/own"), []byte("image\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

// TestImages runs nodes of a directory and of an archive, side by side and in
// two id ranges, on one extracted image.
func TestImages(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r *Runtime) {
		root := rootFS(t)
		archive := filepath.Join(t.TempDir(), "image.tar.gz")
		if out, err := exec.Command("tar", "czf", archive, "-C", root, ".").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for i, image := range []string{root, archive, archive} {
			s := spec(string(rune('a' + i)))
			s.Image, s.IDBase = image, firstID+uint32(i)*idCount
			s.Cmd = []string{"/bin/sh", "-c", "echo mine > /etc/own"}
			if err := r.Prepare(t.Context(), image); err != nil {
				t.Fatal(err)
			}
			mustStart(t, r, s)
			eventually(t, "the command has ended", func() bool { return service(t, r, s.ID, "command").State == ServiceExited })
			if got := service(t, r, s.ID, "command"); got.Exit != 0 {
				t.Errorf("%s: the command ended with %d", image, got.Exit)
			}
			if out := mustRun(t, r, s.ID, "cat /etc/own /etc/hostname"); out != "mine\n"+s.Node {
				t.Errorf("%s: %q", image, out)
			}
		}
		if b, err := os.ReadFile(filepath.Join(root, "etc/own")); err != nil || string(b) != "image\n" {
			t.Errorf("a node has changed its image: %q, %v", b, err)
		}
	})
}
