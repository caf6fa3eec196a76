package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Before Linux 6.3 (merge 05e6295f7b5e, fs.idmapped.v6.3) a tmpfs, and so the stage, has no
// id-mapped mounts. There each range of ids gets copies of the stage's layers,
// of a few hundred small files, with the owners that the mount would show.

// copies is where they are in the stage.
const copiesDir = "copies"

// mountCopy makes a copy of one of the stage's layers visible at the mount
// point, read-only, its owners shifted by base. To be called in a job.
func (s *stage) mountCopy(layer, at string, base uint32) error {
	dir, err := s.copyShifted(layer, base)
	if err != nil {
		return fmt.Errorf("copy %s for the ids from %d on: %w", layer, base, err)
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("protect %s: %w", dir, err)
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// copyShifted makes the copy, or finds the one that was made for another node.
func (s *stage) copyShifted(layer string, base uint32) (string, error) {
	s.copying.Lock()
	defer s.copying.Unlock()
	dir := inStage(copiesDir, fmt.Sprintf("%d-%s", base, filepath.Base(layer)))
	if _, err := os.Lstat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	half := dir + ".new"
	if err := os.RemoveAll(half); err != nil { // left by an attempt that failed
		return "", err
	}
	err := filepath.WalkDir(layer, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(layer, path)
		if err != nil {
			return err
		}
		return copyOne(path, filepath.Join(half, relative), int(base))
	})
	if err != nil {
		return "", err
	}
	return dir, os.Rename(half, dir)
}

// copyOne copies a directory itself, a file or a symbolic link, its owners
// shifted. The layers hold nothing else.
func copyOne(from, to string, base int) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		err = os.Mkdir(to, 0o700)
	case fs.ModeSymlink:
		var target string
		if target, err = os.Readlink(from); err == nil {
			err = os.Symlink(target, to)
		}
	case 0:
		var content []byte
		if content, err = os.ReadFile(from); err == nil {
			err = os.WriteFile(to, content, 0o600)
		}
	default:
		err = fmt.Errorf("%s is neither a file, a directory nor a symbolic link", from)
	}
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	if err := os.Lchown(to, base+int(st.Uid), base+int(st.Gid)); err != nil {
		return err
	}
	if info.Mode().Type() == fs.ModeSymlink {
		return nil
	}
	return os.Chmod(to, info.Mode()) // after the change of owners, which clears bits
}
