package container

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxTerminals is how many a node may have at a time: kernel.pty.max, 4,096, is the
// machine's, with 1,024 kept for its own users (kernel.pty.reserve).
const maxTerminals = 64

// ttyGroup is the group of terminals in a node, as in /etc/group.
const ttyGroup = 5

// terminalsOnDemand tells whether a node gets its devpts with the first program
// that somebody runs in it: a file system for each node has its price (see hidden),
// and what Trellis itself runs in a node, its init and routing daemons, needs no
// terminals. An image's own command, or the user's, may.
func terminalsOnDemand(s *Spec, host bool) bool { return host && len(s.Cmd) == 0 }

// provideTerminals mounts a devpts on the node's /dev/pts where there is none.
func (r *Runtime) provideTerminals(ctx context.Context, c *record) error {
	unlock, err := r.terminals.Lock(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	pidfd, err := c.pidfd()
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	if err := onSpareThread(func() error { return mountTerminals(pidfd, c.IDBase+ttyGroup) }); err != nil {
		return fmt.Errorf("mount /dev/pts: %w", err)
	}
	return nil
}

// onSpareThread calls f on a thread that ends afterwards, so that f may join namespaces.
func onSpareThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The first thread stands for the process in /proc/PID, and cannot end alone.
			// While it is held here, the next goroutine runs on another one.
			result <- onSpareThread(f)
			runtime.UnlockOSThread()
			return
		}
		result <- f() // and the thread ends with this goroutine, which holds it
	}()
	return <-result
}

// mountTerminals joins the mount namespace of the process for good.
func mountTerminals(pidfd int, group uint32) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(pidfd, unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("setns", err)
	}
	at, err := unix.Openat2(unix.AT_FDCWD, "/dev/pts", &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	defer unix.Close(at)
	var fs unix.Statfs_t
	if err := unix.Fstatfs(at, &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if fs.Type == unix.DEVPTS_SUPER_MAGIC {
		return nil
	}
	context, err := unix.Fsopen("devpts", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(context)
	for key, value := range map[string]string{
		"source": "devpts", "max": strconv.Itoa(maxTerminals), "ptmxmode": "0666", "mode": "0620", "gid": strconv.FormatUint(uint64(group), 10),
	} {
		if err := unix.FsconfigSetString(context, key, value); err != nil {
			return os.NewSyscallError("fsconfig "+key, err)
		}
	}
	if err := unix.FsconfigCreate(context); err != nil {
		return os.NewSyscallError("fsconfig", err)
	}
	tree, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return os.NewSyscallError("fsmount", err)
	}
	defer unix.Close(tree)
	return os.NewSyscallError("move_mount", unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}
