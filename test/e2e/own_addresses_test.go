package e2e

import (
	"testing"
	"time"

	"trellis/test/testenv"
)

// TestOtherEndJoinsTheSubnetOfFRR gives the one end of a link, and one of a LAN,
// addresses in the node's own frr.conf: the others reach it without naming any.
func TestOtherEndJoinsTheSubnetOfFRR(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	s.Must("up", "--wait=false", write(t, "own.yaml", `name: own
nodes:
  a:
    files:
      /etc/frr/frr.conf:
        content: |
          interface eth1
           ip address 192.0.2.0/31
           ipv6 address 2001:db8:1::1/127
          exit
          interface eth2
           ip address 198.51.100.1/29
           ipv6 address 2001:db8:2::1/64
          exit
  b:
  c:
links:
  - [a, b]
  - {type: lan, name: seg, endpoints: [a, b, c]}
`))
	v := show(t, s, "own")
	if got := v.addr(t, "a-b", "b", true).String() + " " + v.addr(t, "a-b", "b", false).String(); got != "192.0.2.1 2001:db8:1::" {
		t.Errorf("b has %s on the link", got)
	}
	for node, addrs := range map[string][]string{
		"b": {"192.0.2.0", "2001:db8:1::1", "198.51.100.1", "2001:db8:2::1"}, "c": {"198.51.100.1", "2001:db8:2::1", v.addr(t, "seg", "b", true).String()},
	} {
		for _, addr := range addrs {
			eventually(t, 20*time.Second, addr+" answers "+node, func() bool { return pings(s, "own/"+node, addr) })
		}
	}
}
