package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"trellis/internal/bench/attack"
	"trellis/test/testenv"
)

// TestKernelMemoryIsBounded has the kernel hold more for a node than its limit of
// memory, of which its cgroup is charged with next to nothing; or more of what all nodes
// share than others can spare.
func TestKernelMemoryIsBounded(t *testing.T) {
	testenv.NeedCommand(t, "python3", "tc", "bridge")
	for _, c := range []struct {
		attack, memory string
		told           []string // one of them
	}{
		{"device-queues", "64MiB", []string{"in the queues of its devices"}},
		{"classes", "32MiB", []string{"of classes of queueing disciplines"}},
		{"tables", "32MiB", []string{"of neighbours", "in forwarding tables", "of queues of devices", "of IPv6 routes"}},
		{"neighbours", "1GiB", []string{"neighbours that there is room for on this machine"}},
	} {
		t.Run(c.attack, func(t *testing.T) {
			s := testenv.StartService(t, testenv.Options{})
			s.Must("up", write(t, "mischief.yaml", "name: mischief\nrouting: static\ndefaults: {node: {memory: "+c.memory+"}}\nnodes: {m: {}, n: {}}\nlinks: [[m, n]]\n"))
			before := show(t, s, "mischief")
			argv, err := attack.Command(c.attack, 30)
			if err != nil {
				t.Fatal(err)
			}
			s.Must(append([]string{"exec", "mischief/m", "--", "sh", "-c", `"$@" >/dev/null 2>&1 &`, "sh"}, argv...)...)
			eventually(t, time.Minute, "the node is killed, named, and started again", func() bool {
				v := show(t, s, "mischief")
				_, restarts := v.node(t, "m")
				message := v.message(t, "m")
				return restarts >= 1 && v.pids()["m"] > 0 && slices.ContainsFunc(c.told, func(want string) bool { return strings.Contains(message, want) })
			})
			after := show(t, s, "mischief")
			if state, restarts := after.node(t, "n"); state != "running" || restarts != 0 || after.pid(t, "n") != before.pid(t, "n") {
				t.Errorf("its neighbour is %s, with %d restarts", state, restarts)
			}
			s.Must("down", "--all")
			nothingLeft(t, s)
		})
	}
}
