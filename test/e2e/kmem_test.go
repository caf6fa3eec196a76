package e2e

import (
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
	testenv.Measures(t)
	testenv.NeedCommand(t, "python3", "tc")
	for _, c := range []struct{ attack, memory, told string }{
		{"device-queues", "64MiB", "in the queues of its devices"},
		{"classes", "32MiB", "of classes of queueing disciplines"},
		{"routes", "64MiB", "of nexthops"},
		{"neighbours", "1GiB", "neighbours that there is room for on this machine"},
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
				return restarts >= 1 && v.pids()["m"] > 0 && strings.Contains(v.message(t, "m"), c.told)
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
