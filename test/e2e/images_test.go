package e2e

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"trellis/test/testenv"
)

// busybox gives a statically linked busybox, the only program of the images.
func busybox(t *testing.T) []byte {
	t.Helper()
	const path = "/bin/busybox"
	f, err := elf.Open(path)
	if err != nil {
		t.Skipf("needs %s: install the package busybox-static: %v", path, err)
	}
	defer f.Close()
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Skipf("needs a %s without shared libraries: install the package busybox-static", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// applets are the names that busybox goes by in the images.
var applets = []string{"sh", "cat", "echo", "ls", "ip", "ping", "sleep", "id", "touch", "hostname", "env"}

// publicDir makes a directory that everybody may read, as images must be where the
// service's configuration names no directories.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// rootDirectory makes a root file system below dir.
func rootDirectory(t *testing.T, dir string, program []byte, release string) {
	t.Helper()
	for _, d := range []string{"bin", "etc", "proc", "sys", "dev", "tmp", "run", "root", "data"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/busybox"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, a := range applets {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", a)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/release"), []byte(release), 0o644); err != nil {
		t.Fatal(err)
	}
}

// archive packs a directory, with root as the owner of all.
func archive(t *testing.T, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := filepath.Walk(dir, func(path string, st os.FileInfo, err error) error {
		if err != nil || path == dir {
			return err
		}
		to := ""
		if st.Mode()&os.ModeSymlink != 0 {
			if to, err = os.Readlink(path); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(st, to)
		if err != nil {
			return err
		}
		if h.Name, err = filepath.Rel(dir, path); err != nil {
			return err
		}
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
		if err := w.WriteHeader(h); err != nil || !st.Mode().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// ociLayout writes an image of one layer, with a command and a variable of its own.
func ociLayout(t *testing.T, dir string, layer []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(file, layer, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	c, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.Config.Cmd = []string{"/bin/sh", "-c", "echo $FROM > /tmp/started; exec sleep 1000"}
	c.Config.Env = []string{"PATH=/bin", "FROM=the image"}
	if image, err = mutate.ConfigFile(image, c); err != nil {
		t.Fatal(err)
	}
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(image); err != nil {
		t.Fatal(err)
	}
}

func TestImages(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t, "makes network namespaces")
	program := busybox(t)
	s := testenv.StartService(t, testenv.Options{})
	top := publicDir(t)
	dir, packed, oci := filepath.Join(top, "root"), filepath.Join(top, "root.tar"), filepath.Join(top, "oci")
	rootDirectory(t, dir, program, "first")
	if err := os.WriteFile(packed, archive(t, dir), 0o644); err != nil {
		t.Fatal(err)
	}
	ociLayout(t, oci, archive(t, dir))
	text := fmt.Sprintf(`name: im
routing: static
nodes:
  dir:
    image: %s
    cmd: [/bin/sh, -c, "echo $NAME > /tmp/started; exec sleep 1000"]
    env: {PATH: /bin, NAME: a directory}
    files: {/data/given: {content: "a file\n", mode: 0640}}
    exec: ["echo once >> /tmp/execs", "ip addr add 192.0.2.7/32 dev lo"]
  packed: {image: %s, cmd: "echo an archive > /tmp/started; sleep 1000", env: {PATH: /bin}}
  oci: {image: %s}
links: [[dir, packed], [packed, oci]]
`, dir, packed, oci)
	file := write(t, "im.yaml", text)
	if out, err := exec.Command("chmod", "-R", "a+rX", oci).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s.Must("up", file, "--timeout", "30s")
	s.Must("ping", "im")
	in := func(node, command string) string {
		t.Helper()
		return sh(t, s, "im/"+node, "PATH=/bin; "+command)
	}
	for node, want := range map[string]string{"dir": "a directory", "packed": "an archive", "oci": "the image"} {
		if out := in(node, "cat /tmp/started /etc/release"); out != want+"\nfirst" {
			t.Errorf("in %s, its command and its image say %q", node, out)
		}
		if out := in(node, "id -u; hostname"); out != "0\n"+node {
			t.Errorf("%s: user and host name are %q", node, out)
		}
		if out := in(node, "touch /written /etc/written && ls /written"); out != "/written" {
			t.Errorf("%s: its file system cannot be written: %s", node, out)
		}
	}
	if out := in("dir", "cat /data/given; ls -l /data/given"); !strings.Contains(out, "a file") || !strings.Contains(out, "-rw-r-----") {
		t.Errorf("the file is %s", out)
	}
	if out := in("dir", "cat /tmp/execs; ip addr show dev lo"); !strings.HasPrefix(out, "once\n") || !strings.Contains(out, "192.0.2.7") || strings.Count(out, "once") != 1 {
		t.Errorf("the commands have left %s", out)
	}
	// What nodes write stays theirs.
	if _, err := os.Stat(filepath.Join(dir, "written")); !os.IsNotExist(err) {
		t.Errorf("a node has written into the image's directory: %v", err)
	}
	before := show(t, s, "im")
	if out := s.Must("up", file); !strings.Contains(out, "nothing to change") {
		t.Errorf("a second up says %s", out)
	}

	t.Run("another image for one node", func(t *testing.T) {
		second := filepath.Join(top, "second")
		rootDirectory(t, second, program, "second")
		s.Must("up", write(t, "im.yaml", strings.Replace(text, "image: "+packed, "image: "+second, 1)), "--timeout", "30s")
		after := show(t, s, "im")
		if after.pid(t, "packed") == before.pid(t, "packed") || after.pid(t, "dir") != before.pid(t, "dir") || after.pid(t, "oci") != before.pid(t, "oci") {
			t.Errorf("processes were %v and are %v", before.pids(), after.pids())
		}
		if out := in("packed", "cat /etc/release"); out != "second" {
			t.Errorf("the node's image is %q", out)
		}
		s.Must("ping", "im")
	})
	s.Must("down", "im")
	for _, what := range s.Leftovers() {
		// Extracted images are kept for the next time.
		if !strings.HasPrefix(what, "file state/images") {
			t.Errorf("left behind: %s", what)
		}
	}
}

// TestAnImageWithoutTheDaemon asks for OSPF in a node whose image has no FRR.
func TestAnImageWithoutTheDaemon(t *testing.T) {
	t.Parallel()
	needFRR(t)
	program := busybox(t)
	s := testenv.StartService(t, testenv.Options{})
	top := publicDir(t)
	rootDirectory(t, top, program, "bare")
	file := write(t, "bare.yaml", fmt.Sprintf(`name: bare
routing: {protocol: ospf, timers: fast}
nodes: {a: {image: %s}, b: {}}
links: [[a, b]]
`, top))
	refuse(t, s, file, 1, "a has no route to", "b has no route to")
	out := s.Must("show", "bare/a", "-o", "json")
	zebra := ""
	restarts := 0
	for _, service := range decode[struct {
		Services []struct {
			Name, State string
			Restarts    int
		}
	}](t, out).Services {
		if service.Name == "zebra" {
			zebra, restarts = service.State, service.Restarts
		}
	}
	if zebra == "" || zebra == "running" || restarts == 0 {
		t.Errorf("show does not tell that zebra does not start: %s", out)
	}
	// Without the demand, the image will do.
	s.Must("up", write(t, "bare.yaml", fmt.Sprintf("name: bare\nrouting: static\nnodes: {a: {image: %s}, b: {}}\nlinks: [[a, b]]\n", top)), "--timeout", "20s")
	s.Must("ping", "bare")
}
