package routing

import (
	"reflect"
	"slices"
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
		{name: "the user's own line", old: "debug x\n", new: "", commands: "no debug x"},
		{name: "a line of the user's in an interface", old: "interface eth1\n x\n", new: "interface eth1\n y\n", commands: "interface eth1|no x|y|exit"},
		{
			name:     "a route-map",
			old:      "route-map a permit 10\n match metric 1\nroute-map a permit 20\nroute-map b deny 10\n match metric 3\n",
			new:      "route-map a permit 10\n match metric 2\nroute-map a permit 30\n",
			commands: "no route-map b deny 10|no route-map a permit 20|route-map a permit 10|match metric 2|exit|route-map a permit 30",
		},
		{
			name:     "what stands side by side",
			old:      "ip route 10.0.0.0/8 10.0.0.1 5\nrouter ospf\n area 1 stub\n redistribute ospf 1\n redistribute static metric 1\n",
			new:      "ip route 10.0.0.0/8 10.0.0.1 6\nrouter ospf\n area 2 stub\n redistribute ospf 2\n redistribute static metric 2\n",
			commands: "no ip route 10.0.0.0/8 10.0.0.1 5|ip route 10.0.0.0/8 10.0.0.1 6|router ospf|no redistribute ospf 1|no area 1 stub|area 2 stub|redistribute ospf 2|redistribute static metric 2|exit",
		},
		{
			name:     "a router comes, one of a VRF goes",
			old:      "router bgp 1 vrf red\n x\n",
			new:      "router bgp 1\n x\n",
			commands: "no router bgp 1 vrf red|router bgp 1|x|exit",
		},
		{name: "a router goes", old: "router ospf\n x\n", new: "", restart: true},
		{name: "another router ID", old: "router ospf\n ospf router-id 10.0.0.1\n", new: "router ospf\n ospf router-id 10.0.0.2\n", restart: true},
		{name: "another AS", old: "router bgp 1\n x\n", new: "router bgp 2\n x\n", restart: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := func(text string) Daemons {
				return Daemons{Kind: vnet.FRR, Services: []Service{{Name: "xd"}}, Files: []vnet.File{{Path: "/etc/frr/xd.conf", Content: []byte(text), Mode: 0o644}}}
			}
			p := Reload(conf(c.old), conf(c.new))
			var got []string
			for _, c := range p.Commands {
				argv := c.Argv
				if !slices.Equal(c.OrRestart, []string{"xd"}) {
					t.Errorf("if the commands fail, %q restarts", c.OrRestart)
				}
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
			if restarts := len(p.Restarts) > 0; restarts != c.restart {
				t.Errorf("restart %v, want %v", p.Restarts, c.restart)
			}
			if len(p.Files) != 1 && c.old != c.new {
				t.Errorf("the file is not written")
			}
		})
	}
}

// TestReloadOfAnIntegratedFile has vtysh hand out the difference as it hands out the
// file, line by line, and restarts only what no line changes.
func TestReloadOfAnIntegratedFile(t *testing.T) {
	conf := func(text string) Daemons {
		return effective(t, vnet.Routing{Protocol: vnet.None}, "/etc/frr/daemons", "bgpd=yes\nospfd=yes\n", "/etc/frr/frr.conf", text)
	}
	const bgp = "router bgp 1\n neighbor 10.0.0.1 remote-as 2\n"
	p := Reload(conf(bgp), conf(bgp+" address-family ipv4 unicast\n  network 192.0.2.0/24\nip route 192.0.2.0/24 blackhole\n"))
	if len(p.Commands) != 1 || len(p.Restarts)+len(p.Starts)+len(p.Stops)+len(p.Changes) > 0 || len(p.Files) != 1 {
		t.Fatalf("a prefix more needs %+v", p)
	}
	argv := p.Commands[0].Argv
	if got, want := strings.Join(argv[4:], "|"), "router bgp 1|address-family ipv4 unicast|network 192.0.2.0/24|exit-address-family|exit|ip route 192.0.2.0/24 blackhole"; got != want {
		t.Errorf("vtysh is given %s, want %s", got, want)
	}
	if want := []string{"mgmtd", "zebra", "staticd", "ospfd", "bgpd"}; !slices.Equal(p.Commands[0].OrRestart, want) {
		t.Errorf("it restarts %v if that fails, want %v", p.Commands[0].OrRestart, want)
	}
	const ospf = "router ospf\n ospf router-id 1.1.1.1\n"
	p = Reload(conf(bgp+ospf+"hostname a\n"), conf(bgp+"router ospf\n ospf router-id 2.2.2.2\nhostname b\n"))
	if !slices.Equal(p.Restarts, []string{"ospfd"}) || len(p.Commands) != 1 || strings.Join(p.Commands[0].Argv[4:], "|") != "no hostname a|hostname b" {
		t.Errorf("another router ID needs %+v", p)
	}
	if p = Reload(conf(bgp), conf("! a comment\n"+bgp)); len(p.Commands)+len(p.Restarts) > 0 || len(p.Files) != 1 {
		t.Errorf("a comment needs %+v", p)
	}
}

// TestReloadScope decides between nothing, a command, a service and the node.
func TestReloadScope(t *testing.T) {
	ospf, bird := effective(t, frrOSPFFast), effective(t, birdOSPFFast)
	if p := Reload(ospf, ospf); !p.IsZero() {
		t.Errorf("the same configuration needs %+v", p)
	}
	if p := Reload(ospf, bird); !reflect.DeepEqual(p, ReloadPlan{RestartNode: true}) {
		t.Errorf("another daemon needs %+v", p)
	}
	extended := effective(t, birdOSPFFast, birdExtra, "\n")
	if p := Reload(bird, extended); len(p.Commands) != 1 || p.Commands[0].Argv[1] != "configure" || len(p.Files) != 1 {
		t.Errorf("a changed bird.conf needs %+v", p)
	}
	zebra := effective(t, frrOSPFFast, "/etc/frr/zebra.conf", "debug zebra events\n")
	if p := Reload(ospf, zebra); !reflect.DeepEqual(p.Restarts, []string{"staticd"}) || len(p.Commands) != 1 { // staticd reads it too, having no file of its own
		t.Errorf("another zebra.conf needs %+v", p)
	}
	larger := effective(t, frrOSPFFast)
	larger.Services = slices.Clone(larger.Services)
	larger.Services[1].Argv = append(slices.Clone(larger.Services[1].Argv), "--x")
	if p := Reload(ospf, larger); !reflect.DeepEqual(p.Restarts, []string{"zebra", "staticd", "ospfd", "ospf6d"}) {
		t.Errorf("another command line of zebra restarts %v; want zebra and, after it, all that use it", p.Restarts)
	}
	own := effective(t, frrOSPFFast, "/etc/frr/ospfd.conf", "router ospf\n")
	for _, p := range []ReloadPlan{Reload(ospf, own), Reload(own, ospf)} {
		if !reflect.DeepEqual(p.Restarts, []string{"ospfd"}) { // another router ID
			t.Errorf("a file that changes hands restarts %v, want ospfd", p.Restarts)
		}
	}
	more := effective(t, frrOSPFFast, "/etc/frr/daemons", "bfdd=yes\n")
	if p := Reload(ospf, more); !reflect.DeepEqual(p.Starts, []string{"bfdd"}) || len(p.Restarts)+len(p.Commands) > 0 {
		t.Errorf("another daemon needs %+v", p)
	}
	if p := Reload(more, ospf); !reflect.DeepEqual(p.Stops, []string{"bfdd"}) || len(p.Restarts)+len(p.Commands) > 0 {
		t.Errorf("a daemon less needs %+v", p)
	}
	slower := effective(t, frrOSPFFast)
	slower.Services = slices.Clone(slower.Services)
	slower.Services[3].Argv = append(slices.Clone(slower.Services[3].Argv), "--x")
	if p := Reload(ospf, slower); !reflect.DeepEqual(p.Changes, []string{"ospfd"}) || !reflect.DeepEqual(p.Restarts, []string{"ospfd"}) {
		t.Errorf("another command line needs %+v", p)
	}
}

// Services that somebody has stopped are not restarted, nor told of a change.
func TestReloadWithoutThoseThatAreStopped(t *testing.T) {
	p := ReloadPlan{
		Files: []vnet.File{{Path: "/f"}},
		Commands: []Command{
			{Argv: []string{"one"}, For: []string{"bgpd"}, OrRestart: []string{"bgpd"}},
			{Argv: []string{"two"}, For: []string{"bgpd", "ospfd"}, OrRestart: []string{"bgpd", "ospfd"}},
			{Argv: []string{"three"}, For: []string{"bgpd"}},
			{Argv: []string{"four"}, For: []string{"zebra"}},
		},
		Restarts: []string{"zebra", "bgpd"},
	}
	want := ReloadPlan{
		Files:    p.Files,
		Commands: []Command{{Argv: []string{"two"}, For: []string{"ospfd"}, OrRestart: []string{"ospfd"}}, {Argv: []string{"four"}, For: []string{"zebra"}}},
		Restarts: []string{"zebra"},
	}
	if got := p.Without("bgpd"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := p.Without(); !reflect.DeepEqual(got, p) {
		t.Errorf("%+v, want %+v", got, p)
	}
}
