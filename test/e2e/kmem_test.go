package e2e

import (
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// fillQueue has packets wait in a queue without a limit worth the name, at most 300 MB
// of them.
const fillQueue = `ip link add v0 type veth peer name v1 && ip link add w0 type veth peer name w1 && ip link add b0 type bridge
ip link set v1 master b0; ip link set w0 master b0
tc qdisc add dev w0 root tbf rate 8kbit burst 1600 limit 2000000000
for i in v0 v1 w0 w1 b0; do ip link set $i up; done
exec python3 -c '
import socket
frame, sent = b"\x02\xaa\0\0\0\1" + b"\x02\0\0\0\0\1" + b"\x88\xb5" + b"x" * 1400, 0
while sent < 130000:
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    s.bind(("v0", 0))
    s.setblocking(False)
    try:
        while True:
            s.send(frame)
            sent += 1
    except OSError:
        s.close()
'`

// TestKernelMemoryIsBounded has the kernel hold more for a node than its limit of
// memory, of which its cgroup is charged with next to nothing.
func TestKernelMemoryIsBounded(t *testing.T) {
	testenv.NeedCommand(t, "python3", "tc")
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", write(t, "mischief.yaml", "name: mischief\nrouting: static\ndefaults: {node: {memory: 64MiB}}\nnodes: {m: {}, n: {}}\nlinks: [[m, n]]\n"))
	before := show(t, s, "mischief")
	s.Must("exec", "mischief/m", "--", "sh", "-c", "("+fillQueue+") >/dev/null 2>&1 &")
	eventually(t, time.Minute, "the node is killed, named, and started again", func() bool {
		v := show(t, s, "mischief")
		_, restarts := v.node(t, "m")
		return restarts >= 1 && v.pids()["m"] > 0 && strings.Contains(v.message(t, "m"), "in the queues of its devices")
	})
	after := show(t, s, "mischief")
	if state, restarts := after.node(t, "n"); state != "running" || restarts != 0 || after.pid(t, "n") != before.pid(t, "n") {
		t.Errorf("its neighbour is %s, with %d restarts", state, restarts)
	}
	s.Must("down", "--all")
	nothingLeft(t, s)
}
