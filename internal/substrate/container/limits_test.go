package container

import (
	"strings"
	"testing"
	"time"
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
		t.Error("a limit below what is in use was taken")
	}
}
