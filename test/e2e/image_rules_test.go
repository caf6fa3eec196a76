package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trellis/test/testenv"
)

// TestImagesOfTheConfiguration: the service takes images from where its
// configuration says, of the size that it says, and nothing of others stays.
func TestImagesOfTheConfiguration(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t, "makes network namespaces")
	program := busybox(t)
	top := publicDir(t)
	named := filepath.Join(top, "named")
	private := filepath.Join(named, "private")
	rootDirectory(t, private, program, "private")
	if err := os.WriteFile(filepath.Join(private, "etc/own"), []byte("for the node"), 0o600); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(top, "outside")
	rootDirectory(t, outside, program, "outside")
	if err := os.Symlink(outside, filepath.Join(named, "out")); err != nil {
		t.Fatal(err)
	}
	large := filepath.Join(top, "large")
	rootDirectory(t, large, program, "large")
	if err := os.WriteFile(filepath.Join(large, "zeros"), make([]byte, 24<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	many := filepath.Join(top, "many")
	rootDirectory(t, many, program, "many")
	for i := range 300 {
		if err := os.WriteFile(filepath.Join(many, "data", fmt.Sprint(i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{large, many} {
		if err := os.WriteFile(filepath.Join(named, filepath.Base(dir)+".tar"), archive(t, dir), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := write(t, "trellis.yaml", fmt.Sprintf("images: {directories: [%s], registries: [registry.example], size: 16MiB, files: 200}\n", named))
	s := testenv.StartService(t, testenv.Options{Args: []string{"--config", config}})
	network := func(image string) string {
		return write(t, "rules.yaml", fmt.Sprintf("name: rules\nrouting: static\nnodes: {a: {image: %q}, b: {}}\nlinks: [[a, b]]\n", image))
	}
	for image, want := range map[string]string{
		outside:                            "does not lie below images: {directories: [" + named + "]}",
		filepath.Join(named, "out"):        "leads out of " + named,
		filepath.Join(named, "large.tar"):  "more than 16 MiB; raise images: {size: …}",
		filepath.Join(named, "many.tar"):   "more than 200 files; raise images: {files: …}",
		s.StateDir:                         "does not lie below",
		"docker.io/library/alpine:3":       "docker.io is not among images: {registries: …}",
		filepath.Join(named, "absent.tar"): "no such file",
	} {
		if _, stderr, code := s.Trellis("up", network(image), "--timeout", "60s"); code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit status %d, %s, want %q", image, code, stderr, want)
		}
	}
	if left, err := os.ReadDir(filepath.Join(s.StateDir, "images")); err != nil || len(left) != 1 {
		t.Errorf("the cache holds %v, %v", left, err)
	}
	s.Must("up", network(private), "--timeout", "60s")
	if out := sh(t, s, "rules/a", "PATH=/bin; cat /etc/own"); out != "for the node" {
		t.Errorf("the image's own file holds %q", out)
	}
	s.Must("down", "rules")
}

// TestPrivateFilesAreNoImages: without a word in the configuration, a node's root
// gets nothing that not everybody on the machine may read.
func TestPrivateFilesAreNoImages(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t, "makes network namespaces")
	program := busybox(t)
	top := publicDir(t)
	private := filepath.Join(top, "private")
	rootDirectory(t, private, program, "private")
	if err := os.WriteFile(filepath.Join(private, "etc/shadow"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(top, "packed.tar")
	if err := os.WriteFile(packed, archive(t, private), 0o600); err != nil {
		t.Fatal(err)
	}
	s := testenv.StartService(t, testenv.Options{})
	for _, image := range []string{private, packed, s.StateDir, s.RunDir, "/", "/root", "127.0.0.1:1/x"} {
		file := write(t, "private.yaml", fmt.Sprintf("name: private\nrouting: static\nnodes: {a: {image: %q}}\n", image))
		if _, stderr, code := s.Trellis("up", file, "--timeout", "30s"); code != 1 || !strings.Contains(stderr, "image") {
			t.Errorf("%s: exit status %d, %s", image, code, stderr)
		}
	}
	s.Must("down", "private")
}

// TestOthersDescriptions brings up what somebody else has written.
func TestOthersDescriptions(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	top := t.TempDir()
	lab, other := filepath.Join(top, "lab"), filepath.Join(top, "other")
	for _, d := range []string{lab, other} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(other, "secret")
	if err := os.WriteFile(secret, []byte("a secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(lab, "harmless")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(lab, "theirs.yaml")
	text := "name: theirs\nrouting: static\nnodes:\n  a:\n    files: {/x: harmless}\n    exec: [echo ran > /ran]\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"up", "validate", "convert"} {
		_, stderr, code := s.Trellis(verb, file)
		if code != 2 || !strings.Contains(stderr, file+":5: ") || !strings.Contains(stderr, "--allow-path "+other) {
			t.Errorf("%s: exit status %d, %s", verb, code, stderr)
		}
	}
	_, stderr, code := s.Trellis("up", "--review", "--allow-path", other, file)
	if code != 1 || !strings.Contains(stderr, secret) || !strings.Contains(stderr, "echo ran > /ran") || !strings.Contains(stderr, "nothing was done") {
		t.Errorf("a review without a terminal: exit status %d, %s", code, stderr)
	}
	if out := s.Must("ls", "-o", "json"); strings.Contains(out, "theirs") {
		t.Errorf("it was brought up: %s", out)
	}
	s.Must("up", "--review", "--yes", "--allow-path", other, file)
	if out := sh(t, s, "theirs/a", "cat /x /ran"); out != "a secretran" {
		t.Errorf("the node has %q", out)
	}
	s.Must("down", "-f", file)
}
