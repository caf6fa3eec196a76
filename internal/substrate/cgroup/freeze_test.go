package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"trellis/test/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestFreeze freezes a process that counts, by each means that the machine has.
func TestFreeze(t *testing.T) {
	testenv.NeedRoot(t, "makes control groups")
	name := fmt.Sprintf("trellis-t%d", os.Getpid()%1e6)
	found, err := Find(name)
	if err != nil {
		t.Skip(err)
	}
	trees := map[string]*Tree{}
	for _, unified := range []bool{true, false} {
		tree := *found
		if !unified {
			tree.unified = ""
		}
		if _, file, _, _, _, err := tree.freezerOf("a/b"); err == nil {
			trees[file] = &tree
		}
	}
	if len(trees) == 0 {
		t.Skip("the machine has neither cgroup v2 nor v1's freezer mounted")
	}
	for file, tree := range trees {
		t.Run(file, func(t *testing.T) {
			beats := filepath.Join(t.TempDir(), "beats")
			cmd := exec.Command("sh", "-c", "while :; do echo >>$0; sleep 0.01; done", beats)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
			ended := func() {
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				_ = cmd.Wait()
			}
			t.Cleanup(func() {
				if cmd.Process != nil {
					_ = tree.Thaw("a/b") // a test that fails between
					ended()
				}
				if err := tree.Remove("a/b", 10*time.Second); err != nil {
					t.Error(err)
				}
				tree.Sweep()
			})
			if err := tree.Create("a/b", Limits{}); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for _, f := range tree.EntryFiles("a/b") {
				if err := write(f, fmt.Sprint(cmd.Process.Pid)); err != nil {
					t.Fatal(err)
				}
			}
			count := func() int64 {
				info, err := os.Stat(beats)
				if err != nil {
					return 0
				}
				return info.Size()
			}
			goesOn := func() {
				t.Helper()
				for n, deadline := count(), time.Now().Add(20*time.Second); count() == n; time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatal("the process does not go on")
					}
				}
			}
			goesOn()
			for _, thaw := range []func() error{func() error { return tree.Thaw("a/b") }, tree.ThawAll} {
				if err := tree.Freeze("a/b"); err != nil {
					t.Fatal(err)
				}
				before := count()
				time.Sleep(100 * time.Millisecond)
				if after := count(); after != before {
					t.Errorf("the process goes on: %d, then %d", before, after)
				}
				if err := thaw(); err != nil {
					t.Fatal(err)
				}
				goesOn()
			}
		})
	}
	if err := found.Thaw("no/such"); err != nil {
		t.Errorf("to thaw what is gone: %v", err)
	}
}
