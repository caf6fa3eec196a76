package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// What an image may be at most.
const (
	maxBytes   = 16 << 30
	maxEntries = 2_000_000
	maxID      = 65535 // of users and groups: a node has no others
)

// extract unpacks a tar stream of a root file system. The archive is not
// trusted: every path is resolved with dir as the root (openat2(2)), hard links
// as well; device nodes, of which a node needs none from an image, are left out.
func extract(ctx context.Context, r io.Reader, dir string) error {
	root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	archive := tar.NewReader(r)
	var bytes int64
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			if n == 0 {
				return errors.New("the archive is empty")
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		bytes += h.Size
		switch {
		case n >= maxEntries:
			return fmt.Errorf("more than %d entries", maxEntries)
		case bytes > maxBytes:
			return fmt.Errorf("more than %d bytes", int64(maxBytes))
		case h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID:
			return fmt.Errorf("%s belongs to %d:%d; a node has ids up to %d", h.Name, h.Uid, h.Gid, maxID)
		}
		if err := place(root, h, archive); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

// place makes one entry.
func place(root *os.File, h *tar.Header, content io.Reader) error {
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if name == "" { // the root itself
		if h.Typeflag != tar.TypeDir {
			return errors.New("the root is not a directory")
		}
		fd, err := openIn(root, ".", unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		return finish(fd, h)
	}
	parent, err := parentOf(root, name)
	if err != nil {
		return err
	}
	defer parent.Close()
	at, base := int(parent.Fd()), path.Base(name)
	if h.Typeflag != tar.TypeDir {
		if err := unix.Unlinkat(at, base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("replace: %w", err)
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := unix.Mkdirat(at, base, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		fd, err := openIn(parent, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if err != nil {
			return err
		}
		return finish(fd, h)
	case tar.TypeReg:
		fd, err := unix.Openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), base)
		_, err = io.Copy(f, content)
		return errors.Join(err, finish(f, h))
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, at, base); err != nil {
			return err
		}
		return unix.Fchownat(at, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
	case tar.TypeLink:
		target := strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
		from, err := parentOf(root, target)
		if err != nil {
			return err
		}
		defer from.Close()
		// No flags: a link to a symbolic link is one to the link itself.
		return unix.Linkat(int(from.Fd()), path.Base(target), at, base, 0)
	case tar.TypeFifo:
		if err := unix.Mknodat(at, base, unix.S_IFIFO|uint32(h.Mode&0o777), 0); err != nil {
			return err
		}
		return unix.Fchownat(at, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW)
	case tar.TypeChar, tar.TypeBlock, tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("an entry of the unknown type %q", h.Typeflag)
}

// finish gives the file its owner and its mode, in this order, since the first
// clears bits of the second.
func finish(f *os.File, h *tar.Header) error {
	err := f.Chown(h.Uid, h.Gid)
	return errors.Join(err, unix.Fchmod(int(f.Fd()), uint32(h.Mode&0o7777)), f.Close())
}

// parentOf opens the directory that name is in, and makes it if it is missing.
func parentOf(root *os.File, name string) (*os.File, error) {
	dir := path.Dir(name)
	f, err := openIn(root, dir, unix.O_PATH|unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOENT) || dir == "." {
		return f, err
	}
	parent, err := parentOf(root, dir)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := unix.Mkdirat(int(parent.Fd()), path.Base(dir), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	return openIn(parent, path.Base(dir), unix.O_PATH|unix.O_DIRECTORY)
}

func openIn(dir *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		}
		return nil, err
	}
}
