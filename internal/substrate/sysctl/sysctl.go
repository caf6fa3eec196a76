// Package sysctl sets the sysctls of the calling thread's network namespace, at a
// cost that does not grow with the number of namespaces.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// FS is an instance of procfs of its own, mounted nowhere. In one instance the
// files of /proc/sys/net of all network namespaces hang in one hash chain, whose
// length each open pays for (proc_sys_compare in fs/proc/proc_sysctl.c): 65 µs with
// 500 namespaces, 430 with 2,500. In a new one there is nobody else.
type FS struct{ dir int }

// Open makes an instance. It shows the network namespace of the thread that uses it.
func Open() (*FS, error) {
	context, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("open a procfs", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return nil, os.NewSyscallError("make a procfs", err)
	}
	dir, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("mount a procfs", err)
	}
	return &FS{dir}, nil
}

// Close ends the instance.
func (s *FS) Close() error {
	return os.NewSyscallError("close a procfs", unix.Close(s.dir))
}

// turn is held while a sysctl is written: one that needs the lock of rtnetlink does
// not sleep for it, but starts over (restart_syscall in net/ipv6/addrconf.c and
// net/ipv4/devinet.c), and several would keep the lock's holder from the processor.
var turn sync.Mutex

// Write sets a sysctl, which is a path under /proc/sys. The error is
// fs.ErrNotExist where the kernel or the namespace has none of that name.
func (s *FS) Write(path, value string) error {
	fd, err := unix.Openat(s.dir, "sys/"+path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		turn.Lock()
		_, err = unix.Write(fd, []byte(value))
		turn.Unlock()
		err = errors.Join(err, unix.Close(fd))
	}
	if err != nil {
		return fmt.Errorf("set the sysctl %s to %q: %w", strings.ReplaceAll(path, "/", "."), value, err)
	}
	return nil
}

// DisableIPv6 turns the kernel's own IPv6 off on devices that only carry others'
// frames: no addresses, no router solicitations, nothing that is delivered here. A
// device that IPv6 is on has a route for ff00::/8, and each change of a carrier
// walks all routes of the namespace (rt6_sync_up, rt6_sync_down_dev in
// net/ipv6/route.c), so that devices would cost with the square of their number.
//
// Devices without IPv6 (no IPv6 in the kernel, an MTU under 1,280 bytes) have
// nothing to turn off, and those that are gone neither.
func DisableIPv6(devices ...string) (err error) {
	if len(devices) == 0 {
		return nil
	}
	s, err := Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for _, d := range devices {
		if e := s.Write("net/ipv6/conf/"+d+"/disable_ipv6", "1"); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
