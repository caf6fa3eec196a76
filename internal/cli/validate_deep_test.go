package cli

import (
	"os"
	"strconv"
	"testing"
)

func TestValidateDeep(t *testing.T) {
	for _, program := range []string{"/usr/bin/vtysh", "/usr/sbin/bird"} {
		if _, err := os.Stat(program); err != nil {
			t.Skipf("needs %s: install the packages frr and bird2", program)
		}
	}
	env := newTestEnv(t)
	network := func(name, path, text string) string {
		return env.file(name, "name: lab\naddressing: none\nnodes:\n  r1:\n    files:\n      "+path+": {content: "+strconv.Quote(text)+"}\n  r2:\nlinks: [[r1, r2]]\n")
	}
	good := network("good.yaml", "/etc/frr/frr.conf", "router ospf\n network 10.0.0.0/8 area 0")
	frr := network("frr.yaml", "/etc/frr/frr.conf", "router ospf\n netwrk 10.0.0.0/8 area 0")
	bird := network("bird.yaml", "/etc/bird/bird.conf", "router id 1.1.1.1;\nprotocl device {}")
	env.want(0, good+": valid: lab, 2 nodes, 1 link\n", "validate", "--deep", good)
	if code := env.run("validate", frr); code != 0 {
		t.Errorf("without --deep: status %d\n%s", code, env.err.String())
	}
	env.wantError(2, frr+": node r1: /etc/frr/frr.conf:2: Unknown command: netwrk 10.0.0.0/8 area 0", "validate", "--deep", frr)
	env.wantError(2, bird+": node r1: /etc/bird/bird.conf:2: syntax error", "validate", "--deep", bird)
}
