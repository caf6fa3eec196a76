package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeLayout writes an image as an OCI layout.
func writeLayout(t *testing.T, img v1.Image) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})); err != nil {
		t.Fatal(err)
	}
	return dir
}

// pack makes a tar archive of a directory.
func pack(t *testing.T, dir string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.AddFS(os.DirFS(dir)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	return write(t, "layout.tar", b.Bytes())
}

// nothingKept wants the cache to hold nothing.
func nothingKept(t *testing.T, c *Cache) {
	t.Helper()
	c.sweeping.Wait()
	list, err := os.ReadDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Name() != refsDir {
			t.Errorf("the cache holds %s", e.Name())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used != 0 {
		t.Errorf("the cache books %d bytes", c.used)
	}
}

// TestForeignBlobs puts another content in the place of each blob of a genuine
// image, in a layout and in an archive of one.
func TestForeignBlobs(t *testing.T) {
	img := build(t)
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	foreign := archive(t, dir("etc"), file("etc/name", "foreign"), dir("bin"))
	sum, _, err := v1.SHA256(bytes.NewReader(foreign))
	if err != nil {
		t.Fatal(err)
	}
	for what, h := range map[string]v1.Hash{"manifest": digest, "configuration": m.Config.Digest, "lowest layer": m.Layers[0].Digest, "upper layer": m.Layers[1].Digest} {
		l := writeLayout(t, img)
		if err := os.WriteFile(filepath.Join(l, "blobs/sha256", h.Hex), foreign, 0o644); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{l, pack(t, l)} {
			c := newCache(t)
			_, err := c.Get(t.Context(), path)
			if err == nil || !strings.Contains(err.Error(), h.Hex) || !strings.Contains(err.Error(), sum.Hex) {
				t.Errorf("a foreign %s: %v, want both digests", what, err)
			}
			nothingKept(t, c)
			checkBuilt(t, c, writeLayout(t, img)) // the honest one is as it was
		}
	}
}

// TestLyingDescriptors: sizes, and digests of what is unpacked, are held to.
func TestLyingDescriptors(t *testing.T) {
	img := build(t)
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		change func(m *v1.Manifest, f *v1.ConfigFile)
		want   string
	}{
		"size":       {func(m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Size++ }, "bytes"},
		"other diff": {func(_ *v1.Manifest, f *v1.ConfigFile) { f.RootFS.DiffIDs[0].Hex = strings.Repeat("0", 64) }, "000000"},
		"fewer":      {func(_ *v1.Manifest, f *v1.ConfigFile) { f.RootFS.DiffIDs = f.RootFS.DiffIDs[:1] }, "2 layers"},
		"path":       {func(m *v1.Manifest, _ *v1.ConfigFile) { m.Layers[0].Digest.Hex = "../../../../etc/passwd" }, "non-hex"},
		"endless":    {func(m *v1.Manifest, _ *v1.ConfigFile) { m.Config.Size = maxManifest + 1 }, "more than 4 MiB"},
	} {
		l := writeLayout(t, img)
		f, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		m, f := m.DeepCopy(), f.DeepCopy()
		test.change(m, f)
		rewrite(t, l, m, f, what != "endless")
		c := newCache(t)
		if _, err := c.Get(t.Context(), l); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", what, err, test.want)
		}
		nothingKept(t, c)
	}
}

// TestOneExtraction asks for one content by several names at once.
func TestOneExtraction(t *testing.T) {
	img := build(t)
	l := writeLayout(t, img)
	host, _ := startRegistry(t, nil)
	c := newCache(t)
	var made atomic.Int32
	var mu sync.Mutex
	works := map[string]bool{}
	c.blocked = func(ref string) {
		mu.Lock()
		defer mu.Unlock()
		if !works[ref] {
			works[ref] = true
			made.Add(1)
		}
	}
	var all sync.WaitGroup
	keys := make([]string, 16)
	for i := range keys {
		all.Go(func() {
			got, err := c.Get(t.Context(), []string{l, pack(t, l), host + "/test/app:1", host + "/test/app:all"}[i%4])
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = got.Key
		})
	}
	all.Wait()
	for _, k := range keys {
		if k != keys[0] {
			t.Errorf("one content has the keys %v", keys)
		}
	}
	if n := made.Load(); n != 1 {
		t.Errorf("it was extracted %d times", n)
	}
}

// TestAnotherCallersEnd: whoever asked first and left takes nobody with them.
func TestAnotherCallersEnd(t *testing.T) {
	c := newCache(t)
	path := write(t, "a.tar", archive(t, dir("etc"), file("etc/name", "upper"), dir("bin")))
	ctx, cancel := context.WithCancel(t.Context())
	began, went := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c.blocked = func(string) { once.Do(func() { close(began); <-went }) }
	first := make(chan error, 1)
	go func() {
		_, err := c.Get(ctx, path)
		first <- err
	}()
	<-began
	second := make(chan error, 1)
	go func() {
		_, err := c.Get(t.Context(), path)
		second <- err
	}()
	cancel()
	if err := <-first; err == nil {
		t.Error("who left got an image")
	}
	close(went)
	if err := <-second; err != nil {
		t.Error(err)
	}
}

// TestWhiteouts removes what the layers below have, and nothing of the same layer.
func TestWhiteouts(t *testing.T) {
	layers := [][]byte{
		archive(t, dir("bin"), dir("etc"), file("etc/name", "lower"), dir("a"), file("a/old", "x"), dir("a/deep"), file("a/deep/old", "x"), dir("b"), file("b/x", "x"), link("c", "a")),
		archive(t, file("a/new", "x"), file("a/.wh..wh..opq", ""), file(".wh.b", ""), file("etc/name", "upper"), file("etc/.wh.name", ""), dir("c"), file("c/own", "x")),
	}
	img := empty.Image
	var err error
	for _, l := range layers {
		if img, err = mutate.AppendLayers(img, static.NewLayer(l, types.DockerUncompressedLayer)); err != nil {
			t.Fatal(err)
		}
	}
	c := newCache(t)
	got := check(t, c, writeLayout(t, img))
	for path, want := range map[string]bool{"a/new": true, "a/old": false, "a/deep": false, "b": false, "c/own": true, "a/own": false} {
		if _, err := os.Lstat(filepath.Join(got.Dir, path)); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	bad, err := mutate.AppendLayers(img, static.NewLayer(archive(t, file(".wh...", "")), types.DockerUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), writeLayout(t, bad)); err == nil || !strings.Contains(err.Error(), "takes away no file") {
		t.Errorf("a whiteout of ..: %v", err)
	}
}

// rewrite makes an image of a layout another one, whose descriptors fit each other.
func rewrite(t *testing.T, l string, m *v1.Manifest, f *v1.ConfigFile, withConfig bool) {
	t.Helper()
	blob := func(v any) v1.Descriptor {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		h, n, err := v1.SHA256(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(l, "blobs/sha256", h.Hex), b, 0o644); err != nil {
			t.Fatal(err)
		}
		return v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: h, Size: n}
	}
	if withConfig {
		config := blob(f)
		m.Config.Digest, m.Config.Size = config.Digest, config.Size
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{blob(m)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l, "index.json"), index, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestNamesWithoutEnd names one directory by way of very many links.
func TestNamesWithoutEnd(t *testing.T) {
	deep := strings.Repeat("d/", 200)
	lower := []entry{dir("bin"), file(deep+"x", "")}
	var upper []entry
	for i := range 50 {
		upper = append(upper, link(fmt.Sprint("l", i), "."), file(fmt.Sprintf("l%d/%sf%d", i, deep, i), ""))
	}
	img := empty.Image
	var err error
	for _, l := range [][]byte{archive(t, lower...), archive(t, upper...)} {
		if img, err = mutate.AppendLayers(img, static.NewLayer(l, types.DockerUncompressedLayer)); err != nil {
			t.Fatal(err)
		}
	}
	c := limited(t, t.TempDir(), Policy{Files: 1000}, nil)
	if _, err := c.Get(t.Context(), writeLayout(t, img)); err == nil || !strings.Contains(err.Error(), "more than 1000 files") {
		t.Errorf("%v", err)
	}
	nothingKept(t, c)
}
