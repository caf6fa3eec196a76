package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxID   = 65535 // of users and groups: a node has no others
	maxName = 4096  // bytes of a path (PATH_MAX)
)

// extractor unpacks tar streams of a root file system, one over the other. The
// archives are not trusted: every path is resolved with the directory as the root
// (openat2(2)), hard links as well; device nodes, of which a node needs none from an
// image, are left out, and so are extended attributes.
type extractor struct {
	w      *work
	root   *os.File
	dirs   dirs
	buffer []byte
	// made holds what the layer has made, by the hash of its name, where layers lie
	// below: whiteouts are about those. nil: in the lowest, and outside of images.
	made map[uint64]struct{}
	seed maphash.Seed
}

func newExtractor(w *work) (*extractor, error) {
	root, err := os.OpenFile(w.rootfs(), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &extractor{w: w, root: root, dirs: dirs{}, buffer: make([]byte, 256<<10), seed: maphash.MakeSeed()}, nil
}

func (x *extractor) close() {
	x.dirs.clear()
	x.root.Close()
}

// extract unpacks a tar stream of a root file system; of a layer of an image, with
// what it says of the layers below.
func (x *extractor) extract(ctx context.Context, r io.Reader, layer, lowest bool) error {
	x.made = nil
	if layer && !lowest {
		x.made = map[uint64]struct{}{}
	}
	archive := tar.NewReader(r)
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			if n == 0 && !layer {
				return errors.New("the archive is empty")
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		switch {
		case len(h.Name) > maxName || len(h.Linkname) > maxName:
			return fmt.Errorf("a name of %d bytes; %d are possible", max(len(h.Name), len(h.Linkname)), maxName)
		case h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID:
			return fmt.Errorf("%s belongs to %d:%d; a node has ids up to %d", h.Name, h.Uid, h.Gid, maxID)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if layer && strings.HasPrefix(path.Base(name), whiteout) {
			err = x.whiteout(name)
		} else {
			err = x.place(name, h, archive)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

// place makes one entry.
func (x *extractor) place(name string, h *tar.Header, content io.Reader) error {
	if name == "" { // the root itself
		if h.Typeflag != tar.TypeDir {
			return errors.New("the root is not a directory")
		}
		fd, err := openIn(int(x.root.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return finish(fd, h)
	}
	if err := x.note(name); err != nil {
		return err
	}
	parent, err := x.parent(name)
	if err != nil {
		return err
	}
	base := path.Base(name)
	switch h.Typeflag {
	case tar.TypeDir:
		return x.directory(parent, name, h)
	case tar.TypeReg:
		return x.file(parent, base, h, content)
	case tar.TypeSymlink:
		if err := x.w.entry(h.Linkname, 0); err != nil {
			return err
		}
		err := x.replacing(parent, base, func() error { return unix.Symlinkat(h.Linkname, parent, base) })
		if err != nil || h.Uid == 0 && h.Gid == 0 {
			return err
		}
		return unix.Fchownat(parent, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
	case tar.TypeLink:
		if err := x.w.entry(base, 0); err != nil {
			return err
		}
		target := strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
		if target == name {
			return errors.New("a hard link to itself")
		}
		from, err := x.openParent(target)
		if err != nil {
			return err
		}
		defer unix.Close(from)
		// No flags: a link to a symbolic link is one to the link itself.
		return x.replacing(parent, base, func() error { return unix.Linkat(from, path.Base(target), parent, base, 0) })
	case tar.TypeFifo:
		if err := x.w.entry(base, 0); err != nil {
			return err
		}
		err := x.replacing(parent, base, func() error { return unix.Mknodat(parent, base, unix.S_IFIFO|uint32(h.Mode&0o777), 0) })
		return errors.Join(err, unix.Fchownat(parent, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW))
	case tar.TypeChar, tar.TypeBlock, tar.TypeXGlobalHeader:
		return x.w.entry(base, 0)
	}
	return fmt.Errorf("an entry of the unknown type %q", h.Typeflag)
}

func (x *extractor) directory(parent int, name string, h *tar.Header) error {
	base := path.Base(name)
	if err := x.w.entry(base, blockSize); err != nil {
		return err
	}
	open := func() (int, error) {
		return openIn(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	}
	err := unix.Mkdirat(parent, base, 0o755)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	fd, err := open()
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) { // a file or a link is in the way
		if err = x.replacing(parent, base, func() error { return unix.Mkdirat(parent, base, 0o755) }); err == nil {
			fd, err = open()
		}
	}
	if err != nil {
		return err
	}
	if err := finish(fd, h); err != nil {
		unix.Close(fd)
		return err
	}
	x.dirs.put(name, fd)
	return nil
}

func (x *extractor) file(parent int, base string, h *tar.Header, content io.Reader) (err error) {
	if err := x.w.entry(base, h.Size); err != nil {
		return err
	}
	fd := -1
	err = x.replacing(parent, base, func() (err error) {
		fd, err = unix.Openat(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	for left := h.Size; left > 0; {
		b := x.buffer[:min(left, int64(len(x.buffer)))]
		if _, err := io.ReadFull(content, b); err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		left -= int64(len(b))
		for len(b) > 0 {
			n, err := unix.Write(fd, b)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			b = b[max(n, 0):]
		}
		x.w.tell()
	}
	return finish(fd, h)
}

// finish gives the file its owner and its mode, in this order, since the first
// clears bits of the second.
func finish(fd int, h *tar.Header) error {
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return err
	}
	return unix.Fchmod(fd, uint32(h.Mode&0o7777))
}

// replacing makes something of a name, in the place of what may have it.
func (x *extractor) replacing(parent int, base string, do func() error) error {
	err := do()
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := x.remove(parent, base); err != nil {
		return fmt.Errorf("replace: %w", err)
	}
	return do()
}

// parent opens the directory that name is in, and makes it if it is missing. What
// it gives is the extractor's to close.
func (x *extractor) parent(name string) (int, error) {
	dir := path.Dir(name)
	if fd, ok := x.dirs[dir]; ok {
		return fd, nil
	}
	fd, err := x.openParent(name)
	if err == nil {
		x.dirs.put(dir, fd)
	}
	return fd, err
}

func (x *extractor) openParent(name string) (int, error) {
	dir := path.Dir(name)
	fd, err := openIn(int(x.root.Fd()), dir, unix.O_PATH|unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOENT) || dir == "." {
		return fd, err
	}
	parent, err := x.openParent(dir)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if err := x.w.entry(path.Base(dir), blockSize); err != nil {
		return -1, err
	}
	if err := unix.Mkdirat(parent, path.Base(dir), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	return openIn(parent, path.Base(dir), unix.O_PATH|unix.O_DIRECTORY)
}

func openIn(dir int, name string, flags uint64) (int, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		return fd, err
	}
}

// dirs are directories that are open, by their names in the image: most entries of
// an archive lie where the one before does. A descriptor never leads out of the
// image, whatever becomes of the name.
type dirs map[string]int

const maxDirs = 64

func (d dirs) put(name string, fd int) {
	if old, ok := d[name]; ok {
		unix.Close(old)
	} else if len(d) >= maxDirs {
		d.clear()
	}
	d[name] = fd
}

func (d dirs) clear() {
	for _, fd := range d {
		unix.Close(fd)
	}
	clear(d)
}
