package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// work is a directory of the cache in which an image is made, and what it has
// taken so far.
type work struct {
	c   *Cache
	ref string
	dir string
	// written are the bytes that the extracted image takes on the disk, streamed those
	// that its archives hold unpacked; files counts what it is made of.
	written, streamed int64
	files             int
	// charged is what the cache was told of, ahead of what is written; fetched, part
	// of it, is what goes when the image is made.
	charged, fetched int64
	told             time.Time
}

// Costs on the disk, in bytes, of what has none in its archive.
const (
	blockSize = 4096 // what contents and directories are rounded up to
	entryCost = 512  // an inode and a name
	chargedAt = 1 << 20
)

func (c *Cache) newWork(ref string) (*work, error) {
	dir, err := os.MkdirTemp(c.dir, partial)
	if err != nil {
		return nil, err
	}
	w := &work{c: c, ref: ref, dir: dir}
	for _, d := range []string{"image", "blobs"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *work) rootfs() string { return filepath.Join(w.dir, "image", "rootfs") }

// close removes what is left, and gives back what it took.
func (w *work) close() error {
	w.c.doing.Delete(w.ref)
	err := os.RemoveAll(w.dir)
	w.c.refund(w.charged)
	return err
}

// keep leaves the extracted image to the cache. The caller holds the cache's mu.
func (w *work) keep() {
	w.charged -= w.written
}

// charge books bytes of the disk before they are written.
func (w *work) charge(n int64) error {
	if w.written+w.fetched+n <= w.charged {
		return nil
	}
	step := max(n, chargedAt)
	if err := w.c.charge(step); err != nil {
		w.c.refund(step)
		return err
	}
	w.charged += step
	return nil
}

// entry books something of the image, of so many bytes, before it is made.
func (w *work) entry(name string, bytes int64) error {
	p := &w.c.policy
	if w.files++; w.files > p.Files {
		return w.tooMany()
	}
	if bytes < 0 || bytes > p.Size {
		return w.tooLarge()
	}
	bytes = (bytes+blockSize-1)/blockSize*blockSize + entryCost + int64(len(name))
	if w.written+bytes > p.Size {
		return w.tooLarge()
	}
	if err := w.charge(bytes); err != nil {
		return err
	}
	w.written += bytes
	if w.files%64 == 0 || bytes > chargedAt {
		w.tell()
	}
	return nil
}

func (w *work) tooMany() error {
	return fmt.Errorf("it holds more than %d files; raise images: {files: …} in the service's configuration, or use a smaller image", w.c.policy.Files)
}

// stream books bytes of an archive as they are unpacked, whether they are written
// or passed over.
func (w *work) stream(n int) error {
	p := &w.c.policy
	// Headers come on top: one and a name for each file.
	if w.streamed += int64(n); w.streamed > p.Size+2048*int64(p.Files) {
		return w.tooLarge()
	}
	return nil
}

// errUnpacked is what an image is refused with that unpacks to too much.
var errUnpacked = errors.New("unpacked it takes more")

func (w *work) tooLarge() error {
	return fmt.Errorf("%w than %s; raise images: {size: …} in the service's configuration, or use a smaller image", errUnpacked, size(w.c.policy.Size))
}

// fetch books bytes of an archive that is kept while the image is made.
func (w *work) fetch(n int64) error {
	if w.fetched+n > w.c.policy.Size {
		return fmt.Errorf("its archives take more than %s; raise images: {size: …} in the service's configuration, or use a smaller image", size(w.c.policy.Size))
	}
	if err := w.charge(n); err != nil {
		return err
	}
	w.fetched += n
	return nil
}

// tell says how much is extracted.
func (w *work) tell() {
	if time.Since(w.told) >= progressEvery/2 {
		w.say(fmt.Sprintf("extracted %d files, %s", w.files, size(w.written)))
	}
	if w.c.blocked != nil {
		w.c.blocked(w.ref)
	}
}

// say says how far the image is.
func (w *work) say(text string) {
	if now := time.Now(); now.Sub(w.told) >= progressEvery/2 {
		w.told = now
		w.c.doing.Store(w.ref, text)
	}
}
