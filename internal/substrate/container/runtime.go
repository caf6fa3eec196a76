package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"trellis/internal/substrate/cgroup"
	"trellis/internal/substrate/image"
)

// Runtime makes and removes the containers of one instance.
type Runtime struct {
	cfg     Config
	oci     oci
	cgroups *cgroup.Tree
	images  *image.Cache
	stage   *stage
	locks   locks
	exits   exits
	closed  sync.Once
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
	images, err := image.NewCache(filepath.Join(cfg.StateDir, "images"))
	if err != nil {
		return nil, err
	}
	for _, d := range []string{cfg.RunDir, filepath.Join(cfg.RunDir, "nodes"), filepath.Join(cfg.RunDir, "oci")} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, fmt.Errorf("make the run directory: %w", err)
		}
	}
	r := &Runtime{cfg: cfg, oci: oci, cgroups: cgroups, images: images}
	if r.stage, err = newStage(oci.hideCgroups); err != nil {
		return nil, fmt.Errorf("prepare to make containers: %w", err)
	}
	return r, nil
}

// Close ends the threads that the Runtime holds. Nodes go on running.
func (r *Runtime) Close() error {
	r.closed.Do(func() {
		r.stage.close()
		r.exits.close()
	})
	return nil
}

// oci is the OCI runtime in use.
type oci struct {
	path string
	// hideCgroups: it takes part in no cgroup business at all (crun).
	hideCgroups bool
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
			return oci{path: path, hideCgroups: true}, nil
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
	argv := []string{r.oci.path, "--root", filepath.Join(r.cfg.RunDir, "oci")}
	if r.oci.hideCgroups {
		argv = append(argv, "--cgroup-manager=disabled")
	}
	return append(argv, args...)
}

// ociID names a container for the runtime.
func ociID(id ID) string { return id.VNet + "." + id.Node }

// hostImage is the image of the machine's own programs.
const hostImage = "host"

// Prepare makes an image ready: it finds, fetches and extracts it, once. To be
// called before anything is made, so that a bad image is refused first.
//
// An image is "host", an absolute directory that holds a root file system, a
// tar archive of one (.tar, .tar.gz, .tgz, .tar.zst), an OCI layout (directory
// or archive), or a reference to a registry (docker.io where it names none).
func (r *Runtime) Prepare(ctx context.Context, ref string) error {
	_, err := r.resolve(ctx, ref)
	return err
}

// resolve returns nil for the host image.
func (r *Runtime) resolve(ctx context.Context, ref string) (*image.Image, error) {
	if ref == hostImage || ref == "" {
		return nil, nil
	}
	return r.images.Get(ctx, ref)
}
