package e2e

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trellis/test/testenv"
)

// edited is a network of two routers of one BGP session with FRR's own timers, whose
// configuration is the user's.
const edited = `name: ed
nodes:
  r1:
    files:
      /etc/frr/frr.conf:
        content: |
          interface eth1
           ip address 10.9.0.1/24
          router bgp 65001
           no bgp ebgp-requires-policy
           neighbor 10.9.0.2 remote-as 65002
  r2:
    files:
      /etc/motd: {content: "%s\n"}
%s      /etc/frr/frr.conf:
        content: |
          interface eth1
           ip address 10.9.0.2/24
          router bgp 65002
           no bgp ebgp-requires-policy
           no bgp network import-check
           neighbor 10.9.0.1 remote-as 65001
           address-family ipv4 unicast
            network 192.0.2.0/25
%slinks: [[r1, r2]]
`

// session is what a router knows of its BGP session.
type session struct {
	State       string `json:"bgpState"`
	Established int    `json:"connectionsEstablished"`
}

func bgpSession(t *testing.T, s *testenv.Service, node, neighbor string) session {
	t.Helper()
	out, _, code := s.Trellis("exec", node, "--", "vtysh", "-c", "show bgp neighbors "+neighbor+" json")
	all := map[string]session{}
	if code != 0 || json.Unmarshal([]byte(out), &all) != nil {
		return session{}
	}
	return all[neighbor]
}

func (s session) up() bool { return s.State == "Established" }

// TestEditAndUpAgain changes files of a network and applies it again, as its user does all
// day: what the change does not concern goes on, and the dry run says what it disturbs.
func TestEditAndUpAgain(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	file := func(motd, files, lines string) string {
		return write(t, "ed.yaml", fmt.Sprintf(edited, motd, files, lines))
	}
	s.Must("up", file("one", "", ""))
	established := func() bool {
		return bgpSession(t, s, "ed/r1", "10.9.0.2").up() && bgpSession(t, s, "ed/r2", "10.9.0.1").up()
	}
	eventually(t, 30*time.Second, "the session is up", established)
	before := show(t, s, "ed").pids()
	times := map[string]int{"ed/r1": bgpSession(t, s, "ed/r1", "10.9.0.2").Established, "ed/r2": bgpSession(t, s, "ed/r2", "10.9.0.1").Established}
	route := func(prefix string) func() bool {
		return func() bool {
			return strings.Contains(s.Must("exec", "ed/r1", "--", "ip", "route", "show", prefix), "10.9.0.2")
		}
	}
	const (
		network = "            network 192.0.2.128/25\n"
		policy  = "           exit-address-family\n          ip prefix-list one seq 5 permit 192.0.2.0/25\n          route-map out permit 10\n           match ip address prefix-list one\n" +
			"          router bgp 65002\n           address-family ipv4 unicast\n            neighbor 10.9.0.1 route-map out out\n"
		wider = "           exit-address-family\n          ip prefix-list one seq 5 permit 192.0.2.0/24 le 25\n          route-map out permit 10\n           match ip address prefix-list one\n" +
			"          router bgp 65002\n           address-family ipv4 unicast\n            neighbor 10.9.0.1 route-map out out\n"
		daemons = "      /etc/frr/daemons: {content: \"bfdd=yes\\n\"}\n"
	)
	for _, step := range []struct {
		name, path string
		dryRun     string
		within     time.Duration // that `up` waits; 0: it is not to wait
		eventually func() bool
	}{
		{"a file that no daemon reads", file("two", "", ""), "reload  r2      /etc/motd; disturbs nothing\n", 10 * time.Second, func() bool {
			return s.Must("exec", "ed/r2", "--", "cat", "/etc/motd") == "two\n"
		}},
		{"a network more", file("two", "", network), "disturbs nothing", 30 * time.Second, route("192.0.2.128/25")},
		{"a policy", file("two", "", network+policy), "disturbs nothing", 0, func() bool { return !route("192.0.2.128/25")() }},
		{"another policy", file("two", "", network+wider), "disturbs nothing", 0, route("192.0.2.128/25")},
		{"a daemon more", file("two", daemons, network+wider), "starts bfdd", 0, func() bool {
			_, _, code := s.Trellis("exec", "ed/r2", "--", "pidof", "bfdd")
			return code == 0
		}},
	} {
		dry := s.Must("up", "--dry-run", step.path)
		if !strings.Contains(dry, step.dryRun) || strings.Contains(dry, "\nstop ") {
			t.Errorf("%s: the dry run says\n%s", step.name, dry)
		}
		began := time.Now()
		s.Must("up", step.path, "--wait="+strconv.FormatBool(step.within > 0))
		if took := time.Since(began); step.within > 0 && took > step.within {
			t.Errorf("%s: up took %v", step.name, took)
		}
		eventually(t, 20*time.Second, step.name, step.eventually)
		for node, neighbor := range map[string]string{"ed/r1": "10.9.0.2", "ed/r2": "10.9.0.1"} {
			if is := bgpSession(t, s, node, neighbor); !is.up() || is.Established != times[node] {
				t.Errorf("%s: the session of %s is %+v, and was up %d times before", step.name, node, is, times[node])
			}
		}
		if now := show(t, s, "ed").pids(); now["r2"] != before["r2"] || now["r1"] != before["r1"] {
			t.Errorf("%s: the nodes' processes were %v and are %v", step.name, before, now)
		}
	}

	// A file that goes, a restart and an init that is killed need a new node: its
	// neighbour sees its carrier go, and the session is back at once.
	changes := func() int {
		out := s.Must("exec", "ed/r1", "--", "ip", "-json", "-stats", "-stats", "link", "show", "eth1")
		var all []struct {
			Stats struct {
				TX struct {
					Changes int `json:"carrier_changes"`
				} `json:"tx"`
			} `json:"stats64"`
		}
		if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 {
			t.Fatalf("%v: %s", err, out)
		}
		return all[0].Stats.TX.Changes
	}
	last := file("two", "", network+wider)
	if dry := s.Must("up", "--dry-run", last); !strings.Contains(dry, "/etc/frr/daemons is no longer one of its files\n") {
		t.Errorf("the dry run says\n%s", dry)
	}
	for name, restart := range map[string]func(){
		"a file goes": func() { s.Must("up", last, "--wait=false") },
		"restart":     func() { s.Must("restart", "ed/r2") },
		"init is killed": func() {
			if err := syscall.Kill(show(t, s, "ed").pids()["r2"], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
	} {
		pid, lost := show(t, s, "ed").pids()["r2"], changes()
		restart()
		eventually(t, 20*time.Second, name+": it runs again", func() bool {
			now := show(t, s, "ed").pids()["r2"]
			return now != 0 && now != pid
		})
		began := time.Now()
		eventually(t, 30*time.Second, name+": the session is up again", established)
		t.Logf("%s: the session is back %v after the node", name, time.Since(began).Round(10*time.Millisecond))
		if got := changes() - lost; got != 2 {
			t.Errorf("%s: the neighbour's carrier changed %d times, want 2", name, got)
		}
	}

	// What is saved is kept, however soon the node goes.
	for _, setting := range []string{"one", "two", "three"} {
		s.Must("exec", "ed/r2", "--", "vtysh", "-c", "configure terminal", "-c", "router bgp 65002", "-c", "neighbor 10.9.0.1 description "+setting, "-c", "end", "-c", "write memory")
		s.Must("restart", "ed/r2")
		eventually(t, 20*time.Second, "what was saved is back", func() bool {
			out, _, _ := s.Trellis("exec", "ed/r2", "--", "vtysh", "-c", "show running-config")
			return strings.Contains(out, "description "+setting)
		})
	}
	s.Must("down", "ed")
	nothingLeft(t, s)
}
