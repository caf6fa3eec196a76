package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestNetNSIsApart(t *testing.T) {
	a, b := NewNetNS(t), NewNetNS(t)
	NeedCommand(t, "ip", "nsenter")
	a.IPBatch(t, "link add eth1 type veth peer name eth2 netns "+b.Path())
	for ns, want := range map[*NetNS]string{a: "eth1", b: "eth2"} {
		if got, err := ns.Links(); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("links %q, %v, want %s alone", got, err, want)
		}
	}
	cmd := exec.Command("ip", "-o", "link", "show", "eth2")
	if err := b.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("a command that was started in the namespace does not see its interface: %v", err)
	}
	if err := exec.Command("ip", "link", "show", "eth2").Run(); err == nil {
		t.Error("the interface is in the machine's namespace")
	}
}

// gone returns the id of a process that has ended.
func gone(t *testing.T) int {
	t.Helper()
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}

func TestStaleInstancesAreSwept(t *testing.T) {
	NeedRoot(t, "makes network namespaces")
	t.Setenv("TMPDIR", t.TempDir())
	tag := instance(os.Getpid(), 36*36-1)
	dir := filepath.Join(os.TempDir(), dirPrefix+strconv.Itoa(gone(t))+"-x")
	mounted := filepath.Join(dir, "run", "bpf")
	if err := os.MkdirAll(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, tagFile), []byte(tag), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mounted, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	group := filepath.Join(pidsHierarchy(t), "trellis-"+tag, "v", "n")
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Skipf("needs to make cgroups: %v", err)
	}
	victim := exec.Command("sleep", "60")
	if err := hold(nil, victim); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(victim.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()

	sweepStale(t)

	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("its process lives")
		victim.Process.Kill()
	}
	if groups, err := Cgroups(tag); err != nil || len(groups) > 0 {
		t.Errorf("its cgroups are there: %q, %v", groups, err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("its directory is there: %v", err)
	}
}

func TestEnded(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if ended(cmd.Process.Pid) {
		t.Error("a process that sleeps has ended")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); !ended(cmd.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a process that was killed, and not waited for, has not ended")
		}
	}
	cmd.Wait()
	if !ended(cmd.Process.Pid) {
		t.Error("a process that is gone has not ended")
	}
}

func TestLivingInstancesAreLeftAlone(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := filepath.Join(os.TempDir(), prefix()+"x")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sweepStale(t)
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

func TestInstanceTagsAreShortAndDiffer(t *testing.T) {
	seen := make(map[string]bool)
	for _, pid := range []int{1, 36, 37, 1 << 22} { // the kernel's largest
		for n := range 36 * 36 {
			tag := instance(pid, n)
			if len(tag) > 8 || seen[tag] {
				t.Fatalf("tag %q of process %d is too long or used", tag, pid)
			}
			seen[tag] = true
		}
	}
}

// pidsHierarchy is where cgroups can be made: the v1 pids hierarchy, or v2.
func pidsHierarchy(t *testing.T) string {
	t.Helper()
	v1 := filepath.Join(cgroupRoot, "pids")
	if _, err := os.Stat(v1); err == nil {
		return v1
	}
	return cgroupRoot
}

func TestCanSend(t *testing.T) {
	for line, want := range map[string]bool{
		"2: v0@v1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP mode DEFAULT group default qlen 1000":            true,
		"2: v0@v1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noop state DOWN mode DEFAULT group default qlen 1000":             false,
		"2: v0@v1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state DOWN mode DEFAULT group default qlen 1000":          false,
		"2: v0@v1: <NO-CARRIER,BROADCAST,MULTICAST,UP,M-DOWN> mtu 1500 qdisc noqueue state LOWERLAYERDOWN mode DEFAULT group default": true,
		"2: v0@v1: <BROADCAST,MULTICAST> mtu 1500 qdisc noop state DOWN mode DEFAULT group default qlen 1000":                         true,
		"1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN mode DEFAULT group default qlen 1000":                    true,
	} {
		if got := canSend(line + "\n"); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
	for commands, want := range map[string]bool{
		"ip link set v0 up": true, "link set p1 master br0\nlink set p1 up\n": true, "ip link set v0 down; echo up": false,
		"ip link set eth1 mtu 1504 up": true, "ip link set up0 down": false, "ip addr add 10.0.0.1/24 dev up0": false,
	} {
		if got := SetsUp(commands); got != want {
			t.Errorf("%q: %v", commands, got)
		}
	}
}
