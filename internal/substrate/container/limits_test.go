package container

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

func TestMemoryLimit(t *testing.T) {
	r := newRuntime(t, Config{})
	a, b := spec("a"), spec("b")
	a.Limits.Memory, a.Services = 24<<20, []Service{sleeper("bystander", "1000")}
	mustStart(t, r, a)
	mustStart(t, r, b)
	if out, code := run(t, r, a.ID, "head -c 100000000 /dev/zero | tail -c 90000000 | wc -c"); code == 0 && strings.Contains(out, "90000000") {
		t.Errorf("a node of 24 MiB held 90 MB: %s", out)
	}
	st, err := r.Stat(a.ID)
	if err != nil || st.OOMKills == 0 || st.Memory > 24<<20 {
		t.Errorf("%+v, %v; want a process killed for want of memory", st, err)
	}
	// Files are memory too.
	if _, code := run(t, r, a.ID, "head -c 15000000 /dev/zero > /tmp/a; head -c 100000000 /dev/zero | tail -c 20000000 > /dev/null && exit 1; exit 0"); code == 0 {
		if st, err := r.Stat(a.ID); err != nil || st.Memory > 24<<20 {
			t.Errorf("%+v, %v", st, err)
		}
	}
	mustRun(t, r, b.ID, "true")
}

func TestForkBomb(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	mustStart(t, r, s)
	p, err := r.Exec(t.Context(), s.ID, ExecSpec{Argv: []string{"/bin/bash", "-c", "b() { b | b & }; b; sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bomb has filled the node", func() bool {
		st, err := r.Stat(s.ID)
		if err != nil || st.Pids > s.Limits.Pids {
			t.Fatalf("%+v, %v", st, err)
		}
		return st.Pids > s.Limits.Pids/2
	})
	start := time.Now()
	if err := r.Remove(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v to remove a node with a fork bomb", took)
	}
	if _, err := p.Wait(); err != nil {
		t.Log(err) // killed with the node; how that shows is the runtime's affair
	}
	checkClean(t, r)
}

func TestCPULimit(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Limits.CPU = 0.1
	s.Services = []Service{{Name: "spin", Argv: []string{"/bin/sh", "-c", "while :; do :; done"}}}
	mustStart(t, r, s)
	share := func() float64 {
		before, err := r.Stat(s.ID)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.Sleep(time.Second)
		after, err := r.Stat(s.ID)
		if err != nil {
			t.Fatal(err)
		}
		return (after.CPU - before.CPU) / time.Since(start).Seconds()
	}
	if got := share(); got > 0.15 || got < 0.02 {
		t.Errorf("a node of 0.1 CPUs used %.2f", got)
	}
	l := s.Limits
	l.CPU = 0.3
	if err := r.SetLimits(t.Context(), s.ID, l); err != nil {
		t.Fatal(err)
	}
	if got := share(); got > 0.4 || got < 0.06 {
		t.Errorf("a node of 0.3 CPUs used %.2f", got)
	}
	if st, _ := r.List(t.Context()); st[0].Limits != l {
		t.Errorf("the limits are listed as %+v", st[0].Limits)
	}
}

func TestDiskLimit(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Limits.Disk = 4 << 20
	mustStart(t, r, s)
	for _, dir := range []string{"/tmp", "/etc", "/run", "/var/tmp", "/root", "/dev/shm"} {
		if _, code := run(t, r, s.ID, "head -c 5000000 /dev/zero > "+dir+"/big"); code == 0 {
			t.Errorf("5 MB were written to %s of a node of 4 MiB", dir)
		}
		mustRun(t, r, s.ID, "rm "+dir+"/big")
	}
	if _, code := run(t, r, s.ID, "i=0; while [ $i -lt 3000 ]; do : > /tmp/f$i || exit 1; i=$((i+1)); done"); code == 0 {
		t.Error("3,000 files were made in a node of 4 MiB")
	}
	l := s.Limits
	l.Disk = 8 << 20
	if err := r.SetLimits(t.Context(), s.ID, l); err != nil {
		t.Fatal(err)
	}
	mustRun(t, r, s.ID, "rm -f /tmp/f*; head -c 5000000 /dev/zero > /tmp/big")
	if st, err := r.Stat(s.ID); err != nil || st.Disk < 5000000 || st.Disk > 8<<20 {
		t.Errorf("disk usage %d, %v", st.Disk, err)
	}
	l.Disk = 1 << 20
	if err := r.SetLimits(t.Context(), s.ID, l); err == nil {
		t.Error("a limit below what is in use was accepted")
	}
}

// TestNetworksShareTheCPU: a network of many busy nodes leaves another's single one
// its share.
func TestNetworksShareTheCPU(t *testing.T) {
	r := newRuntime(t, Config{})
	busy := []Service{{Name: "busy", Argv: []string{"/bin/sh", "-c", "while :; do :; done"}}}
	var crowd []ID
	for i := range 12 {
		s := spec(fmt.Sprintf("n%d", i))
		s.VNet, s.Services, s.Limits.CPU = "crowd", busy, 0
		mustStart(t, r, s)
		crowd = append(crowd, s.ID)
	}
	single := spec("a")
	single.Services, single.Limits.CPU = busy, 0
	mustStart(t, r, single)
	used := func(ids ...ID) (sum float64) {
		for _, id := range ids {
			st, err := r.Stat(id)
			if err != nil {
				t.Fatal(err)
			}
			sum += st.CPU
		}
		return sum
	}
	// Until there is enough to compare, however busy the machine is besides.
	c0, s0 := used(crowd...), used(single.ID)
	var c, s float64
	for deadline := time.Now().Add(time.Minute); c < 1; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("12 busy nodes have used %.2f s of CPU in a minute", c)
		}
		c, s = used(crowd...)-c0, used(single.ID)-s0
	}
	// By processes it would be 1/12; by networks 1/1, where there are CPUs for both.
	if s < 0.35*c {
		t.Errorf("12 busy nodes of one network have used %.2f s of CPU, the one of another %.2f s", c, s)
	}
}

// floodSockets fills the receive queues of so many UDP and TCP sockets of the node's
// loopback that nobody reads, says "full", and waits.
const floodSockets = `import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
udp, tcp, keep = int(sys.argv[1]), int(sys.argv[2]), []
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(udp):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    s.bind(("127.0.0.1", 0))
    keep.append(s)
    for _ in range(8):
        try:
            out.sendto(b"x" * 60000, s.getsockname())
        except OSError:
            pass
l = socket.create_server(("127.0.0.1", 0), backlog=1000)
for i in range(tcp):
    s = socket.create_connection(l.getsockname())
    s.settimeout(0.01)
    keep.append(s)
    try:
        while True:
            s.send(b"x" * 1000000)
    except OSError:
        pass
    keep.append(l.accept()[0])
print("full", flush=True)
time.sleep(1000)
`

// socketMemory is what waits in the sockets of the machine, in bytes.
func socketMemory(t *testing.T) (bytes int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if i := slices.Index(f, "mem"); i > 0 && i+1 < len(f) {
			pages, err := strconv.ParseInt(f[i+1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			bytes += pages * int64(os.Getpagesize())
		}
	}
	return bytes
}

// TestSocketMemoryLimit fills sockets' queues beyond the node's limit of memory.
func TestSocketMemoryLimit(t *testing.T) {
	testenv.NeedCommand(t, "python3")
	const limit = 64 << 20
	r := newRuntime(t, Config{})
	a := spec("a")
	a.Limits.Memory = limit
	mustStart(t, r, a)
	before := socketMemory(t)
	out, stdout := io.Pipe()
	if _, err := r.Exec(t.Context(), a.ID, ExecSpec{Argv: []string{"python3", "-c", floodSockets, "400", "60"}, Stdout: stdout}); err != nil {
		t.Fatal(err)
	}
	full := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(out).ReadString('\n')
		full <- err
	}()
	select {
	case err := <-full:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the sockets are not full after a minute")
	}
	if grown := socketMemory(t) - before; grown > limit/2 {
		t.Errorf("%d MiB wait in the sockets of a node of %d MiB", grown>>20, limit>>20)
	}
}
