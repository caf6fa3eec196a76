package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// located is a file or directory of this machine that a description names, open,
// so that nothing can be put in its place.
type located struct {
	path string // without links
	file *os.File
	// public: the configuration names no directories, and so only what everybody on
	// the machine may read is an image.
	public bool
}

// locate opens what a path leads to, where images may lie.
func (c *Cache) locate(ref string) (*located, error) {
	ref = filepath.Clean(ref)
	at := &located{public: c.policy.Directories == nil}
	var err error
	if at.public {
		err = asAnybody(func() error {
			at.file, err = openPath(unix.AT_FDCWD, ref, unix.RESOLVE_NO_MAGICLINKS)
			return err
		})
		if errors.Is(err, fs.ErrPermission) {
			return nil, notPublic("it", filepath.Dir(ref))
		}
	} else {
		at.file, err = c.openBelow(ref)
	}
	if err != nil {
		return nil, err
	}
	// The kernel's own word for what is open, whatever links have led to it.
	if at.path, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", at.file.Fd())); err == nil {
		err = c.checkForeign(at.path)
	}
	if err != nil {
		return nil, errors.Join(err, at.file.Close())
	}
	return at, nil
}

// notPublic refuses what not everybody may read.
func notPublic(what, dir string) error {
	return fmt.Errorf("not everybody on this machine may read %s; if a node may, name its directory in images: {directories: [%s]} in the service's configuration", what, dir)
}

// openBelow opens a path below a directory that the configuration names. Links on
// the way may lead about below it, and not out of it.
func (c *Cache) openBelow(ref string) (*os.File, error) {
	for _, dir := range c.policy.Directories {
		rel, err := filepath.Rel(dir, ref)
		if err != nil || !filepath.IsLocal(rel) {
			continue
		}
		base, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, err
		}
		defer base.Close()
		f, err := openPath(int(base.Fd()), rel, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_MAGICLINKS)
		if errors.Is(err, unix.EXDEV) {
			return nil, fmt.Errorf("a link on its way leads out of %s; put the image itself there", dir)
		}
		return f, err
	}
	return nil, fmt.Errorf("it does not lie below images: {directories: %v} of the service's configuration; put it there, or name its directory", c.policy.Directories)
}

// openPath opens for reading, without waiting for whoever writes into a pipe.
func openPath(dir int, path string, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: resolve}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			continue
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
}

// checkForeign refuses what holds the machine's or the service's own secrets.
func (c *Cache) checkForeign(path string) error {
	if path == "/" {
		return errors.New("a node must not see the machine's own file system; for the machine's programs there is the image \"host\"")
	}
	for _, own := range c.forbidden {
		if path == own || strings.HasPrefix(own, path+"/") || strings.HasPrefix(path, own+"/") {
			return fmt.Errorf("a node must not see the machine's own file system, and Trellis keeps what is its own in %s; put the image elsewhere", own)
		}
	}
	return nil
}

// exists reports whether there is something of that name in the directory.
func (l *located) exists(name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(int(l.file.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// open opens a file below the directory, across no link.
func (l *located) open(name string) (f *os.File, err error) {
	do := func() error {
		f, err = openPath(int(l.file.Fd()), name, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
		return err
	}
	if l.public {
		err = asAnybody(do)
	} else {
		err = do()
	}
	if l.public && errors.Is(err, fs.ErrPermission) {
		return nil, notPublic(name+" in it", filepath.Dir(l.path))
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func identity(info os.FileInfo) (device, inode uint64) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Dev, st.Ino
	}
	return 0, 0
}

// anybody is a user without rights of his own.
const anybody = 65534

// asAnybody calls f with the rights that everybody on the machine has, as far as
// files are concerned (credentials(7), file system user id). The thread, of which
// they are, ends with the call.
func asAnybody(f func() error) error {
	if os.Geteuid() != 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good
		// The raw calls are about this thread alone.
		if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
			done <- fmt.Errorf("drop groups: %w", e)
			return
		}
		_, err1 := unix.SetfsgidRetGid(anybody)
		_, err2 := unix.SetfsuidRetUid(anybody)
		uid, err3 := unix.SetfsuidRetUid(-1)
		if err := errors.Join(err1, err2, err3); err != nil || uid != anybody {
			done <- fmt.Errorf("look as %d: the kernel says %d, %w", anybody, uid, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// verdict is that a directory holds nothing private, as of a time.
type verdict struct {
	device, inode uint64
	at            time.Time
}

// verdictHolds is how long the nodes that start go by one look at a directory.
const verdictHolds = 10 * time.Second

// checkPublic refuses a directory that holds what not everybody may read: the
// node's root could, whoever it belongs to.
func (c *Cache) checkPublic(ctx context.Context, at *located, img *Image) error {
	if v, ok := c.verdicts.Load(at.path); ok {
		v := v.(verdict)
		if v.device == img.Device && v.inode == img.Inode && time.Since(v.at) < verdictHolds {
			return nil
		}
	}
	files := 0
	err := asAnybody(func() error { return c.walkPublic(ctx, int(at.file.Fd()), ".", ".", &files) })
	if err != nil {
		return err
	}
	c.verdicts.Store(at.path, verdict{img.Device, img.Inode, time.Now()})
	return nil
}

func (c *Cache) walkPublic(ctx context.Context, parent int, name, at string, files *int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	private := func(base string) error { return notPublic(filepath.Join(at, base)+" in it", "…") }
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return private("")
	} else if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for {
		list, err := dir.ReadDir(1024)
		for _, e := range list {
			if *files++; *files > c.policy.Files {
				return fmt.Errorf("it holds more than %d files, too many to look through; name its directory in images: {directories: […]} in the service's configuration", c.policy.Files)
			}
			switch {
			case e.IsDir():
				if err := c.walkPublic(ctx, fd, e.Name(), filepath.Join(at, e.Name()), files); err != nil {
					return err
				}
			case e.Type().IsRegular():
				err := unix.Faccessat2(fd, e.Name(), unix.R_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW)
				if errors.Is(err, unix.EACCES) {
					return private(e.Name())
				} else if err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
