package container

import (
	"os"
	"testing"

	"trellis/internal/vnet"
)

// TestSavedFiles: what a node makes of a file comes back when it is made anew, until
// another content is placed; what lies in a daemon's directory is the daemon's.
func TestSavedFiles(t *testing.T) {
	r := newRuntime(t, Config{})
	s := spec("a")
	const name = "/etc/frr/zebra.conf"
	place := func(content string) {
		s.Files = []vnet.File{{Path: name, Content: []byte(content)}, {Path: "/etc/frr/other.conf", Content: []byte("other\n")}}
	}
	s.Saved = []string{name}
	place("generated\n")
	start := func(want string) {
		t.Helper()
		mustStart(t, r, s)
		if out := mustRun(t, r, s.ID, "stat -c %U "+name+"; cat "+name+" /etc/frr/other.conf"); out != "frr\n"+want+"\nother" {
			t.Errorf("the node has %q, want %q", out, want)
		}
	}
	kept := func(want bool) {
		t.Helper()
		eventually(t, "what was saved is kept, or not", func() bool {
			saved, err := r.loadSaved(s.ID)
			if err != nil {
				t.Fatal(err)
			}
			_, ok := saved[name]
			return ok == want && len(saved) <= 1
		})
	}
	remove := func() {
		t.Helper()
		if err := r.Remove(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	start("generated")
	// As FRR does: a copy by hard link, and a new file renamed into its place.
	mustRun(t, r, s.ID, "cd /etc/frr && setpriv --reuid=frr --regid=frr --clear-groups sh -ec 'ln zebra.conf zebra.conf.sav && echo saved > new && mv new zebra.conf'; echo changed > other.conf")
	kept(true)
	remove()
	start("saved")
	// Written in place, and then by the agent.
	mustRun(t, r, s.ID, "echo again > "+name)
	eventually(t, "it is kept", func() bool {
		saved, err := r.loadSaved(s.ID)
		return err == nil && string(saved[name].Content) == "again\n"
	})
	if err := r.WriteFiles(t.Context(), s.ID, []vnet.File{{Path: name, Content: []byte("next\n")}}); err != nil {
		t.Fatal(err)
	}
	kept(false)
	remove()
	place("next\n")
	start("next")
	// Over another content it does not come back.
	mustRun(t, r, s.ID, "echo mine > "+name)
	kept(true)
	remove()
	place("newest\n")
	start("newest")
	kept(false)
	// What is no plain file of a fair size is left alone.
	mustRun(t, r, s.ID, "rm "+name+"; ln -s /etc/passwd "+name+"; truncate -s 2M /etc/frr/x")
	mustRun(t, r, s.ID, "rm "+name+"; truncate -s 2M "+name)
	kept(false)
	mustRun(t, r, s.ID, "echo mine > "+name)
	kept(true)
	remove()
	if err := r.ForgetSaved(s.VNet); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(r.cfg.StateDir + "/saved"); !os.IsNotExist(err) {
		t.Errorf("what was saved is left: %v", err)
	}
}
