package format

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSourcesLieBelowTheFolder: a description is given no file from elsewhere, by
// whatever way, unless its directory is allowed.
func TestSourcesLieBelowTheFolder(t *testing.T) {
	top := t.TempDir()
	lab, other := filepath.Join(top, "lab"), filepath.Join(top, "other")
	for _, d := range []string{filepath.Join(lab, "sub"), other, filepath.Join(top, "lab-2")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"lab/in", "lab/sub/in", "other/secret", "lab-2/secret"} {
		if err := os.WriteFile(filepath.Join(top, f), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for to, at := range map[string]string{"../other/secret": "lab/link", other: "lab/dir", "sub/in": "lab/inward", "loop": "lab/loop", lab: "also"} {
		if err := os.Symlink(to, filepath.Join(top, at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(lab, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(folder, source string, allow ...string) ([]Source, error) {
		t.Helper()
		path := filepath.Join(folder, "lab.yaml")
		text := fmt.Sprintf("name: lab\nnodes:\n  a:\n    files: {/x: {source: %q}}\n", source)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var seen []Source
		_, _, err := Load(path, Options{AllowPaths: allow, Opened: func(s Source) { seen = append(seen, s) }})
		return seen, err
	}
	for source, want := range map[string]string{
		"in": "", "sub/in": "", "./sub/../in": "", "inward": "", filepath.Join(lab, "in"): "", "../lab/in": "", filepath.Join(top, "also/in"): "",
		"../other/secret":              ":4: ",
		filepath.Join(other, "secret"): "outside of the description's folder " + lab,
		"link":                         "put the file there, or allow it with --allow-path " + other,
		"dir/secret":                   "it leads to " + filepath.Join(other, "secret"),
		"../lab-2/secret":              "outside of the description's folder",
		"/etc/shadow":                  "outside of the description's folder",
		"/proc/self/environ":           "outside of the description's folder",
		"fifo":                         "no regular file",
		"sub":                          "no regular file",
		"loop":                         "too many links",
		"none":                         "there is no such file",
	} {
		seen, err := read(lab, source)
		if want == "" && (err != nil || len(seen) != 1 || seen[0].Outside) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v, want %q", source, seen, err, want)
		}
	}
	if _, err := read(filepath.Join(top, "also"), "in"); err != nil { // the folder itself is a link
		t.Error(err)
	}
	for _, source := range []string{"../other/secret", "link", filepath.Join(other, "secret")} {
		seen, err := read(lab, source, other)
		if err != nil || len(seen) != 1 || !seen[0].Outside || seen[0].Path != filepath.Join(other, "secret") {
			t.Errorf("allowed, %s gives %v, %v", source, seen, err)
		}
		if _, err := read(lab, source, filepath.Join(top, "lab-2"), filepath.Join(other)); err != nil {
			t.Errorf("allowed by the second: %v", err)
		}
		if _, err := read(lab, source, filepath.Join(top, "lab-2")); err == nil {
			t.Errorf("%s: taken, and another directory is allowed", source)
		}
	}
	if _, err := read(lab, "in", ""); err == nil {
		t.Error("an empty path is allowed")
	}
	if _, err := read(lab, "in", filepath.Join(top, "none")); err == nil || !strings.Contains(err.Error(), "allow a directory that is there") {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// TestImagesByRelativePaths: they start from the folder of the description, wherever
// the command runs, and must be there; without a folder they mean nothing.
func TestImagesByRelativePaths(t *testing.T) {
	top := t.TempDir()
	lab := filepath.Join(top, "lab")
	if err := os.Mkdir(lab, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{filepath.Join(top, "up.tar"), filepath.Join(lab, "own.tar")} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := func(image string) []byte {
		return fmt.Appendf(nil, "name: lab\ndefaults:\n  node: {image: %s}\nnodes: {a: , b: {image: host}}\n", image)
	}
	path := filepath.Join(lab, "lab.yaml")
	for image, want := range map[string]string{
		"../up.tar": filepath.Join(top, "up.tar"), "./own.tar": filepath.Join(lab, "own.tar"), "./../lab": lab,
		"/srv/root": "/srv/root", "debian:12": "debian:12",
	} {
		if err := os.WriteFile(path, text(image), 0o600); err != nil {
			t.Fatal(err)
		}
		v, _, err := Load(path)
		if err != nil || v.Nodes[0].Image != want || v.Nodes[1].Image != "host" {
			t.Errorf("%s: %v, %v, want %s", image, v, err, want)
		}
	}
	if err := os.WriteFile(path, text("./none.tar"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Load(path); err == nil || !strings.Contains(err.Error(), "lab.yaml:3: defaults.node: image: there is no "+lab+"/none.tar; ") {
		t.Errorf("an image that is not there: %v", err)
	}
	v, _, err := Load(path, Options{Set: []string{"defaults.node.image=../up.tar"}})
	if err != nil || v.Nodes[0].Image != filepath.Join(top, "up.tar") {
		t.Errorf("--set: %v, %v", v, err)
	}
	if _, _, err := Read("standard input", text("../up.tar"), nil); err == nil || !strings.Contains(err.Error(), ":3: node \"a\": image \"../up.tar\" is a relative path") {
		t.Errorf("standard input: %v", err)
	}
}

// TestALargeFileIsSentToTheImage: no other way of writing it would help.
func TestALargeFileIsSentToTheImage(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lab.yaml")
	for name, content := range map[string][]byte{
		path: []byte("name: lab\nnodes:\n  a:\n    files: {/rib: rib}\n"), filepath.Join(dir, "rib"): make([]byte, 1<<20+1),
	} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := Load(path)
	if err == nil || !strings.Contains(err.Error(), ":4: ") || !strings.Contains(err.Error(), "larger than 1MiB; put it into the node's image") {
		t.Error(err)
	}
}
