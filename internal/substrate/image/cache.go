package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"
)

// Cache keeps extracted images in a directory: for each content KEY/rootfs and its
// config.json, whose time of change is that of the last use; and refs, which
// remembers the keys of references to registries.
type Cache struct {
	dir       string
	policy    Policy
	inUse     func() (keys map[string]bool, all bool)
	forbidden []string           // directories of which no image may hold or be anything
	blocked   func(string)       // of tests: called while an image is extracted
	flight    singleflight.Group // by reference
	contents  singleflight.Group // by key
	sweeping  sync.WaitGroup     // of what is removed in the background
	hashes    sync.Map           // fileKey → key, of archives
	doing     sync.Map           // reference → how far it is
	verdicts  sync.Map           // path → verdict, of directories

	mu      sync.Mutex
	entries map[string]*stored
	used    int64 // bytes of the entries, and of what is being made
}

// stored is an image in the cache.
type stored struct {
	Image
	Bytes int64 `json:"bytes"` // on the disk
	Files int   `json:"files"`

	last, marked time.Time // of use; as the disk has it
	held         int       // by callers of Get
}

// Options are what a cache needs.
type Options struct {
	Dir    string // the cache's own; root's alone, since extracted images hold set-user-id files
	Policy Policy
	// Private are directories of the service that no image may hold or be.
	Private []string
	// InUse gives the keys of the images that nodes use. all: there are nodes of which
	// it is not known, so that every image counts as used. nil: no node uses any.
	InUse func() (keys map[string]bool, all bool)
}

// Names in the cache's directory.
const (
	partial  = ".partial-" // begins those of what is being made or removed
	refsDir  = "refs"
	unsynced = "unsynced" // in an image: holds the boot id until all of it is on the disk
)

// OpenCache opens the cache, and removes what an interrupted extraction or removal
// left, and what was not on the disk when the machine stopped.
func OpenCache(o Options) (*Cache, error) {
	if err := os.MkdirAll(filepath.Join(o.Dir, refsDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the image cache: %w", err)
	}
	if err := os.Chmod(o.Dir, 0o700); err != nil {
		return nil, err
	}
	c := &Cache{dir: o.Dir, inUse: o.InUse, entries: map[string]*stored{}}
	if c.inUse == nil {
		c.inUse = func() (map[string]bool, bool) { return nil, false }
	}
	var err error
	if c.policy, err = o.Policy.complete(o.Dir); err != nil {
		return nil, err
	}
	for _, dir := range append([]string{o.Dir, "/var/lib/trellis", "/run/trellis"}, o.Private...) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			c.forbidden = append(c.forbidden, real)
		}
	}
	if err := c.load(); err != nil {
		return nil, fmt.Errorf("tidy the image cache: %w", err)
	}
	return c, nil
}

// Trim brings the cache below its size, as far as images in use allow, and removes
// images of earlier builds. To be called when it is known what nodes use.
func (c *Cache) Trim() error {
	since := time.Now()
	used, all := c.inUse()
	if all {
		return nil
	}
	old, err := filepath.Glob(filepath.Join(c.dir, "sha256-*")) // their blobs were not compared with digests
	if err != nil {
		return err
	}
	for _, dir := range old {
		if err := c.drop(dir); err != nil {
			return err
		}
	}
	c.mu.Lock()
	victims := c.evict(used, since)
	c.mu.Unlock()
	for _, dir := range victims {
		c.sweep(dir)
	}
	return nil
}

// load reads what is there.
func (c *Cache) load() error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	list, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, d := range list {
		dir := filepath.Join(c.dir, d.Name())
		switch {
		case strings.HasPrefix(d.Name(), partial):
			c.sweep(dir)
			continue
		case !strings.HasPrefix(d.Name(), imageKey) && !strings.HasPrefix(d.Name(), archiveKey):
			continue
		}
		if of, err := os.ReadFile(filepath.Join(dir, unsynced)); err == nil {
			if string(of) != string(boot) {
				if err := c.drop(dir); err != nil { // what the power took is not known
					return err
				}
				continue
			}
			go c.sync(dir)
		}
		e, err := readEntry(dir)
		if err != nil { // it is made anew when it is asked for
			if err := c.drop(dir); err != nil {
				return err
			}
			continue
		}
		c.entries[d.Name()] = e
		c.used += e.Bytes
	}
	return nil
}

func readEntry(dir string) (*stored, error) {
	path := filepath.Join(dir, "config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	e := &stored{last: info.ModTime(), marked: info.ModTime()}
	if err := json.Unmarshal(b, e); err != nil {
		return nil, err
	}
	e.Dir, e.Key = filepath.Join(dir, "rootfs"), filepath.Base(dir)
	return e, nil
}

// cached returns an extracted image; nil if there is none.
func (c *Cache) cached(key string) *Image {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[key]; e != nil {
		img := e.Image
		return &img
	}
	return nil
}

// hold keeps an image from being removed until Release; false if it is not there.
func (c *Cache) hold(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e == nil {
		return false
	}
	e.held++
	if e.last = time.Now(); e.last.Sub(e.marked) > time.Second {
		e.marked = e.last
		// Best effort: it only decides what goes first.
		_ = os.Chtimes(filepath.Join(c.dir, key, "config.json"), e.last, e.last)
	}
	return true
}

// Release lets go of an image that Get gave. What a node uses stays.
func (c *Cache) Release(img *Image) {
	if img == nil || img.Key == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[img.Key]; e != nil && e.held > 0 {
		e.held--
		e.last = time.Now() // who asked before this what nodes use does not know of it
	}
}

// charge books bytes that are about to be written, and makes room for them.
func (c *Cache) charge(n int64) error {
	c.mu.Lock()
	c.used += n
	if c.used <= c.policy.Cache {
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	since := time.Now()
	used, all := c.inUse() // outside of the lock: it takes others
	c.mu.Lock()
	var victims []string
	if !all {
		victims = c.evict(used, since)
	}
	kept := c.used
	c.mu.Unlock()
	err := c.remove(victims)
	if kept > c.policy.Cache {
		return errors.Join(err, fmt.Errorf("the cache may hold %s, and images that nodes use take the rest of it; take networks down, or raise images: {cache: …} in the service's configuration",
			size(c.policy.Cache)))
	}
	return err
}

// refund books bytes that are not there any more.
func (c *Cache) refund(n int64) {
	c.mu.Lock()
	c.used -= n
	c.mu.Unlock()
}

// evict takes images out that nobody uses, the least recently used first, until the
// cache is within its size; their directories are the caller's to remove. used is
// what nodes used at the time since. The caller holds mu.
func (c *Cache) evict(used map[string]bool, since time.Time) (victims []string) {
	free := make([]*stored, 0, len(c.entries))
	for key, e := range c.entries {
		if e.held == 0 && !used[key] && e.last.Before(since) {
			free = append(free, e)
		}
	}
	slices.SortFunc(free, func(a, b *stored) int { return a.last.Compare(b.last) })
	for _, e := range free {
		if c.used <= c.policy.Cache {
			break
		}
		// Under the lock, so that the name is free for the same content.
		gone := filepath.Join(c.dir, fmt.Sprintf("%sgone-%d-%s", partial, since.UnixNano(), e.Key))
		if err := os.Rename(filepath.Join(c.dir, e.Key), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		delete(c.entries, e.Key)
		c.used -= e.Bytes
		victims = append(victims, gone)
	}
	return victims
}

// remove removes directories that are out of the way.
func (c *Cache) remove(dirs []string) error {
	var errs []error
	for _, d := range dirs {
		errs = append(errs, os.RemoveAll(d))
	}
	return errors.Join(errs...)
}

// drop takes a directory out of the cache, all of it or nothing to be seen.
func (c *Cache) drop(dir string) error {
	gone := filepath.Join(c.dir, fmt.Sprintf("%sgone-%d-%s", partial, time.Now().UnixNano(), filepath.Base(dir)))
	if err := os.Rename(dir, gone); err != nil {
		return err
	}
	c.sweep(gone)
	return nil
}

// sweep removes a directory that is out of the way, while the service starts: it may
// hold hundreds of thousands of files. What cannot be removed is tried again by the
// next service.
func (c *Cache) sweep(dir string) {
	c.sweeping.Go(func() { _ = os.RemoveAll(dir) })
}

// add makes an image of a content that is not in the cache, once however many ask
// for it. It appears in the cache complete or not at all.
func (c *Cache) add(ctx context.Context, key, ref string, fill func(w *work) (*Image, error)) (*Image, error) {
	return once(ctx, &c.contents, key, nil, func() (*Image, error) {
		if img := c.cached(key); img != nil {
			return img, nil
		}
		return c.make(key, ref, fill)
	})
}

func (c *Cache) make(key, ref string, fill func(w *work) (*Image, error)) (_ *Image, err error) {
	w, err := c.newWork(ref)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := os.Mkdir(w.rootfs(), 0o755); err != nil {
		return nil, err
	}
	img, err := fill(w)
	if err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	e := &stored{Image: *img, Bytes: w.written, Files: w.files, last: time.Now()}
	e.Key, e.Dir = key, filepath.Join(c.dir, key, "rootfs")
	b, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(w.dir, "image", "config.json"), b, 0o600),
		os.WriteFile(filepath.Join(w.dir, "image", unsynced), boot, 0o600),
	); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err = os.Rename(filepath.Join(w.dir, "image"), filepath.Join(c.dir, key))
	if errors.Is(err, fs.ErrExist) { // another service over the same directory was faster
		if e, err = readEntry(filepath.Join(c.dir, key)); err == nil {
			c.entries[key] = e
			c.used += e.Bytes
			out := e.Image
			return &out, nil
		}
	}
	if err != nil {
		return nil, err
	}
	c.entries[key] = e
	w.keep()
	go c.sync(filepath.Join(c.dir, key))
	out := e.Image
	return &out, nil
}

// sync brings an image to the disk. Until then it is one of this boot.
func (c *Cache) sync(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return // it has gone already
	}
	defer f.Close()
	if unix.Syncfs(int(f.Fd())) == nil {
		// Relative to the directory: another one may bear its name by now.
		_ = unix.Unlinkat(int(f.Fd()), unsynced, 0)
	}
}
