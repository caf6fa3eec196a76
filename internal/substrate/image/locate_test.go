package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trellis/test/testenv"
)

// public gives a directory that everybody may read.
func public(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// rootDirectory makes a root file system of one program.
func rootDirectory(t *testing.T, dir string) string {
	t.Helper()
	for _, d := range []string{"bin", "etc"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/sh"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func symlink(t *testing.T, to, path string) string {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestWhatEverybodyMayRead: without a word in the configuration, an image is what
// everybody on the machine may read anyway.
func TestWhatEverybodyMayRead(t *testing.T) {
	testenv.NeedRoot(t, "makes files that only root may read")
	top := public(t)
	content := archive(t, dir("bin"))
	put := func(name string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(top, name)
		if err := os.WriteFile(path, content, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	state := filepath.Join(top, "state")
	if err := os.Mkdir(state, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := OpenCache(Options{Dir: filepath.Join(state, "images"), Private: []string{state}})
	if err != nil {
		t.Fatal(err)
	}
	open := rootDirectory(t, filepath.Join(top, "open"))
	private := rootDirectory(t, filepath.Join(top, "private"))
	if err := os.WriteFile(filepath.Join(private, "etc/shadow"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	closed := rootDirectory(t, filepath.Join(top, "closed"))
	if err := os.Mkdir(filepath.Join(closed, "root"), 0o700); err != nil {
		t.Fatal(err)
	}
	inside := rootDirectory(t, filepath.Join(state, "other"))
	hidden := filepath.Join(top, "hidden")
	if err := os.Mkdir(hidden, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		put("open.tar", 0o644):    "",
		put("private.tar", 0o600): "not everybody on this machine may read it; if a node may, name its directory in images: {directories: [" + top + "]}",
		open:                      "",
		symlink(t, open, filepath.Join(top, "link")): "",
		private: "not everybody on this machine may read etc/shadow in it",
		closed:  "not everybody on this machine may read root in it",
		rootDirectory(t, filepath.Join(hidden, "root")): "not everybody",
		inside: "Trellis keeps what is its own in " + state,
		top:    "Trellis keeps what is its own",
		symlink(t, inside, filepath.Join(top, "inward")): "Trellis keeps what is its own",
		"/":                            "the machine's own file system",
		"/proc/self/root" + open:       "too many levels of symbolic links",
		filepath.Join(top, "none.tar"): "no such file",
		"/dev/zero":                    "neither a directory nor an archive",
		"127.0.0.1:5000/x":             "name it in images: {registries: [127.0.0.1:5000]}",
	} {
		img, err := c.Get(t.Context(), path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		c.Release(img)
	}
}

// TestNamedDirectories: with directories in the configuration, what lies below them
// is an image, whoever may read it, and nothing else is.
func TestNamedDirectories(t *testing.T) {
	testenv.NeedRoot(t, "makes files that only root may read")
	top := public(t)
	named := filepath.Join(top, "named")
	private := rootDirectory(t, filepath.Join(named, "private"))
	if err := os.WriteFile(filepath.Join(private, "etc/shadow"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	outside := rootDirectory(t, filepath.Join(top, "outside"))
	for ref, want := range map[string]string{
		private: "",
		outside: "does not lie below",
		symlink(t, outside, filepath.Join(named, "out")):    "a link on its way leads out of " + named,
		symlink(t, "../outside", filepath.Join(named, "o")): "a link on its way leads out of",
		symlink(t, "private", filepath.Join(named, "in")):   "",
		named + "/../outside":                               "does not lie below",
		named + "-other":                                    "does not lie below",
	} {
		c, err := OpenCache(Options{Dir: filepath.Join(top, "state/images"), Policy: Policy{Directories: []string{named + "/"}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Get(t.Context(), ref); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", ref, err, want)
		}
	}
	c, err := OpenCache(Options{Dir: filepath.Join(top, "state/images"), Policy: Policy{Directories: []string{}, Registries: []string{}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{outside, "alpine"} {
		if _, err := c.Get(t.Context(), ref); err == nil {
			t.Errorf("%s: taken, and nothing is allowed", ref)
		}
	}
}

// TestPrivateNetworks: a registry that is not named may not lead into them.
func TestPrivateNetworks(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:443": false, "10.0.0.1:443": false, "192.168.1.1:80": false, "169.254.169.254:80": false, "100.64.0.1:443": false,
		"[::1]:443": false, "[fe80::1]:443": false, "[fd00::1]:443": false, "[::ffff:10.0.0.1]:443": false, "0.0.0.0:443": false,
		"8.8.8.8:443": true, "[2001:4860::1]:443": true,
	} {
		if err := publicOnly(t.Context(), "tcp", address, nil); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
}
