package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"trellis/internal/substrate/image"
	"trellis/test/testenv"
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
		for i, ref := range []string{root, archive, archive} {
			s := spec(string(rune('a' + i)))
			s.Image, s.IDBase = ref, firstID+uint32(i)*idCount
			s.Cmd = []string{"/bin/sh", "-c", "echo mine > /etc/own"}
			if err := r.Prepare(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			mustStart(t, r, s)
			eventually(t, "the command has ended", func() bool { return service(t, r, s.ID, "command").State == ServiceExited })
			if got := service(t, r, s.ID, "command"); got.Exit != 0 {
				t.Errorf("%s: the command ended with %d", ref, got.Exit)
			}
			if out := mustRun(t, r, s.ID, "cat /etc/own /etc/hostname"); out != "mine\n"+s.Node {
				t.Errorf("%s: %q", ref, out)
			}
		}
		if b, err := os.ReadFile(filepath.Join(root, "etc/own")); err != nil || string(b) != "image\n" {
			t.Errorf("a node has changed its image: %q, %v", b, err)
		}
	})
}

// TestImagesInUseStay: the cache makes room by what no node uses, and refuses what
// does not fit beside the rest, also after a restart of the service.
func TestImagesInUseStay(t *testing.T) {
	testenv.NeedRoot(t, "makes containers")
	root := rootFS(t)
	if err := os.WriteFile(filepath.Join(root, "etc/ballast"), make([]byte, 8<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	pack := func(name string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "etc/name"), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), name+".tar")
		if out, err := exec.Command("tar", "cf", path, "-C", root, ".").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return path
	}
	first, second := pack("first"), pack("second")
	info, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	room := info.Size() + info.Size()/2 + 1<<20
	cfg := Config{RunDir: t.TempDir(), StateDir: t.TempDir(), Instance: instance(t), Images: image.Policy{
		Directories: []string{os.TempDir()}, Cache: room, Size: room,
	}}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := spec("a")
	s.Image = first
	mustStart(t, r, s)
	refused := func(r *Runtime) {
		t.Helper()
		if err := r.Prepare(t.Context(), second); err == nil || !strings.Contains(err.Error(), "images that nodes use") {
			t.Errorf("a second image beside one in use: %v", err)
		}
		if out := mustRun(t, r, s.ID, "cat /etc/name"); out != "first" {
			t.Errorf("the node's image holds %q", out)
		}
	}
	refused(r)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = newRuntime(t, cfg)
	refused(r)
	if err := r.Remove(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.Prepare(t.Context(), second); err != nil {
		t.Errorf("nothing is in use any more: %v", err)
	}
	if err := r.Prepare(t.Context(), first); err != nil {
		t.Errorf("it goes in the place of the other: %v", err)
	}
	if kept, err := filepath.Glob(filepath.Join(cfg.StateDir, "images", "archive-*")); err != nil || len(kept) != 1 {
		t.Errorf("the cache holds %v, %v", kept, err)
	}
}
