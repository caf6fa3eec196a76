package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
)

// platform is what images must have been made for.
var platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

// pull gets an image from a registry, without anybody's credentials: tenants
// must not read with the machine owner's.
func (c *Cache) pull(ctx context.Context, ref string) (*Image, error) {
	r, err := name.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("neither a path nor a reference to a registry: %w", err)
	}
	sum := sha256.Sum256([]byte(r.Name()))
	known := filepath.Join(c.dir, "refs", hex.EncodeToString(sum[:]))
	if digest, err := os.ReadFile(known); err == nil {
		if img, err := c.find(string(digest)); img != nil || err != nil {
			return img, err
		}
	}
	from := openRepository(ctx, r.Context())
	defer from.close()
	img, err := from.image(r)
	if err != nil {
		return nil, fmt.Errorf("cannot get it from %s; check the name and the connection to the registry, or give a local archive or directory: %w",
			r.Context().RegistryStr(), err)
	}
	out, digest, err := c.unpack(ctx, img)
	if err != nil {
		return nil, err
	}
	tmp := known + ".new"
	if err := os.WriteFile(tmp, []byte(digest), 0o600); err != nil {
		return nil, err
	}
	return out, os.Rename(tmp, known)
}

// layout reads an OCI image layout (image-spec, image-layout.md) that holds one
// image, or one for each platform.
func (c *Cache) layout(ctx context.Context, dir string) (*Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("read the OCI layout: %w", err)
	}
	img, err := choose(index)
	if err != nil {
		return nil, err
	}
	out, _, err := c.unpack(ctx, img)
	return out, err
}

// choose finds the image for this machine.
func choose(index v1.ImageIndex) (v1.Image, error) {
	m, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("read the image index: %w", err)
	}
	found := forPlatform(m)
	if len(found) != 1 {
		return nil, fmt.Errorf("it holds %d images for %s; it must hold one", len(found), platform)
	}
	d := found[0]
	if d.MediaType.IsIndex() {
		inner, err := index.ImageIndex(d.Digest)
		if err != nil {
			return nil, err
		}
		return choose(inner)
	}
	return index.Image(d.Digest)
}

// forPlatform gives what an index has for this machine: images or indexes.
func forPlatform(index *v1.IndexManifest) []v1.Descriptor {
	var found []v1.Descriptor
	for _, d := range index.Manifests {
		if d.Platform == nil || d.Platform.Satisfies(platform) {
			found = append(found, d)
		}
	}
	return found
}

// unpack extracts an image with its layers applied.
func (c *Cache) unpack(ctx context.Context, src v1.Image) (*Image, string, error) {
	d, err := src.Digest()
	if err != nil {
		return nil, "", err
	}
	digest := d.String()
	if img, err := c.find(digest); img != nil || err != nil {
		return img, digest, err
	}
	file, err := src.ConfigFile()
	if err != nil {
		return nil, "", fmt.Errorf("read the image's configuration: %w", err)
	}
	if file.Architecture != "" && file.Architecture != platform.Architecture || file.OS != "" && file.OS != platform.OS {
		return nil, "", fmt.Errorf("it was made for %s/%s, and this machine is %s", file.OS, file.Architecture, platform)
	}
	img, err := c.add(digest, func(rootfs string) (*Image, error) {
		flat := mutate.Extract(src)
		defer flat.Close()
		if err := extract(ctx, flat, rootfs); err != nil {
			return nil, err
		}
		img := &Image{Entrypoint: file.Config.Entrypoint, Cmd: file.Config.Cmd, Env: file.Config.Env, WorkingDir: file.Config.WorkingDir}
		var err error
		img.UID, img.GID, err = user(rootfs, file.Config.User)
		return img, err
	})
	return img, digest, err
}

// user resolves the user that an image names: "", "user" or "user:group", by
// name or by number.
func user(rootfs, spec string) (uid, gid int, err error) {
	if spec == "" {
		return 0, 0, nil
	}
	u, g, hasGroup := strings.Cut(spec, ":")
	if uid, gid, err = lookup(rootfs, "passwd", u); err != nil {
		return 0, 0, err
	}
	if hasGroup {
		if gid, _, err = lookup(rootfs, "group", g); err != nil {
			return 0, 0, err
		}
	}
	return uid, gid, nil
}

// lookup finds a name or number in /etc/passwd or /etc/group of the image, and
// returns its third and fourth field, as far as they are numbers.
func lookup(rootfs, file, key string) (id, other int, err error) {
	number, numeric := strconv.Atoi(key)
	if numeric == nil && (number < 0 || number > maxID) {
		return 0, 0, fmt.Errorf("its user %s: a node has ids up to %d", key, maxID)
	}
	root, err := os.OpenFile(rootfs, syscall.O_DIRECTORY, 0)
	if err != nil {
		return 0, 0, err
	}
	defer root.Close()
	var content []byte
	if f, err := openIn(root, "etc/"+file, syscall.O_RDONLY|syscall.O_NONBLOCK); err == nil {
		defer f.Close()
		if content, err = io.ReadAll(io.LimitReader(f, 1<<20)); err != nil {
			return 0, 0, err
		}
	}
	for line := range strings.SplitSeq(string(content), "\n") {
		f := append(strings.Split(line, ":"), "", "", "", "")
		v, err := strconv.Atoi(f[2])
		if err != nil || v < 0 || v > maxID || f[0] != key && (numeric != nil || v != number) {
			continue
		}
		if o, err := strconv.Atoi(f[3]); err == nil && o >= 0 && o <= maxID {
			other = o
		}
		return v, other, nil
	}
	if numeric == nil {
		return number, 0, nil
	}
	return 0, 0, fmt.Errorf("its user or group %q is not in its /etc/%s", key, file)
}

// fileKey tells when a file is to be read again.
type fileKey struct {
	path     string
	size     int64
	modified time.Time
	inode    uint64
}

// archive reads a tar archive: of a root file system, of an OCI layout, or of
// what "docker save" writes.
func (c *Cache) archive(ctx context.Context, file string, info fs.FileInfo) (*Image, error) {
	key := fileKey{path: file, size: info.Size(), modified: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		key.inode = st.Ino
	}
	digest, ok := c.hashes.Load(key)
	if !ok {
		d, err := hashFile(ctx, file)
		if err != nil {
			return nil, err
		}
		c.hashes.Store(key, d)
		digest = d
	}
	if img, err := c.find(digest.(string)); img != nil || err != nil {
		return img, err
	}
	kind, err := inspect(ctx, file)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "oci-layout":
		return c.layoutArchive(ctx, file)
	case "manifest.json":
		img, err := tarball.Image(func() (io.ReadCloser, error) { return openArchive(file) }, nil)
		if err != nil {
			return nil, fmt.Errorf("read the saved image: %w", err)
		}
		out, _, err := c.unpack(ctx, img)
		return out, err
	}
	return c.add(digest.(string), func(rootfs string) (*Image, error) {
		r, err := openArchive(file)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return &Image{}, extract(ctx, r, rootfs)
	})
}

func (c *Cache) layoutArchive(ctx context.Context, file string) (_ *Image, err error) {
	tmp, err := os.MkdirTemp(c.dir, partial)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	r, err := openArchive(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := extract(ctx, r, tmp); err != nil {
		return nil, err
	}
	return c.layout(ctx, tmp)
}

// inspect finds the file that tells what kind of archive it is; "" for a root
// file system.
func inspect(ctx context.Context, file string) (string, error) {
	r, err := openArchive(file)
	if err != nil {
		return "", err
	}
	defer r.Close()
	archive := tar.NewReader(r)
	for ctx.Err() == nil {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", fmt.Errorf("it is not a tar archive (.tar, .tar.gz or .tar.zst): %w", err)
		}
		switch clean := path.Clean(h.Name); clean {
		case "oci-layout", "manifest.json":
			return clean, nil
		}
	}
	return "", ctx.Err()
}

type archiveReader struct {
	io.Reader
	close func() error
}

func (a archiveReader) Close() error { return a.close() }

// openArchive opens an archive, and knows by its first bytes how it is compressed.
func openArchive(file string) (io.ReadCloser, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	b := bufio.NewReaderSize(f, 64<<10)
	// A shorter file has no magic number, and fails later as no archive.
	head, _ := b.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}): // RFC 1952
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return archiveReader{z, f.Close}, nil
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}): // RFC 8878
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return archiveReader{z, func() error { z.Close(); return f.Close() }}, nil
	}
	return archiveReader{b, f.Close}, nil
}

func hashFile(ctx context.Context, file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	for ctx.Err() == nil {
		if _, err := io.CopyN(h, f, 16<<20); errors.Is(err, io.EOF) {
			return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
		} else if err != nil {
			return "", err
		}
	}
	return "", ctx.Err()
}
