package dataplane_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"trellis/internal/substrate/dataplane"
	"trellis/internal/substrate/nstest"
	"trellis/internal/substrate/port"
	"trellis/internal/substrate/shaper"
	"trellis/internal/vnet"
	"trellis/test/testenv"
)

// TestOtherLayout opens what a build with another layout of the maps has left: its
// programs are replaced, its maps removed, and ports are joined anew.
func TestOtherLayout(t *testing.T) {
	l := newLab(t)
	n := nodes(t, 2)
	ports := l.wire(t, n[0], "eth1", n[1], "eth1")
	n[0].Configure(t, "eth1", "10.0.0.1/24")
	n[1].Configure(t, "eth1", "10.0.0.2/24")
	must(t, l.Close())
	other := filepath.Join(l.dir, "@", "v1")
	must(t, os.Rename(filepath.Join(l.dir, "@", dataplane.Layout), other))

	d := mustOpen(t, l.dir)
	if _, err := os.Stat(other); !os.IsNotExist(err) {
		t.Errorf("the maps of the other layout are left: %v", err)
	}
	found := must2(d.Read())
	if len(found) != 2 || found[0].Mode != dataplane.Unjoined || found[1].Mode != dataplane.Unjoined {
		t.Fatalf("after another layout: %+v", found)
	}
	must(t, d.Join(dataplane.End{Index: nstest.Index(t, ports[0])}, dataplane.End{Index: nstest.Index(t, ports[1])}))
	n[0].Must(t, "ping -c 2 -i 0.1 -W 1 10.0.0.2")
	must(t, port.Delete(ports[:]...))
	must(t, d.Remove("net"))
	if left := contents(t, l.dir); len(left) != 0 {
		t.Errorf("left in the maps: %v", left)
	}
}

// TestAdoption closes the data plane and opens it again: what runs goes on, is
// found, and can be changed and removed.
func TestAdoption(t *testing.T) {
	l := newLab(t)
	n := nodes(t, 2)
	ports := l.wire(t, n[0], "eth1", n[1], "eth1")
	n[0].Configure(t, "eth1", "10.0.0.1/24", "fd00::1/64")
	n[1].Configure(t, "eth1", "10.0.0.2/24", "fd00::2/64")
	ping := "ping -c 2 -i 0.02 -W 1 10.0.0.2 && ping -c 2 -i 0.02 -W 1 fd00::2"
	before, err := l.Read()
	must(t, err)
	must(t, l.Close())
	n[0].Must(t, ping) // nobody holds a descriptor

	d := mustOpen(t, l.dir)
	after, err := d.Read()
	must(t, err)
	if fmt.Sprint(before) != fmt.Sprint(after) || len(after) != 2 || after[0].Mode != dataplane.Direct || after[0].Peer != after[1].Index {
		t.Fatalf("before %v\nafter  %v", before, after)
	}
	n[0].Must(t, ping)
	for i, p := range ports { // again is no change
		must(t, d.Attach("net", p, nstest.Index(t, p), dataplane.Port))
		if after[i].Index == 0 {
			t.Error("no index")
		}
	}
	n[0].Must(t, ping)

	// A device that went without being detached is forgotten, its name reused.
	must(t, port.Delete(ports[:]...))
	must2(d.Resync())
	gone, err := d.Read("net")
	must(t, err)
	for _, a := range gone {
		if a.Index != 0 {
			t.Errorf("%s is said to exist after its pair was deleted", a.Device)
		}
	}
	n = nodes(t, 2)
	l.Dataplane = d
	specs := []port.Spec{nstest.Spec(n[0], "eth1"), nstest.Spec(n[1], "eth1")}
	specs[0].Device, specs[1].Device = ports[0], ports[1]
	must(t, port.Create(specs))
	for _, p := range ports {
		must(t, d.Attach("net", p, nstest.Index(t, p), dataplane.Port))
	}
	must(t, d.Join(dataplane.End{Index: nstest.Index(t, ports[0])}, dataplane.End{Index: nstest.Index(t, ports[1])}))
	must(t, port.SetUp(map[string]bool{ports[0]: true, ports[1]: true}))
	n[0].Configure(t, "eth1", "10.0.0.1/24", "fd00::1/64")
	n[1].Configure(t, "eth1", "10.0.0.2/24", "fd00::2/64")
	n[0].Must(t, ping)

	// Removing while the ports exist takes them down first.
	must(t, d.Remove("net"))
	states, err := port.List("test")
	must(t, err)
	for _, s := range states {
		if s.Up {
			t.Errorf("%s is up without its programs", s.Device)
		}
	}
	if left, err := d.Read(); err != nil || len(left) != 0 {
		t.Errorf("left after removal: %v, %v", left, err)
	}
	if c, err := d.Counters(); err != nil || len(c) != 1 {
		t.Errorf("counters of removed devices: %v, %v", c, err)
	}
	if entries, err := os.ReadDir(filepath.Join(l.dir, "net")); err == nil {
		t.Errorf("the VNet's pins are left: %v", entries)
	}
}

// otherBuild opens the data plane with the programs of another build.
func otherBuild(t testing.TB, dir string) *dataplane.Dataplane {
	t.Helper()
	d, err := dataplane.OpenOtherBuild(dir, os.Getenv(withoutTCX) == "")
	must(t, err)
	return d
}

// TestReplacementLosesNothing opens the data plane of another build, many times,
// while numbered datagrams flow, and misses none.
func TestReplacementLosesNothing(t *testing.T) {
	testenv.Measures(t)
	l := newLab(t)
	n := nodes(t, 2)
	l.wire(t, n[0], "eth1", n[1], "eth1")
	n[0].Configure(t, "eth1", "10.0.0.1/24")
	n[1].Configure(t, "eth1", "10.0.0.2/24")
	n[0].Must(t, "ping -c 1 10.0.0.2") // the neighbours know each other
	must(t, l.Close())

	var in, out *net.UDPConn
	var err error
	must(t, n[1].Do(func() (err error) {
		in, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 7})
		return err
	}))
	defer in.Close()
	raw := must2(in.SyscallConn())
	must(t, raw.Control(func(fd uintptr) { // whatever the machine's rmem_max is
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20)
	}))
	must(t, err)
	must(t, n[0].Do(func() (err error) {
		out, err = net.DialUDP("udp", nil, in.LocalAddr().(*net.UDPAddr))
		return err
	}))
	defer out.Close()
	stop, sent := make(chan struct{}), make(chan int)
	go func() {
		packet := make([]byte, 64)
		for k := 0; ; k++ {
			select {
			case <-stop:
				sent <- k
				return
			default:
			}
			if _, err := out.Write(packet); err != nil {
				t.Error(err)
			}
			if k%64 == 0 {
				time.Sleep(200 * time.Microsecond)
			}
		}
	}()
	received := make(chan int)
	go func() {
		buf, k := make([]byte, 100), 0
		for {
			if _, err := in.Read(buf); err != nil {
				received <- k
				return
			}
			k++
		}
	}()
	const rounds = 10
	for range rounds {
		must(t, otherBuild(t, l.dir).Close())
		d := mustOpen(t, l.dir)
		mustOpen(t, l.dir)
		must(t, d.Close())
	}
	close(stop)
	want := <-sent
	must(t, in.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	if got := <-received; got != want || want < 1000 {
		t.Errorf("%d of %d datagrams arrived over %d replacements", got, want, rounds)
	}
}

// TestUnmountLeavesNothing has another process hold a copy of the mount, as a
// mount namespace that somebody makes meanwhile does.
func TestUnmountLeavesNothing(t *testing.T) {
	r, _ := newThoroughfare(t)
	holder := exec.Command("unshare", "--mount", "--propagation", "private", "sleep", "infinity")
	must(t, holder.Start())
	defer func() {
		holder.Process.Kill()
		holder.Wait()
	}()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		own, err := os.Readlink("/proc/self/ns/mnt")
		must(t, err)
		if its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", holder.Process.Pid)); err == nil && its != own {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no mount namespace")
		}
	}
	devices := []string{r.device(t, r.port), r.device(t, r.port2)}
	must(t, r.Close())
	must(t, dataplane.Unmount(r.dir))
	must(t, dataplane.Mount(r.dir))
	r.Dataplane = mustOpen(t, r.dir)
	r.build(t, devices)
	if all := must2(r.Uplinks()); len(all) != 2 || all[0].Mode != dataplane.Native {
		t.Errorf("the uplinks are %+v", all)
	}
}

// TestTwoInstances runs two data planes in one root context.
func TestTwoInstances(t *testing.T) {
	a := newLab(t)
	b := &lab{dir: filepath.Join(t.TempDir(), "bpf")}
	must(t, dataplane.Mount(b.dir))
	t.Cleanup(func() { dataplane.Unmount(b.dir) })
	b.Dataplane = mustOpen(t, b.dir)
	n, m := nodes(t, 2), nodes(t, 2)
	a.wire(t, n[0], "eth1", n[1], "eth1")
	b.wire(t, m[0], "eth1", m[1], "eth1")
	for _, pair := range [][]*nstest.Node{n, m} { // the same addresses
		pair[0].Configure(t, "eth1", "10.0.0.1/24")
		pair[1].Configure(t, "eth1", "10.0.0.2/24")
	}
	n[0].Must(t, "ping -c 1 -W 1 10.0.0.2")
	m[0].Must(t, "ping -c 1 -W 1 10.0.0.2")
	must(t, a.Remove("net"))
	if _, err := n[0].Exec(t, "ping -c 1 -W 0.2 10.0.0.2"); err == nil {
		t.Error("a removed network still works")
	}
	m[0].Must(t, "ping -c 1 -W 1 10.0.0.2")
}

func TestMistakesAreRefused(t *testing.T) {
	l := newLab(t)
	n := nodes(t, 2)
	ports := l.wire(t, n[0], "eth1", n[1], "eth1")
	index := nstest.Index(t, ports[0])
	for what, err := range map[string]error{
		"a device that does not exist": l.Attach("net", "trx", 4711, dataplane.Port),
		"index 0":                      l.Attach("net", "trx", 0, dataplane.Port),
		"a VNet's name with a dot":     l.Attach("a.b", "trx", index, dataplane.Port),
		"a VNet named as our own":      l.Attach("@", "trx", index, dataplane.Port),
		"a way out of the directory":   l.Remove("../x"),
		"joining without attaching":    l.Join(dataplane.End{Index: index}, dataplane.End{Index: 4711}),
		"joining with itself":          l.Join(dataplane.End{Index: index}, dataplane.End{Index: index}),
	} {
		if err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	if _, err := dataplane.Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a bpffs") {
		t.Errorf("a plain directory as bpffs: %v", err)
	}
	must(t, dataplane.Mount(l.dir)) // mounted already
	must(t, l.Remove("nobody"))
}

// TestNodesRootIsPowerless tries to take a port's programs and shape away from
// inside.
func TestNodesRootIsPowerless(t *testing.T) {
	l := newLab(t)
	n := []*nstest.Node{nstest.NewTenant(t), nstest.NewTenant(t)}
	ports := l.wire(t, n[0], "eth1", n[1], "eth1")
	end := []dataplane.End{{Index: nstest.Index(t, ports[0]), Shaped: true}, {Index: nstest.Index(t, ports[1]), Shaped: true}}
	shape := vnet.Shape{Rate: 10_000_000}
	must(t, shaper.SetAll(map[string]vnet.Shape{ports[0]: shape, ports[1]: shape}))
	must(t, l.Join(end[0], end[1]))
	n[0].Configure(t, "eth1", "10.0.0.1/24")
	n[1].Configure(t, "eth1", "10.0.0.2/24")
	look := func() string {
		t.Helper()
		a, err := l.Read()
		must(t, err)
		q, err := shaper.Read()
		must(t, err)
		return fmt.Sprint(a, q[end[0].Index].Shape, q[end[1].Index].Shape)
	}
	before := look()
	if !strings.Contains(n[0].Must(t, "id -u; cat /proc/self/uid_map"), "100000") {
		t.Fatal("the node's root is the machine's")
	}
	for _, attack := range []string{
		"tc qdisc del dev eth1 clsact; tc qdisc add dev eth1 clsact; tc qdisc del dev eth1 clsact",
		"tc qdisc replace dev eth1 root pfifo; tc qdisc del dev eth1 root",
		"ip link set dev eth1 xdp off; ip link set eth1 netns 1",
		"ip link set " + ports[0] + " down; tc qdisc del dev " + ports[0] + " root",
		"mount -t bpf bpf /mnt && rm -rf /mnt/*",
		"rm -rf " + l.dir + "/net",
		"ip link set eth1 name other; ip link set other group 0 alias mine; ip link set other name eth1",
		"ip link set eth1 gso_max_size 65536 txqueuelen 100000; ip link set eth1 mtu 65535; ip link set eth1 mtu 1500",
	} {
		out, _ := n[0].Exec(t, attack) // parts may succeed: a node may hurt itself
		if after := look(); after != before {
			t.Errorf("%s changed the port:\nbefore %s\nafter  %s\n%s", attack, before, after, out)
		}
	}
	if rate := throughput(t, n[0], n[1], "10.0.0.2"); rate > 11e6 {
		t.Errorf("the node sends %.1f Mbit/s over a link of 10", rate/1e6)
	}
}

func TestPortProgramsByTestRun(t *testing.T) {
	l := newLab(t)
	n := nodes(t, 2)
	ports := l.wire(t, n[0], "eth1", n[1], "eth1")
	program, err := ebpf.LoadPinnedProgram(filepath.Join(l.dir, "@", "port_in"), nil)
	must(t, err)
	defer program.Close()
	index := [2]int{nstest.Index(t, ports[0]), nstest.Index(t, ports[1])}
	const drop, redirect = 2, 7
	run := func(what string, ifindex int, want uint32) {
		t.Helper()
		// struct __sk_buff: ifindex is its eleventh word.
		context := make([]byte, 192)
		context[40], context[41] = byte(ifindex), byte(ifindex>>8)
		in := frame("02:00:00:00:00:02", 0x88b5, 60)
		out := make([]byte, len(in)+256)
		got, err := program.Run(&ebpf.RunOptions{Data: in, DataOut: out, Context: context})
		must(t, err)
		if got != want {
			t.Errorf("%s: verdict %d, want %d", what, got, want)
		}
		if !bytes.Equal(out[:len(in)], in) {
			t.Errorf("%s: the frame was changed", what)
		}
	}
	run("a joined port", index[0], redirect)
	run("a device without an entry", 1, drop)
	must(t, l.Unjoin(index[1]))
	run("a parted port", index[0], drop)
	must(t, l.Join(dataplane.End{Index: index[0], Shaped: true}, dataplane.End{Index: index[1]}))
	run("a port towards a shaped end", index[1], redirect)
}

// TestRemoveLeavesOthersAlone has a device be made and attached while a Remove
// of another network waits for its turn.
func TestRemoveLeavesOthersAlone(t *testing.T) {
	l := newLab(t)
	root, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	defer root.Close()
	ended := make(chan error, 1)
	must(t, l.RegisterFirst(func() int {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			err := unix.Setns(int(root.Fd()), unix.CLONE_NEWNET)
			if err == nil {
				err = l.Remove("gone")
			}
			ended <- err
		}()
		time.Sleep(200 * time.Millisecond)
		nstest.Sh(t, "ip link add new0 type veth peer name new1")
		return index(t, "new0")
	}))
	must(t, <-ended)
	if n := contents(t, l.dir)["port_index"]; n != 1 {
		t.Error("the device is forgotten that came meanwhile")
	}
}
