package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/fault"
	"trellis/internal/substrate/cgroup"
	"trellis/internal/substrate/image"
	"trellis/internal/vnet"
)

// Held is a container that exists and waits.
type Held struct {
	r   *Runtime
	id  ID
	pid int

	mu   sync.Mutex
	done bool // released or aborted
}

// Start makes a container up to the point where its PID 1 waits: namespaces,
// cgroups and file system are there, nothing of the node runs. It fails if the
// container exists in any state, and then, as on any error, changes nothing.
func (r *Runtime) Start(ctx context.Context, s Spec) (*Held, error) {
	h, err := r.start(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("start container %s: %w", s.ID, err)
	}
	return h, nil
}

func (r *Runtime) start(ctx context.Context, s Spec) (*Held, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	img, err := r.resolve(ctx, s.Image)
	if err != nil {
		return nil, err
	}
	defer r.images.Release(img) // by then the record holds it
	unlock, err := r.locks.Lock(ctx, s.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := r.claim(s.ID); err != nil {
		return nil, err
	}
	err = r.ensureHosts(s.VNet)
	var h *Held
	if err == nil {
		h, err = r.build(ctx, &s, img)
	}
	if err != nil {
		// The caller's context may be what ended it; cleaning up is not optional.
		err = errors.Join(err, r.removeLocked(context.WithoutCancel(ctx), s.ID))
		r.removeEmptyDirs(s.VNet)
		return nil, err
	}
	return h, nil
}

// check refuses what would be unsafe or unfit as a name of files.
func (s *Spec) check() error {
	for _, n := range []string{s.VNet, s.Node} {
		if !validName(n) {
			return fmt.Errorf("name %q: want 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit", n)
		}
	}
	if s.IDBase < idCount || s.IDBase > 1<<32-1-idCount {
		return fmt.Errorf("first id %d: want %d to %d", s.IDBase, idCount, uint32(1<<32-1-idCount))
	}
	system := []string{"/proc", "/sys", "/dev", ownDir}
	if s.Image == hostImage || s.Image == "" {
		system = append(system, "/usr", "/bin", "/sbin", "/lib", "/lib64")
	}
	for _, f := range s.Files {
		for _, dir := range system {
			if clean := path.Clean(f.Path); clean == dir || strings.HasPrefix(clean, dir+"/") {
				return fmt.Errorf("file %s: nothing can be placed under %s of this image", f.Path, dir)
			}
		}
	}
	return checkServices(s.Services)
}

func validName(n string) bool {
	for i, c := range []byte(n) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '-' || c == '_' || c == '.'):
		default:
			return false
		}
	}
	return n != "" && len(n) <= 63
}

// claim makes the node's directory, which nobody else may have.
func (r *Runtime) claim(id ID) error {
	r.index.mu.Lock()
	fresh := r.index.add(id) // from now on nobody removes the directories of the VNet
	r.index.mu.Unlock()
	if !fresh {
		return errors.New("it exists already; remove it first")
	}
	if err := os.MkdirAll(r.nodeDir(id), 0o711); err != nil {
		r.index.mu.Lock()
		r.index.remove(id)
		r.index.mu.Unlock()
		return err
	}
	return nil
}

func (r *Runtime) build(ctx context.Context, s *Spec, img *image.Image) (*Held, error) {
	fault.Point("container/claimed")
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	files, bases, err := r.restoreSaved(s)
	if err != nil {
		return nil, err
	}
	s.Files = files
	env := environment(s, img)
	c := &record{
		ID: s.ID, Boot: boot, IDBase: s.IDBase, Created: time.Now(), Limits: s.Limits, Fingerprint: s.Fingerprint, Image: imageName(img),
		Services: s.Services, Yields: s.Yields, Table: currentTable, Env: env, Command: imageCommand(s, img, env), Saved: bases,
	}
	if err := r.save(c); err != nil {
		return nil, err
	}
	fault.Point("container/recorded")
	table, err := c.table()
	if err != nil {
		return nil, err
	}
	dir := r.nodeDir(s.ID)
	services, err := openNew(filepath.Join(dir, servicesFile), heldTable(table))
	if err != nil {
		return nil, err
	}
	defer services.Close()
	status, err := openNew(filepath.Join(dir, statusFile), nil)
	if err != nil {
		return nil, err
	}
	defer status.Close()
	// runc makes more groups of the same name by itself, and clears all with Remove.
	if err := r.cgroups.Create(s.VNet+"/"+s.Node, cgroupLimits(s.Limits)); err != nil {
		return nil, err
	}
	if err := r.confined.Attach(); err != nil {
		return nil, err
	}
	fault.Point("container/cgroups")
	args := []string{"run", "--detach", "--bundle", dir, "--pid-file", filepath.Join(dir, pidFile), "--preserve-fds", "3"}
	if r.oci.hideCgroups {
		args = append(args, "--no-new-keyring") // "enter" has joined one
	}
	cmd, done, err := r.ociCommand(ctx, s.ID, r.oci.userNamespaceOf(s), []*os.File{r.gate.held, status, services}, append(args, ociID(s.ID))...)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := r.stage.do(func() error { return r.assemble(ctx, s, c, img, cmd) }); err != nil {
		return nil, err
	}
	fault.Point("container/running")
	if err := r.identify(c); err != nil {
		return nil, err
	}
	err = r.save(c)
	if err == nil {
		err = r.watch(c)
	}
	if err != nil {
		return nil, err
	}
	fault.Point("container/held")
	return &Held{r: r, id: s.ID, pid: c.Pid}, nil
}

// identify finds out about the PID 1 that the runtime has started.
func (r *Runtime) identify(c *record) error {
	b, err := os.ReadFile(filepath.Join(r.nodeDir(c.ID), pidFile))
	if err != nil {
		return fmt.Errorf("read what the runtime started: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("read what the runtime started: %w", err)
	}
	start, ok := processStart(pid)
	if !ok {
		return errors.New("the node's init ended at once")
	}
	c.Pid, c.StartTicks = pid, start
	return nil
}

func openNew(path string, content []byte) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(content, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func cgroupLimits(l Limits) cgroup.Limits {
	return cgroup.Limits{CPU: l.CPU, Memory: l.Memory, Pids: l.Pids}
}

func groupOf(id ID) string { return id.VNet + "/" + id.Node }

// assemble puts the node's file system together and runs the runtime on it.
// What it mounts it takes away again: the container has its own view by then.
func (r *Runtime) assemble(ctx context.Context, s *Spec, c *record, img *image.Image, run *exec.Cmd) (err error) {
	at := assemblyDir(s.ID)
	if err := os.Mkdir(at, 0o711); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unmountAssembly(at)) }()
	if err := r.mountRoot(at, s, c, img); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(at, usersFile), nil, 0o600); err != nil {
		return err
	}
	if err := r.save(c); err != nil { // with the device number
		return err
	}
	root, err := os.Open(filepath.Join(at, "root"))
	if err != nil {
		return err
	}
	defer root.Close()
	if err := populate(root, s); err != nil {
		return err
	}
	if err := r.writeBundle(s, img == nil, at); err != nil {
		return err
	}
	fault.Point("container/assembled")
	if err := r.runOCI(ctx, run); err != nil {
		return err
	}
	if !r.oci.takesFilter {
		return nil
	}
	return r.filter.keep(r.ociState(s.ID))
}

// assemblyDir is where in the stage a node is put together.
func assemblyDir(id ID) string { return inStage("nodes", ociID(id)) }

// unmountAssembly takes away what mountRoot made, or a part of it.
func unmountAssembly(at string) error {
	var errs []error
	for _, dir := range []string{"root", "disk", "base", "image"} {
		dir = filepath.Join(at, dir)
		err := unix.Unmount(dir, unix.MNT_DETACH)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
		errs = append(errs, ignoreMissing(unix.Rmdir(dir)))
	}
	users := filepath.Join(at, usersFile)
	if err := unix.Unmount(users, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("unmount %s: %w", users, err))
	}
	errs = append(errs, ignoreMissing(unix.Unlink(users)))
	return errors.Join(append(errs, ignoreMissing(unix.Rmdir(at)))...)
}

// mountRoot mounts, in at, the node's writable tmpfs on disk, and on root the
// overlay of it and the image. Nobody in the node may enter disk. The layers of
// the overlay are seen on base and image, with the node's ids.
func (r *Runtime) mountRoot(at string, s *Spec, c *record, img *image.Image) error {
	options := "mode=0700"
	if size := max(s.Limits.Disk, 0); size > 0 {
		// Inodes are kernel memory, so they are bounded with the bytes.
		options += fmt.Sprintf(",size=%d,nr_inodes=%d", size, max(1024, size/4096))
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	disk, root := filepath.Join(at, "disk"), filepath.Join(at, "root")
	base, image := filepath.Join(at, "base"), filepath.Join(at, "image")
	for _, d := range []string{disk, root, base, image} {
		if err := mkdirMode(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("trellis", disk, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("mount the node's file system: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(disk, &st); err != nil {
		return err
	}
	c.Disk = st.Dev
	upper, work := filepath.Join(disk, "upper"), filepath.Join(disk, "work")
	for _, d := range []string{upper, work} {
		if err := mkdirMode(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chown(upper, int(s.IDBase), int(s.IDBase)); err != nil {
		return err
	}
	if err := r.stage.mountShifted(inStage("base"), base, s.IDBase); err != nil {
		return err
	}
	if err := r.mountImage(img, image, s.IDBase); err != nil {
		return err
	}
	layers := fmt.Sprintf("lowerdir=%s:%s,upperdir=%s,workdir=%s", base, image, upper, work)
	if err := unix.Mount("trellis", root, "overlay", flags, layers); err != nil {
		return fmt.Errorf("mount the node's file system over its image: %w", err)
	}
	return nil
}

// mountImage mounts the layer of the image; nil: of the machine's own programs.
func (r *Runtime) mountImage(img *image.Image, at string, base uint32) error {
	switch {
	case img == nil:
		return r.stage.mountShifted(inStage("host"), at, base)
	case img.Key != "":
		return r.stage.mountShifted(img.Dir, at, base)
	}
	// A directory that was looked at must not have been replaced since.
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, img.Dir, &how)
	if err != nil {
		return fmt.Errorf("open the image %s: %w", img.Dir, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Dev != img.Device || st.Ino != img.Inode {
		return fmt.Errorf("the image %s is another directory than it was a moment ago; try again", img.Dir)
	}
	return r.stage.mountOpen(fd, img.Dir, at, base)
}

// populate writes what the specification places in the node.
func populate(root *os.File, s *Spec) error {
	for _, d := range s.Dirs {
		f, err := dirIn(root, d, s.IDBase)
		if err != nil {
			return fmt.Errorf("make %s: %w", d, err)
		}
		f.Close()
	}
	files := []vnet.File{{Path: "/etc/hostname", Content: []byte(s.Node + "\n")}}
	for _, f := range append(files, s.Files...) {
		if err := writeIn(root, f, s.IDBase); err != nil {
			return err
		}
	}
	return nil
}

// runOCI runs the runtime and waits for it. To be called in a job.
func (r *Runtime) runOCI(ctx context.Context, cmd *exec.Cmd) error {
	// Not a buffer: init would inherit the pipe behind it, and Wait would wait for init.
	errs, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer errs.Close()
	cmd.Stderr = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return err
	}
	// Read meanwhile: who fills a pipe that nobody reads waits for ever.
	var printed ends
	read := make(chan error, 1)
	go func() {
		_, err := io.Copy(&printed, errs)
		read <- err
	}()
	err = cmd.Wait()
	// What it has written is there. A deadline that passes is the normal end, where
	// init has not let go of the pipe yet.
	if e := errs.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); e != nil {
		return errors.Join(err, e)
	}
	<-read
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%s: %w: %s", filepath.Base(r.oci.path), err, printed.String())
}

// ends keeps the begin and the end of what a program prints.
type ends struct {
	head, tail []byte
	cut        bool
}

// maxEnd is how much of either, in bytes.
const maxEnd = 2048

func (e *ends) Write(b []byte) (int, error) {
	n := len(b)
	room := min(maxEnd-len(e.head), n)
	e.head = append(e.head, b[:room]...)
	e.tail = append(e.tail, b[room:]...)
	if over := len(e.tail) - maxEnd; over > 0 {
		e.cut = true
		e.tail = slices.Clone(e.tail[over:])
	}
	return n, nil
}

// String gives it as one line.
func (e *ends) String() string {
	between := ""
	if e.cut {
		between = " … "
	}
	return strings.Join(strings.Fields(string(e.head)+between+string(e.tail)), " ")
}

// ociCommand prepares a call of the runtime that starts in the node's cgroups
// with files from descriptor 3 on, after a user namespace has been made, where one is
// asked for. It is to be started in a job, but not made in
// one: the stage has no cgroup file systems. done closes what it opened.
func (r *Runtime) ociCommand(ctx context.Context, id ID, users *userNamespace, files []*os.File, args ...string) (cmd *exec.Cmd, done func(), err error) {
	argv := r.ociArgs(args...)
	var groups []*os.File
	done = func() {
		for _, g := range groups {
			g.Close()
		}
	}
	if r.oci.hideCgroups {
		for _, path := range r.cgroups.EntryFiles(groupOf(id)) {
			g, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				done()
				return nil, nil, err
			}
			groups = append(groups, g)
		}
	}
	argv = slices.Concat([]string{inStage("init"), "enter", strconv.Itoa(3 + len(files)), strconv.Itoa(len(groups))}, users.arguments(), argv)
	extra := append(slices.Clip(files), groups...)
	attributes := &syscall.SysProcAttr{}
	// The tree's directory is there for the sake of the programs attached to it alone.
	if dir := r.cgroups.UnifiedEntry(groupOf(id), r.oci.hideCgroups); dir != "" && (r.confined != nil || dir != r.cgroups.Unified()) {
		// By clone3: a write to cgroup.procs waits for all processors (cgroup_threadgroup_rwsem).
		g, err := os.Open(dir)
		if err != nil {
			done()
			return nil, nil, err
		}
		groups = append(groups, g)
		attributes.UseCgroupFD, attributes.CgroupFD = true, int(g.Fd())
	}
	cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.ExtraFiles = extra
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = attributes
	return cmd, done, nil
}

// Pid is the node's PID 1 as the host sees it. Its namespaces are the node's.
func (h *Held) Pid() int { return h.pid }

// Release lets the node run. The container then no longer depends on this
// process.
func (h *Held) Release() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done {
		return fmt.Errorf("container %s was released or aborted before", h.id)
	}
	defer h.r.lock(h.id)()
	c, err := h.r.load(h.id)
	if err != nil {
		return fmt.Errorf("release container %s: %w", h.id, err)
	}
	// First the record: dying in between leaves a dead node, not one that runs
	// and is taken for half-made.
	c.Released = true
	if err := h.r.save(c); err != nil {
		return err
	}
	fault.Point("container/releasing")
	h.done = true
	err = releaseTable(filepath.Join(h.r.nodeDir(h.id), servicesFile))
	if err == nil {
		err = h.r.signal(h.id, unix.SIGHUP)
	}
	if err != nil {
		return fmt.Errorf("release container %s: %w", h.id, err)
	}
	fault.Point("container/released")
	return nil
}

// Abort ends and removes a container that was not released; on any other it
// does nothing. What cannot be removed at once, List still shows.
func (h *Held) Abort() { h.r.Abort(h) }

// Abort does so with many, all at once.
func (r *Runtime) Abort(held ...*Held) {
	ids := make([]ID, 0, len(held))
	for _, h := range held {
		h.mu.Lock()
		if !h.done {
			ids = append(ids, h.id)
		}
		h.done = true
		h.mu.Unlock()
	}
	_ = r.Remove(context.Background(), ids...)
}
