package routing

import (
	"net/netip"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"trellis/internal/vnet"
)

// TestReloadKeepsSessions changes a running ring of routers: a link goes, a link
// comes, a cost grows. The route between two routers that the change leaves alone
// must stay in the kernel all the while, the network must converge again, and FRR
// must end with the very configuration that a fresh start would give it.
func TestReloadKeepsSessions(t *testing.T) {
	t.Parallel()
	for _, r := range []vnet.Routing{
		{Protocol: vnet.OSPF, Daemon: vnet.FRR},
		{Protocol: vnet.ISIS, Daemon: vnet.FRR},
		{Protocol: vnet.BGP, Daemon: vnet.FRR},
		{Protocol: vnet.RIP, Daemon: vnet.FRR},
		{Protocol: vnet.OSPF, Daemon: vnet.BIRD},
		{Protocol: vnet.BGP, Daemon: vnet.BIRD},
		{Protocol: vnet.RIP, Daemon: vnet.BIRD},
	} {
		t.Run(string(r.Protocol+"-")+string(r.Daemon), func(t *testing.T) {
			needDaemon(t, map[vnet.Daemon]string{vnet.FRR: frrBin + "zebra", vnet.BIRD: birdBin}[r.Daemon])
			t.Parallel()
			r.Timers = vnet.TimersFast
			before := describe(r, "r1-r2", "r2-r3", "r3-r4", "r4-r1").complete(t)
			changed := describe(r, "r1-r2", "r2-r3", "r3-r4", "r1-r3")
			changed.Links[1].Endpoints[0].Cost = 12
			after := changed.complete(t)
			old, new := generate(t, before), generate(t, after)

			l := newLab(t, before)
			began := time.Now()
			l.start(old)
			l.converge(began, 30*time.Second)

			steady := l.watch("r1", "r2", "eth1")
			l.rewire(after)
			began = time.Now()
			for i := range after.Nodes {
				node := after.Nodes[i].Name
				l.reload(node, Reload(old[node].Daemons, new[node].Daemons))
			}
			t.Logf("converged again after %v", l.converge(began, 40*time.Second).Round(10*time.Millisecond))
			time.Sleep(time.Duration(fastTimers(vnet.OSPF, Load{}).dead)*time.Second - time.Since(began)) // a lost session would show by now
			steady()

			if r.Daemon != vnet.FRR {
				return
			}
			for i := range after.Nodes {
				node := after.Nodes[i].Name
				for _, s := range new[node].Daemons.Services {
					if slices.Contains(frrByMgmtd, s.Name) && !strings.HasPrefix(s.Name, "rip") || s.Optional {
						continue // without a router
					}
					got := l.runningConfig(node, s.Name)
					l.stop(node, s.Name, 15)
					l.launch(node, s)
					want := l.runningConfig(node, s.Name)
					if got != want {
						t.Errorf("%s on %s runs\n%s\nafter the change, and would start with\n%s", s.Name, node, got, want)
					}
				}
			}
		})
	}
}

func generate(t *testing.T, v *vnet.VNet) map[string]Config {
	t.Helper()
	configs, err := Generate(v, Load{})
	if err != nil {
		t.Fatal(err)
	}
	return configs
}

// watch waits until all routes from one node to another's loopbacks lead through
// the interface, and then looks at them until the function that it returns is
// called; every look must find them so.
func (l *lab) watch(from, to, through string) (stop func()) {
	l.t.Helper()
	index := strings.TrimSpace(l.output(from, "cat", "/sys/class/net/"+through+"/ifindex"))
	loopbacks := l.v.Node(to).Loopbacks
	look := func() (faults []string) {
		fib := l.fib(from)
		for _, a := range loopbacks {
			routes := fib[netip.PrefixFrom(a, a.BitLen())]
			if len(routes) != 1 || itoa(routes[0].LinkIndex) != index {
				faults = append(faults, a.String())
			}
		}
		return faults
	}
	l.eventually(20*time.Second, "route from "+from+" to "+to+" through "+through, func() bool { return len(look()) == 0 })
	var faults []string
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			faults = append(faults, look()...)
			select {
			case <-quit:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() {
		l.t.Helper()
		close(quit)
		<-done
		if len(faults) > 0 {
			slices.Sort(faults)
			l.t.Errorf("the route from %s to %s through %s was away at %d looks: %v", from, to, through, len(faults), slices.Compact(faults))
		}
	}
}

// rewire turns the lab's links into those of v.
func (l *lab) rewire(v *vnet.VNet) {
	l.t.Helper()
	for i := range l.v.Links {
		if v.Link(l.v.Links[i].Name) == nil {
			e := l.v.Links[i].Endpoints[0]
			l.run("ip", "-n", l.tag+e.Node, "link", "del", e.Name)
		}
	}
	old := l.v
	l.v = v
	for i := range v.Links {
		if old.Link(v.Links[i].Name) == nil {
			l.plug(i)
		}
	}
}

// reload carries a plan out as the agent does.
func (l *lab) reload(node string, p ReloadPlan) {
	l.t.Helper()
	if p.RestartNode || len(p.Restarts)+len(p.Starts)+len(p.Stops) > 0 {
		l.t.Fatalf("%s: the change must not restart anything: %+v", node, p)
	}
	for _, f := range p.Files {
		l.place(node, f)
	}
	for _, c := range p.Commands {
		l.output(node, c.Argv...)
	}
}

// runningConfig gives what an FRR daemon says that it is configured to do, once
// it answers.
func (l *lab) runningConfig(node, daemon string) string {
	l.t.Helper()
	var text string
	// An interface that is gone leaves an empty block behind.
	empty := regexp.MustCompile(`(?m)^interface \S+\nexit\n!\n`)
	l.eventually(10*time.Second, "have "+daemon+" on "+node+" answer", func() bool {
		out, err := l.inside(node, "vtysh", "-d", daemon, "-c", "show running-config").Output()
		text = string(out)
		return err == nil && strings.Contains(text, "router ")
	})
	return empty.ReplaceAllString(text, "")
}

// TestGeneratedFilesParse has every daemon check what is generated for it.
func TestGeneratedFilesParse(t *testing.T) {
	for _, r := range everyRouting() {
		t.Run(nameOf(r), func(t *testing.T) {
			needDaemon(t, map[vnet.Daemon]string{vnet.FRR: frrBin + "zebra", vnet.BIRD: birdBin}[r.Daemon])
			d := sample(r)
			for name, c := range d.generate(t) {
				for _, f := range c.Daemons.Files {
					if strings.HasSuffix(f.Path, "vtysh.conf") || strings.HasPrefix(f.Path, "/etc/pam.d/") {
						continue
					}
					file := filepath.Join(t.TempDir(), filepath.Base(f.Path))
					writeFile(t, file, f.Content)
					argv := []string{frrBin + strings.TrimSuffix(filepath.Base(file), ".conf"), "-C", "-f", file}
					if r.Daemon == vnet.BIRD {
						argv = []string{birdBin, "-p", "-c", file}
					}
					// FRR reports a line that it does not know, and still says 0.
					// Its crash log directory stays in a mount namespace of its own.
					out, err := exec.Command("unshare", append([]string{"-m", "sh", "-c",
						`mount -t tmpfs none /var/tmp && exec "$@"`, "sh"}, argv...)...).CombinedOutput()
					if err != nil || strings.Contains(string(out), "config line") {
						t.Errorf("%s of %s: %v\n%s\n%s", f.Path, name, err, out, f.Content)
					}
				}
			}
		})
	}
}
