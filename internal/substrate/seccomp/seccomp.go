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

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// namespaceFlags are the clone(2) flags that make namespaces. CLONE_NEWTIME
// cannot be asked for through clone, only through clone3 and unshare.
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS |
	unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// families are the socket families that a node may open. Left out are those
// that lead out of the network namespace (vsock reaches the hypervisor) or that
// are only attack surface for a router (AF_ALG, CAN, TIPC, RDS, Bluetooth, …).
var families = []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET}

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
}

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
	for _, f := range families {
		p.Syscalls = append(p.Syscalls, when("socket", f), when("socketpair", f))
	}
	for _, f := range personalities {
		p.Syscalls = append(p.Syscalls, when("personality", f))
	}
	return p
}

// when allows a call whose first argument has the value.
func when(name string, value uint64) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow,
		Args: []specs.LinuxSeccompArg{{Index: 0, Value: value, Op: specs.OpEqualTo}}}
}
