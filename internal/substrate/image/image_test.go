package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"trellis/test/testenv"
)

type entry struct {
	tar.Header
	content string
}

func dir(n string) entry { return entry{tar.Header{Name: n, Typeflag: tar.TypeDir, Mode: 0o755}, ""} }
func file(n, content string) entry {
	return entry{tar.Header{Name: n, Typeflag: tar.TypeReg, Mode: 0o644}, content}
}
func link(n, to string) entry {
	return entry{tar.Header{Name: n, Typeflag: tar.TypeSymlink, Linkname: to}, ""}
}
func hard(n, to string) entry {
	return entry{tar.Header{Name: n, Typeflag: tar.TypeLink, Linkname: to}, ""}
}

func archive(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size = int64(len(e.content))
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func newCache(t *testing.T) *Cache {
	t.Helper()
	testenv.NeedRoot(t, "extracts files of other owners")
	// What tests write is the test's alone, so its directory is named.
	c, err := OpenCache(Options{Dir: t.TempDir(), Policy: Policy{Directories: []string{os.TempDir()}, Registries: []string{"127.0.0.1"}}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// check gets the image and compares a file of it.
func check(t *testing.T, c *Cache, ref string) *Image {
	t.Helper()
	img, err := c.Get(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(img.Dir, "etc/name")); err != nil || string(b) != "upper" {
		t.Errorf("%s: /etc/name holds %q, %v", ref, b, err)
	}
	if left, _ := filepath.Glob(filepath.Join(c.dir, partial+"*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	return img
}

func TestArchives(t *testing.T) {
	c := newCache(t)
	plain := archive(t, dir("etc"), file("etc/name", "upper"), link("lib", "usr/lib"), file("usr/lib/x", "x"), hard("y", "usr/lib/x"), dir("bin"))
	var gz, zst bytes.Buffer
	g := gzip.NewWriter(&gz)
	if _, err := g.Write(plain); err != nil || g.Close() != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(plain); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	for n, content := range map[string][]byte{"a.tar": plain, "a.tar.gz": gz.Bytes(), "a.tar.zst": zst.Bytes()} {
		path := write(t, n, content)
		first := check(t, c, path)
		if again := check(t, c, path); again.Dir != first.Dir {
			t.Errorf("%s was extracted twice", n)
		}
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "etc/name"), []byte("upper"), 0o644); err != nil {
		t.Fatal(err)
	}
	if img := check(t, c, root); img.Dir != root {
		t.Errorf("a directory became %s", img.Dir)
	}
}

// TestHostileArchives: nothing may be made outside, whatever its headers claim.
func TestHostileArchives(t *testing.T) {
	c := newCache(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "victim"), []byte("safe"), 0o644); err != nil {
		t.Fatal(err)
	}
	ok := []entry{dir("etc"), file("etc/name", "upper"), dir("bin")}
	contained := [][]entry{
		{file("../../../../../../.."+outside+"/a", "x")},
		{file(outside+"/b", "x")},
		{dir("sub"), link("sub/up", "../../../../../../../../.."), file("sub/up"+outside+"/c", "x")},
		{{tar.Header{Name: "dev/vda", Typeflag: tar.TypeBlock, Devmajor: 254, Mode: 0o666}, ""}},
	}
	for i, entries := range contained {
		img := check(t, c, write(t, "a.tar", archive(t, append(slices.Clone(ok), entries...)...)))
		if _, err := os.Lstat(filepath.Join(img.Dir, "dev/vda")); err == nil {
			t.Errorf("%d: a device node was made", i)
		}
	}
	refused := map[string][]entry{
		"through a link to outside": {link("out", outside), file("out/victim", "changed")},
		"hard link":                 {hard("v", outside+"/victim"), file("v", "changed")},
		"owner":                     {{tar.Header{Name: "f", Typeflag: tar.TypeReg, Uid: 70000}, ""}},
		"root as file":              {file(".", "x")},
	}
	for what, entries := range refused {
		if _, err := c.Get(t.Context(), write(t, "a.tar", archive(t, append(slices.Clone(ok), entries...)...))); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) != 1 {
		t.Errorf("written outside: %v, %v", entries, err)
	}
	if b, err := os.ReadFile(filepath.Join(outside, "victim")); err != nil || string(b) != "safe" {
		t.Errorf("changed outside: %q, %v", b, err)
	}
	for what, content := range map[string][]byte{"empty": {}, "garbage": []byte("no archive at all"), "cut": archive(t, ok...)[:700]} {
		if _, err := c.Get(t.Context(), write(t, "a.tar", content)); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(c.dir, partial+"*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// build makes an image of two layers, the second of which changes and deletes.
func build(t *testing.T) v1.Image {
	t.Helper()
	lower := archive(t, dir("etc"), file("etc/name", "lower"), file("etc/gone", "x"), file("etc/passwd", "app:x:1001:1002::/:/bin/sh\n"), dir("bin"))
	upper := archive(t, file("etc/name", "upper"), file("etc/.wh.gone", ""))
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(lower, types.DockerUncompressedLayer), static.NewLayer(upper, types.DockerUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = platform.OS, platform.Architecture
	cf.Config = v1.Config{Entrypoint: []string{"/run"}, Cmd: []string{"it"}, Env: []string{"A=b"}, WorkingDir: "/etc", User: "app"}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

// checkBuilt is check for images of build.
func checkBuilt(t *testing.T, c *Cache, ref string) {
	t.Helper()
	img := check(t, c, ref)
	if !slices.Equal(img.Entrypoint, []string{"/run"}) || !slices.Equal(img.Cmd, []string{"it"}) || img.WorkingDir != "/etc" || img.UID != 1001 || img.GID != 1002 {
		t.Errorf("%s: %+v", ref, img)
	}
	if _, err := os.Stat(filepath.Join(img.Dir, "etc/gone")); !os.IsNotExist(err) {
		t.Errorf("%s: a file that the second layer deletes is there: %v", ref, err)
	}
}

func TestLayoutsAndSaved(t *testing.T) {
	c := newCache(t)
	img := build(t)
	dir := t.TempDir()
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})); err != nil {
		t.Fatal(err)
	}
	checkBuilt(t, c, dir)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.AddFS(os.DirFS(dir)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	checkBuilt(t, c, write(t, "layout.tar", b.Bytes()))
	saved := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.WriteToFile(saved, name.MustParseReference("test/app:1"), img); err != nil {
		t.Fatal(err)
	}
	checkBuilt(t, c, saved)
}

func TestBadReferences(t *testing.T) {
	c := newCache(t)
	for ref, want := range map[string]string{
		"/": "does not lie below", filepath.Dir(c.dir): "machine's own", c.dir: "machine's own", t.TempDir(): "not a root file system", "./x": "absolute",
		filepath.Join(t.TempDir(), "nowhere.tar"): "no such file", "docker.io/x": "not among", "Not A Reference": "neither",
	} {
		if _, err := c.Get(t.Context(), ref); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", ref, err, want)
		}
	}
}
