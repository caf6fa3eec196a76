package container

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// index is what is known of every container of the instance. It is read from the
// run directory once, by New, and kept current by the operations of this package
// and by the kernel's notice of a PID 1 that has ended. So what one network needs
// to know costs nothing for the others.
type index struct {
	mu    sync.RWMutex
	vnets map[string]map[string]*entry // by VNet and node
}

// entry is one container. Everything in it is replaced, never changed in place,
// under index.mu.
type entry struct {
	// record is the one last saved; nil where there is none that can be read: a
	// container that was never more than begun.
	record *record
	state  State
	// pidfd is open while PID 1 is alive; -1 otherwise. events closes it.
	pidfd int
	// frozen: its processes are stopped by its cgroup.
	frozen bool
	gone   chan struct{} // closed when PID 1 has ended; nil: it never ran, as far as known
	// ending: PID 1 has begun to end. It is gone only when all of the node's processes
	// are (zap_pid_ns_processes in kernel/pid_namespace.c), which takes as long as
	// they are given of the processor.
	ending bool
	// oomKills is how many processes of the node had been killed for memory when that
	// was looked at last.
	oomKills int64
	// services is what init reported last. unwatched: the kernel had no watch left
	// for the status file, which is therefore read when asked for.
	services  []ServiceStatus
	unwatched bool
}

// List returns the containers of the VNets, or all of this instance where none is
// named, sorted; also half-made and dead ones. It reads memory alone.
func (r *Runtime) List(ctx context.Context, vnets ...string) ([]State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	x := &r.index
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(vnets) == 0 {
		vnets = slices.Collect(maps.Keys(x.vnets))
	}
	slices.Sort(vnets)
	n := 0
	for _, v := range vnets {
		n += len(x.vnets[v])
	}
	states := make([]State, 0, n)
	for _, v := range slices.Compact(vnets) {
		from := len(states)
		for _, e := range x.vnets[v] {
			states = append(states, e.state)
		}
		slices.SortFunc(states[from:], func(a, b State) int { return strings.Compare(a.Node, b.Node) })
	}
	return states, nil
}

// VNets returns the names of the VNets that there are containers of, sorted.
func (r *Runtime) VNets() []string {
	r.index.mu.RLock()
	defer r.index.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.index.vnets))
}

// Get returns what is known of one container; false if there is none. It reads
// memory alone.
func (r *Runtime) Get(id ID) (State, bool) {
	r.index.mu.RLock()
	defer r.index.mu.RUnlock()
	e := r.index.vnets[id.VNet][id.Node]
	if e == nil {
		return State{}, false
	}
	return e.state, true
}

// Exited returns a channel that is closed when the PID 1 of the container, as
// List returned it, is gone; at once, if it is not running. Closing the Runtime
// leaves the channel open.
func (r *Runtime) Exited(s State) (<-chan struct{}, error) {
	r.index.mu.RLock()
	defer r.index.mu.RUnlock()
	e := r.index.vnets[s.VNet][s.Node]
	if e != nil && e.gone != nil && s.Pid != 0 && e.record != nil && e.record.Pid == s.Pid {
		return e.gone, nil
	}
	gone := make(chan struct{})
	close(gone)
	return gone, nil
}

// stateOf is what List says of a record.
func stateOf(c *record, running bool) State {
	s := State{
		ID: c.ID, Released: c.Released, Fingerprint: c.Fingerprint, Limits: c.Limits,
		ServicesDigest: Digest(c.Services), Started: c.Created,
	}
	if running {
		s.Running, s.Pid = true, c.Pid
	}
	return s
}

// get returns the entry of a container; nil if there is none. The caller holds mu.
func (x *index) get(id ID) *entry { return x.vnets[id.VNet][id.Node] }

// add makes an entry for a container without a record; false if it has one. The
// caller holds mu.
func (x *index) add(id ID) bool {
	nodes := x.vnets[id.VNet]
	if nodes == nil {
		nodes = map[string]*entry{}
		x.vnets[id.VNet] = nodes
	}
	if nodes[id.Node] != nil {
		return false
	}
	nodes[id.Node] = &entry{state: State{ID: id}, pidfd: -1}
	return true
}

// remove forgets a container. The caller holds mu.
func (x *index) remove(id ID) {
	delete(x.vnets[id.VNet], id.Node)
	if len(x.vnets[id.VNet]) == 0 {
		delete(x.vnets, id.VNet)
	}
}

// put books a record that was saved.
func (x *index) put(c *record) {
	state := stateOf(c, false) // outside of the lock: it computes a digest
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(c.ID)
	e := x.get(c.ID)
	if e.pidfd >= 0 && !e.ending {
		state.Running, state.Pid = true, c.Pid
	}
	state.KilledForMemory = e.state.KilledForMemory
	e.record, e.state = c.clone(), state
}

// load gives a container's record. Its error is fs.ErrNotExist where there is none.
func (r *Runtime) load(id ID) (*record, error) {
	r.index.mu.RLock()
	defer r.index.mu.RUnlock()
	e := r.index.get(id)
	if e == nil || e.record == nil {
		return nil, fs.ErrNotExist
	}
	return e.record.clone(), nil
}

// signal sends a signal to a node's PID 1, which a reused number cannot stand in for.
func (r *Runtime) signal(id ID, sig unix.Signal) error {
	r.index.mu.RLock() // events closes the descriptor under the lock
	defer r.index.mu.RUnlock()
	return r.index.get(id).signal(sig)
}

// signal is for the holder of the index's lock.
func (e *entry) signal(sig unix.Signal) error {
	if e == nil || e.pidfd < 0 {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(e.pidfd, sig, nil, 0)
}

// Alive reports whether this is, at this moment, the process of a node's PID 1: then
// what was opened by its number before was the node's.
func (r *Runtime) Alive(id ID, pid int) bool {
	r.index.mu.RLock()
	defer r.index.mu.RUnlock()
	e := r.index.get(id)
	return e != nil && e.pidfd >= 0 && !e.ending && e.state.Pid == pid && !ended(e.pidfd)
}

// loadIndex reads what earlier services have left, many containers side by side.
func (r *Runtime) loadIndex() error {
	ids, err := r.listIDs()
	if err != nil {
		return err
	}
	r.index.vnets = map[string]map[string]*entry{}
	for _, id := range ids {
		r.index.add(id)
	}
	var g errgroup.Group
	g.SetLimit(2 * runtime.GOMAXPROCS(0))
	for _, id := range ids {
		g.Go(func() error { return r.adopt(id) })
	}
	return g.Wait()
}

// adopt reads a container's record and begins to watch its PID 1. A record that is
// missing or cannot be read is a container that cannot be running: it is written
// before, and only ever replaced atomically.
func (r *Runtime) adopt(id ID) error {
	c, err := r.readRecord(id)
	if err != nil {
		return nil // listed, and removed when asked for
	}
	r.index.put(c)
	return r.watch(c)
}

// watch begins to watch a node's PID 1 and what its init reports, if it is alive.
func (r *Runtime) watch(c *record) error {
	fd, err := c.pidfd()
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	r.index.mu.Lock()
	e := r.index.get(c.ID)
	e.pidfd, e.gone, e.ending = fd, make(chan struct{}), false
	e.state.Running, e.state.Pid = true, c.Pid
	r.index.mu.Unlock()
	r.readOOMKills(c.ID) // what was before has been told, or was not seen
	if err := r.events.watchExit(fd, c.ID); err != nil {
		return err
	}
	return errors.Join(r.watchStatus(c), r.watchSaved(c), r.watchOOM(c.ID))
}

// ended reports whether the process of a pidfd has ended (pidfd_open(2)).
func ended(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// exited books the end of a node's PID 1, and tells whoever waits for it.
func (r *Runtime) exited(id ID) {
	r.index.mu.Lock()
	defer r.index.mu.Unlock()
	e := r.index.get(id)
	if e == nil || e.pidfd < 0 || !ended(e.pidfd) {
		return
	}
	unix.Close(e.pidfd) // leaves the epoll set with it
	e.pidfd = -1
	e.state.Running, e.state.Pid = false, 0
	e.services = nil
	close(e.gone)
}

// listIDs lists whatever exists on the machine in the name of a container: a
// directory, a cgroup or state of the OCI runtime.
func (r *Runtime) listIDs() ([]ID, error) {
	seen := map[ID]bool{}
	nodes := filepath.Join(r.cfg.RunDir, "nodes")
	vnets, err := os.ReadDir(nodes)
	if err != nil {
		return nil, err
	}
	for _, v := range vnets {
		entries, err := os.ReadDir(filepath.Join(nodes, v.Name()))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			seen[ID{v.Name(), e.Name()}] = true
		}
	}
	groups, err := r.cgroups.Groups()
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		vnet, node, _ := strings.Cut(g, "/")
		seen[ID{vnet, node}] = true
	}
	entries, err := os.ReadDir(filepath.Join(r.cfg.RunDir, ociDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if vnet, node, ok := strings.Cut(e.Name(), "."); ok && vnet != "" {
			seen[ID{vnet, node}] = true
		}
	}
	return slices.Collect(maps.Keys(seen)), nil
}
