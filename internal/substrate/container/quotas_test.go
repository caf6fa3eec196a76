package container

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"trellis/test/testenv"
)

// TestQuotasOfTheMachine has a node take all that it can of what the kernel counts by
// user and user namespace. Others, and the machine's root, must not miss it.
func TestQuotasOfTheMachine(t *testing.T) {
	testenv.Measures(t)
	const take = `
libc.mq_open.restype = ctypes.c_int
class attr(ctypes.Structure): _fields_ = [("f", ctypes.c_long), ("max", ctypes.c_long), ("size", ctypes.c_long), ("cur", ctypes.c_long), ("r", ctypes.c_long * 4)]
most = %d
def all_of(one):
    for n in range(most):
        if not one(n): return n
    return most
inotify = all_of(lambda n: libc.inotify_init1(0) >= 0)
queues = all_of(lambda n: libc.mq_open(b"/q%%d" %% n, os.O_CREAT | os.O_RDWR, 0o600, ctypes.byref(attr(0, 10, 8192))) >= 0)
timer = ctypes.c_int()
timers = all_of(lambda n: call(222 if os.uname().machine == "x86_64" else 107, 0, None, ctypes.byref(timer))[0] == 0)
print(inotify, queues, timers, flush=True)
`
	eachRuntime(t, func(t *testing.T, r *Runtime) {
		if !r.oci.ownsQuotas() {
			t.Skip("runc needs CAP_SYS_RESOURCE for it")
		}
		a, b := spec("a"), spec("b")
		mustStart(t, r, a)
		mustStart(t, r, b)
		has := func(out string) (n [3]int) {
			if _, err := fmt.Sscan(out, &n[0], &n[1], &n[2]); err != nil {
				t.Fatalf("%q: %v", out, err)
			}
			return n
		}
		// Terminals too are the machine's (kernel.pty.max).
		out := python(t, r, a.ID, "n, keep = 0, []\nfor n in range(600):\n    try: keep.append(os.open('/dev/ptmx', os.O_RDWR))\n    except OSError: break\nprint(n)")
		if out != fmt.Sprint(maxTerminals) {
			t.Errorf("a node has %s terminals", out)
		}
		// One process after the other holds what it has until the node ends.
		hold := needPython(t) + " - > /tmp/taken 2>&1 <<'END' &\n" + prelude + fmt.Sprintf(take, 20_000) + "\nimport time; time.sleep(1000)\nEND\n" +
			"for i in $(seq 600); do test -s /tmp/taken && exec cat /tmp/taken; sleep 0.05; done; exit 1"
		taken := has(mustRun(t, r, a.ID, hold))
		t.Logf("a node has taken %d inotify instances, %d message queues, %d timers", taken[0], taken[1], taken[2])
		if taken[2] > 4096 {
			t.Errorf("a node has %d timers", taken[2])
		}
		if got := has(python(t, r, b.ID, fmt.Sprintf(take, 4))); got != [3]int{4, 4, 4} {
			t.Errorf("for another node there are only %d inotify instances, %d message queues, %d timers", got[0], got[1], got[2])
		}
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			t.Fatalf("for root there is no inotify instance: %v", err)
		}
		unix.Close(fd)
	})
}

// TestUserNamespaceIsTheNodesOwn: nobody but the machine's root has power over it.
func TestUserNamespaceIsTheNodesOwn(t *testing.T) {
	eachRuntime(t, func(t *testing.T, r *Runtime) {
		s := spec("a")
		h := mustStart(t, r, s)
		if out := mustRun(t, r, s.ID, "cat /proc/self/uid_map /proc/self/gid_map; cat /proc/self/setgroups"); strings.Join(strings.Fields(out), " ") != fmt.Sprintf("0 %d %d 0 %d %d allow", firstID, idCount, firstID, idCount) {
			t.Errorf("ids are mapped as %q", out)
		}
		var owner uint32
		ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/user", h.Pid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(ns)
		const nsGetOwnerUID = 0xb704
		if owner, err = unix.IoctlGetUint32(ns, nsGetOwnerUID); err != nil || (owner < firstID || owner >= firstID+idCount) != !r.oci.ownsQuotas() {
			t.Errorf("owner %d, %v", owner, err)
		}
	})
}
