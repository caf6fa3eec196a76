// Package image makes root file systems of images: directories, tar archives,
// OCI layouts and registry references. Nothing of an image is trusted: what has a
// digest is compared with it before it is used, and what has to be extracted is
// extracted within limits, once for each content, and kept by that content.
package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
)

// Image is a root file system ready to lie under a node, and how to run it.
type Image struct {
	Dir string `json:"-"` // the root file system, not to be changed
	// Key names the content in the cache; empty: a directory as it lies there, which
	// Device and Inode tell from what may be put in its place.
	Key           string   `json:"-"`
	Device, Inode uint64   `json:"-"`
	Entrypoint    []string `json:"entrypoint,omitempty"`
	Cmd           []string `json:"cmd,omitempty"`
	Env           []string `json:"env,omitempty"`
	WorkingDir    string   `json:"workingDir,omitempty"`
	UID           int      `json:"uid,omitempty"` // who runs the command
	GID           int      `json:"gid,omitempty"`
}

// Get makes an image ready and returns it, held: it stays in the cache until
// Release. Calls for the same image wait for one another. A registry is asked
// only for what is not in the cache.
func (c *Cache) Get(ctx context.Context, ref string) (*Image, error) {
	for {
		img, err := once(ctx, &c.flight, ref, c.report(ctx, ref), func() (*Image, error) { return c.get(ctx, ref) })
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", ref, err)
		}
		if img.Key == "" || c.hold(img.Key) {
			return img, nil
		}
		// It went between the two: once more.
	}
}

// once has concurrent calls for the same key wait for one of them. tell is called
// now and then meanwhile; nil: never.
func once[T any](ctx context.Context, g *singleflight.Group, key string, tell func(), do func() (T, error)) (T, error) {
	var none T
	var tick <-chan time.Time
	if tell != nil {
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		tick = t.C
	}
	for {
		result := g.DoChan(key, func() (any, error) { return do() })
	wait:
		for {
			select {
			case <-tick:
				tell()
			case <-ctx.Done():
				return none, context.Cause(ctx)
			case r := <-result:
				if r.Err == nil {
					return r.Val.(T), nil
				}
				// Another caller's end is not ours.
				ended := errors.Is(r.Err, context.Canceled) || errors.Is(r.Err, context.DeadlineExceeded)
				if r.Shared && ended && ctx.Err() == nil {
					break wait
				}
				return none, r.Err
			}
		}
	}
}

func (c *Cache) get(ctx context.Context, ref string) (*Image, error) {
	limit := c.policy.Time
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf(
		"it is not ready after %v; raise images: {time: …} in the service's configuration, or use a smaller image", limit))
	defer cancel()
	img, err := c.find(ctx, ref)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return img, err
}

// find goes by what the reference is.
func (c *Cache) find(ctx context.Context, ref string) (*Image, error) {
	if strings.HasPrefix(ref, ".") {
		return nil, errors.New("a relative path means nothing to the service; give an absolute one")
	}
	if !filepath.IsAbs(ref) {
		return c.pull(ctx, ref)
	}
	at, err := c.locate(ref)
	if err != nil {
		return nil, err
	}
	defer at.file.Close()
	info, err := at.file.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.Mode().IsRegular():
		return c.archive(ctx, ref, at.file, info)
	case !info.IsDir():
		return nil, errors.New("it is neither a directory nor an archive")
	case at.exists("oci-layout"):
		return c.unpackLayout(ctx, ref, &layoutDirectory{at})
	}
	return c.directory(ctx, at, info)
}

// directory takes a root file system as it lies there.
func (c *Cache) directory(ctx context.Context, at *located, info os.FileInfo) (*Image, error) {
	found := false
	for _, d := range []string{"bin", "usr", "sbin"} {
		found = found || at.exists(d)
	}
	if !found {
		return nil, errors.New("it is not a root file system: it has no bin, sbin or usr")
	}
	img := &Image{Dir: at.path}
	img.Device, img.Inode = identity(info)
	if at.public {
		if err := c.checkPublic(ctx, at, img); err != nil {
			return nil, err
		}
	}
	return img, nil
}
