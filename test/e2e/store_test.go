package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trellis/test/testenv"
)

// inNode runs f in the network of a node, whatever its service does.
func inNode(t *testing.T, pid int, f func() error) {
	t.Helper()
	if err := testenv.DoInProcess(pid, f); err != nil {
		t.Fatal(err)
	}
}

// flows sends datagrams over many links at once, and notes when they arrive.
type flows struct {
	mu    sync.Mutex
	since time.Time         // arrivals before do not count
	first map[int]time.Time // arrival after since, by link
}

// startFlows sends from one node to addresses of another until the test ends.
func startFlows(t *testing.T, from, to int, addrs []string) *flows {
	t.Helper()
	f := &flows{first: map[int]time.Time{}}
	var in *net.UDPConn
	inNode(t, to, func() (err error) {
		in, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 4789})
		return err
	})
	out := make([]net.Conn, len(addrs))
	inNode(t, from, func() (err error) {
		for i, a := range addrs {
			if out[i], err = net.Dial("udp4", net.JoinHostPort(a, "4789")); err != nil {
				return err
			}
		}
		return nil
	})
	end := make(chan struct{})
	var all sync.WaitGroup
	t.Cleanup(func() {
		close(end)
		in.Close()
		all.Wait()
		for _, c := range out {
			c.Close()
		}
	})
	all.Go(func() {
		b := make([]byte, 64)
		for {
			n, err := in.Read(b)
			if err != nil {
				return
			}
			var sent int64
			var i int
			if _, err := fmt.Sscan(string(b[:n]), &i, &sent); err != nil {
				continue
			}
			f.mu.Lock()
			if _, seen := f.first[i]; !seen && time.Unix(0, sent).After(f.since) {
				f.first[i] = time.Now()
			}
			f.mu.Unlock()
		}
	})
	all.Go(func() {
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			for i, c := range out {
				fmt.Fprintf(c, "%d %d", i, time.Now().UnixNano()) // what is lost is lost
			}
			select {
			case <-end:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	})
	return f
}

// restored forgets what has arrived, does something, and gives the time until a
// datagram that was sent afterwards has arrived over each of so many links.
func (f *flows) restored(t *testing.T, n int, within time.Duration, cut func()) time.Duration {
	t.Helper()
	f.mu.Lock()
	f.since = time.Now().Add(time.Hour)
	f.mu.Unlock()
	cut()
	begin := time.Now()
	f.mu.Lock()
	f.since = begin
	clear(f.first)
	f.mu.Unlock()
	for {
		f.mu.Lock()
		arrived := len(f.first)
		f.mu.Unlock()
		if arrived == n {
			return time.Since(begin)
		}
		if time.Since(begin) > within {
			t.Fatalf("%d of %d links carry packets after %v", arrived, n, within)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestRepairsWhileTheStoreHangs stops the store's service, so that it neither answers
// nor refuses, and takes one of two paths between the others away: all links must be on
// the other one as soon as with the store.
func TestRepairsWhileTheStoreHangs(t *testing.T) {
	t.Parallel()
	const links = 50
	s := testenv.StartSandbox(t, testenv.SandboxOptions{Hosts: []string{"alpha", "beta", "gamma"}})
	addr := map[string]string{"beta": "192.0.2.3", "gamma": "192.0.2.5"}
	router := map[string]string{"beta": "192.0.2.2", "gamma": "192.0.2.4"}
	second := map[string]string{"beta": "198.51.100.0", "gamma": "198.51.100.1"}
	other := map[string]string{"beta": "gamma", "gamma": "beta"}
	// A second uplink of both, back to back.
	s.Exec("beta", "ip", "link", "add", "eth2", "type", "veth", "peer", "name", "peer2")
	s.Exec("beta", "ip", "link", "set", "peer2", "netns", fmt.Sprint(s.Host("gamma").PID))
	s.Exec("gamma", "ip", "link", "set", "peer2", "name", "eth2")
	for host, a := range second {
		s.Exec(host, "ip", "addr", "add", a+"/31", "dev", "eth2")
		s.Exec(host, "ip", "link", "set", "eth2", "up")
	}
	for host, a := range addr {
		peer := other[host]
		s.Exec(host, "ip", "route", "add", addr[peer], "via", router[host], "dev", "eth1", "metric", "10", "src", a)
		s.Exec(host, "ip", "route", "add", addr[peer], "via", second[peer], "dev", "eth2", "metric", "20", "src", a)
		path := filepath.Join(s.StateDir, "sandbox", s.Name, host, "trellis.yaml")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// The first uplink's addresses are to be the tunnels'.
		changed := strings.Replace(string(text), "capacity:", "    - interface: eth2\n      addresses: ["+second[host]+"]\ncapacity:", 1)
		if changed == string(text) {
			t.Fatalf("no place for an uplink in %s", text)
		}
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Sandbox("kill", host)
	}
	s.Sandbox("start")
	file := "name: hung\nrouting: none\nnodes:\n  b: {on: beta}\n  c: {on: gamma}\nlinks:\n"
	for range links {
		file += "  - [b, c]\n"
	}
	s.Must("up", write(t, "hung.yaml", file))
	v := show(t, s, "hung")
	var to []string
	for _, l := range v.Links {
		for _, e := range l.Ends {
			if e.Node == "c" {
				a, _, _ := strings.Cut(e.Addrs[0], "/")
				to = append(to, a)
			}
		}
	}
	if len(to) != links {
		t.Fatalf("%d addresses of c: %q", len(to), to)
	}
	f := startFlows(t, v.pid(t, "b"), v.pid(t, "c"), to)
	f.restored(t, links, 10*time.Second, func() {})

	leave := func(metric, via map[string]string, device, verb string) func() {
		return func() {
			for host := range addr {
				s.Exec(host, "ip", "route", verb, addr[other[host]], "via", via[host], "dev", device, "metric", metric[host], "src", addr[host])
			}
		}
	}
	first := map[string]string{"beta": "10", "gamma": "10"}
	down, up := leave(first, router, "eth1", "del"), leave(first, router, "eth1", "add")
	with := f.restored(t, links, 20*time.Second, func() { s.Exec("fabric", "ip", "link", "set", "beta", "down"); down() })
	s.Exec("fabric", "ip", "link", "set", "beta", "up")
	f.restored(t, links, 20*time.Second, up)

	pid := s.Host("alpha").PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(resume) // before the sandbox goes
	var hung []time.Duration
	for range 2 { // at once, and when it is known
		hung = append(hung, f.restored(t, links, 20*time.Second, func() { s.Exec("fabric", "ip", "link", "set", "beta", "down"); down() }))
		s.Exec("fabric", "ip", "link", "set", "beta", "up")
		hung = append(hung, f.restored(t, links, 20*time.Second, up))
		time.Sleep(5 * time.Second) // longer than the store is waited for
	}
	t.Logf("all %d links carry packets after %v with the store, %v without", links, with, hung)
	for _, d := range hung {
		if d > with+2*time.Second {
			t.Errorf("a repair took %v while the store hung, and %v with it", d, with)
		}
	}
	resume()
	eventually(t, 20*time.Second, "the store answers again", func() bool {
		_, _, code := s.Trellis("ls")
		return code == 0
	})
}

// TestLostStore moves the store away, as the disk that fails does.
func TestLostStore(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "kept.yaml", fmt.Sprintf(pair, "kept")))
	before := show(t, s, "kept")
	copied := filepath.Join(t.TempDir(), "copy")
	s.Must("store", "save", copied)
	s.Must("store", "check", copied)
	s.Must("up", write(t, "late.yaml", fmt.Sprintf(pair, "late"))) // which the copy does not know
	late := show(t, s, "late")
	s.Stop()
	etcd := filepath.Join(s.StateDir, "etcd")
	if err := os.Rename(etcd, etcd+".away"); err != nil {
		t.Fatal(err)
	}
	alive := func(what string, pids ...int) {
		t.Helper()
		for _, pid := range pids {
			if err := syscall.Kill(pid, 0); err != nil {
				t.Errorf("%s: a node's init %d is gone", what, pid)
			}
		}
	}
	pids := []int{before.pid(t, "a"), before.pid(t, "b"), late.pid(t, "a")}
	if _, stderr, code := s.Trellis("serve"); code != 1 || !strings.Contains(stderr, "--adopt") || !strings.Contains(stderr, "store restore") {
		t.Errorf("serve without its store: exit status %d: %s", code, stderr)
	}
	alive("after a refused start", pids...)
	s.Restart(testenv.Options{Args: []string{"--adopt"}})
	if out := s.Must("ls", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("an empty store lists %s", out)
	}
	s.Must("up", write(t, "new.yaml", fmt.Sprintf(pair, "new")))
	if a, b := uidBase(t, show(t, s, "new").pid(t, "a")), uidBase(t, pids[0]); a == b {
		t.Errorf("a new network has the user ids of one that is kept, from %s", a)
	}
	s.Restart(testenv.Options{}) // what is kept stays so
	s.Must("ping", "new")
	alive("after --adopt and a restart", pids...)
	if out, err := s.NS.Command("nsenter", "-t", fmt.Sprint(pids[0]), "-n", "ping", "-c1", "-W2", nodeAddr(t, before, "b")).CombinedOutput(); err != nil {
		t.Errorf("a network that is kept carries nothing: %v\n%s", err, out)
	}
	s.Must("down", "new")

	// Back to the copy.
	if _, stderr, code := s.Trellis("store", "restore", "--force", copied); code != 1 || !strings.Contains(stderr, "runs already") {
		t.Errorf("restore under a service: exit status %d: %s", code, stderr)
	}
	s.Stop()
	if _, stderr, code := s.Trellis("store", "restore", copied); code != 1 || !strings.Contains(stderr, "--force") {
		t.Errorf("restore over a store: exit status %d: %s", code, stderr)
	}
	if out := s.Must("store", "restore", "--force", copied); !strings.Contains(out, "1 network") || !strings.Contains(out, "replaced-") {
		t.Errorf("restore says %s", out)
	}
	if _, stderr, code := s.Trellis("serve"); code != 1 || !strings.Contains(stderr, "--remove-all") {
		t.Errorf("serve on a restored store: exit status %d: %s", code, stderr)
	}
	s.Restart(testenv.Options{Args: []string{"--remove-all"}})
	eventually(t, 20*time.Second, "what the copy does not know is removed", func() bool { return syscall.Kill(pids[2], 0) != nil })
	eventually(t, 20*time.Second, "the network of the copy runs", func() bool {
		return show(t, s, "kept").State == "running"
	})
	if after := show(t, s, "kept"); after.pid(t, "a") != pids[0] {
		t.Errorf("the network of the copy was made anew: %d, before %d", after.pid(t, "a"), pids[0])
	}
	s.Must("ping", "kept")
	s.Must("down", "--all")
	aside, err := filepath.Glob(etcd + ".*") // what was moved away, by the test and by the restore
	if err != nil || len(aside) != 2 {
		t.Errorf("stores aside: %q, %v", aside, err)
	}
	for _, dir := range aside {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, s)
}

// uidBase is the first of the machine's user ids that a process's are mapped to.
func uidBase(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))[1]
}

// nodeAddr is an IPv4 address of a node's interface.
func nodeAddr(t *testing.T, v shown, node string) string {
	t.Helper()
	for _, l := range v.Links {
		for _, e := range l.Ends {
			for _, a := range e.Addrs {
				if addr, _, _ := strings.Cut(a, "/"); e.Node == node && !strings.Contains(addr, ":") {
					return addr
				}
			}
		}
	}
	t.Fatalf("%s has no address", node)
	return ""
}
