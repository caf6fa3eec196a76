package image

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

func limited(t *testing.T, dir string, p Policy, inUse func() (map[string]bool, bool)) *Cache {
	t.Helper()
	testenv.NeedRoot(t, "extracts files of other owners")
	p.Directories = []string{os.TempDir()}
	c, err := OpenCache(Options{Dir: dir, Policy: p, InUse: inUse})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// bomb writes a small archive of one large file of zeros.
func bomb(t *testing.T, bytes int64) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "bomb.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: bytes, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	for left := bytes; left > 0; left -= int64(len(chunk)) {
		if _, err := w.Write(chunk[:min(left, int64(len(chunk)))]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// sparse gives an archive of a few hundred bytes that says it holds a file of so
// many (GNU, PAX format 1.0).
func sparse(t *testing.T, bytes int64) string {
	t.Helper()
	f := entry{tar.Header{Name: "GNUSparseFile.0/hole", Typeflag: tar.TypeReg, Mode: 0o644, Format: tar.FormatPAX, PAXRecords: map[string]string{
		"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "hole", "GNU.sparse.realsize": fmt.Sprint(bytes),
	}}, "0\n" + strings.Repeat("\x00", 510)}
	var b strings.Builder
	w := tar.NewWriter(&b)
	f.Size = int64(len(f.content))
	h := f.Header
	records := h.PAXRecords
	h.PAXRecords = map[string]string{}
	// The writer refuses records of sparse files, so they are put in by hand.
	var pax string
	for _, k := range []string{"GNU.sparse.major", "GNU.sparse.minor", "GNU.sparse.name", "GNU.sparse.realsize"} {
		line := " " + k + "=" + records[k] + "\n"
		n := len(line) + 2
		pax += fmt.Sprintf("%d%s", n, line)
	}
	x := tar.Header{Name: "PaxHeaders.0/hole", Typeflag: tar.TypeReg, Size: int64(len(pax)), Format: tar.FormatUSTAR}
	if err := w.WriteHeader(&x); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, pax); err != nil {
		t.Fatal(err)
	}
	h.Format = tar.FormatUSTAR
	h.Size = f.Size
	if err := w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, f.content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	raw := []byte(b.String())
	raw[156] = 'x' // the type of the first header
	sum := 0
	copy(raw[148:156], "        ")
	for _, c := range raw[:512] {
		sum += int(c)
	}
	copy(raw[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return write(t, "sparse.tar", raw)
}

func TestLimits(t *testing.T) {
	many := []entry{dir("bin")}
	for i := range 300 {
		many = append(many, file(fmt.Sprintf("etc/f%d", i), ""))
	}
	long := []entry{dir("bin")}
	for i := range 40 {
		long = append(long, link(fmt.Sprintf("l%d", i), strings.Repeat("x", 4000)))
	}
	links := []entry{dir("bin"), file("x", "x")}
	for i := range 300 {
		links = append(links, hard(fmt.Sprintf("h%d", i), "x"))
	}
	deep := []entry{dir("bin"), file(strings.Repeat("d/", 300)+"x", "x")}
	policy := Policy{Size: 8 << 20, Files: 250, Cache: 64 << 20}
	small := policy
	small.Size = 128 << 10
	for what, test := range map[string]struct {
		policy Policy
		path   string
		want   string
	}{
		"a bomb":                        {policy, bomb(t, 128<<20), "more than 8 MiB; raise images: {size: …}"},
		"a sparse file":                 {policy, sparse(t, 1<<40), "more than 8 MiB"},
		"many files":                    {policy, write(t, "a.tar", archive(t, many...)), "more than 250 files; raise images: {files: …}"},
		"many hard links":               {policy, write(t, "a.tar", archive(t, links...)), "more than 250 files"},
		"directories that are not said": {policy, write(t, "a.tar", archive(t, deep...)), "more than 250 files"},
		"long names":                    {small, write(t, "a.tar", archive(t, long...)), "more than 128KiB"},
		"a name that no path has":       {policy, write(t, "a.tar", archive(t, dir("bin"), file(strings.Repeat("x/", 2100)+"y", ""))), "4096 are possible"},
		"time":                          {Policy{Time: time.Nanosecond}, write(t, "a.tar", archive(t, dir("bin"))), "not ready after 1ns; raise images: {time: …}"},
		"a cache that is too small":     {Policy{Cache: 1 << 20, Size: 64 << 20}, bomb(t, 32<<20), "the cache may hold 1 MiB"},
	} {
		t.Run(what, func(t *testing.T) {
			c := limited(t, t.TempDir(), test.policy, nil)
			most := int64(0)
			c.blocked = func(string) {
				c.mu.Lock()
				defer c.mu.Unlock()
				most = max(most, c.used)
			}
			if _, err := c.Get(t.Context(), test.path); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if most > c.policy.Cache {
				t.Errorf("the cache held %d bytes of %d", most, c.policy.Cache)
			}
			nothingKept(t, c)
		})
	}
}

// TestLeastRecentlyUsedGoes fills a cache that holds two images of three.
func TestLeastRecentlyUsedGoes(t *testing.T) {
	image := func(name string) string {
		return write(t, name+".tar", archive(t, dir("bin"), file("etc/name", name), file("big", strings.Repeat(name[:1], 3<<20))))
	}
	dir := t.TempDir()
	used := map[string]bool{}
	unknown := false
	policy := Policy{Cache: 8 << 20, Size: 8 << 20}
	c := limited(t, dir, policy, func() (map[string]bool, bool) { return used, unknown })
	get := func(path string, want string) *Image {
		t.Helper()
		img, err := c.Get(t.Context(), path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Fatalf("%s: %v, want %q", path, err, want)
		}
		c.Release(img)
		return img
	}
	there := func(img *Image) bool { return exists(img.Dir) }
	a, b := image("a"), image("b")
	first, second := get(a, ""), get(b, "")
	get(a, "")
	third := get(image("c"), "")
	if !there(first) || there(second) || !there(third) {
		t.Errorf("first %v, second %v, third %v; want the second to have gone", there(first), there(second), there(third))
	}
	// What a node uses stays, whoever asked last.
	used[first.Key] = true
	get(b, "")
	if !there(first) || there(third) {
		t.Error("an image in use went, or one that is not stayed")
	}
	used[second.Key] = true
	get(image("d"), "images that nodes use")
	unknown, used = true, nil
	get(image("e"), "images that nodes use")
	if !there(first) || !there(second) {
		t.Error("an image in use went")
	}
	// A smaller cache is kept to at the next start; what was being made is gone.
	if err := os.MkdirAll(filepath.Join(dir, partial+"x/image/rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	unknown = false
	policy.Cache = 4 << 20
	c = limited(t, dir, policy, func() (map[string]bool, bool) { return used, unknown })
	if err := c.Trim(); err != nil {
		t.Fatal(err)
	}
	if there(first) == there(second) {
		t.Errorf("first %v, second %v; want one of them", there(first), there(second))
	}
	c.sweeping.Wait()
	if left, _ := filepath.Glob(filepath.Join(dir, partial+"*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// TestWhatAHeldImageIs: between Get and Release it stays.
func TestWhatAHeldImageIs(t *testing.T) {
	c := limited(t, t.TempDir(), Policy{Cache: 5 << 20, Size: 5 << 20}, nil)
	image := func(name string) string {
		return write(t, name+".tar", archive(t, dir("bin"), file("big", strings.Repeat(name, 3<<20))))
	}
	first, err := c.Get(t.Context(), image("a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), image("b")); err == nil || !exists(first.Dir) {
		t.Errorf("%v; the held image is there: %v", err, exists(first.Dir))
	}
	c.Release(first)
	if _, err := c.Get(t.Context(), image("b")); err != nil || exists(first.Dir) {
		t.Errorf("%v; the released image is there: %v", err, exists(first.Dir))
	}
}

// TestWhatThePowerTakes: an image that was not on the disk when the machine stopped
// is not trusted, and neither is one of an earlier build.
func TestWhatThePowerTakes(t *testing.T) {
	path := write(t, "a.tar", archive(t, dir("bin")))
	dir := t.TempDir()
	c := limited(t, dir, Policy{}, nil)
	img, err := c.Get(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); exists(filepath.Join(dir, img.Key, unsynced)); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the image is not brought to the disk")
		}
	}
	if err := os.WriteFile(filepath.Join(dir, img.Key, unsynced), []byte("another boot"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "sha256-0123/rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	c = limited(t, dir, Policy{}, nil)
	if err := c.Trim(); err != nil {
		t.Fatal(err)
	}
	nothingKept(t, c)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
