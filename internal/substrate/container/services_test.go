package container

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// service finds a service's status.
func service(t *testing.T, r *Runtime, id ID, name string) ServiceStatus {
	t.Helper()
	s, err := r.Stat(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range s.Services {
		if st.Name == name {
			return st
		}
	}
	return ServiceStatus{}
}

func sleeper(name, seconds string) Service {
	return Service{Name: name, Argv: []string{"/bin/sleep", seconds}}
}

func TestServicesConverge(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Services = []Service{sleeper("kept", "1001"), sleeper("changed", "1002"), sleeper("dropped", "1003")}
	mustStart(t, r, s)
	running := func(name string) func() bool {
		return func() bool { return service(t, r, s.ID, name).State == ServiceRunning }
	}
	for _, svc := range s.Services {
		eventually(t, svc.Name+" runs", running(svc.Name))
	}
	kept := service(t, r, s.ID, "kept")
	next := []Service{sleeper("kept", "1001"), sleeper("changed", "2002"), sleeper("new", "1004")}
	if err := r.SetServices(t.Context(), s.ID, next); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the services are the new ones", func() bool {
		ps := mustRun(t, r, s.ID, "ps ax")
		return strings.Contains(ps, "sleep 2002") && strings.Contains(ps, "sleep 1004") && !strings.Contains(ps, "sleep 1002") && !strings.Contains(ps, "sleep 1003")
	})
	if got := service(t, r, s.ID, "kept"); got != kept {
		t.Errorf("an unchanged service became %+v, was %+v", got, kept)
	}
	if st, _ := r.List(t.Context()); st[0].ServicesDigest != Digest(next) || Digest(next) == Digest(s.Services) {
		t.Errorf("the digest is %s", st[0].ServicesDigest)
	}
	if err := r.RestartService(t.Context(), s.ID, "kept"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "kept has been restarted", func() bool {
		got := service(t, r, s.ID, "kept")
		return got.State == ServiceRunning && got.Pid != kept.Pid && got.Restarts == 1
	})
	if err := r.RestartService(t.Context(), s.ID, "nothing"); err == nil {
		t.Error("a service that is not there was restarted")
	}
	if err := r.SetServices(t.Context(), s.ID, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no services are left", func() bool {
		st, err := r.Stat(s.ID)
		return err == nil && len(st.Services) == 0
	})
}

// TestStoppedServices checks that a service that was stopped stays so, for the runtime's
// successor too, while others change, and that it starts when it is told to.
func TestStoppedServices(t *testing.T) {
	cfg := Config{RunDir: t.TempDir(), StateDir: t.TempDir(), Instance: instance(t)}
	r := newRuntime(t, cfg)
	s := spec("a")
	follower := sleeper("follower", "1002")
	follower.After = "/tmp/path"
	maker := Service{Name: "maker", Argv: []string{"/bin/sh", "-c", "echo > /tmp/path; exec sleep 1001"}}
	s.Services = []Service{maker, follower, sleeper("other", "1003")}
	s.Cmd = []string{"sleep", "1004"}
	mustStart(t, r, s)
	state := func(name string) ServiceState { return service(t, r, s.ID, name).State }
	all := func(want string) {
		t.Helper()
		eventually(t, "the services are "+want, func() bool {
			got := fmt.Sprintf("%s %s %s %s", state("maker"), state("follower"), state("other"), state(CommandName))
			return got == want
		})
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	all("running running running running")
	other, followed := service(t, r, s.ID, "other"), service(t, r, s.ID, "follower")
	for _, name := range []string{"maker", CommandName} {
		do(r.StopService(t.Context(), s.ID, name))
		do(r.StopService(t.Context(), s.ID, name)) // again: nothing
		if state(name) != ServiceStopped {
			t.Errorf("%s is %s when StopService returns", name, state(name))
		}
	}
	if ps := mustRun(t, r, s.ID, "ps ax"); strings.Contains(ps, "sleep 1001") || strings.Contains(ps, "sleep 1004") {
		t.Errorf("they run: %s", ps)
	}
	if got := service(t, r, s.ID, "follower"); got != followed {
		t.Errorf("the follower was %+v, and is %+v", followed, got)
	}
	r.Close()
	r = newRuntime(t, cfg)
	s.Services[0].Argv[2] = "echo > /tmp/path; exec sleep 2001"
	do(r.SetServices(t.Context(), s.ID, s.Services))
	time.Sleep(100 * time.Millisecond)
	all("stopped running running stopped")
	do(r.StartService(t.Context(), s.ID, CommandName))
	do(r.StartService(t.Context(), s.ID, "maker"))
	do(r.StartService(t.Context(), s.ID, "other"))
	all("running running running running")
	if !strings.Contains(mustRun(t, r, s.ID, "ps ax"), "sleep 2001") {
		t.Error("the service that was stopped and changed runs as it was")
	}
	eventually(t, "the follower has started anew", func() bool { return service(t, r, s.ID, "follower").Pid != followed.Pid })
	if got := service(t, r, s.ID, "other"); got != other {
		t.Errorf("another was %+v, and is %+v", other, got)
	}
	do(r.StopService(t.Context(), s.ID, "other"))
	do(r.RestartService(t.Context(), s.ID, "other"))
	all("running running running running")
	for _, f := range []func(context.Context, ID, string) error{r.StopService, r.StartService} {
		if err := f(t.Context(), s.ID, "none"); err == nil || !strings.Contains(err.Error(), "maker, follower, other, command") {
			t.Errorf("a service that is not there: %v", err)
		}
	}
	do(r.StopService(t.Context(), s.ID, "other"))
	do(r.SetServices(t.Context(), s.ID, s.Services[:2]))
	if got := state("other"); got != "" {
		t.Errorf("a service that is no more is %s", got)
	}
}

// TestFollowers checks the services that wait for a path: they start when it is
// there, and start again, after the path has come anew, when a service that
// waits for nothing ends.
func TestFollowers(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Services = []Service{
		{Name: "follower", Argv: []string{"/bin/sh", "-c", "cat /tmp/socket >> /tmp/seen; exec sleep 1000"}, After: "/tmp/socket"},
		{Name: "maker", Argv: []string{"/bin/sh", "-c", "sleep 0.3; echo $$ > /tmp/socket; exec sleep 1000"}},
	}
	mustStart(t, r, s)
	running := func(restarts int) func() bool {
		return func() bool {
			m, f := service(t, r, s.ID, "maker"), service(t, r, s.ID, "follower")
			return m.State == ServiceRunning && f.State == ServiceRunning && m.Restarts == restarts && f.Restarts == restarts
		}
	}
	eventually(t, "both run", running(0))
	first := service(t, r, s.ID, "maker")
	// They run as soon as they are processes; what they do then takes a moment.
	seen := func(want string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the follower has seen the paths of %q", want), func() bool {
			return strings.TrimSpace(mustRun(t, r, s.ID, "cat /tmp/seen 2>&1 || true")) == want
		})
	}
	seen(fmt.Sprint(first.Pid))
	mustRun(t, r, s.ID, fmt.Sprintf("kill -9 %d", first.Pid))
	eventually(t, "both run again", running(1))
	second := service(t, r, s.ID, "maker")
	seen(fmt.Sprintf("%d\n%d", first.Pid, second.Pid))
}

// TestLoaded checks the services whose configuration another loads: together when
// the node starts, once the last is ready, and alone when one starts anew. What may
// be missing is waited for by nobody.
func TestLoaded(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	daemon := func(name, before string) Service {
		return Service{Name: name, Ready: "/tmp/" + name + ".vty", Argv: []string{"/bin/sh", "-c",
			"ls /tmp/" + name + ".vty && echo left >> /tmp/loads; sleep " + before + "; echo > /tmp/" + name + ".vty; exec sleep 1000"}}
	}
	missing := daemon("missing", "0")
	missing.Argv[0], missing.Optional = "/nowhere/program", true
	here := daemon("here", "0.4")
	here.Optional = true
	s.Services = []Service{
		missing, daemon("a", "0"), here,
		{Name: "load", Argv: []string{"/bin/sh", "-c", `echo load "$@" $(ls /tmp/*.vty) >> /tmp/loads`, "sh"}, Loads: true},
	}
	mustStart(t, r, s)
	// Who is told that it runs may count on its configuration.
	eventually(t, "one waits for the other", func() bool { return service(t, r, s.ID, "a").State == ServiceLoading })
	loads := func(want string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%q was loaded", want), func() bool {
			return strings.TrimSpace(mustRun(t, r, s.ID, "cat /tmp/loads 2>&1 || true")) == want
		})
	}
	first := "load /tmp/a.vty /tmp/here.vty"
	loads(first)
	if got := service(t, r, s.ID, "missing"); got != (ServiceStatus{}) {
		t.Errorf("the service that the node lacks is %+v", got)
	}
	eventually(t, "the loader has ended", func() bool { return service(t, r, s.ID, "load").State == ServiceExited })
	if err := r.RestartService(t.Context(), s.ID, "here"); err != nil {
		t.Fatal(err)
	}
	second := first + "\nload -d here /tmp/a.vty /tmp/here.vty"
	loads(second)
	// One that comes later is loaded alone, and another loader loads nothing by itself.
	s.Services = append(s.Services, daemon("b", "0"))
	s.Services[3].Env = []string{"X=1"}
	if err := r.SetServices(t.Context(), s.ID, s.Services); err != nil {
		t.Fatal(err)
	}
	loads(second + "\nload -d b /tmp/a.vty /tmp/b.vty /tmp/here.vty")
	for _, bad := range [][]Service{
		{{Name: "a", Argv: []string{"/a"}, Ready: "relative"}},
		{{Name: "a", Argv: []string{"/a"}, Loads: true, After: "/b"}},
		{{Name: "a", Argv: []string{"/a"}, Loads: true}, {Name: "b", Argv: []string{"/b"}, Loads: true}},
	} {
		if err := r.SetServices(t.Context(), s.ID, bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// A socket that others wait for is there when it listens, not when it is bound: who
// connects before is refused. On a busy machine that takes zebra more than 5 s, and
// bgpd, started meanwhile, takes sessions that it then has no IPv6 route of.
func TestFollowersOfASocket(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	const (
		open  = `use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0); my $at = pack_sockaddr_un("/tmp/socket"); `
		maker = open + `bind($s, $at) or die; select(undef, undef, undef, 6); listen($s, 1); sleep 1000`
		// What is refused ends.
		follower = open + `connect($s, $at) or die; open(my $f, ">", "/tmp/seen"); print $f "connected"; close $f; sleep 1000`
	)
	s.Services = []Service{
		{Name: "follower", Argv: []string{"/usr/bin/perl", "-e", follower}, After: "/tmp/socket"},
		{Name: "maker", Argv: []string{"/usr/bin/perl", "-e", maker}},
	}
	mustStart(t, r, s)
	eventually(t, "the follower has connected", func() bool {
		return mustRun(t, r, s.ID, "cat /tmp/seen 2>&1 || true") == "connected"
	})
	if got := service(t, r, s.ID, "follower"); got.Restarts != 0 {
		t.Errorf("the follower is %+v: it was refused", got)
	}
}

// A node that started under the first version of the table is told what its init
// understands, and not more.
func TestFirstServiceTable(t *testing.T) {
	c := &record{Services: []Service{{Name: "a", Argv: []string{"/a", "b"}, After: "/c"}}, Env: []string{"X=1"}}
	table, err := c.table()
	if want := "trellis-services-1|1|a|d|0|0|0|/|/c|2|/a|b|1|X=1|"; err != nil || strings.ReplaceAll(string(table), "\x00", "|") != want {
		t.Errorf("%q, %v, want %q", table, err, want)
	}
	for _, s := range []Service{{Name: "a", Argv: []string{"/a"}, Ready: "/r"}, {Name: "a", Argv: []string{"/a"}, Loads: true}, {Name: "a", Argv: []string{"/a"}, Optional: true}} {
		c.Services = []Service{s}
		if _, err := c.table(); err == nil || !strings.Contains(err.Error(), "restart the node") {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestServiceRestarts(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Services = []Service{
		{Name: "failing", Argv: []string{"/bin/sh", "-c", "echo ran >> /tmp/runs; echo to the log; exit 3"}},
		{Name: "missing", Argv: []string{"/nowhere/program"}},
		{Name: "stubborn", Argv: []string{"/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"}},
		{Name: "chatty", Argv: []string{"/bin/sh", "-c", "while :; do head -c 10000 /dev/zero; sleep 0.01; done"}},
	}
	mustStart(t, r, s)
	start := time.Now()
	eventually(t, "the failing service backs off", func() bool {
		f, a := service(t, r, s.ID, "failing"), service(t, r, s.ID, "missing")
		return f.State == ServiceBackoff && f.Restarts >= 3 && f.Exit == 3 && a.State == ServiceBackoff && a.Exit == 127
	})
	// Pauses of 0.1, 0.2, 0.4, … s.
	if n := service(t, r, s.ID, "failing").Restarts; time.Since(start) < 2*time.Second && n > 5 {
		t.Errorf("%d restarts in %v", n, time.Since(start))
	}
	if out := mustRun(t, r, s.ID, "cat /run/trellis/failing.log /run/trellis/missing.log"); !strings.Contains(out, "to the log") || !strings.Contains(out, "cannot run /nowhere/program") {
		t.Errorf("the logs say %q", out)
	}
	if size := mustRun(t, r, s.ID, "sleep 0.3; stat -c %s /run/trellis/chatty.log"); len(size) > 5 {
		t.Errorf("a log has grown to %s bytes", size)
	}
	pid := service(t, r, s.ID, "stubborn").Pid
	services := slices.DeleteFunc(slices.Clone(s.Services), func(s Service) bool { return s.Name == "stubborn" })
	if err := r.SetServices(t.Context(), s.ID, services); err != nil || pid == 0 {
		t.Fatal(pid, err)
	}
	eventually(t, "a service that ignores SIGTERM is killed", func() bool { return service(t, r, s.ID, "stubborn").Name == "" })
}

func TestOrphansAreReaped(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	mustStart(t, r, s)
	mustRun(t, r, s.ID, "for i in 1 2 3 4 5 6 7 8; do (sleep 0.05 &) ; done")
	eventually(t, "nothing but init is left", func() bool {
		st, err := r.Stat(s.ID)
		return err == nil && st.Pids == 1
	})
}
