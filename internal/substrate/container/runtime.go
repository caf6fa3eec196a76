package container

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"trellis/internal/keylock"
	"trellis/internal/substrate/cgroup"
	"trellis/internal/substrate/confine"
	"trellis/internal/substrate/image"
	"trellis/internal/vnet"
)

// Runtime makes and removes the containers of one instance.
type Runtime struct {
	cfg     Config
	oci     oci
	cgroups *cgroup.Tree
	// confined bounds what nodes ask of the kernel; nil where it cannot be.
	confined *confine.Confinement
	images   *image.Cache
	stage    *stage
	gate     gate
	locks    keylock.Locks[ID]
	// terminals are locked while a node gets its devpts.
	terminals keylock.Locks[ID]
	index     index
	events    *events
	hosts     hosts
	saver     saver
	filter    filter
	closed    sync.Once
}

// New finds the OCI runtime and the machine's cgroup layout, and prepares what
// all nodes share. It fails with one sentence that names the remedy.
func New(cfg Config) (*Runtime, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("containers need root; run the service as root")
	}
	if !regexp.MustCompile(`^[a-z0-9]{1,8}$`).MatchString(cfg.Instance) {
		return nil, fmt.Errorf("instance tag %q: want 1 to 8 of a-z and 0-9", cfg.Instance)
	}
	oci, err := findOCI(cfg.Runtime)
	if err != nil {
		return nil, err
	}
	dir := "trellis"
	if cfg.Instance != dir {
		dir += "-" + cfg.Instance
	}
	cgroups, err := cgroup.Find(dir)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{cfg.RunDir, filepath.Join(cfg.RunDir, "nodes"), filepath.Join(cfg.RunDir, ociDir), filepath.Join(cfg.RunDir, hostsDir)} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, fmt.Errorf("make the run directory: %w", err)
		}
	}
	if err := mountHosts(filepath.Join(cfg.RunDir, hostsDir)); err != nil {
		return nil, err
	}
	if err := raiseFileLimit(); err != nil {
		return nil, err
	}
	raisePidMax(cfg.Log)
	r := &Runtime{cfg: cfg, oci: oci, cgroups: cgroups}
	r.images, err = image.OpenCache(image.Options{
		Dir: filepath.Join(cfg.StateDir, "images"), Policy: cfg.Images, Private: []string{cfg.StateDir, cfg.RunDir}, InUse: r.imagesInUse,
	})
	if err != nil {
		return nil, err
	}
	if r.gate, err = newGate(); err != nil {
		return nil, err
	}
	if r.confined, err = confined(cgroups, cfg.Log); err != nil {
		return nil, errors.Join(err, r.gate.close())
	}
	if r.events, err = newEvents(); err != nil {
		return nil, errors.Join(err, r.confined.Close(), r.gate.close())
	}
	go r.events.run(r.onOOM, r.onEnding, r.onExit, r.onStatus, r.savedChanged)
	if err := r.loadIndex(); err != nil {
		return nil, errors.Join(fmt.Errorf("look for the nodes that run: %w", err), r.Close())
	}
	if err := r.images.Trim(); err != nil {
		return nil, errors.Join(fmt.Errorf("tidy the image cache: %w", err), r.Close())
	}
	r.hosts.content = map[string][]byte{}
	if err := r.sweepHosts(); err != nil {
		return nil, errors.Join(fmt.Errorf("remove the names of networks that are gone: %w", err), r.Close())
	}
	if err := cgroups.ThawAll(); err != nil { // what a service held that is gone
		return nil, errors.Join(err, r.Close())
	}
	if r.stage, err = newStage(oci.hideCgroups, filepath.Join(cfg.RunDir, hostsDir)); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare to make containers: %w", err), r.Close())
	}
	return r, nil
}

// confined makes the programs that bound nodes. Kernels without what they need go
// on without them, and doctor and the log say what that costs.
func confined(t *cgroup.Tree, log *slog.Logger) (*confine.Confinement, error) {
	var ceilings []confine.Ceiling
	for _, c := range vnet.SysctlCeilings {
		ceilings = append(ceilings, confine.Ceiling{Name: strings.ReplaceAll(c.Name, ".", "/"), Max: c.Max})
	}
	err := fmt.Errorf("control groups of version 2: %w", ebpf.ErrNotSupported)
	if t.Unified() != "" {
		var c *confine.Confinement
		if c, err = confine.New(t.Unified(), ceilings, log); err == nil {
			return c, nil
		}
		if confine.Probe() == nil {
			return nil, err // the kernel could
		}
	}
	if log != nil {
		log.Warn("the memory of nodes' sockets is not bounded: this kernel lacks what it takes; see trellis doctor", "err", err)
	}
	return nil, nil
}

// gate is a pipe. Every node that waits polls the one end, and ends when the other
// closes, of which only this process has a descriptor: when this process ends.
type gate struct{ held, open *os.File }

func newGate() (g gate, err error) {
	g.held, g.open, err = os.Pipe()
	return g, err
}

func (g gate) close() error { return errors.Join(g.open.Close(), g.held.Close()) }

// Close ends the threads that the Runtime holds. Nodes go on running.
func (r *Runtime) Close() (err error) {
	r.closed.Do(func() {
		err = r.gate.close() // nodes that wait end
		if r.stage != nil {
			r.stage.close()
		}
		r.events.close()
		err = errors.Join(err, r.confined.Close())
		r.index.mu.Lock()
		defer r.index.mu.Unlock()
		for _, nodes := range r.index.vnets {
			for _, e := range nodes {
				if e.pidfd >= 0 {
					unix.Close(e.pidfd)
					e.pidfd = -1
				}
			}
		}
		if r.stage != nil { // else the index may not know all that runs
			err = errors.Join(err, r.sweepHosts(), unmountHosts(filepath.Join(r.cfg.RunDir, hostsDir)),
				os.RemoveAll(filepath.Join(r.cfg.RunDir, ociDir, ociCache)))
		}
	})
	return err
}

// openFileLimit is how many files this process may have open: a pidfd for each
// node, and what its other parts need.
const openFileLimit = 1 << 18

// raiseFileLimit raises the limit of open files as far as the machine allows.
func raiseFileLimit() error {
	var own syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if own.Cur >= openFileLimit {
		return nil
	}
	want := syscall.Rlimit{Cur: openFileLimit, Max: max(own.Max, openFileLimit)}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want); err == nil {
		return nil
	}
	// Without CAP_SYS_RESOURCE, or above fs.nr_open: what there is.
	want = syscall.Rlimit{Cur: own.Max, Max: own.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	return nil
}

// oci is the OCI runtime in use.
type oci struct {
	path string
	// hideCgroups: it takes part in no cgroup business at all (crun).
	hideCgroups bool
	// mountsInProc: it mounts over directories of /proc, too (crun).
	mountsInProc bool
	// takesFilter: it takes a compiled seccomp filter in place of a profile (crun).
	takesFilter bool
}

// findOCI finds the runtime that was asked for.
func findOCI(name string) (oci, error) {
	candidates := []string{name}
	if name == "" {
		candidates = []string{"crun", "runc"}
	}
	for _, c := range candidates {
		path, err := exec.LookPath(c)
		if err != nil {
			continue
		}
		if path, err = filepath.Abs(path); err != nil {
			return oci{}, err
		}
		switch base := filepath.Base(path); {
		case strings.HasPrefix(base, "crun"):
			return oci{path: path, hideCgroups: true, mountsInProc: true, takesFilter: true}, nil
		case strings.HasPrefix(base, "runc"):
			return oci{path: path}, nil
		default:
			return oci{}, fmt.Errorf("container runtime %s: only crun and runc are known; name one of them", path)
		}
	}
	if name == "" || name == "crun" || name == "runc" {
		return oci{}, fmt.Errorf("no container runtime found (%s); install one: apt-get install %s", strings.Join(candidates, ", "), candidates[0])
	}
	return oci{}, fmt.Errorf("container runtime %s is not an executable file; give the path of crun or runc", name)
}

// cgroupsPath is what the runtime is told about cgroups. The runtime process
// is in the node's groups already. crun is told to leave it at that, runc
// wants to manage groups and is given the same ones.
func (o oci) cgroupsPath(dir string, id ID) string {
	if o.hideCgroups {
		return ""
	}
	return "/" + filepath.Join(dir, id.VNet, id.Node)
}

// command is a call of the runtime, from the stage, with RunDir/oci for its state.
func (r *Runtime) ociArgs(args ...string) []string {
	argv := []string{r.oci.path, "--root", filepath.Join(r.cfg.RunDir, ociDir)}
	if r.oci.hideCgroups {
		argv = append(argv, "--cgroup-manager=disabled")
	}
	return append(argv, args...)
}

// ociDir is where in RunDir the runtime keeps its state.
const ociDir = "oci"

// ociCache is where in it the runtime keeps what belongs to no container: crun 1.21
// has compiled seccomp profiles there.
const ociCache = ".cache"

// ociID names a container for the runtime.
func ociID(id ID) string { return id.VNet + "." + id.Node }

// ociState is where the runtime keeps its state of a container.
func (r *Runtime) ociState(id ID) string { return filepath.Join(r.cfg.RunDir, ociDir, ociID(id)) }

// hostImage is the image of the machine's own programs.
const hostImage = "host"

// Prepare makes an image ready: it finds, fetches and extracts it, once. To be
// called before anything is made, so that a bad image is refused first.
//
// An image is "host", an absolute directory that holds a root file system, a
// tar archive of one (.tar, .tar.gz, .tgz, .tar.zst), an OCI layout (directory
// or archive), or a reference to a registry (docker.io where it names none).
func (r *Runtime) Prepare(ctx context.Context, ref string) error {
	img, err := r.resolve(ctx, ref)
	r.images.Release(img)
	return err
}

// resolve returns nil for the host image. Others are to be released.
func (r *Runtime) resolve(ctx context.Context, ref string) (*image.Image, error) {
	if ref == hostImage || ref == "" {
		return nil, nil
	}
	return r.images.Get(ctx, ref)
}

// imageName is what a record says of a node's image: its key in the cache, or that
// it has none. Records of earlier builds say nothing.
func imageName(img *image.Image) string {
	switch {
	case img == nil:
		return hostImage
	case img.Key == "":
		return "directory"
	}
	return img.Key
}

// imagesInUse gives the keys of the images of all nodes; all: there are some of
// which it is not known.
func (r *Runtime) imagesInUse() (keys map[string]bool, all bool) {
	keys = map[string]bool{}
	r.index.mu.RLock()
	defer r.index.mu.RUnlock()
	for _, nodes := range r.index.vnets {
		for _, e := range nodes {
			if e.record == nil { // it has not begun, and holds what it is to have
				continue
			}
			if e.record.Image == "" {
				all = true
			}
			keys[e.record.Image] = true
		}
	}
	return keys, all
}
