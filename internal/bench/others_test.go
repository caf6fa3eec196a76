package bench

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestOthers(t *testing.T) {
	busy := exec.Command("sh", "-c", "read x; while :; do :; done")
	in, err := busy.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = busy.Process.Kill(); _ = busy.Wait() })
	others, err := ReadOthers()
	if err != nil {
		t.Fatal(err)
	}
	pids := map[int]bool{}
	for _, p := range others.pids {
		pids[p.pid] = true
	}
	if !pids[busy.Process.Pid] || pids[os.Getpid()] || pids[2] { // 2: kthreadd
		t.Errorf("%v are the others of %d, and %d is busy", others.pids, os.Getpid(), busy.Process.Pid)
	}
	only := Others{pids: []other{others.pids[len(others.pids)-1]}}
	for _, p := range others.pids {
		if p.pid == busy.Process.Pid {
			only.pids[0] = p
		}
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	for used := 0.0; used < 0.05; { // seconds; it ends because the process computes
		if used, err = only.CPU(); err != nil {
			t.Fatal(err)
		}
	}
	if except, err := ReadOthers(busy.Process.Pid); err != nil || slices.ContainsFunc(except.pids, func(p other) bool { return p.pid == busy.Process.Pid }) {
		t.Errorf("%v are the others, %d is left out, %v", except.pids, busy.Process.Pid, err)
	}
	only.pids[0].start += "0"
	if used, err := only.CPU(); used != 0 || err != nil {
		t.Errorf("another process of that number used %v s, %v", used, err)
	}
}

func TestParseOther(t *testing.T) {
	s, err := parseOther("42 (a) b) S 1 42 42 0 -1 2097216 0 0 0 0 150 50 7 7 20 0 1 0 777 0 0")
	if err != nil || s.flags&kernelThread == 0 || s.cpu != 2 || s.start != "777" {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []string{"", "42 (a) S 1", "42 (a) S 1 42 42 0 -1 x 0 0 0 0 150 50 7 7 20 0 1 0 777 0 0"} {
		if s, err := parseOther(bad); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}
