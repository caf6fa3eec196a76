package image

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Names by which a layer says what of the layers below is not there any more
// (image-spec, layer.md, whiteouts).
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq" // nothing of this directory
)

// note keeps that this layer has made name, and so the directories that it is in. By
// way of links one directory may have any number of names, which are bounded, too.
func (x *extractor) note(name string) error {
	if x.made == nil {
		return nil
	}
	for ; name != "."; name = path.Dir(name) {
		h := maphash.String(x.seed, name)
		if _, known := x.made[h]; known {
			return nil
		}
		x.made[h] = struct{}{}
	}
	if len(x.made) > 4*x.w.c.policy.Files {
		return x.w.tooMany()
	}
	return nil
}

func (x *extractor) has(name string) bool {
	_, made := x.made[maphash.String(x.seed, name)]
	return made
}

// whiteout takes away what the layers below have.
func (x *extractor) whiteout(name string) error {
	dir, base := path.Dir(name), path.Base(name)
	gone := strings.TrimPrefix(base, whiteout)
	switch {
	case x.made == nil: // nothing lies below
		return nil
	case base != opaque && strings.HasPrefix(gone, whiteout):
		return nil // another file system's own notes
	case base != opaque && (gone == "" || gone == "." || gone == ".."):
		return errors.New("it takes away no file")
	}
	fd, err := openIn(int(x.root.Fd()), dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	} else if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	if base == opaque {
		return x.clear(f, dir)
	}
	if gone = path.Join(dir, gone); x.has(gone) {
		return nil
	}
	if err := x.remove(fd, path.Base(gone)); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// clear removes from a directory what this layer has not made.
func (x *extractor) clear(dir *os.File, name string) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, base := range names {
		child := path.Join(name, base)
		if !x.has(child) {
			if err := x.remove(int(dir.Fd()), base); err != nil {
				return err
			}
			continue
		}
		fd, err := openIn(int(dir.Fd()), base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			continue // a file of this layer
		} else if err != nil {
			return err
		}
		inner := os.NewFile(uintptr(fd), child)
		err = x.clear(inner, child)
		inner.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// remove removes a file, or a directory with all that is in it. parent stays open.
func (x *extractor) remove(parent int, base string) error {
	x.dirs.forget(parent) // the names of the others may lead elsewhere from now on
	return removeAll(parent, base)
}

func removeAll(parent int, base string) error {
	err := unix.Unlinkat(parent, base, 0)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	fd, err := openIn(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), base)
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(256)
		if len(names) == 0 {
			if errors.Is(err, io.EOF) {
				break
			}
			return err
		}
		for _, n := range names {
			if err := removeAll(fd, n); err != nil {
				return fmt.Errorf("%s: %w", n, err)
			}
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
	return unix.Unlinkat(parent, base, unix.AT_REMOVEDIR)
}

// forget closes all but one.
func (d dirs) forget(but int) {
	for name, fd := range d {
		if fd != but {
			unix.Close(fd)
			delete(d, name)
		}
	}
}
