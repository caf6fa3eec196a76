package container

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/vnet"
)

// A daemon that saves its configuration ("write memory") writes to the node's own file
// system, which ends with the node. So the directories of such files are watched, and
// what a node has made of a file that was placed there is kept in StateDir/saved, until
// another content is placed, or the VNet is removed. A restarted node gets it back.

const (
	savedDir = "saved"
	// maxSaved is how long a file may be to be kept; longer ones are left to the node.
	maxSaved = 1 << 20
	// saveAfter is how long is waited between two looks at what nodes write: it comes in bursts.
	saveAfter = 300 * time.Millisecond
)

// savedFile is what a node has made of a file.
type savedFile struct {
	Base    string // digest of what was placed
	Content []byte
	Mode    uint32
}

func contentDigest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}

// savedPath is where a node's files are kept.
func (r *Runtime) savedPath(id ID) string {
	return filepath.Join(r.cfg.StateDir, savedDir, id.VNet, id.Node+".json")
}

func (r *Runtime) loadSaved(id ID) (map[string]savedFile, error) {
	b, err := os.ReadFile(r.savedPath(id))
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]savedFile{}, nil
	}
	if err != nil {
		return nil, err
	}
	saved := map[string]savedFile{}
	if err := json.Unmarshal(b, &saved); err != nil {
		return nil, fmt.Errorf("read what node %s has saved (remove %s to start it without): %w", id, r.savedPath(id), err)
	}
	return saved, nil
}

func (r *Runtime) storeSaved(id ID, saved map[string]savedFile) error {
	if len(saved) == 0 {
		return ignoreMissing(unix.Unlink(r.savedPath(id)))
	}
	b, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	r.saver.dirs.Lock()
	defer r.saver.dirs.Unlock()
	if err := os.MkdirAll(filepath.Dir(r.savedPath(id)), 0o700); err != nil {
		return err
	}
	return replace(r.savedPath(id), b, 0o600)
}

// restoreSaved gives the files of a node with what it has saved in their place, and the
// digests of what was placed, by path. What was saved over another content goes.
func (r *Runtime) restoreSaved(s *Spec) (files []vnet.File, bases map[string]string, err error) {
	if len(s.Saved) == 0 {
		return s.Files, nil, nil
	}
	saved, err := r.loadSaved(s.ID)
	if err != nil {
		return nil, nil, err
	}
	files, bases = slices.Clone(s.Files), map[string]string{}
	left := map[string]savedFile{}
	for i, f := range files { // a later one of the same path wins
		name := path.Clean(f.Path)
		if !slices.Contains(s.Saved, name) {
			continue
		}
		bases[name] = contentDigest(f.Content)
		delete(left, name)
		if old, ok := saved[name]; ok && old.Base == bases[name] {
			files[i].Content, files[i].Mode = old.Content, old.Mode
			left[name] = old
		}
	}
	if len(left) != len(saved) {
		err = r.storeSaved(s.ID, left)
	}
	return files, bases, err
}

// placed books that other contents are about to be placed in a running node.
func (r *Runtime) placed(c *record, files []vnet.File) error {
	changed := false
	for _, f := range files {
		name := path.Clean(f.Path)
		if base, ok := c.Saved[name]; ok && base != contentDigest(f.Content) {
			if !changed {
				c.Saved = maps.Clone(c.Saved)
			}
			c.Saved[name], changed = contentDigest(f.Content), true
		}
	}
	if !changed {
		return nil
	}
	if err := r.save(c); err != nil {
		return err
	}
	saved, err := r.loadSaved(c.ID)
	if err != nil {
		return err
	}
	maps.DeleteFunc(saved, func(name string, f savedFile) bool { return c.Saved[name] != f.Base })
	return r.storeSaved(c.ID, saved)
}

// KeepSaved reads the files of a running node that it may have saved, and keeps those
// that are no longer what was placed. A node that does not run is no error.
func (r *Runtime) KeepSaved(id ID) error {
	defer r.lock(id)()
	c, err := r.loadRunning(id)
	if err != nil {
		return nil // it has ended; what it saved before was kept
	}
	root, err := c.root()
	if err != nil {
		return nil
	}
	defer root.Close()
	old, err := r.loadSaved(id)
	if err != nil {
		return err
	}
	saved := map[string]savedFile{}
	for name, base := range c.Saved {
		content, mode, ok := readSmall(root, name)
		switch {
		case !ok: // gone, or not a file to keep
			if f, had := old[name]; had && f.Base == base {
				saved[name] = f
			}
		case contentDigest(content) != base:
			saved[name] = savedFile{Base: base, Content: content, Mode: mode}
		}
	}
	if maps.EqualFunc(saved, old, func(a, b savedFile) bool {
		return a.Base == b.Base && a.Mode == b.Mode && string(a.Content) == string(b.Content)
	}) {
		return nil
	}
	return r.storeSaved(id, saved)
}

// readSmall reads a file of a node's that is a plain one and not too long.
func readSmall(root *os.File, name string) (content []byte, mode uint32, ok bool) {
	f, err := openIn(root, strings.TrimPrefix(name, "/"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY)
	if err != nil {
		return nil, 0, false
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxSaved {
		return nil, 0, false
	}
	content, err = readFrom(f, 0, st.Size)
	return content, st.Mode & 0o777, err == nil && int64(len(content)) == st.Size
}

// saver waits for nodes' writing to end, and then keeps it: one goroutine at most.
type saver struct {
	dirs sync.Mutex // held while directories are made or removed

	mu    sync.Mutex
	nodes map[ID]bool
	busy  bool
}

// savedChanged has a node's files kept soon.
func (r *Runtime) savedChanged(id ID) {
	s := &r.saver
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes == nil {
		s.nodes = map[ID]bool{}
	}
	s.nodes[id] = true
	if s.busy {
		return
	}
	s.busy = true
	go func() {
		for ; ; time.Sleep(saveAfter) {
			s.mu.Lock()
			nodes := slices.Collect(maps.Keys(s.nodes))
			clear(s.nodes)
			s.busy = len(nodes) > 0
			s.mu.Unlock()
			if len(nodes) == 0 {
				return
			}
			for _, id := range nodes {
				if err := r.KeepSaved(id); err != nil && r.cfg.Log != nil {
					r.cfg.Log.Error("what a node has saved could not be kept; it is lost when the node restarts", "node", id.String(), "err", err)
				}
			}
		}
	}()
}

// watchSaved follows what a running node writes where its saved files are, and keeps
// what it has written while nobody looked.
func (r *Runtime) watchSaved(c *record) error {
	if len(c.Saved) == 0 {
		return nil
	}
	root, err := c.root()
	if err != nil {
		return nil // it has just ended
	}
	defer root.Close()
	dirs := map[string]bool{}
	for name := range c.Saved {
		dirs[path.Dir(name)] = true
	}
	for d := range dirs {
		dir, err := openIn(root, strings.TrimPrefix(d, "/"), unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			continue // the node has removed it
		}
		err = r.events.watchDir(dir, c.ID)
		if err = errors.Join(err, dir.Close()); err != nil {
			return err
		}
	}
	r.savedChanged(c.ID)
	return nil
}

// ForgetSaved removes what nodes of a VNet have saved; of all of them if none is named.
func (r *Runtime) ForgetSaved(vnet string, nodes ...string) error {
	if !validName(vnet) {
		return fmt.Errorf("%q is not a name of a VNet", vnet)
	}
	r.saver.dirs.Lock()
	defer r.saver.dirs.Unlock()
	var errs []error
	for _, n := range nodes {
		errs = append(errs, ignoreMissing(unix.Unlink(r.savedPath(ID{vnet, n}))))
	}
	dir := filepath.Join(r.cfg.StateDir, savedDir, vnet)
	if len(nodes) == 0 {
		errs = append(errs, os.RemoveAll(dir))
	} else {
		_ = unix.Rmdir(dir) // unless there are others
	}
	_ = unix.Rmdir(filepath.Dir(dir))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what nodes of %s have saved: %w", vnet, err)
	}
	return nil
}

// SavedVNets returns the names of the VNets whose nodes have saved anything.
func (r *Runtime) SavedVNets() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(r.cfg.StateDir, savedDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}
