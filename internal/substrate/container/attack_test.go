package container

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// probe is a program that makes one system call and prints its errno. Its
// arguments are numbers: the call, then its arguments.
const probe = `
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	long a[7] = {0};
	for (int i = 1; i < argc && i < 8; i++)
		a[i - 1] = strtol(argv[i], 0, 0);
	long r = syscall(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
	int e = r < 0 ? errno : 0;
	if (a[0] == SYS_clone && r == 0)
		_exit(0);
	printf("%d\n", e);
	return 0;
}
`

// buildProbe compiles the probe and returns its content.
func buildProbe(t *testing.T) []byte {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		if cc, err = exec.LookPath("clang"); err != nil {
			t.Skip("needs a C compiler: apt-get install clang")
		}
	}
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "probe.c"), filepath.Join(dir, "probe")
	if err := os.WriteFile(src, []byte(probe), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-O1", "-o", bin, src).CombinedOutput(); err != nil {
		t.Skipf("needs a C compiler with a C library: %v: %s", err, out)
	}
	b, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// attacked starts a node for the attacks, with the probe as /probe.
func attacked(t *testing.T, r *Runtime) ID {
	t.Helper()
	s := spec("a")
	s.Files = append(s.Files, fileOf("/probe", buildProbe(t), 0o755))
	mustStart(t, r, s)
	return s.ID
}

func TestSystemCallsDenied(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r *Runtime) {
		id := attacked(t, r)
		const eperm, enosys, noFamily = "1", "38", "97"
		type call struct {
			name, errno string
			args        string
		}
		calls := []call{
			{"mount", eperm, num(unix.SYS_MOUNT)},
			{"umount2", eperm, num(unix.SYS_UMOUNT2)},
			{"pivot_root", eperm, num(unix.SYS_PIVOT_ROOT)},
			{"chroot", eperm, num(unix.SYS_CHROOT)},
			{"fsopen", eperm, num(unix.SYS_FSOPEN)},
			{"fsmount", eperm, num(unix.SYS_FSMOUNT)},
			{"fspick", eperm, num(unix.SYS_FSPICK)},
			{"move_mount", eperm, num(unix.SYS_MOVE_MOUNT)},
			{"open_tree", eperm, num(unix.SYS_OPEN_TREE)},
			{"mount_setattr", eperm, num(unix.SYS_MOUNT_SETATTR)},
			{"unshare", eperm, num(unix.SYS_UNSHARE, unix.CLONE_NEWUSER)},
			{"unshare of time", eperm, num(unix.SYS_UNSHARE, unix.CLONE_NEWTIME)},
			{"setns", eperm, num(unix.SYS_SETNS)},
			{"clone of a user namespace", enosys, num(unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))},
			{"clone of a network namespace", enosys, num(unix.SYS_CLONE, unix.CLONE_NEWNET|uintptr(unix.SIGCHLD))},
			{"clone of a mount namespace", enosys, num(unix.SYS_CLONE, unix.CLONE_NEWNS|uintptr(unix.SIGCHLD))},
			{"clone of a cgroup namespace", enosys, num(unix.SYS_CLONE, unix.CLONE_NEWCGROUP|uintptr(unix.SIGCHLD))},
			{"clone3", enosys, num(unix.SYS_CLONE3)},
			{"bpf", eperm, num(unix.SYS_BPF)},
			{"keyctl", eperm, num(unix.SYS_KEYCTL)},
			{"add_key", eperm, num(unix.SYS_ADD_KEY)},
			{"request_key", eperm, num(unix.SYS_REQUEST_KEY)},
			{"ptrace", eperm, num(unix.SYS_PTRACE)},
			{"process_vm_readv", eperm, num(unix.SYS_PROCESS_VM_READV)},
			{"process_vm_writev", eperm, num(unix.SYS_PROCESS_VM_WRITEV)},
			{"pidfd_getfd", eperm, num(unix.SYS_PIDFD_GETFD)},
			{"kcmp", eperm, num(unix.SYS_KCMP)},
			{"io_uring_setup", eperm, num(unix.SYS_IO_URING_SETUP)},
			{"io_uring_enter", eperm, num(unix.SYS_IO_URING_ENTER)},
			{"perf_event_open", eperm, num(unix.SYS_PERF_EVENT_OPEN)},
			{"userfaultfd", eperm, num(unix.SYS_USERFAULTFD)},
			{"kexec_load", eperm, num(unix.SYS_KEXEC_LOAD)},
			{"init_module", eperm, num(unix.SYS_INIT_MODULE)},
			{"finit_module", eperm, num(unix.SYS_FINIT_MODULE)},
			{"delete_module", eperm, num(unix.SYS_DELETE_MODULE)},
			{"reboot", eperm, num(unix.SYS_REBOOT)},
			{"swapon", eperm, num(unix.SYS_SWAPON)},
			{"quotactl", eperm, num(unix.SYS_QUOTACTL)},
			{"open_by_handle_at", eperm, num(unix.SYS_OPEN_BY_HANDLE_AT)},
			{"syslog", eperm, num(unix.SYS_SYSLOG, 3)},
			{"acct", eperm, num(unix.SYS_ACCT)},
			{"settimeofday", eperm, num(unix.SYS_SETTIMEOFDAY)},
			{"clock_settime", eperm, num(unix.SYS_CLOCK_SETTIME)},
			{"fanotify_init", eperm, num(unix.SYS_FANOTIFY_INIT)},
			{"io_setup", eperm, num(unix.SYS_IO_SETUP, 65536)},
			{"a seccomp filter", "22", num(unix.SYS_SECCOMP, 1)},
			{"a seccomp filter by prctl", "22", num(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, 2)},
			{"personality ADDR_NO_RANDOMIZE", enosys, num(unix.SYS_PERSONALITY, 0x0040000)},
			{"a call that does not exist", enosys, num(600)},
			{"vsock", noFamily, num(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM)},
			{"AF_ALG", noFamily, num(unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET)},
			{"AF_XDP", noFamily, num(unix.SYS_SOCKET, unix.AF_XDP, unix.SOCK_RAW)},
			// What must work, or the list above shows nothing.
			{"a packet socket", "0", num(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW)},
			{"clone without namespaces", "0", num(unix.SYS_CLONE, uintptr(unix.SIGCHLD))},
			{"personality query", "0", num(unix.SYS_PERSONALITY, 0xffffffff)},
		}
		var script strings.Builder
		for _, c := range calls {
			script.WriteString("/probe " + c.args + "\n")
		}
		answers := strings.Fields(mustRun(t, r, id, script.String()))
		if len(answers) != len(calls) {
			t.Fatalf("%d answers to %d calls: %v", len(answers), len(calls), answers)
		}
		for i, c := range calls {
			if answers[i] != c.errno {
				t.Errorf("%s: errno %s, want %s", c.name, answers[i], c.errno)
			}
		}
		// The x32 ABI: getpid with bit 30. Such callers are killed (SIGSYS).
		if out, code := run(t, r, id, "/probe 0x40000027"); code == 0 && out != enosys {
			t.Errorf("a call of the x32 ABI: %s, %d", out, code)
		}
	})
}

func TestAttacksFromRootShell(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r *Runtime) {
		secretFile := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(secretFile, []byte("secret"), 0o644); err != nil {
			t.Fatal(err)
		}
		s := spec("a")
		mustStart(t, r, s)
		fails := map[string]string{
			"the machine's accounts":         "cat /etc/shadow",
			"a file of the machine":          "cat " + secretFile,
			"the service's own files":        "ls " + r.cfg.RunDir,
			"root of PID 1's old root":       "ls /proc/1/root/",
			"open files of init":             "cat /proc/1/fd/5 || readlink /proc/1/fd/4",
			"memory of init":                 "head -c1 /proc/1/mem",
			"the node's backing store":       "ls /.trellis/disk/",
			"/usr":                           "touch /usr/x",
			"/dev":                           "touch /dev/x",
			"a device node":                  "mknod /tmp/vda b 254 0",
			"a character device":             "mknod /tmp/kmsg c 1 11",
			"kernel memory":                  "head -c1 /proc/kcore | grep -q .",
			"the kernel's log":               "dmesg",
			"sysrq":                          "echo h > /proc/sysrq-trigger",
			"a sysctl of the kernel":         "echo 1 > /proc/sys/kernel/panic",
			"core_pattern":                   "echo '|/tmp/x' > /proc/sys/kernel/core_pattern",
			"a sysctl of vm":                 "echo 3 > /proc/sys/vm/drop_caches",
			"a sysctl of fs":                 "echo 1 > /proc/sys/fs/file-max",
			"sysctl by ro remount":           "mount -o remount,rw /proc/sys/kernel",
			"/sys":                           "echo 0 > /sys/kernel/profiling",
			"a cgroup file system":           "ls /sys/fs/cgroup/memory",
			"a cgroup mount":                 "mkdir -p /tmp/cg && mount -t cgroup -o memory none /tmp/cg",
			"a cgroup2 mount":                "mkdir -p /tmp/cg && mount -t cgroup2 none /tmp/cg",
			"bpffs":                          "mkdir -p /tmp/bpf && mount -t bpf none /tmp/bpf",
			"unmasking":                      "umount /proc/keys",
			"a user namespace":               "unshare -U true",
			"a network namespace":            "ip netns add x",
			"BPF by iproute2":                "ip link set lo xdpgeneric obj /usr/lib/bpf/x.o",
			"the host's init":                "nsenter -t 1 -n true",
			"more than hard limits on files": "ulimit -Hn 1000000",
			"RT scheduling":                  "chrt -f 50 true",
			"a lower OOM score":              "echo -1000 > /proc/self/oom_score_adj",
		}
		for what, command := range fails {
			if out, code := run(t, r, s.ID, command); code == 0 {
				t.Errorf("%s: %q succeeded: %s", what, command, out)
			}
		}
		works := []string{
			"echo 1 > /proc/sys/net/ipv4/ip_forward", "ip link add br0 type bridge", "ip addr add 192.0.2.1/24 dev br0",
			"touch /etc/x /root/x /var/tmp/x /tmp/x /run/x", "echo x > /dev/null", "ps ax", "test $(id -u) = 0", "cat /etc/passwd",
			"test $(wc -l < /proc/self/cgroup) -gt 0",
		}
		for _, command := range works {
			if out, code := run(t, r, s.ID, command); code != 0 {
				t.Errorf("%q failed: %s", command, out)
			}
		}
		// Only the node's own processes are there, so no others can be signalled.
		if out := mustRun(t, r, s.ID, "ls -d /proc/[0-9]* | wc -l"); len(out) > 1 {
			t.Errorf("%s processes are visible", out)
		}
		if out := mustRun(t, r, s.ID, "cat /proc/self/cgroup"); strings.Contains(out, r.cgroups.Dir()) {
			t.Errorf("the cgroup's name on the machine is visible: %s", out)
		}
		if out := mustRun(t, r, s.ID, "cat /proc/mounts"); strings.Contains(out, r.cfg.RunDir) || strings.Contains(out, r.cfg.StateDir) {
			t.Errorf("paths of the machine are visible: %s", out)
		}
		if out := mustRun(t, r, s.ID, "sysctl -n net.ipv4.ip_forward"); out != "1" {
			t.Errorf("a sysctl of the node's own network is %s, want 1", out)
		}
	})
}

// TestHostileTree lets a node's root lay traps for WriteFiles.
func TestHostileTree(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	mustStart(t, r, s)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.Mkdir(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	mustRun(t, r, s.ID, "ln -s "+outside+" /etc/abs; ln -s ../../../../../.."+outside+" /etc/rel; ln -s /proc/1/root/etc /etc/magic;"+
		"ln -s /proc/self/cwd /etc/cwd; ln -s /usr /etc/usr; mkfifo /etc/fifo; ln -s "+outside+"/f /etc/file")
	for _, p := range []string{"/etc/abs/f", "/etc/rel/f", "/etc/magic/f", "/etc/cwd/f", "/etc/usr/f", "/proc/f", "/sys/f", "/dev/f", "/.trellis/disk/f"} {
		if err := r.WriteFiles(t.Context(), s.ID, files(p, "x")); err == nil {
			t.Errorf("%s: written", p)
		}
	}
	for _, p := range []string{"/etc/fifo", "/etc/file", "/etc/hosts"} {
		if err := r.WriteFiles(t.Context(), s.ID, files(p, "x")); err != nil {
			t.Errorf("%s: %v", p, err)
		}
		if out := mustRun(t, r, s.ID, "cat "+p); out != "x" {
			t.Errorf("%s holds %q", p, out)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("written outside of the node: %v, %v", entries, err)
	}
}
