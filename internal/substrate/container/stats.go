package container

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stat reads what a running container uses, and how its services are.
func (r *Runtime) Stat(id ID) (Stats, error) {
	c, err := r.loadRunning(id)
	if err != nil {
		return Stats{}, err
	}
	u, err := r.cgroups.Usage(groupOf(id))
	if err != nil {
		return Stats{}, fmt.Errorf("container %s: %w", id, err)
	}
	s := Stats{Memory: u.Memory, CPU: u.CPU.Seconds(), Pids: u.Pids, OOMKills: u.OOMKills}
	root, err := c.root()
	if err != nil {
		return Stats{}, err
	}
	defer root.Close()
	// An overlay answers for its writable layer.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &fs); err != nil {
		return Stats{}, fmt.Errorf("container %s: read the disk usage: %w", id, err)
	}
	s.Disk = int64(fs.Blocks-fs.Bfree) * fs.Bsize
	s.Services, _ = r.Services(id)
	return s, nil
}

// Services returns how a running container's services are, as its init has reported,
// and those that were stopped at the end; false if it does not run. It reads memory
// alone, but for containers whose status file the kernel had no watch left for.
func (r *Runtime) Services(id ID) ([]ServiceStatus, bool) {
	r.index.mu.RLock()
	e := r.index.get(id)
	poll := e != nil && e.unwatched
	r.index.mu.RUnlock()
	if poll {
		r.readStatus(id)
	}
	r.index.mu.RLock()
	defer r.index.mu.RUnlock()
	if e = r.index.get(id); e == nil || e.pidfd < 0 {
		return nil, false
	}
	services := slices.Clone(e.services)
	if e.record == nil {
		return services, true
	}
	for _, name := range e.record.Stopped {
		if !slices.ContainsFunc(services, func(s ServiceStatus) bool { return s.Name == name }) { // it has ended
			services = append(services, ServiceStatus{Name: name, State: ServiceStopped})
		}
	}
	return services, true
}

// parseStatus reads what init wrote; false if it was caught amid writing.
func parseStatus(text string) ([]ServiceStatus, bool) {
	if text == "" { // not released yet
		return nil, true
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	head, ok1 := strings.CutPrefix(lines[0], "trellis-status-1 ")
	tail, ok2 := strings.CutPrefix(lines[len(lines)-1], "end ")
	if !ok1 || !ok2 || head != tail {
		return nil, false
	}
	var services []ServiceStatus
	for _, l := range lines[1 : len(lines)-1] {
		f := strings.Fields(l)
		if len(f) != 5 {
			return nil, false
		}
		s := ServiceStatus{Name: f[0], State: ServiceState(f[1])}
		for i, to := range []*int{&s.Pid, &s.Restarts, &s.Exit} {
			n, err := strconv.Atoi(f[2+i])
			if err != nil {
				return nil, false
			}
			*to = n
		}
		services = append(services, s)
	}
	return services, true
}

// SetLimits changes the limits of a running container. A limit below what is in
// use takes effect as the kernel has it: memory is reclaimed, or processes are
// killed for the want of it; processes and files that exist stay.
func (r *Runtime) SetLimits(ctx context.Context, id ID, l Limits) error {
	defer r.lock(id)()
	c, err := r.loadRunning(id)
	if err != nil {
		return err
	}
	if err := r.cgroups.SetLimits(groupOf(id), cgroupLimits(l)); err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	if l.Disk != c.Limits.Disk {
		if err := c.resizeDisk(l.Disk); err != nil {
			return fmt.Errorf("container %s: set the disk limit: %w", id, err)
		}
	}
	c.Limits = l
	return r.save(c)
}

// resizeDisk changes the size of the node's tmpfs, which the node holds mounted
// where its own root cannot go.
func (c *record) resizeDisk(size int64) error {
	root, err := c.root()
	if err != nil {
		return err
	}
	defer root.Close()
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS}
	dir, err := unix.Openat2(int(root.Fd()), strings.TrimPrefix(ownDir, "/")+"/disk", &how)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	// The node may have moved things about: it must be the very file system.
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return err
	}
	if st.Dev != c.Disk {
		return errors.New("the node has moved its own mount points; restart it")
	}
	fs, err := unix.Fspick(dir, "", unix.FSPICK_CLOEXEC|unix.FSPICK_EMPTY_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	inodes := strconv.FormatInt(max(1024, size/4096), 10)
	if size <= 0 {
		size, inodes = 0, "0"
	}
	for _, o := range [][2]string{{"size", strconv.FormatInt(size, 10)}, {"nr_inodes", inodes}} {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return err
		}
	}
	return unix.FsconfigReconfigure(fs)
}

// SetFingerprint changes the caller's mark on a container.
func (r *Runtime) SetFingerprint(id ID, fp string) error {
	defer r.lock(id)()
	c, err := r.load(id)
	if err != nil {
		return fmt.Errorf("mark container %s: %w", id, err)
	}
	c.Fingerprint = fp
	return r.save(c)
}
