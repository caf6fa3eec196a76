// Command guest is the first program of the virtual machine that tests Trellis
// under a distribution's own kernel. It makes the machine that runs the test
// the guest's root file system, read-only below a tmpfs, and runs a script.
//
// Whatever happens, the guest ends: by a restart, which QEMU turns into its exit.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Names that the test and its guest agree upon.
const (
	modules = "/modules" // in the initial file system; the order is that of the list
	root    = "/root"    // where the new root grows
	work    = "/work"    // what the test has brought; layer in it lies over the machine's files
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: this is the first program of a virtual machine, not to be run elsewhere")
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Printf("FAIL guest: %v\n", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
}

func run() error {
	if err := load(); err != nil {
		return err
	}
	if err := mountRoot(); err != nil {
		return err
	}
	// The kernel's own helpers, which load modules on demand, share this
	// process's root.
	if err := errors.Join(
		os.Chdir(root),
		unix.Mount(".", "/", "", unix.MS_MOVE, ""),
		unix.Chroot("."),
		os.Chdir("/"),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""), // as systemd leaves it
		unix.Sethostname([]byte("guest")),
	); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return script()
}

// script runs the script to its end, and buries whoever else ends meanwhile: the
// first program inherits all orphans.
func script() error {
	p, err := os.StartProcess("/bin/bash", []string{"bash", filepath.Join(work, "script")}, &os.ProcAttr{
		Env:   []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"},
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for the script: %w", err)
		case pid == p.Pid && status != 0:
			return fmt.Errorf("the script ended with status %d", status.ExitStatus())
		case pid == p.Pid:
			return nil
		}
	}
}

// load loads the modules without which there is no root.
func load() error {
	list, err := os.ReadFile(filepath.Join(modules, "list"))
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(list)) {
		f, err := os.Open(filepath.Join(modules, name))
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

func mountRoot() error {
	const ninep = "trans=virtio,version=9p2000.L,msize=262144,cache=loose"
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
		data                   string
	}{
		{"machine", "/lower", "9p", unix.MS_RDONLY, ninep},
		{"work", work, "9p", unix.MS_RDONLY, ninep},
		{"tmpfs", "/upper", "tmpfs", 0, ""},
		{"overlay", root, "overlay", 0, "lowerdir=" + work + "/layer:/lower,upperdir=/upper/upper,workdir=/upper/work"},
		{work, root + work, "", unix.MS_MOVE, ""},
		{"proc", root + "/proc", "proc", 0, ""},
		{"sysfs", root + "/sys", "sysfs", 0, ""},
		{"cgroup2", root + "/sys/fs/cgroup", "cgroup2", 0, ""}, // and no version 1
		{"devtmpfs", root + "/dev", "devtmpfs", 0, ""},
		{"devpts", root + "/dev/pts", "devpts", 0, "mode=0620,ptmxmode=0666"},
		{"tmpfs", root + "/dev/shm", "tmpfs", 0, ""},
		{"tmpfs", root + "/run", "tmpfs", 0, ""},
		{"tmpfs", root + "/tmp", "tmpfs", 0, ""},
		{"/dev/vda", root + "/data", "ext4", 0, ""},
	} {
		if m.fstype == "overlay" {
			if err := errors.Join(os.Mkdir("/upper/upper", 0o755), os.Mkdir("/upper/work", 0o755)); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		source := m.source
		if source == "/dev/vda" {
			source = root + source
		}
		if err := unix.Mount(source, m.target, m.fstype, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.source, m.target, err)
		}
	}
	return nil
}
