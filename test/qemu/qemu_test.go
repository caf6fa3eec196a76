// Package qemu tests Trellis under a distribution's own kernel: that of Debian
// 12, in a virtual machine without hardware acceleration. What that kernel has
// and others lack (netem), what it lacks (tcx), and a machine with cgroup
// version 2 alone, are tried there for real.
package qemu

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The test takes minutes and fetches a kernel of 70 MB, so it wants to be asked
// for; a kernel package that is there already can be named.
const (
	askEnv = "TRELLIS_QEMU"
	debEnv = "TRELLIS_QEMU_DEB"

	kernelPackage = "linux-image-amd64"
	guestTimeout  = 12 * time.Minute
	consoleLimit  = 256 << 10 // bytes kept of what the guest says
	repository    = "../.."
)

//go:embed script
var script []byte

// rootModules are what the guest needs to find its root; the rest it loads on
// demand, as any machine does.
var rootModules = []string{"virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "overlay", "ext4"}

// guestTests are the packages whose own tests run in the guest too.
var guestTests = []string{"cgroup", "container", "dataplane", "netns", "port", "shaper"}

func TestDebianKernel(t *testing.T) {
	need(t)
	dir := t.TempDir()
	release := unpackKernel(t, dir)
	bring(t, dir, release)
	console := boot(t, dir, release)

	done := false
	for line := range strings.Lines(console) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, "PASS "):
			t.Log(line)
		case strings.HasPrefix(line, "FAIL "):
			t.Error(strings.TrimPrefix(line, "FAIL "))
		case strings.HasPrefix(line, "DONE "):
			t.Logf("Linux %s: %s", release, line)
			done = true
		}
	}
	if !done || t.Failed() {
		t.Fatalf("the guest's console:\n%s", console)
	}
}

// need skips the test where it cannot run, or was not asked for.
func need(t *testing.T) {
	t.Helper()
	if os.Getenv(askEnv) == "" {
		t.Skipf("takes minutes and fetches a kernel: ask for it with %s=1, or make test-qemu", askEnv)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives its guest this machine's files")
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("needs an amd64 machine: the guest runs this machine's programs")
	}
	for _, program := range []string{"qemu-system-x86_64", "depmod", "modprobe", "mkfs.ext4", "apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: install the packages of the set qemu in scripts/packages", program)
		}
	}
}

// run runs a command in a directory and gives its output.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

// unpackKernel gets the kernel's package, unpacks it below dir/work, and gives
// the kernel's release.
func unpackKernel(t *testing.T, dir string) string {
	t.Helper()
	deb := os.Getenv(debEnv)
	if deb == "" {
		depends := run(t, dir, "apt-cache", "depends", "--important", kernelPackage)
		name := regexp.MustCompile(`linux-image-[0-9]\S*`).FindString(depends)
		if name == "" {
			t.Skipf("needs the package lists of a Debian: %s is not known here, or depends on nothing", kernelPackage)
		}
		run(t, dir, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", name)
		found, err := filepath.Glob(filepath.Join(dir, "linux-image-*.deb"))
		if err != nil || len(found) != 1 {
			t.Fatalf("apt-get download left %v", found)
		}
		deb = found[0]
	}
	work := filepath.Join(dir, "work")
	run(t, dir, "dpkg-deb", "-x", deb, work)
	kernels, err := filepath.Glob(filepath.Join(work, "boot", "vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		t.Fatalf("%s holds the kernels %v", deb, kernels)
	}
	release := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")
	run(t, dir, "depmod", "-b", work, release)
	return release
}

// bring builds what the guest gets: its first file system, its disk, the program
// and its tests.
func bring(t *testing.T, dir, release string) {
	t.Helper()
	work := filepath.Join(dir, "work")
	build := func(what ...string) { run(t, repository, "go", append([]string{"build", "-trimpath"}, what...)...) }
	t.Setenv("CGO_ENABLED", "0")
	guest := filepath.Join(dir, "init")
	build("-o", guest, "./test/qemu/guest")
	build("-o", filepath.Join(work, "bin", "trellis"), "./cmd/trellis")
	for _, name := range guestTests {
		run(t, repository, "go", "test", "-trimpath", "-c", "-o", filepath.Join(work, "tests", name), "./internal/substrate/"+name)
	}
	if err := os.WriteFile(filepath.Join(work, "script"), script, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeInitramfs(filepath.Join(dir, "initramfs"), guest, modules(t, work, release)); err != nil {
		t.Fatal(err)
	}
	// The machine's own /lib is a link into /usr.
	layer := filepath.Join(work, "layer", "usr", "lib")
	if err := os.MkdirAll(layer, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(work, "lib", "modules"), filepath.Join(layer, "modules")); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(dir, "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 4<<30); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "mkfs.ext4", "-q", "-F", disk)
}

// modules lists the files of the modules that the guest's root needs, in the
// order to load them.
func modules(t *testing.T, work, release string) []string {
	t.Helper()
	var files []string
	seen := map[string]bool{}
	for _, name := range rootModules {
		for line := range strings.Lines(run(t, work, "modprobe", "-d", work, "-S", release, "--show-depends", name)) {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "insmod" && !seen[f[1]] {
				seen[f[1]] = true
				files = append(files, f[1])
			}
		}
	}
	return files
}

// boot runs the guest until it ends, and gives what it said.
func boot(t *testing.T, dir, release string) string {
	t.Helper()
	work := filepath.Join(dir, "work")
	ctx, cancel := context.WithTimeout(context.Background(), guestTimeout)
	defer cancel()
	share := func(tag, path string) string {
		return fmt.Sprintf("local,path=%s,mount_tag=%s,security_model=none,readonly=on,multidevs=remap", path, tag)
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2560",
		"-kernel", filepath.Join(work, "boot", "vmlinuz-"+release), "-initrd", filepath.Join(dir, "initramfs"),
		"-append", "console=ttyS0 quiet panic=-1 rdinit=/init",
		"-drive", "file="+filepath.Join(dir, "disk")+",format=raw,if=virtio,cache=unsafe",
		"-virtfs", share("machine", "/"), "-virtfs", share("work", work))
	var qemu bytes.Buffer
	cmd.Stderr = &qemu
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	console := follow(t, out)
	if err := cmd.Wait(); err != nil || ctx.Err() != nil {
		t.Errorf("QEMU: %v %s", errors.Join(err, ctx.Err()), qemu.Bytes())
	}
	return console
}

// follow reads the console to its end and keeps the last of it.
func follow(t *testing.T, console io.Reader) string {
	t.Helper()
	var kept []byte
	r := bufio.NewReader(console)
	for {
		line, err := r.ReadSlice('\n')
		if testing.Verbose() {
			os.Stdout.Write(line)
		}
		kept = append(kept, line...)
		if over := len(kept) - consoleLimit; over > consoleLimit {
			kept = append([]byte(nil), kept[over:]...)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return string(kept)
		}
	}
}
