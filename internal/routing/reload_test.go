package routing

import (
	"reflect"
	"strings"
	"testing"

	"trellis/internal/vnet"
)

// TestReloadCommands pins the commands between two configurations of a daemon.
func TestReloadCommands(t *testing.T) {
	for _, c := range []struct {
		name     string
		old, new string
		commands string // separated by |
		restart  bool
	}{
		{name: "nothing", old: "hostname a\n", new: "! comment\nhostname a\n"},
		{
			name:     "link added",
			old:      "interface eth1\n ip ospf area 0\n",
			new:      "interface eth1\n ip ospf area 0\nexit\ninterface eth2\n ip ospf area 0\n ip ospf cost 3\n",
			commands: "interface eth2|ip ospf area 0|ip ospf cost 3|exit",
		},
		{
			name:     "link removed, last line first",
			old:      "interface eth1\n ip ospf area 0\n ip ospf cost 3\n",
			commands: "interface eth1|no ip ospf cost 3|no ip ospf area 0|exit",
		},
		{
			name:     "numbers replaced in place",
			old:      "interface eth1\n ip ospf cost 3\n ip ospf hello-interval 10\nrouter rip\n offset-list any in 3 eth1\n",
			new:      "interface eth1\n ip ospf cost 4\n ip ospf hello-interval 10\nrouter rip\n offset-list any in 5 eth1\n",
			commands: "interface eth1|ip ospf cost 4|exit|router rip|offset-list any in 5 eth1|exit",
		},
		{
			name:     "areas and list entries removed first",
			old:      "interface eth1\n ip ospf area 0\naccess-list any seq 5 permit any\n",
			new:      "interface eth1\n ip ospf area 1\naccess-list any seq 6 permit any\n",
			commands: "no access-list any seq 5 permit any|interface eth1|no ip ospf area 0|ip ospf area 1|exit|access-list any seq 6 permit any",
		},
		{
			name:     "a negation withdrawn",
			old:      "router bgp 1\n no bgp default ipv4-unicast\n x\n",
			new:      "router bgp 1\n x\n",
			commands: "router bgp 1|bgp default ipv4-unicast|exit",
		},
		{
			name: "a BGP neighbour goes whole",
			old: "router bgp 1\n neighbor 10.0.0.1 remote-as 2\n neighbor 10.0.0.1 timers 3 9\n neighbor 10.0.0.11 remote-as 3\n" +
				" address-family ipv4 unicast\n  neighbor 10.0.0.1 activate\n  neighbor 10.0.0.11 activate\n",
			new:      "router bgp 1\n neighbor 10.0.0.11 remote-as 3\n address-family ipv4 unicast\n  neighbor 10.0.0.11 activate\n",
			commands: "router bgp 1|no neighbor 10.0.0.1|exit",
		},
		{
			name:     "a block emptied in an address family",
			old:      "router bgp 1\n address-family ipv4 unicast\n  redistribute connected\n",
			new:      "router bgp 1\n x\n",
			commands: "router bgp 1|address-family ipv4 unicast|no redistribute connected|exit-address-family|x|exit",
		},
		{name: "the user's own line", old: "debug x\n", new: "", restart: true},
		{name: "a line of the user's in an interface", old: "interface eth1\n x\n", new: "interface eth1\n y\n", restart: true},
		{name: "another router ID", old: "router ospf\n ospf router-id 10.0.0.1\n", new: "router ospf\n ospf router-id 10.0.0.2\n", restart: true},
		{name: "another AS", old: "router bgp 1\n x\n", new: "router bgp 2\n x\n", restart: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := func(text string) Daemons {
				return Daemons{Kind: vnet.FRR, Services: []Service{{Name: "xd"}}, Files: []vnet.File{{Path: "/etc/frr/xd.conf", Content: []byte(text), Mode: 0o644}}}
			}
			p := Reload(conf(c.old), conf(c.new))
			var got []string
			for _, argv := range p.Commands {
				if strings.Join(argv[:5], " ") != "/usr/bin/vtysh -d xd -c configure terminal" {
					t.Fatalf("command %q", argv)
				}
				for i := 5; i < len(argv); i += 2 {
					got = append(got, argv[i+1])
				}
			}
			if strings.Join(got, "|") != c.commands {
				t.Errorf("commands %s\nwant     %s", strings.Join(got, "|"), c.commands)
			}
			if restarts := len(p.Restart) > 0; restarts != c.restart {
				t.Errorf("restart %v, want %v", p.Restart, c.restart)
			}
			if len(p.Files) != 1 && c.old != c.new {
				t.Errorf("the file is not written")
			}
		})
	}
}

// TestReloadScope decides between nothing, a command, a service and the node.
func TestReloadScope(t *testing.T) {
	ospf, bird := withFiles(t, frrOSPFFast), withFiles(t, birdOSPFFast)
	if p := Reload(ospf, ospf); !p.IsZero() {
		t.Errorf("the same configuration needs %+v", p)
	}
	if p := Reload(ospf, bird); !reflect.DeepEqual(p, ReloadPlan{RestartNode: true}) {
		t.Errorf("another daemon needs %+v", p)
	}
	extended := withFiles(t, birdOSPFFast, birdExtra, "\n")
	if p := Reload(bird, extended); len(p.Commands) != 1 || p.Commands[0][1] != "configure" || len(p.Files) != 1 {
		t.Errorf("a changed bird.conf needs %+v", p)
	}
	zebra := withFiles(t, frrOSPFFast, "/etc/frr/zebra.conf", "debug zebra events\n")
	if p := Reload(ospf, zebra); !reflect.DeepEqual(p.Restart, []string{"zebra", "ospfd", "ospf6d"}) {
		t.Errorf("another zebra.conf restarts %v; want zebra and, after it, all that use it", p.Restart)
	}
	own := withFiles(t, frrOSPFFast, "/etc/frr/ospfd.conf", "router ospf\n")
	for _, p := range []ReloadPlan{Reload(ospf, own), Reload(own, ospf)} {
		if !reflect.DeepEqual(p.Restart, []string{"ospfd"}) {
			t.Errorf("a file that changes hands restarts %v, want ospfd", p.Restart)
		}
	}
}
