package container

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trellis/test/testenv"
)

// TestCopyShifted compares a layer's copy with what it is of: everything is the
// same but for the owners.
func TestCopyShifted(t *testing.T) {
	testenv.NeedRoot(t, "changes owners")
	layer, to := filepath.Join(t.TempDir(), "layer"), filepath.Join(t.TempDir(), "copy")
	if err := os.Mkdir(layer, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, do := range []error{
		mkdirMode(filepath.Join(layer, "tmp"), 0o777|os.ModeSticky),
		mkdirMode(filepath.Join(layer, "frr"), 0o750),
		writeMode(filepath.Join(layer, "frr", "daemons"), []byte("zebra=yes\n"), 0o640),
		writeMode(filepath.Join(layer, "init"), []byte("#!"), 0o755),
		writeMode(filepath.Join(layer, "suid"), []byte("#!"), 0o755|os.ModeSetuid|os.ModeSetgid),
		os.Symlink("/nowhere", filepath.Join(layer, "link")),
		os.Chown(filepath.Join(layer, "frr"), 104, 108),
		os.Lchown(filepath.Join(layer, "link"), 1, 2),
	} {
		if do != nil {
			t.Fatal(do)
		}
	}
	const base = 200000
	err := filepath.WalkDir(layer, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return copyOne(path, filepath.Join(to, strings.TrimPrefix(path, layer)), base)
	})
	if err != nil {
		t.Fatal(err)
	}
	before, after := listing(t, layer, base), listing(t, to, 0)
	if before != after {
		t.Errorf("the layer, owners shifted:\n%s\nits copy:\n%s", before, after)
	}
	if !strings.Contains(after, "/frr drwxr-x--- 200104 200108") {
		t.Errorf("the owner of a directory is not shifted:\n%s", after)
	}
}

// listing describes a tree, its owners shifted.
func listing(t *testing.T, dir string, shift uint32) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		var content string
		switch {
		case info.Mode().IsRegular():
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(raw)
		case info.Mode()&fs.ModeSymlink != 0:
			content, err = os.Readlink(path)
		}
		fmt.Fprintf(&b, "%s %v %d %d %q\n", strings.TrimPrefix(path, dir), info.Mode(), st.Uid+shift, st.Gid+shift, content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
