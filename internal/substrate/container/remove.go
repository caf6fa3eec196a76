package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/fault"
)

// removers is how many containers are removed side by side. Each mostly waits
// for the kernel.
const removers = 16

// killTimeout is how long killed processes may take to be gone.
const killTimeout = 10 * time.Second

// hastenAfter is how long they may take within their share of the processor.
const hastenAfter = 200 * time.Millisecond

// removalFloor is how much longer many containers at once may take, each.
const removalFloor = 5 * time.Millisecond

// Remove ends containers and removes every trace of them. One that is not there
// is not an error. All are tried, and the errors joined. Many at once are killed
// first, so that the kernel takes them apart while others still die.
func (r *Runtime) Remove(ctx context.Context, ids ...ID) error {
	for _, id := range ids {
		// It fails for those alone that do not run.
		_ = r.signal(id, unix.SIGKILL)
		if err := r.Thaw(id); err != nil { // of cgroup v1, nothing ends that is frozen
			return fmt.Errorf("remove container %s: %w", id, err)
		}
	}
	r.awaitExits(ctx, ids, hastenAfter)
	work := make(chan ID)
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	for range min(removers, len(ids)) {
		wg.Go(func() {
			for id := range work {
				unlock := r.lock(id)
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
	var vnets []string
	for _, id := range ids {
		work <- id
		vnets = append(vnets, id.VNet)
	}
	close(work)
	wg.Wait()
	slices.Sort(vnets)
	r.removeEmptyDirs(slices.Compact(vnets)...)
	return errors.Join(errs...)
}

// Kill ends all containers of a VNet and waits for none: what is left of them is
// for Remove.
func (r *Runtime) Kill(vnet string) {
	r.index.mu.RLock()
	defer r.index.mu.RUnlock()
	for _, e := range r.index.vnets[vnet] {
		// It fails for those alone that do not run.
		_ = e.signal(unix.SIGKILL)
	}
}

// KillNode ends a container and does not wait for it. One that does not run is no error.
func (r *Runtime) KillNode(id ID) error {
	if err := r.signal(id, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill container %s: %w", id, err)
	}
	return r.Thaw(id) // of cgroup v1, nothing ends that is frozen
}

// Freeze stops all processes of a node where they are, until Thaw, its removal or the
// start of the next service. What is run in it meanwhile goes on.
func (r *Runtime) Freeze(id ID) error {
	r.index.mu.Lock()
	e := r.index.get(id)
	if e == nil || e.pidfd < 0 {
		r.index.mu.Unlock()
		return fmt.Errorf("freeze container %s: it does not run", id)
	}
	e.frozen = true
	r.index.mu.Unlock()
	return r.cgroups.Freeze(groupOf(id))
}

// Thaw lets them go on.
func (r *Runtime) Thaw(id ID) error {
	r.index.mu.Lock()
	e := r.index.get(id)
	frozen := e != nil && e.frozen
	if frozen {
		e.frozen = false
	}
	r.index.mu.Unlock()
	if !frozen {
		return nil
	}
	return r.cgroups.Thaw(groupOf(id))
}

// awaitExits waits until the killed containers' PID 1 are gone, for so long and a bit
// for each. Who is late is left to the removal of that container, which tells.
func (r *Runtime) awaitExits(ctx context.Context, ids []ID, timeout time.Duration) {
	late := time.NewTimer(timeout + time.Duration(len(ids))*removalFloor)
	defer late.Stop()
	for _, id := range ids {
		r.index.mu.RLock()
		var gone chan struct{}
		if e := r.index.get(id); e != nil {
			gone = e.gone
		}
		r.index.mu.RUnlock()
		if gone == nil {
			continue
		}
		select {
		case <-gone:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
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
	_ = r.signal(id, unix.SIGKILL) // it may have been started meanwhile
	if err := r.Thaw(id); err != nil {
		return err
	}
	r.awaitExits(ctx, []ID{id}, hastenAfter)
	if r.lingering(id) != 0 {
		if err := r.hasten(id); err != nil {
			return err
		}
		r.awaitExits(ctx, []ID{id}, killTimeout)
	}
	fault.Point("container/killed")
	if err := r.killMembers(ctx, groupOf(id)); err != nil {
		return err
	}
	if err := r.cgroups.Remove(groupOf(id), killTimeout); err != nil {
		return err
	}
	if pid := r.lingering(id); pid != 0 {
		return fmt.Errorf("its init, process %d, does not end; look at it in /proc, and try again", pid)
	}
	fault.Point("container/nogroups")
	if err := os.RemoveAll(r.ociState(id)); err != nil {
		return err
	}
	if !r.oci.hideCgroups { // see exec
		if err := r.stage.do(func() error { return unmountAssembly(assemblyDir(id)) }); err != nil {
			return err
		}
	}
	fault.Point("container/nostate")
	if err := removeDir(r.nodeDir(id)); err != nil {
		return err
	}
	r.events.forget(id)
	r.index.mu.Lock()
	defer r.index.mu.Unlock()
	r.index.remove(id)
	return nil
}

// hasten kills all processes of a node that is ending, and lifts its limit of the
// processor: dying costs them some, and a node's init is gone after all others.
func (r *Runtime) hasten(id ID) error {
	group := groupOf(id)
	pids, err := r.cgroups.Members(group)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		r.killMember(group, pid)
	}
	if c, err := r.load(id); err != nil || c.Limits.CPU == 0 {
		return nil // there is none
	}
	return r.cgroups.LiftCPU(group)
}

// lingering gives the node's PID 1 if it is still there, ending or not; 0: it is gone.
func (r *Runtime) lingering(id ID) int {
	r.index.mu.RLock()
	defer r.index.mu.RUnlock()
	if e := r.index.get(id); e != nil && e.pidfd >= 0 && e.record != nil {
		return e.record.Pid
	}
	return 0
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
		if e.Name() == recordFile {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if e.Type().IsRegular() {
			err = ignoreMissing(unix.Unlink(path))
		} else {
			err = os.RemoveAll(path)
		}
		if err != nil {
			return &fs.PathError{Op: "remove", Path: path, Err: err}
		}
	}
	return os.RemoveAll(dir)
}

// killMembers kills whatever is in a node's groups until nothing is: the node's
// processes, and a runtime that was at work on it.
func (r *Runtime) killMembers(ctx context.Context, group string) error {
	deadline := time.Now().Add(killTimeout)
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

// removeEmptyDirs removes the directories and cgroups of those VNets that have no
// nodes any more, and the instance's own cgroups with the last of them.
func (r *Runtime) removeEmptyDirs(vnets ...string) {
	r.index.mu.Lock() // keeps nodes from being claimed there meanwhile
	defer r.index.mu.Unlock()
	for _, v := range vnets {
		if len(r.index.vnets[v]) > 0 {
			continue
		}
		// What another hand has put there stays, and is seen by the next service.
		_ = unix.Rmdir(filepath.Join(r.cfg.RunDir, "nodes", v))
		r.cgroups.RemoveParent(v)
	}
	if len(r.index.vnets) == 0 {
		r.cgroups.Sweep()
	}
}

// Sweep removes what is left over and belongs to no container: empty
// directories and cgroups.
func (r *Runtime) Sweep(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(r.cfg.RunDir, "nodes"))
	if err != nil {
		return fmt.Errorf("look for what is left of containers: %w", err)
	}
	vnets := r.cgroups.Parents()
	for _, e := range entries {
		vnets = append(vnets, e.Name())
	}
	r.removeEmptyDirs(vnets...)
	return nil
}

// Terminate asks containers to end, their services first, and waits for that, until ctx
// ends at the latest. What runs on, Remove kills.
func (r *Runtime) Terminate(ctx context.Context, ids ...ID) {
	var running []<-chan struct{}
	for _, id := range ids {
		s, ok := r.Get(id)
		if !ok || !s.Running {
			continue
		}
		// Both fail for those alone that have just ended.
		if gone, err := r.Exited(s); err == nil && r.signal(id, unix.SIGTERM) == nil {
			running = append(running, gone)
		}
	}
	for _, gone := range running {
		select {
		case <-gone:
		case <-ctx.Done():
			return
		}
	}
}

// stopTimeout is how long a node's services may take to end when it is stopped: init
// gives them 5 s itself.
const stopTimeout = 7 * time.Second

// Stop ends a container, its services first, and leaves the rest to Remove. One that
// does not run is no error.
func (r *Runtime) Stop(ctx context.Context, id ID) error {
	s, ok := r.Get(id)
	if !ok || !s.Running {
		return nil
	}
	gone, err := r.Exited(s)
	if err != nil {
		return err
	}
	for _, try := range []struct {
		signal  unix.Signal
		timeout time.Duration
	}{{unix.SIGTERM, stopTimeout}, {unix.SIGKILL, killTimeout}} {
		// It fails for those alone that have just ended.
		_ = r.signal(id, try.signal)
		select {
		case <-gone:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(try.timeout):
		}
	}
	return fmt.Errorf("stop container %s: its init, process %d, does not end; look at it in /proc", id, s.Pid)
}
