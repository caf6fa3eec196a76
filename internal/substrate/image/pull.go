package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
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
	if err := c.policy.checkRegistry(r.Context()); err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(r.Name()))
	known := filepath.Join(c.dir, refsDir, hex.EncodeToString(sum[:]))
	if key, err := os.ReadFile(known); err == nil {
		if img := c.cached(string(key)); img != nil {
			return img, nil
		}
	}
	from := openRepository(ctx, r.Context(), c.policy.names(r.Context()))
	defer from.close()
	m, err := from.image(r)
	if err != nil {
		return nil, fmt.Errorf("cannot get it from %s; check the name and the connection to the registry, or give a local archive or directory: %w",
			r.Context().RegistryStr(), err)
	}
	img, err := c.unpack(ctx, ref, from, m)
	if err != nil {
		return nil, err
	}
	tmp := known + ".new"
	if err := os.WriteFile(tmp, []byte(img.Key), 0o600); err != nil {
		return nil, err
	}
	return img, os.Rename(tmp, known)
}

// layoutDirectory is an OCI image layout as it lies there (image-spec,
// image-layout.md).
type layoutDirectory struct{ at *located }

func (l *layoutDirectory) open(d v1.Descriptor) (io.ReadCloser, error) {
	path, err := blobPath(d.Digest)
	if err != nil {
		return nil, err
	}
	f, err := l.at.open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("blob %s is missing; get the image anew", d.Digest)
	}
	return reader(f, err)
}

// reader keeps a nil *os.File from becoming something that looks like one.
func reader(f *os.File, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (l *layoutDirectory) index() ([]byte, error) {
	f, err := l.at.open("index.json")
	if err != nil {
		return nil, err
	}
	return readAll(f)
}

// blobPath is where a layout has a blob. The digest is not trusted.
func blobPath(h v1.Hash) (string, error) {
	if b, err := hex.DecodeString(h.Hex); h.Algorithm != "sha256" || err != nil || len(b) != sha256.Size {
		return "", fmt.Errorf("the digest %s: only sha256 is supported", h)
	}
	return "blobs/sha256/" + h.Hex, nil
}

// unpackLayout makes the image of a layout ready, which holds one, or one for each
// platform.
func (c *Cache) unpackLayout(ctx context.Context, ref string, l interface {
	source
	index() ([]byte, error)
}) (*Image, error) {
	text, err := l.index()
	if err != nil {
		return nil, fmt.Errorf("read the OCI layout: %w", err)
	}
	m, err := choose(l, text, 0)
	if err != nil {
		return nil, err
	}
	return c.unpack(ctx, ref, l, m)
}
