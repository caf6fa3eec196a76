package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"trellis/internal/vnet"
)

// Everything in this file works on a tree of files that a stranger may have
// laid out and may be changing: links that lead anywhere, directories that are
// swapped for links. So paths are resolved by openat2(2) with the node's root
// as the root, and never across a mount, and each step goes on from an open
// directory.
const resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

func openIn(dir *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: resolve}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR): // a rename elsewhere
			continue
		case errors.Is(err, unix.EXDEV):
			return nil, &os.PathError{Op: "open", Path: name, Err: errors.New("it is on a read-only or system mount of the node")}
		}
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
}

// dirIn opens a directory inside root, and makes what is missing of it, owned
// by the node's root.
func dirIn(root *os.File, dir string, owner uint32) (*os.File, error) {
	clean := strings.TrimPrefix(path.Clean("/"+dir), "/")
	if clean == "" {
		return openIn(root, ".", unix.O_PATH|unix.O_DIRECTORY)
	}
	f, err := openIn(root, clean, unix.O_PATH|unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOENT) {
		return f, err
	}
	parent, err := dirIn(root, path.Dir(clean), owner)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	name := path.Base(clean)
	if err := unix.Mkdirat(int(parent.Fd()), name, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	made, err := openIn(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	if err := made.Chown(int(owner), int(owner)); err != nil {
		made.Close()
		return nil, err
	}
	return made, nil
}

// writeIn places a file inside root, with the owner of its directory, atomically: a reader sees the old or the
// new one. A link in its place is replaced, not followed.
func writeIn(root *os.File, f vnet.File, owner uint32) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", f.Path, err)
		}
	}()
	if !path.IsAbs(f.Path) || strings.HasSuffix(f.Path, "/") {
		return errors.New("want the absolute path of a file")
	}
	clean := path.Clean(f.Path)
	dir, err := dirIn(root, path.Dir(clean), owner)
	if err != nil {
		return err
	}
	defer dir.Close()
	// What lies in a daemon's directory is the daemon's: FRR keeps a copy of what it
	// replaces by a hard link, which the kernel grants to a file's owner alone
	// (fs.protected_hardlinks).
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	uid, gid := owner, owner
	if inRange(st.Uid, owner) && inRange(st.Gid, owner) {
		uid, gid = st.Uid, st.Gid
	}
	tmp := ".trellis-" + rand.Text()
	out, err := openNewIn(dir, tmp)
	if err != nil {
		return err
	}
	mode := os.FileMode(f.Mode & 0o777)
	if mode == 0 {
		mode = 0o644
	}
	_, err = out.Write(f.Content)
	err = errors.Join(err, out.Chown(int(uid), int(gid)), out.Chmod(mode), out.Close())
	if err == nil {
		err = unix.Renameat(int(dir.Fd()), tmp, int(dir.Fd()), path.Base(clean))
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(unix.Unlinkat(int(dir.Fd()), tmp, 0)))
	}
	return nil
}

// inRange reports whether an id of the machine's is one of the node's.
func inRange(id, base uint32) bool { return id >= base && id-base < idCount }

func openNewIn(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// WriteFiles places files in a running node, each atomically, owned by the
// node's root. Missing directories are made.
func (r *Runtime) WriteFiles(ctx context.Context, id ID, files []vnet.File) error {
	defer r.lock(id)()
	c, err := r.loadRunning(id)
	if err != nil {
		return err
	}
	root, err := c.root()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := r.placed(c, files); err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := writeIn(root, f, c.IDBase); err != nil {
			return fmt.Errorf("container %s: %w", id, err)
		}
	}
	return nil
}

// root opens the root directory of the running node.
func (c *record) root() (*os.File, error) {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", c.Pid), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("container %s is not running: %w", c.ID, err)
	}
	// Only now is it certain that the number still meant this process.
	if !c.running() {
		f.Close()
		return nil, fmt.Errorf("container %s is not running", c.ID)
	}
	return f, nil
}
