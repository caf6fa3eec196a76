package container

import (
	"os"
	"strings"
	"testing"

	"trellis/internal/vnet"
)

// TestHosts: all nodes of a VNet see one file, a new version of it at once, and can
// neither change it nor see another VNet's; a node may have a file of its own.
func TestHosts(t *testing.T) {
	r := newRuntime(t, Config{})
	set := func(vnet, content string) {
		t.Helper()
		if err := r.SetHosts(vnet, []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	a, b, c, d := spec("a"), spec("b"), spec("c"), spec("d")
	c.VNet = "other"
	d.Files = []vnet.File{{Path: "/etc/hosts", Content: []byte("192.0.2.9 mine\n")}}
	set("test", "192.0.2.1 first\n")
	set("other", "192.0.2.2 foreign\n")
	for _, s := range []Spec{a, b, c, d} {
		mustStart(t, r, s)
	}
	for _, s := range []Spec{a, b} {
		if out := mustRun(t, r, s.ID, "getent hosts first; getent hosts foreign || true"); strings.Join(strings.Fields(out), " ") != "192.0.2.1 first" {
			t.Errorf("%s knows %q", s.ID, out)
		}
	}
	// A tail that has the file open sees the end of it; who opens it anew, the next.
	set("test", "192.0.2.1 first\n192.0.2.3 second\n")
	if out := mustRun(t, r, a.ID, "cat /etc/hosts"); !strings.Contains(out, "second") {
		t.Errorf("a running node does not see the new version: %q", out)
	}
	if out, code := run(t, r, a.ID, "echo x >> /etc/hosts || echo x > /.trellis/hosts/hosts || rm /.trellis/hosts/hosts || mount -o remount,rw /.trellis/hosts"); code == 0 {
		t.Errorf("a node can change what others see: %s", out)
	}
	if out := mustRun(t, r, b.ID, "cat /etc/hosts; ls -a /.trellis/hosts/.."); strings.Contains(out, "x\n") || strings.Contains(out, "other") {
		t.Errorf("b sees %q", out)
	}
	mustRun(t, r, a.ID, "rm /etc/hosts; echo 192.0.2.4 own > /etc/hosts; getent hosts own")
	if out := mustRun(t, r, b.ID, "getent hosts own || echo none"); out != "none" {
		t.Errorf("a's own file is seen by b: %s", out)
	}
	if out := mustRun(t, r, d.ID, "cat /etc/hosts"); out != "192.0.2.9 mine" {
		t.Errorf("the user's own file holds %q", out)
	}
	if err := r.SetHosts("../x", nil); err == nil {
		t.Error("a path is taken for a name")
	}
	removeAll(t, r)
	for _, v := range []string{"test", "other"} {
		if err := r.SetHosts(v, nil); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(r.cfg.RunDir + "/hosts"); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
