package container

import (
	"bufio"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

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
