package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// FuzzArchive: no bytes make anything outside of the cache, or leave anything in it
// when they are refused.
func FuzzArchive(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("needs root: extracts files of other owners")
	}
	pack := func(entries ...entry) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, e := range entries {
			e.Size = int64(len(e.content))
			if err := w.WriteHeader(&e.Header); err != nil {
				f.Fatal(err)
			}
			if _, err := w.Write([]byte(e.content)); err != nil {
				f.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{{Digest: v1.Hash{Algorithm: "sha256", Hex: "00"}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pack(dir("bin"), file("etc/name", "x"), link("l", "../../.."), hard("h", "etc/name")))
	f.Add(pack(link("out", "/"), file("out/victim", "x")))
	f.Add(pack(file("oci-layout", "{}"), file("index.json", string(index))))
	f.Add(pack(file("manifest.json", `[{"Config":"c","Layers":["l"]}]`), file("c", "{}"), link("l", "l")))
	f.Fuzz(func(t *testing.T, b []byte) {
		top := t.TempDir()
		path := filepath.Join(top, "a.tar")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := OpenCache(Options{Dir: filepath.Join(top, "cache"), Policy: Policy{Directories: []string{top}, Size: 1 << 20, Files: 100, Cache: 4 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Get(t.Context(), path); err != nil {
			nothingKept(t, c)
		}
		if list, err := os.ReadDir(top); err != nil || len(list) != 2 {
			t.Errorf("made outside: %v, %v", list, err)
		}
	})
}
