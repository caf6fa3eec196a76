package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/kernel"
)

// Mount mounts a bpffs of the instance's own at dir, unless one is mounted
// there. It makes dir if need be. Only root can look inside. A kernel older than
// [kernel.Minimum] is refused, and nothing is made.
func Mount(dir string) error {
	if err := kernel.Check(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory for BPF pins: %w", err)
	}
	mounted, err := isBPFFS(dir)
	if err != nil || mounted {
		return err
	}
	err = unix.Mount("trellis", dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700")
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("mount a bpffs at %s: this kernel has none; use one with CONFIG_BPF_SYSCALL: %w", dir, err)
	}
	if err != nil {
		return fmt.Errorf("mount a bpffs at %s: %w", dir, err)
	}
	return nil
}

// Unmount takes every pin away and unmounts the bpffs at dir. That there is none
// is no error.
//
// Unmounting alone would leave what is pinned, where another process has made
// itself a mount namespace meanwhile, with a copy of the mount in it.
func Unmount(dir string) error {
	mounted, err := isBPFFS(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && !mounted {
		return nil
	}
	if err != nil {
		return err
	}
	err = empty(dir)
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the bpffs at %s: %w", dir, err)
	}
	return err
}

// empty detaches the links that are pinned in a bpffs, and removes all pins. A
// tenant's frames do not get past it: a port's device is taken down by whoever
// removes it, or gone.
func empty(dir string) error {
	var errs []error
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if l, err := link.LoadPinnedLink(path, nil); err == nil { // else a map, a program, a filter's record
			errs = append(errs, l.Detach(), l.Close())
		}
		return nil
	})
	entries, readErr := os.ReadDir(dir)
	errs = append(errs, err, readErr)
	for _, e := range entries {
		if e.IsDir() { // the kernel's own files are not
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func isBPFFS(dir string) (bool, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return false, fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	return s.Type == unix.BPF_FS_MAGIC, nil
}
