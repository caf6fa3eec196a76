package routing

import (
	"strings"
	"testing"
	"time"

	"trellis/internal/vnet"
)

// TestIntegratedFileIsUnderstood starts the daemons of a configuration as users
// write it, with something of everything: each daemon must get the lines that are
// for it and no other, so that what one does complain of is a mistake.
func TestIntegratedFileIsUnderstood(t *testing.T) {
	t.Parallel()
	needDaemon(t, frrBin+"zebra")
	d := describe(vnet.Routing{}, "a-b")
	d.Nodes[0].Files = []vnet.File{{Path: frrIntegrated, Content: []byte(`frr version 8.4
frr defaults traditional
hostname a
log syslog informational
no ipv6 forwarding
service integrated-vtysh-config
password zebra
!
ip prefix-list mine seq 5 permit 10.0.0.0/8 le 32
ipv6 prefix-list mine6 seq 5 permit any
access-list any seq 5 permit any
bgp as-path access-list nobody seq 5 permit ^$
bgp community-list standard blue seq 5 permit 65000:1
!
route-map out permit 10
 match ip address prefix-list mine
exit
!
ip route 192.0.2.0/24 blackhole
!
interface eth1
 description to b
 ip address 10.0.0.1/24
 ip ospf area 0
 ipv6 ospf6 area 0
 ip router isis one
 vrrp 5
exit
!
router ospf
 redistribute static route-map out
exit
router ospf6
 ospf6 router-id 10.0.0.1
exit
router isis one
 net 49.0001.0000.0000.0001.00
exit
router rip
 network eth1
exit
router bgp 65000
 neighbor 10.0.0.2 remote-as 65001
 address-family ipv4 unicast
  neighbor 10.0.0.2 route-map out out
 exit-address-family
exit
!
line vty
!
end
`)}}
	v := d.complete(t)
	if v.Links[0].Endpoints[0].Addrs != nil {
		t.Fatalf("eth1, which the configuration addresses, was given %v", v.Links[0].Endpoints[0].Addrs)
	}
	configs := generate(t, v)
	if got, want := services(configs["a"].Daemons), "mgmtd zebra staticd ospfd ospf6d isisd bgpd ripd vrrpd vtysh"; got != want {
		t.Errorf("services %s, want %s", got, want)
	}
	l := newLab(t, v)
	l.start(configs)
	shows := func(command, want string) bool {
		out, _ := l.inside("a", "vtysh", "-c", command).CombinedOutput() // fails until the daemon is there
		return strings.Contains(string(out), want)
	}
	l.eventually(10*time.Second, "configure the daemons", func() bool {
		return shows("show ip ospf interface", "eth1") && shows("show bgp summary", "10.0.0.2") && shows("show ip route", "192.0.2.0/24")
	})
	for name, out := range l.outs {
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, "config line") || strings.HasPrefix(line, "line ") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}
