package routing

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"trellis/internal/vnet"
	"trellis/test/testenv"
)

// lab runs the daemons of a VNet for real: a network namespace a node, veth
// pairs for point-to-point links, a bridge in a namespace of its own for each
// LAN, and mounts of its own for /run and /etc.
type lab struct {
	t     *testing.T
	dir   string
	tag   string
	v     *vnet.VNet
	procs map[string]*exec.Cmd // by node/service
	outs  map[string]*output
	ready map[string][]string // by node: the paths by which those are ready that are loaded
}

// output collects what a process writes.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

const labPrefix = "trlrt-"

var labs atomic.Int32

// needDaemon skips the test where it cannot run a routing daemon.
func needDaemon(t *testing.T, path string) {
	t.Helper()
	testenv.NeedRoot(t, "network namespaces for the routing daemons")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("needs %s: install the package frr or bird2", path)
	}
}

// newLab builds the links of v, with nothing running yet.
func newLab(t *testing.T, v *vnet.VNet) *lab {
	t.Helper()
	sweep.Do(sweepLabs)
	l := &lab{
		t: t, dir: t.TempDir(), v: v,
		tag:   fmt.Sprintf("%s%d-%d-", labPrefix, os.Getpid(), labs.Add(1)),
		procs: map[string]*exec.Cmd{}, outs: map[string]*output{}, ready: map[string][]string{},
	}
	if err := os.Chmod(filepath.Dir(l.dir), 0o755); err != nil { // FRR's user passes through
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	for i := range v.Nodes {
		l.run("ip", "netns", "add", l.tag+v.Nodes[i].Name)
	}
	for i := range v.Links {
		if v.Links[i].Type == vnet.LAN {
			l.run("ip", "netns", "add", l.tag+"lan"+strconv.Itoa(i))
			l.run("ip", "-n", l.tag+"lan"+strconv.Itoa(i), "link", "add", "name", "br", "up", "type", "bridge", "stp_state", "0")
		}
	}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		l.run("ip", "netns", "exec", l.tag+n.Name, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
			"net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.default.forwarding=1")
		for _, a := range n.Loopbacks {
			l.run("ip", "-n", l.tag+n.Name, "addr", "add", fmt.Sprintf("%s/%d", a, a.BitLen()), "dev", "lo")
		}
		l.run("ip", "-n", l.tag+n.Name, "link", "set", "lo", "up")
		for _, sub := range []string{"run", "tmp", "etc/frr", "etc/bird"} {
			if err := os.MkdirAll(filepath.Join(l.dir, n.Name, sub), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, sub := range []string{"run", "tmp"} {
			if err := os.Chmod(filepath.Join(l.dir, n.Name, sub), 0o777); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range v.Links {
		l.plug(i)
	}
	return l
}

// plug makes the interfaces of link i.
func (l *lab) plug(i int) {
	l.t.Helper()
	link := &l.v.Links[i]
	if link.Type == vnet.PointToPoint {
		a, b := link.Endpoints[0], link.Endpoints[1]
		l.run("ip", "link", "add", a.Name, "netns", l.tag+a.Node, "type", "veth", "peer", "name", b.Name, "netns", l.tag+b.Node)
	}
	for j, e := range link.Endpoints {
		ns := l.tag + e.Node
		if link.Type == vnet.LAN {
			lan := l.tag + "lan" + strconv.Itoa(i)
			l.run("ip", "link", "add", e.Name, "netns", ns, "type", "veth", "peer", "name", fmt.Sprintf("p%d", j), "netns", lan)
			l.run("ip", "-n", lan, "link", "set", fmt.Sprintf("p%d", j), "master", "br", "up")
		}
		for _, a := range e.Addrs {
			args := []string{"-n", ns, "addr", "add", a.String(), "dev", e.Name}
			if a.Addr().Is6() {
				args = append(args, "nodad")
			}
			l.run("ip", args...)
		}
		l.run("ip", "-n", ns, "link", "set", e.Name, "up", "mtu", strconv.Itoa(e.MTU))
	}
}

// start places the files of the configurations and starts their services.
func (l *lab) start(configs map[string]Config) {
	l.t.Helper()
	for i := range l.v.Nodes {
		n := &l.v.Nodes[i]
		d := configs[n.Name].Daemons
		for _, f := range append(append([]vnet.File{}, n.Files...), d.Files...) {
			l.place(n.Name, f)
		}
		for _, dir := range d.Dirs {
			if err := os.MkdirAll(filepath.Join(l.dir, n.Name, dir), 0o755); err != nil {
				l.t.Fatal(err)
			}
		}
		for _, s := range d.Services {
			l.launch(n.Name, s)
		}
	}
}

func (l *lab) place(node string, f vnet.File) {
	l.t.Helper()
	if err := os.MkdirAll(filepath.Join(l.dir, node, filepath.Dir(f.Path)), 0o755); err != nil {
		l.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.dir, node, f.Path), f.Content, 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// launch starts one service in its node, after what it waits for. One that loads the
// others, which come before it, has ended when it returns.
func (l *lab) launch(node string, s Service) {
	l.t.Helper()
	if _, err := os.Stat(s.Program()); err != nil && s.Optional {
		return
	}
	var paths []string
	if s.After != "" {
		paths = append(paths, s.After)
	}
	if s.Loads {
		paths = l.ready[node]
		defer func() {
			if err := l.procs[node+"/"+s.Name].Wait(); err != nil {
				l.t.Errorf("%s on %s: %v", s.Name, node, err)
			}
			delete(l.procs, node+"/"+s.Name)
		}()
	}
	if s.Ready != "" {
		l.ready[node] = append(l.ready[node], s.Ready)
	}
	for _, file := range paths {
		file := filepath.Join(l.dir, node, file)
		for began := time.Now(); ; time.Sleep(2 * time.Millisecond) {
			if _, err := os.Stat(file); err == nil {
				break
			}
			if time.Since(began) > 10*time.Second {
				l.dump()
				l.t.Fatalf("%s on %s waits in vain for %s", s.Name, node, file)
			}
		}
	}
	c := l.inside(node, s.Argv...)
	c.Env = append(os.Environ(), s.Env...)
	out := &output{}
	c.Stdout, c.Stderr = out, out
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		l.t.Fatalf("start %s on %s: %v", s.Name, node, err)
	}
	l.procs[node+"/"+s.Name] = c
	l.outs[node+"/"+s.Name] = out
}

// stop ends a service as a restart by init would begin.
func (l *lab) stop(node, service string, sig syscall.Signal) {
	c := l.procs[node+"/"+service]
	_ = c.Process.Signal(sig) // gone already is fine
	_ = c.Wait()              // as is how it ended
	delete(l.procs, node+"/"+service)
}

// inside gives a command that runs in a node.
func (l *lab) inside(node string, argv ...string) *exec.Cmd {
	const enter = `mount --bind "$1/run" /run && mount --bind "$1/tmp" /var/tmp &&
		mount --bind "$1/etc/frr" /etc/frr && mount --bind "$1/etc/bird" /etc/bird && shift && exec "$@"`
	args := append([]string{"netns", "exec", l.tag + node, "sh", "-c", enter, "sh", filepath.Join(l.dir, node)}, argv...)
	return exec.Command("ip", args...)
}

// output runs a command in a node and gives what it prints.
func (l *lab) output(node string, argv ...string) string {
	l.t.Helper()
	out, err := l.inside(node, argv...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s on %s: %v\n%s", strings.Join(argv, " "), node, err, out)
	}
	return string(out)
}

func (l *lab) run(name string, args ...string) {
	l.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		l.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// fib reads the destinations of a node's routing tables.
func (l *lab) fib(node string) map[netip.Prefix][]netlink.Route {
	l.t.Helper()
	ns, err := netns.GetFromName(l.tag + node)
	if err != nil {
		l.t.Fatal(err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, syscall.NETLINK_ROUTE)
	if err != nil {
		l.t.Fatal(err)
	}
	defer h.Close()
	list, err := h.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		l.t.Fatal(err)
	}
	found := map[netip.Prefix][]netlink.Route{}
	for _, r := range list {
		if r.Dst == nil {
			continue
		}
		a, _ := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		p := netip.PrefixFrom(a.Unmap(), ones)
		found[p] = append(found[p], r)
	}
	return found
}

// missing lists the loopbacks that nodes have no route to.
func (l *lab) missing(nodes ...string) []string {
	var list []string
	if len(nodes) == 0 {
		for i := range l.v.Nodes {
			nodes = append(nodes, l.v.Nodes[i].Name)
		}
	}
	for _, from := range nodes {
		fib := l.fib(from)
		for _, to := range nodes {
			for _, a := range l.v.Node(to).Loopbacks {
				if from != to && fib[netip.PrefixFrom(a, a.BitLen())] == nil {
					list = append(list, fmt.Sprintf("%s→%s %s", from, to, a))
				}
			}
		}
	}
	return list
}

// converge waits until no node misses a loopback, and gives the time since
// began.
func (l *lab) converge(began time.Time, within time.Duration, nodes ...string) time.Duration {
	l.t.Helper()
	for {
		missing := l.missing(nodes...)
		took := time.Since(began)
		if len(missing) == 0 {
			return took
		}
		if took > within {
			l.dump()
			l.t.Fatalf("not converged after %v: %d routes missing: %s", within, len(missing), strings.Join(missing[:min(8, len(missing))], ", "))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// dump logs what the processes wrote.
func (l *lab) dump() {
	for name, out := range l.outs {
		if out.String() != "" {
			l.t.Logf("%s: %s", name, out)
		}
	}
}

func (l *lab) eventually(within time.Duration, what string, done func() bool) {
	l.t.Helper()
	for began := time.Now(); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > within {
			l.t.Fatalf("did not %s within %v", what, within)
		}
	}
}

// close ends the lab's processes and removes its namespaces.
func (l *lab) close() {
	for _, c := range l.procs {
		_ = c.Process.Kill() // gone already is fine
	}
	for _, c := range l.procs {
		_ = c.Wait() // killed
	}
	removeLab(l.tag)
}

var sweep sync.Once

// sweepLabs removes what a test run that crashed has left.
func sweepLabs() {
	names, _ := filepath.Glob("/run/netns/" + labPrefix + "*") // the pattern is well-formed
	for _, name := range names {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(name), labPrefix), "-")
		if _, err := os.Stat("/proc/" + pid); os.IsNotExist(err) {
			removeLab(labPrefix + pid + "-")
		}
	}
}

// removeLab removes the namespaces whose names begin with tag, and the processes
// in them.
func removeLab(tag string) {
	names, _ := filepath.Glob("/run/netns/" + tag + "*") // the pattern is well-formed
	for _, name := range names {
		ns := filepath.Base(name)
		out, _ := exec.Command("ip", "netns", "pids", ns).Output() // none in a namespace that is half gone
		for _, word := range strings.Fields(string(out)) {
			if pid, err := strconv.Atoi(word); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // may have ended meanwhile
			}
		}
		_ = exec.Command("ip", "netns", "del", ns).Run() // the next run's sweep tries again
	}
}
