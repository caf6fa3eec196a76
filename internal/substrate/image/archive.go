package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// archiveKey begins the keys of archives of a root file system; the rest is the
// archive's digest.
const archiveKey = "archive-"

// fileKey tells when a file is to be read again. Nobody can set a file's time of
// change back.
type fileKey struct {
	device, inode  uint64
	size           int64
	changed, nanos int64
}

// archive reads a tar archive: of a root file system, of an OCI layout, or of
// what "docker save" writes.
func (c *Cache) archive(ctx context.Context, ref string, f *os.File, info fs.FileInfo) (*Image, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.New("its file system tells nothing of it")
	}
	key := fileKey{st.Dev, st.Ino, st.Size, st.Ctim.Sec, st.Ctim.Nsec}
	if known, ok := c.hashes.Load(key); ok {
		if img := c.cached(known.(string)); img != nil {
			return img, nil
		}
	}
	packed, err := inspect(ctx, c, f)
	if err != nil {
		return nil, err
	}
	var img *Image
	if packed {
		img, err = c.imageArchive(ctx, ref, f)
	} else {
		img, err = c.rootArchive(ctx, ref, f, info.Size())
	}
	if err == nil {
		c.hashes.Store(key, img.Key)
	}
	return img, err
}

// rootArchive makes an archive of a root file system ready.
func (c *Cache) rootArchive(ctx context.Context, ref string, f *os.File, size int64) (*Image, error) {
	sum := sha256.New()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for n := int64(0); ; {
		m, err := io.CopyN(sum, f, 16<<20)
		if n += m; n > size {
			return nil, errChanging
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
	}
	digest := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	return c.add(ctx, archiveKey+digest.Hex, ref, func(w *work) (*Image, error) {
		x, err := newExtractor(w)
		if err != nil {
			return nil, err
		}
		defer x.close()
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		// What is extracted is what the key says, even if the file changes meanwhile.
		again := sha256.New()
		ahead := readAhead(func() (io.ReadCloser, error) { return decompress(io.TeeReader(f, again)) })
		defer ahead.Close()
		unpacked := &stream{r: ahead, w: w, ctx: ctx}
		if err := x.extract(ctx, unpacked, false, true); err != nil {
			return nil, fmt.Errorf("extract: %w", err)
		}
		if _, err := io.Copy(io.Discard, unpacked); err != nil {
			return nil, fmt.Errorf("extract: %w", err)
		}
		ahead.Close()
		if hex.EncodeToString(again.Sum(nil)) != digest.Hex {
			return nil, errChanging
		}
		return &Image{}, nil
	})
}

var errChanging = errors.New("the archive changes while it is read; try again when it is complete")

// inspect reports whether an archive holds a packed image: an OCI layout, or what
// "docker save" writes.
func inspect(ctx context.Context, c *Cache, f *os.File) (bool, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	r, err := decompress(f)
	if err != nil {
		return false, noArchive(err)
	}
	defer r.Close()
	archive := tar.NewReader(&stream{r: r, w: &work{c: c}, ctx: ctx})
	for n := 0; ; n++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		case errors.Is(err, errUnpacked):
			return false, err
		case err != nil:
			return false, noArchive(err)
		}
		name := path.Clean(h.Name)
		// A root file system begins with what an image never has at its top.
		if name == "oci-layout" || name == "manifest.json" {
			return true, nil
		}
		if top, _, _ := strings.Cut(name, "/"); rootNames[top] {
			return false, nil
		}
	}
}

// rootNames are directories by which a root file system is known without reading
// its archive to the end.
var rootNames = map[string]bool{"bin": true, "sbin": true, "usr": true, "etc": true, "lib": true, "dev": true, "proc": true, "sys": true, "var": true}

func noArchive(err error) error {
	return fmt.Errorf("it is not a tar archive (.tar, .tar.gz or .tar.zst): %w", err)
}

// imageArchive makes a packed image ready. Its blobs are unpacked below the cache
// first, each by the digest that it has.
func (c *Cache) imageArchive(ctx context.Context, ref string, f *os.File) (_ *Image, err error) {
	w, err := c.newWork(ref)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	a := &archived{dir: filepath.Join(w.dir, "blobs"), digests: map[string]string{}, links: map[string]string{}, sizes: map[string]int64{}}
	if err := a.read(ctx, w, f); err != nil {
		return nil, err
	}
	if _, ok := a.digests["index.json"]; ok {
		return c.unpackLayout(ctx, ref, a)
	}
	return c.unpackSaved(ctx, ref, a)
}

// archived is what an archive of an image holds.
type archived struct {
	dir     string
	digests map[string]string // in hexadecimal, by name in the archive
	sizes   map[string]int64  // by digest
	links   map[string]string // names that lead to others
}

// maxParts is how many files an archive of an image may hold.
const maxParts = 10_000

func (a *archived) read(ctx context.Context, w *work, f *os.File) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r, err := decompress(f)
	if err != nil {
		return noArchive(err)
	}
	defer r.Close()
	archive := tar.NewReader(&stream{r: r, w: w, ctx: ctx})
	buffer := make([]byte, 256<<10)
	for n := 0; ; n++ {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return noArchive(err)
		}
		if n >= maxParts || len(h.Name) > maxName || len(h.Linkname) > maxName {
			return fmt.Errorf("more than %d files, or a name longer than %d bytes, in the archive of an image", maxParts, maxName)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			if err := a.store(w, name, archive, buffer); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		case tar.TypeSymlink:
			a.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			a.links[name] = path.Clean(h.Linkname)
		}
	}
}

// store keeps a file by its digest.
func (a *archived) store(w *work, name string, content io.Reader, buffer []byte) (err error) {
	f, err := os.CreateTemp(a.dir, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := sha256.New()
	written := int64(0)
	for {
		n, err := content.Read(buffer)
		if e := w.fetch(int64(n)); e != nil {
			return e
		}
		if _, e := f.Write(buffer[:n]); e != nil {
			return e
		}
		sum.Write(buffer[:n])
		written += int64(n)
		w.say("unpacked " + size(w.fetched))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	a.digests[name], a.sizes[digest] = digest, written
	return os.Rename(f.Name(), filepath.Join(a.dir, digest))
}

// digest gives that of a file of the archive, through links; "" if there is none.
func (a *archived) digest(name string) string {
	for range 8 {
		if to, ok := a.links[name]; ok {
			name = to
		}
	}
	return a.digests[name]
}

// named reads a small file of the archive.
func (a *archived) named(name string) ([]byte, error) {
	digest := a.digest(name)
	if digest == "" {
		return nil, fmt.Errorf("the archive has no %s", name)
	}
	f, err := os.Open(filepath.Join(a.dir, digest))
	if err != nil {
		return nil, err
	}
	return readAll(f)
}

func (a *archived) index() ([]byte, error) { return a.named("index.json") }

func (a *archived) open(d v1.Descriptor) (io.ReadCloser, error) {
	name, err := blobPath(d.Digest)
	if err != nil {
		return nil, err
	}
	if _, ok := a.sizes[d.Digest.Hex]; !ok {
		if have := a.digest(name); have != "" {
			return nil, wrongContent("blob", d.Digest.String(), have)
		}
		return nil, fmt.Errorf("blob %s is missing; get the image anew", d.Digest)
	}
	return reader(os.Open(filepath.Join(a.dir, d.Digest.Hex)))
}

// unpackSaved makes ready what "docker save" has written before it wrote layouts.
// The layers' names say nothing; the configuration, whose name is its digest, holds
// the digests of the layers.
func (c *Cache) unpackSaved(ctx context.Context, ref string, a *archived) (*Image, error) {
	text, err := a.named("manifest.json")
	if err != nil {
		return nil, err
	}
	var saved []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, fmt.Errorf("read the saved image: %w", err)
	}
	if len(saved) != 1 {
		return nil, fmt.Errorf("it holds %d images; save one", len(saved))
	}
	name := path.Clean(saved[0].Config)
	config, err := a.named(name)
	if err != nil {
		return nil, err
	}
	digest := v1.Hash{Algorithm: "sha256", Hex: a.digest(name)}
	called := strings.TrimPrefix(strings.TrimSuffix(path.Base(name), ".json"), "sha256:")
	if b, err := hex.DecodeString(called); err == nil && len(b) == sha256.Size && !bytes.Equal([]byte(called), []byte(digest.Hex)) {
		return nil, wrongContent("configuration", "sha256:"+called, digest.Hex)
	}
	blobs := make([]v1.Descriptor, len(saved[0].Layers))
	for i, l := range saved[0].Layers {
		h := a.digest(path.Clean(l))
		if h == "" {
			return nil, fmt.Errorf("the archive has no layer %s", l)
		}
		blobs[i] = v1.Descriptor{Digest: v1.Hash{Algorithm: "sha256", Hex: h}, Size: a.sizes[h]}
	}
	file, layers, err := describe(config, blobs)
	if err != nil {
		return nil, err
	}
	return c.unpackLayers(ctx, ref, a, digest, file, layers)
}
