// Package seccomp holds the system calls that processes of a virtual node may
// make.
//
// The profile is an allow list. A deny list would open every call that a future
// kernel adds, and the calls that matter here (mounting, namespaces, BPF, keys)
// are where kernels grow. A call that is on neither list is answered with
// ENOSYS, as by an older kernel, so that C libraries fall back; one that is
// denied on purpose is answered with EPERM, so that tools say so.
//
// The profile is what makes it safe to give FRR its CAP_SYS_ADMIN inside the
// node's user namespace: of what that capability opens, no call is left.
package seccomp

import (
	"runtime"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// namespaceFlags are the clone(2) flags that make namespaces. CLONE_NEWTIME
// cannot be asked for through clone, only through clone3 and unshare.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// personalities are those that change nothing for a 64-bit program, and the
// question which one it is.
var personalities = []uint64{0, 0xffffffff}

// denied are answered with EPERM. They would be refused without this list too;
// it decides the error, and states the intent.
var denied = []string{
	// Mounts: a node's view of files is fixed at its start.
	"mount", "umount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick",
	"move_mount", "open_tree", "open_tree_attr", "mount_setattr", "statmount", "listmount",
	// Namespaces: in a child namespace a node's root would have the
	// capabilities that it lacks here.
	"unshare", "setns",
	// Code in the kernel, and devices' keepers.
	"bpf", "init_module", "finit_module", "delete_module", "create_module", "kexec_load",
	"kexec_file_load", "iopl", "ioperm", "perf_event_open", "userfaultfd",
	"io_uring_setup", "io_uring_enter", "io_uring_register",
	// Keys are shared by all users of a kernel.
	"keyctl", "add_key", "request_key",
	// Other processes.
	"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd",
	// The machine.
	"reboot", "swapon", "swapoff", "quotactl", "quotactl_fd", "open_by_handle_at",
	"name_to_handle_at", "syslog", "acct", "settimeofday", "clock_settime", "clock_adjtime",
	"adjtimex", "lookup_dcookie", "fanotify_init", "nfsservctl", "vhangup", "uselib", "_sysctl",
	"sysfs", "ustat",
	// Asynchronous reads and writes: fs.aio-max-nr is the machine's, and one call takes
	// all of it. No routing daemon has a use for them.
	"io_setup", "io_submit", "io_getevents", "io_pgetevents", "io_cancel", "io_destroy",
}

// options of prctl(2) that a node's processes may use, in blocks.
var prctls = slices.Concat(
	[]block{{0, 16}, {16, 4}, {20, 2}, {23, 1}, {24, 8}, {32, 32}, {64, 64}},
	ones(0x53564d41, 0x41555856), // PR_SET_VMA, PR_GET_AUXV
)

// Profile returns the profile for this architecture. Calls of any other ABI
// (32-bit, x32) end the caller.
func Profile() *specs.LinuxSeccomp {
	var arch specs.Arch
	switch runtime.GOARCH {
	case "arm64":
		arch = specs.ArchAARCH64
	default:
		arch = specs.ArchX86_64
	}
	enosys, eperm := uint(unix.ENOSYS), uint(unix.EPERM)
	p := &specs.LinuxSeccomp{
		DefaultAction:   specs.ActErrno,
		DefaultErrnoRet: &enosys,
		Architectures:   []specs.Arch{arch},
		Syscalls: []specs.LinuxSyscall{
			{Names: allowed, Action: specs.ActAllow},
			{Names: denied, Action: specs.ActErrno, ErrnoRet: &eperm},
			// clone3 hides its flags in memory, which no filter can read.
			{Names: []string{"clone3"}, Action: specs.ActErrno, ErrnoRet: &enosys},
			{Names: []string{"clone"}, Action: specs.ActAllow, Args: []specs.LinuxSeccompArg{
				{Index: 0, Value: namespaceFlags, ValueTwo: 0, Op: specs.OpMaskedEqual},
			}},
		},
	}
	for _, f := range personalities {
		p.Syscalls = append(p.Syscalls, when(specs.ActAllow, 0, "personality", is(0, f)))
	}
	for _, b := range prctls {
		p.Syscalls = append(p.Syscalls, when(specs.ActAllow, 0, "prctl", b.of(0)))
	}
	// Filters of a node's own are programs that count against net.core.bpf_jit_limit,
	// the machine's; with it reached no node starts. EINVAL is what kernels without
	// them answer (prctl(2), seccomp(2)), and what sandboxes go on after.
	p.Syscalls = append(p.Syscalls,
		when(specs.ActErrno, unix.EINVAL, "prctl", is(0, unix.PR_SET_SECCOMP)),
		specs.LinuxSyscall{Names: []string{"seccomp"}, Action: specs.ActErrno, ErrnoRet: errno(unix.EINVAL)})
	p.Syscalls = append(p.Syscalls, sockets()...)
	return p
}
