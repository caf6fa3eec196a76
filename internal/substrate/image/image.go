// Package image makes root file systems of images: directories, tar archives,
// OCI layouts and registry references. What has to be extracted is extracted
// once, and kept by digest.
package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/singleflight"
)

// Image is a root file system ready to lie under a node, and how to run it.
type Image struct {
	Dir        string   `json:"-"` // the root file system, not to be changed
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	UID        int      `json:"uid,omitempty"` // who runs the command
	GID        int      `json:"gid,omitempty"`
}

// Cache keeps extracted images in a directory: sha256-HEX/rootfs and its
// config.json each, and refs, which remembers the digests of references.
type Cache struct {
	dir    string
	flight singleflight.Group
	hashes sync.Map // fileKey → digest
}

// NewCache opens the cache, and removes what an interrupted extraction left.
// The directory is root's alone: extracted images hold set-user-id files.
func NewCache(dir string) (*Cache, error) {
	if err := os.MkdirAll(filepath.Join(dir, "refs"), 0o700); err != nil {
		return nil, fmt.Errorf("make the image cache: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	left, err := filepath.Glob(filepath.Join(dir, partial+"*"))
	if err != nil {
		return nil, err
	}
	for _, d := range left {
		if err := os.RemoveAll(d); err != nil {
			return nil, fmt.Errorf("tidy the image cache: %w", err)
		}
	}
	return &Cache{dir: dir}, nil
}

// partial begins the names of extractions that are not finished.
const partial = ".partial-"

// Get makes an image ready and returns it. Calls for the same image wait for
// one another. A registry is asked only for what is not in the cache.
func (c *Cache) Get(ctx context.Context, ref string) (*Image, error) {
	for {
		result := c.flight.DoChan(ref, func() (any, error) { return c.get(ctx, ref) })
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("image %s: %w", ref, ctx.Err())
		case r := <-result:
			if r.Err == nil {
				return r.Val.(*Image), nil
			}
			// Another caller's end is not ours.
			if r.Shared && errors.Is(r.Err, context.Canceled) && ctx.Err() == nil {
				continue
			}
			return nil, fmt.Errorf("image %s: %w", ref, r.Err)
		}
	}
}

func (c *Cache) get(ctx context.Context, ref string) (*Image, error) {
	if strings.HasPrefix(ref, ".") {
		return nil, errors.New("a relative path means nothing to the service; give an absolute one")
	}
	if !filepath.IsAbs(ref) {
		return c.pull(ctx, ref)
	}
	path, err := filepath.EvalSymlinks(ref)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().IsRegular():
		return c.archive(ctx, path, info)
	case !info.IsDir():
		return nil, errors.New("it is neither a directory nor an archive")
	case exists(filepath.Join(path, "oci-layout")):
		return c.layout(ctx, path)
	}
	return c.directory(path)
}

// directory takes a root file system as it lies there. It must not be one that
// holds the machine's own secrets.
func (c *Cache) directory(path string) (*Image, error) {
	own, err := filepath.Abs(c.dir)
	if err != nil {
		return nil, err
	}
	if path == "/" || strings.HasPrefix(own+"/", path+"/") {
		return nil, errors.New("a node must not see the machine's own file system; for the machine's programs there is the image \"host\"")
	}
	for _, d := range []string{"bin", "usr", "sbin"} {
		if exists(filepath.Join(path, d)) {
			return &Image{Dir: path}, nil
		}
	}
	return nil, errors.New("it is not a root file system: it has no bin, sbin or usr")
}

// find returns an extracted image; nil if there is none.
func (c *Cache) find(digest string) (*Image, error) {
	dir := c.path(digest)
	b, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	img := &Image{Dir: filepath.Join(dir, "rootfs")}
	if err := json.Unmarshal(b, img); err != nil {
		return nil, fmt.Errorf("read the cached image; remove %s to have it made anew: %w", dir, err)
	}
	return img, nil
}

func (c *Cache) path(digest string) string {
	return filepath.Join(c.dir, strings.ReplaceAll(digest, ":", "-"))
}

// add extracts an image. It appears in the cache complete or not at all.
func (c *Cache) add(digest string, fill func(rootfs string) (*Image, error)) (_ *Image, err error) {
	tmp, err := os.MkdirTemp(c.dir, partial)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	rootfs := filepath.Join(tmp, "rootfs")
	if err := os.Mkdir(rootfs, 0o755); err != nil {
		return nil, err
	}
	img, err := fill(rootfs)
	if err != nil {
		return nil, fmt.Errorf("extract: %w", err)
	}
	b, err := json.Marshal(img)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(tmp, "config.json"), b, 0o600); err != nil {
		return nil, err
	}
	// The same image under another name may have come first: that one will do.
	if err := os.Rename(tmp, c.path(digest)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return c.find(digest)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
