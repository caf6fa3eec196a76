package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trellis/test/testenv"
)

// TestWriteMemory: what FRR is told to save is there again when its node restarts, by
// request and after its death, until the generated configuration is another one.
func TestWriteMemory(t *testing.T) {
	t.Parallel()
	needFRR(t)
	s := testenv.StartService(t, testenv.Options{})
	file := write(t, "wm.yaml", "name: wm\nrouting: {protocol: ospf, timers: fast}\nnodes: {a: {}, b: {}}\nlinks: [[a, b]]\n")
	s.Must("up", file)
	out := s.Must("exec", "wm/a", "--", "sh", "-c",
		`vtysh -c "configure terminal" -c "interface eth1" -c "description mine" && vtysh -c "write memory"`)
	if !strings.Contains(out, "Configuration saved to /etc/frr/zebra.conf") || strings.Contains(out, "backup") {
		t.Errorf("write memory says %s", out)
	}
	described := func(when string) {
		t.Helper()
		eventually(t, 30*time.Second, "the interface is described "+when, func() bool {
			out, _, code := s.Trellis("exec", "wm/a", "--", "vtysh", "-c", "show running-config")
			return code == 0 && strings.Contains(out, "description mine")
		})
	}
	kept := filepath.Join(s.StateDir, "saved", "wm", "a.json")
	eventually(t, 10*time.Second, "it is kept", func() bool { _, err := os.Stat(kept); return err == nil })
	s.Must("restart", "wm/a")
	described("after a restart")
	if err := syscall.Kill(show(t, s, "wm").pid(t, "a"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	described("after the node's death")
	eventually(t, 60*time.Second, "OSPF has found its routes again", func() bool { _, _, code := s.Trellis("ping", "wm"); return code == 0 })
	if out := s.Must("up", file); !strings.Contains(out, "nothing to change") {
		t.Errorf("up of what runs says %s", out)
	}
	s.Must("down", "wm")
	if _, err := os.Stat(filepath.Dir(kept)); !os.IsNotExist(err) {
		t.Errorf("what was saved outlives its network: %v", err)
	}
	nothingLeft(t, s)
}
