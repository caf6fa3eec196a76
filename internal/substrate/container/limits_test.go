package container

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trellis/test/testenv"
)

func TestMemoryLimit(t *testing.T) {
	r := newRuntime(t, Config{})
	a, b := spec("a"), spec("b")
	a.Limits.Memory, a.Services = 24<<20, []Service{sleeper("bystander", "1000")}
	mustStart(t, r, a)
	mustStart(t, r, b)
	if out, code := run(t, r, a.ID, "head -c 100000000 /dev/zero | tail -c 90000000 | wc -c"); code == 0 && strings.Contains(out, "90000000") {
		t.Errorf("a node of 24 MiB held 90 MB: %s", out)
	}
	st, err := r.Stat(a.ID)
	if err != nil || st.OOMKills == 0 || st.Memory > 24<<20 {
		t.Errorf("%+v, %v; want a process killed for want of memory", st, err)
	}
	// Files are memory too.
	if _, code := run(t, r, a.ID, "head -c 15000000 /dev/zero > /tmp/a; head -c 100000000 /dev/zero | tail -c 20000000 > /dev/null && exit 1; exit 0"); code == 0 {
		if st, err := r.Stat(a.ID); err != nil || st.Memory > 24<<20 {
			t.Errorf("%+v, %v", st, err)
		}
	}
	mustRun(t, r, b.ID, "true")
}

func TestForkBomb(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	mustStart(t, r, s)
	p, err := r.Exec(t.Context(), s.ID, ExecSpec{Argv: []string{"/bin/bash", "-c", "b() { b | b & }; b; sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bomb has filled the node", func() bool {
		st, err := r.Stat(s.ID)
		if err != nil || st.Pids > s.Limits.Pids {
			t.Fatalf("%+v, %v", st, err)
		}
		return st.Pids > s.Limits.Pids/2
	})
	start := time.Now()
	if err := r.Remove(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v to remove a node with a fork bomb", took)
	}
	if _, err := p.Wait(); err != nil {
		t.Log(err) // killed with the node; how that shows is the runtime's affair
	}
	checkClean(t, r)
}

func TestCPULimit(t *testing.T) {
	testenv.Measures(t)
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Limits.CPU = 0.1
	s.Services = []Service{{Name: "spin", Argv: []string{"/bin/sh", "-c", "while :; do :; done"}}}
	mustStart(t, r, s)
	share := func() float64 {
		before, err := r.Stat(s.ID)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		time.Sleep(time.Second)
		after, err := r.Stat(s.ID)
		if err != nil {
			t.Fatal(err)
		}
		return (after.CPU - before.CPU) / time.Since(start).Seconds()
	}
	if got := share(); got > 0.15 || got < 0.02 {
		t.Errorf("a node of 0.1 CPUs used %.2f", got)
	}
	l := s.Limits
	l.CPU = 0.3
	if err := r.SetLimits(t.Context(), s.ID, l); err != nil {
		t.Fatal(err)
	}
	if got := share(); got > 0.4 || got < 0.06 {
		t.Errorf("a node of 0.3 CPUs used %.2f", got)
	}
	if st, _ := r.List(t.Context()); st[0].Limits != l {
		t.Errorf("the limits are listed as %+v", st[0].Limits)
	}
}

func TestDiskLimit(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Limits.Disk = 4 << 20
	mustStart(t, r, s)
	for _, dir := range []string{"/tmp", "/etc", "/run", "/var/tmp", "/root", "/dev/shm"} {
		if _, code := run(t, r, s.ID, "head -c 5000000 /dev/zero > "+dir+"/big"); code == 0 {
			t.Errorf("5 MB were written to %s of a node of 4 MiB", dir)
		}
		mustRun(t, r, s.ID, "rm "+dir+"/big")
	}
	if _, code := run(t, r, s.ID, "i=0; while [ $i -lt 3000 ]; do : > /tmp/f$i || exit 1; i=$((i+1)); done"); code == 0 {
		t.Error("3,000 files were made in a node of 4 MiB")
	}
	l := s.Limits
	l.Disk = 8 << 20
	if err := r.SetLimits(t.Context(), s.ID, l); err != nil {
		t.Fatal(err)
	}
	mustRun(t, r, s.ID, "rm -f /tmp/f*; head -c 5000000 /dev/zero > /tmp/big")
	if st, err := r.Stat(s.ID); err != nil || st.Disk < 5000000 || st.Disk > 8<<20 {
		t.Errorf("disk usage %d, %v", st.Disk, err)
	}
	l.Disk = 1 << 20
	if err := r.SetLimits(t.Context(), s.ID, l); err == nil {
		t.Error("a limit below what is in use was accepted")
	}
}

// TestNetworksShareTheCPU: a network of many busy nodes leaves another's single one
// its share.
func TestNetworksShareTheCPU(t *testing.T) {
	testenv.Measures(t)
	r := newRuntime(t, Config{})
	busy := []Service{{Name: "busy", Argv: []string{"/bin/sh", "-c", "while :; do :; done"}}}
	var crowd []ID
	for i := range 12 {
		s := spec(fmt.Sprintf("n%d", i))
		s.VNet, s.Services, s.Limits.CPU = "crowd", busy, 0
		mustStart(t, r, s)
		crowd = append(crowd, s.ID)
	}
	single := spec("a")
	single.Services, single.Limits.CPU = busy, 0
	mustStart(t, r, single)
	used := func(ids ...ID) (sum float64) {
		for _, id := range ids {
			st, err := r.Stat(id)
			if err != nil {
				t.Fatal(err)
			}
			sum += st.CPU
		}
		return sum
	}
	// Until there is enough to compare, however busy the machine is besides.
	c0, s0 := used(crowd...), used(single.ID)
	var c, s float64
	for deadline := time.Now().Add(time.Minute); c < 1; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("12 busy nodes have used %.2f s of CPU in a minute", c)
		}
		c, s = used(crowd...)-c0, used(single.ID)-s0
	}
	// By processes it would be 1/12; by networks 1/1, where there are CPUs for both.
	if s < 0.35*c {
		t.Errorf("12 busy nodes of one network have used %.2f s of CPU, the one of another %.2f s", c, s)
	}
}

// TestInitKilledForMemory tells a node whose init the kernel has killed for want of
// memory from one whose init somebody has.
func TestInitKilledForMemory(t *testing.T) {
	for _, oci := range []string{"crun", "runc"} {
		t.Run(oci, func(t *testing.T) {
			testenv.NeedCommand(t, oci)
			r := newRuntime(t, Config{RunDir: t.TempDir(), StateDir: t.TempDir(), Instance: instance(t), Runtime: oci})
			a, b := spec("a"), spec("b")
			a.Limits.Memory, a.Limits.Disk = 32<<20, 128<<20
			pid := mustStart(t, r, a).Pid()
			mustStart(t, r, b)
			// So that it is the kernel's first choice, which looks at what a process holds
			// itself; files are nobody's.
			if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Exec(t.Context(), a.ID, ExecSpec{Argv: []string{"/bin/sh", "-c", "head -c 100000000 /dev/zero > /fill"}}); err != nil {
				t.Fatal(err)
			}
			if err := r.signal(b.ID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			for id, want := range map[ID]bool{a.ID: true, b.ID: false} {
				eventually(t, "the end of init is seen", func() bool { s, ok := r.Get(id); return ok && !s.Running })
				if s, _ := r.Get(id); s.KilledForMemory != want {
					t.Errorf("%s: killed for memory: %v, want %v", id, s.KilledForMemory, want)
				}
			}
			if err := r.Remove(t.Context(), a.ID, b.ID); err != nil {
				t.Error(err)
			}
			checkClean(t, r)
		})
	}
}

// TestKilled reads what the kernel tells of a process that has been sent a signal.
func TestKilled(t *testing.T) {
	status := func(pnd, shd string) string {
		return "Name:\tinit\nSigQ:\t1/2\nSigPnd:\t" + pnd + "\nShdPnd:\t" + shd + "\nSigBlk:\t0000000000000100\n"
	}
	for text, want := range map[string]bool{
		status("0000000000000000", "0000000000000000"): false,
		status("0000000000000100", "0000000000000000"): true,
		status("0000000000000000", "0000000000000100"): true,
		status("0000000000004000", "0000000000004000"): false, // SIGTERM
		"": false,
	} {
		if killed(text) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}
}

// TestAServiceKilledForMemory tells it from one that somebody kills.
func TestAServiceKilledForMemory(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Limits.Memory = 32 << 20
	s.Services = []Service{
		{Name: "hungry", Argv: []string{"/bin/sh", "-c", "sleep 1; head -c 100000000 /dev/zero | tail -c 90000000 > /dev/null; kill -9 $$"}},
		sleeper("bystander", "1000"),
	}
	mustStart(t, r, s)
	service := func(name string) ServiceStatus {
		all, _ := r.Services(s.ID)
		for _, v := range all {
			if v.Name == name {
				return v
			}
		}
		return ServiceStatus{}
	}
	eventually(t, "the bystander runs", func() bool { return service("bystander").Pid > 0 })
	mustRun(t, r, s.ID, fmt.Sprintf("kill -9 %d", service("bystander").Pid))
	eventually(t, "the bystander was killed", func() bool { return service("bystander").Restarts == 1 })
	if v := service("bystander"); !v.ForMemory.IsZero() {
		t.Errorf("a service that somebody killed counts as killed for memory: %+v", v)
	}
	eventually(t, "the hungry one was killed", func() bool { return service("hungry").Restarts > 0 })
	if v := service("hungry"); v.ForMemory.IsZero() || v.Exit != 137 {
		t.Errorf("a service whose node has run out of memory: %+v", v)
	}
}

// TestADyingNodeIsHastened removes a node with many busy processes and next to nothing
// of the processor: killed, they need some to end.
func TestADyingNodeIsHastened(t *testing.T) {
	testenv.Measures(t)
	r := newRuntime(t, Config{})
	s := spec("a")
	s.Limits.Pids = 512
	mustStart(t, r, s)
	p, err := r.Exec(t.Context(), s.ID, ExecSpec{Argv: []string{"/bin/sh", "-c",
		"mkfifo /tmp/go; i=0; while [ $i -lt 200 ]; do (read x < /tmp/go; while :; do :; done) & i=$((i+1)); done; wait"}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are there", func() bool {
		st, err := r.Stat(s.ID)
		return err == nil && st.Pids > 200
	})
	mustRun(t, r, s.ID, ": > /tmp/go")
	l := s.Limits
	l.CPU = 0.01
	if err := r.SetLimits(t.Context(), s.ID, l); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Log(err) // killed with the node
	}
	checkClean(t, r)
}
