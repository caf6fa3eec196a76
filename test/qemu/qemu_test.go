// Package qemu tests Trellis under a distribution's own kernels: those of Debian
// 12, in a virtual machine without hardware acceleration. What they have and
// others lack (netem, gretap, network cards), what the older one lacks (tcx, the
// fast path), and a machine with cgroup version 2 alone, are tried there for
// real.
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
	"strconv"
	"strings"
	"testing"
	"time"

	"trellis/test/testenv"
)

// The test takes minutes and fetches kernels of 70 and 110 MB, so it wants to be
// asked for; kernel packages that are there already can be named, with colons
// between.
const (
	askEnv = "TRELLIS_QEMU"
	debEnv = "TRELLIS_QEMU_DEB"

	guestTimeout = 60 * time.Minute
	consoleLimit = 256 << 10 // bytes kept of what the guest says
	repository   = "../.."
)

var (
	//go:embed script
	script []byte
	//go:embed packages
	packages []byte
	//go:embed interop
	interop []byte
)

// trial is what a guest is booted for.
type trial struct {
	script []byte
	cpus   int
}

var (
	networks = trial{script, 2}
	// Raw sockets and programs that come and go have the kernel patch its own
	// code, and a processor that QEMU emulates may miss what another one patches:
	// "Oops: int3".
	rooms = trial{packages, 1}
	egre  = trial{interop, 1}
)

// kernels are those that guests run, and what is tried under each.
var kernels = []struct {
	metapackage string // depends on the kernel's package
	file        string // pattern of that package's file
	trials      []trial
}{
	{"linux-image-amd64", "linux-image-6.1.0-*", []trial{networks, rooms, egre}},
	{"linux-image-6.12-amd64", "linux-image-6.12.*", []trial{rooms, egre}},
}

// cards are the kinds of network cards that the guest has two of each, with a
// wire between. The first has XDP, and on such a wire no offloads; the second
// fills in checksums of plain TCP and UDP; the third where it is told to. (Other
// cards of QEMU claim that, and look for TCP themselves.)
var cards = []string{"virtio-net-pci", "rtl8139", "e1000"}

// rootModules are what the guest needs to find its root; the rest it loads on
// demand, as any machine does.
var rootModules = []string{"virtio_pci", "virtio_blk", "9pnet_virtio", "9p", "overlay", "ext4"}

// guestTests are the packages whose own tests run in the guest too.
var guestTests = []string{
	"internal/substrate/cgroup", "internal/substrate/container", "internal/substrate/dataplane", "internal/substrate/kernel",
	"internal/substrate/netns", "internal/substrate/port", "internal/substrate/shaper", "internal/substrate/softirq",
	"internal/sandbox", "test/e2e", "test/equal", "test/interop",
}

func TestDebianKernels(t *testing.T) {
	need(t)
	for _, k := range kernels {
		t.Run(k.metapackage, func(t *testing.T) {
			dir := t.TempDir()
			release := unpackKernel(t, dir, k.metapackage, k.file)
			bring(t, dir, release)
			for _, what := range k.trials {
				try(t, dir, release, what)
			}
		})
	}
}

// try boots a guest for a trial, and reads what came of it.
func try(t *testing.T, dir, release string, what trial) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "work", "script"), what.script, 0o755); err != nil {
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
	console := boot(t, dir, release, what.cpus)

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
	testenv.NeedRoot(t, "gives its guest this machine's files")
	if runtime.GOARCH != "amd64" {
		t.Skip("needs an amd64 machine: the guest runs this machine's programs")
	}
	for _, program := range []string{"qemu-system-x86_64", "depmod", "modprobe", "mkfs.ext4", "apt-get", "dpkg-deb", "xz"} {
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

// unpackKernel gets the package of a kernel, which is the one that a metapackage
// depends on or the named file that fits the pattern; unpacks it below dir/work,
// and gives the kernel's release.
func unpackKernel(t *testing.T, dir, metapackage, pattern string) string {
	t.Helper()
	deb := ""
	for _, named := range filepath.SplitList(os.Getenv(debEnv)) {
		if fits, err := filepath.Match(pattern, filepath.Base(named)); err != nil {
			t.Fatal(err)
		} else if fits {
			deb = named
		}
	}
	if deb == "" {
		// The command fails where the name is not known.
		depends, _ := exec.Command("apt-cache", "depends", "--important", metapackage).Output()
		name := regexp.MustCompile(`Depends: (linux-image-[0-9]\S*)`).FindSubmatch(depends)
		if name == nil {
			t.Skipf("needs the package lists of a Debian 12: %s is not known here, or depends on nothing", metapackage)
		}
		run(t, dir, "apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", string(name[1]))
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
	for _, room := range guestTests {
		run(t, repository, "go", "test", "-trimpath", "-c", "-o", filepath.Join(work, "tests", filepath.Base(room)), "./"+room)
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
}

// modules lists the files of the modules that the guest's root needs, in the
// order to load them.
func modules(t *testing.T, work, release string) []string {
	t.Helper()
	var files []string
	seen := map[string]bool{}
	for _, name := range rootModules {
		for line := range strings.Lines(run(t, work, "modprobe", "-d", work, "-S", release, "--show-depends", name)) {
			f := strings.Fields(line)
			if len(f) < 2 || f[0] != "insmod" || seen[f[1]] {
				continue
			}
			seen[f[1]] = true
			plain, packed := strings.CutSuffix(f[1], ".xz")
			if packed { // the guest's init cannot
				run(t, work, "xz", "-dk", f[1])
			}
			files = append(files, plain)
		}
	}
	return files
}

// boot runs the guest until it ends, and gives what it said.
func boot(t *testing.T, dir, release string, cpus int) string {
	t.Helper()
	work := filepath.Join(dir, "work")
	ctx, cancel := context.WithTimeout(context.Background(), guestTimeout)
	defer cancel()
	share := func(tag, path string) string {
		return fmt.Sprintf("local,path=%s,mount_tag=%s,security_model=none,readonly=on,multidevs=remap", path, tag)
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", strconv.Itoa(cpus), "-m", "2560",
		"-kernel", filepath.Join(work, "boot", "vmlinuz-"+release), "-initrd", filepath.Join(dir, "initramfs"),
		"-append", "console=ttyS0 quiet panic=-1 rdinit=/init",
		"-drive", "file=" + filepath.Join(dir, "disk") + ",format=raw,if=virtio,cache=unsafe",
		"-virtfs", share("machine", "/"), "-virtfs", share("work", work),
	}
	for hub, model := range cards {
		for i := range 2 {
			// The address tells the guest which belong together.
			args = append(args, "-netdev", fmt.Sprintf("hubport,id=n%d%d,hubid=%[1]d", hub, i),
				"-device", fmt.Sprintf("%s,netdev=n%d%d,mac=52:54:00:ee:%02[2]x:%02[3]x", model, hub, i))
		}
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
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
