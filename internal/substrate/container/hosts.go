package container

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// All nodes of a VNet share one file of names, RunDir/hosts/VNET/hosts. Its
// directory is a read-only mount in each of them, and their /etc/hosts is a link to
// the file there; so a new version is one rename, which all nodes see at once, and
// which no reader sees half of.
const (
	hostsDir  = "hosts"
	hostsFile = "hosts"
)

// localNames is the file of a VNet that none was given for.
const localNames = "127.0.0.1 localhost\n::1 localhost\n"

// mountHosts mounts a file system of its own for the files of names, unless it is
// mounted: nodes see where in its file system a mount of theirs comes from, and that
// is not to be the service's directory.
func mountHosts(dir string) error {
	mounted, err := isMountPoint(dir)
	if err != nil || mounted {
		return err
	}
	if err := unix.Mount("trellis", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0711,size=256m"); err != nil {
		return fmt.Errorf("mount a file system for nodes' names at %s: %w", dir, err)
	}
	return nil
}

// unmountHosts unmounts it when it holds no network's names.
func unmountHosts(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		return ignoreMissing(err)
	}
	if mounted, err := isMountPoint(dir); err != nil || !mounted {
		return err
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// isMountPoint reports whether a directory is on another file system than its parent.
func isMountPoint(dir string) (bool, error) {
	var at, above unix.Stat_t
	if err := unix.Stat(dir, &at); err != nil {
		return false, fmt.Errorf("look at %s: %w", dir, err)
	}
	if err := unix.Stat(filepath.Dir(dir), &above); err != nil {
		return false, fmt.Errorf("look at %s: %w", filepath.Dir(dir), err)
	}
	return at.Dev != above.Dev, nil
}

// hosts keeps what the files hold.
type hosts struct {
	mu      sync.Mutex
	content map[string][]byte // by VNet; nil: not known
}

// SetHosts sets the /etc/hosts of all nodes of a VNet, of those that run and of those
// to come; nil: there are none any more. What a node has put in the place of its link
// stays that node's.
func (r *Runtime) SetHosts(vnet string, content []byte) error {
	if !validName(vnet) {
		return fmt.Errorf("%q is not a name of a VNet", vnet)
	}
	h := &r.hosts
	h.mu.Lock()
	defer h.mu.Unlock()
	dir := filepath.Join(r.cfg.RunDir, hostsDir, vnet)
	var err error
	switch {
	case content == nil:
		delete(h.content, vnet)
		err = os.RemoveAll(dir)
	case h.content[vnet] != nil && bytes.Equal(h.content[vnet], content):
		return nil
	default:
		if err = writeHosts(dir, content); err == nil {
			h.content[vnet] = bytes.Clone(content)
		}
	}
	if err != nil {
		return fmt.Errorf("write the names of the nodes of %s: %w", vnet, err)
	}
	return nil
}

// ensureHosts sees to it that there is a file of names for nodes to come.
func (r *Runtime) ensureHosts(vnet string) error {
	h := &r.hosts
	h.mu.Lock()
	defer h.mu.Unlock()
	dir := filepath.Join(r.cfg.RunDir, hostsDir, vnet)
	if _, err := os.Lstat(filepath.Join(dir, hostsFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return writeHosts(dir, []byte(localNames))
}

// writeHosts replaces a VNet's file. Nodes' root is nobody there, so that everybody
// must be able to read it, whatever the umask.
func writeHosts(dir string, content []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	tmp := filepath.Join(dir, ".new")
	if err := ignoreMissing(unix.Unlink(tmp)); err != nil { // left by a killed service
		return err
	}
	if err := writeMode(tmp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, hostsFile))
}

// sweepHosts removes the files of VNets without nodes, before anything is made.
func (r *Runtime) sweepHosts() error {
	top := filepath.Join(r.cfg.RunDir, hostsDir)
	entries, err := os.ReadDir(top)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if len(r.index.vnets[e.Name()]) == 0 {
			if err := os.RemoveAll(filepath.Join(top, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
