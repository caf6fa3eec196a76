package e2e

import (
	"strings"
	"testing"

	"trellis/test/testenv"
)

// TestSharedAddresses: networks with anycast addresses and subnets that come twice
// converge, and each node reaches the nearest that has the address.
func TestSharedAddresses(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	const text = `name: homes
routing: PROTOCOL
nodes:
  core: {}
  far: {}
  alpha: {anycast: [10.0.0.53, "fd00::53"]}
  beta: {anycast: [10.0.0.53, "fd00::53"]}
  alice: {kind: host}
  bob: {kind: host}
links:
  - [core, alpha]
  - [core, far]
  - [far, beta]
  - {endpoints: [{node: alpha, addresses: 192.168.1.1/24}, {node: alice, addresses: 192.168.1.2/24}], overlap: true, routing: none}
  - {endpoints: [{node: beta, addresses: 192.168.1.1/24}, {node: bob, addresses: 192.168.1.2/24}], overlap: true, routing: none}
`
	for _, protocol := range []string{"ospf", "static"} {
		file := write(t, protocol+".yaml", strings.Replace(text, "PROTOCOL", protocol, 1))
		s.Must("up", file)
		// 12 ordered pairs of routers in two families, and the hosts with their routers.
		if p := decode[ping](t, s.Must("ping", "homes", "-o", "json")); p.Pairs != 28 || p.Reachable != 28 {
			t.Errorf("%s: ping says %+v", protocol, p)
		}
		for node, way := range map[string]string{"core": "eth1", "far": "eth2"} {
			for _, address := range []string{"10.0.0.53", "fd00::53"} {
				if out := s.Must("exec", "homes/"+node, "--", "ip", "route", "get", address); !strings.Contains(out, "dev "+way+" ") {
					t.Errorf("%s: %s reaches %s by %s", protocol, node, address, out)
				}
				s.Must("exec", "homes/"+node, "--", "ping", "-c1", "-W2", address)
			}
		}
		s.Must("down", "homes")
	}
}
