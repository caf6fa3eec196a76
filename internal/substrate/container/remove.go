package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/fault"
)

// removers is how many containers are removed side by side. Each mostly waits
// for the kernel.
const removers = 16

// deathTime is how long killed processes may take to be gone.
const deathTime = 10 * time.Second

// Remove ends containers and removes every trace of them. One that is not there
// is not an error. All are tried, and the errors joined.
func (r *Runtime) Remove(ctx context.Context, ids ...ID) error {
	// Kill first: while the kernel takes apart the first ones, the others die.
	for _, id := range ids {
		if c, err := r.load(id); err == nil {
			c.kill()
		}
	}
	work := make(chan ID)
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	for range min(removers, len(ids)) {
		wg.Go(func() {
			for id := range work {
				unlock := r.locks.lock(id)
				err := r.removeLocked(ctx, id)
				unlock()
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, id := range ids {
		work <- id
	}
	close(work)
	wg.Wait()
	r.sweepParents()
	return errors.Join(errs...)
}

// kill ends the node's PID 1, and with it all processes of its PID namespace.
func (c *record) kill() {
	fd, err := c.pidfd()
	if err != nil {
		return // not running
	}
	// It cannot fail for root but by ESRCH.
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	unix.Close(fd)
}

func (r *Runtime) removeLocked(ctx context.Context, id ID) error {
	if err := r.destroy(ctx, id); err != nil {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

func (r *Runtime) destroy(ctx context.Context, id ID) error {
	if !validName(id.VNet) || !validName(id.Node) {
		return errors.New("not a name of a container")
	}
	if c, err := r.load(id); err == nil {
		c.kill()
	}
	fault.Point("container/killed")
	if err := r.killMembers(ctx, groupOf(id)); err != nil {
		return err
	}
	if err := r.cgroups.Remove(groupOf(id), deathTime); err != nil {
		return err
	}
	fault.Point("container/nogroups")
	if err := os.RemoveAll(filepath.Join(r.cfg.RunDir, "oci", ociID(id))); err != nil {
		return err
	}
	if !r.oci.hideCgroups { // see exec
		if err := r.stage.do(func() error { return dismantle(siteOf(id)) }); err != nil {
			return err
		}
	}
	fault.Point("container/nostate")
	return removeDir(r.nodeDir(id))
}

// removeDir removes a node's directory, the record last, so that what was begun
// can be recognized until it is done.
func removeDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != recordFile {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(dir)
}

// killMembers kills whatever is in a node's groups until nothing is: the node's
// processes, and a runtime that was at work on it.
func (r *Runtime) killMembers(ctx context.Context, group string) error {
	deadline := time.Now().Add(deathTime)
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		pids, err := r.cgroups.Members(group)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			r.killMember(group, pid)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("%d processes do not end (the first is %d); look at it in /proc, and try again", len(pids), pids[0])
		}
		time.Sleep(pause)
	}
}

func (r *Runtime) killMember(group string, pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // gone
	}
	defer unix.Close(fd)
	// The number may have been given to another process before the open.
	if r.cgroups.Has(group, pid) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}

// sweepParents removes the directories of VNets without nodes.
func (r *Runtime) sweepParents() {
	nodes := filepath.Join(r.cfg.RunDir, "nodes")
	entries, err := os.ReadDir(nodes)
	if err != nil {
		return
	}
	for _, e := range entries {
		// Fails, as it should, for those in use.
		_ = unix.Rmdir(filepath.Join(nodes, e.Name()))
	}
	r.cgroups.Sweep()
}

// Sweep removes what is left over and belongs to no container: empty
// directories and cgroups.
func (r *Runtime) Sweep(ctx context.Context) error {
	r.sweepParents()
	return nil
}
