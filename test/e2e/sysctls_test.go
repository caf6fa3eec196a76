package e2e

import (
	"strings"
	"testing"

	"trellis/test/testenv"
)

// TestSysctls: those of interfaces come with the interfaces, at every start; what the
// machine does not have is refused by line, and by up before anything is touched.
func TestSysctls(t *testing.T) {
	t.Parallel()
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "knobs.yaml", `name: knobs
nodes:
  a: {sysctls: {net.ipv4.conf.eth1.rp_filter: 2, net.ipv6.neigh.eth1.retrans_time_ms: 700, net.ipv4.ip_default_ttl: 77}}
  b: {}
links: [[a, b]]
`)
	s.Must("validate", "--here", file)
	s.Must("up", file)
	check := func(when string) {
		t.Helper()
		got := strings.Fields(s.Must("exec", "knobs/a", "--", "sh", "-c",
			"cd /proc/sys/net && cat ipv4/conf/eth1/rp_filter ipv6/neigh/eth1/retrans_time_ms ipv4/ip_default_ttl ipv4/conf/default/rp_filter"))
		if strings.Join(got, " ") != "2 700 77 0" {
			t.Errorf("%s: the sysctls are %v", when, got)
		}
	}
	check("at first")
	s.Must("exec", "knobs/a", "--", "ip", "link", "delete", "eth1")
	s.Must("up", file)
	check("with a new interface")
	s.Must("restart", "knobs/a")
	check("after a restart")
	s.Must("down", "knobs")

	bad := write(t, "typos.yaml", `name: typos
nodes:
  a:
    sysctls:
      net.ipv4.ip_default_tll: 77
  b:
    sysctls:
      net.ipv4.tcp_fin_timeout: soon
links: [[a, b]]
`)
	_, stderr, code := s.Trellis("validate", "--here", bad)
	if code != 2 || !strings.Contains(stderr, ":5: node \"a\": this machine has no sysctl net.ipv4.ip_default_tll") ||
		!strings.Contains(stderr, ":8: node \"b\": the kernel does not take \"soon\"") {
		t.Errorf("validate --here: exit status %d, %s", code, stderr)
	}
	_, stderr, code = s.Trellis("up", bad)
	if code == 0 || !strings.Contains(stderr, "no sysctl net.ipv4.ip_default_tll") {
		t.Errorf("up: exit status %d, %s", code, stderr)
	}
	if out := s.Must("ls"); strings.Contains(out, "typos") {
		t.Errorf("up has left something:\n%s", out)
	}
}
