package agent

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/agent/guard"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/kernel"
	"trellis/internal/substrate/netns"
)

const (
	// memoryEvery is how often the kernel's own memory is looked at. A look costs some
	// 40 µs.
	memoryEvery = 100 * time.Millisecond
	// memoryGrowth is how much it must have grown for the nodes to be looked at, in bytes.
	memoryGrowth = 32 << 20
	// memoryAgain is how much it must have grown then for another look, in bytes, and
	// memoryUrgent for one at once, without a rest.
	memoryAgain  = 8 << 20
	memoryUrgent = 128 << 20
	// memoryNodes is how many nodes are looked at, those first that have used the most
	// processor time since the last time.
	memoryNodes = 32
	// memoryRest is how long a look at the nodes is followed by none, in times of what it
	// took; without it, one network that comes up would have all others looked at.
	// memoryNearRest is that while some node has come near to its limit.
	memoryRest     = 20
	memoryNearRest = 2
	// freeListsEvery is how often the CPUs' lists of free pages are read while they alone
	// may hide, or feign, that the kernel's memory has grown.
	freeListsEvery = time.Second
)

// memoryGuard ends nodes that have the kernel hold more memory for them than their limit
// leaves, where no cgroup is charged with it; see package guard.
type memoryGuard struct {
	a     *Agent
	floor int64 // of the kernel's memory when the nodes were looked at, or less since
	rest  time.Time
	cpu   map[container.ID]float64 // seconds, when they were looked at
	told  time.Time

	free    int64 // bytes in the CPUs' lists of free pages
	freeAt  time.Time
	tables  *netns.NeighbourTables // nil: they cannot be read
	entries int                    // in the fuller of them, when the nodes were looked at
}

// guardMemory looks at the kernel's memory until ctx ends, on a thread of its own that
// goes before others.
func (a *Agent) guardMemory(ctx context.Context) {
	g := &memoryGuard{a: a}
	var err error
	if g.tables, err = netns.OpenNeighbourTables(); err != nil {
		a.log.Warn("the neighbour tables are not guarded: one node may fill them for all", "error", err)
	} else {
		defer g.tables.Close()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()                                      // which ends with the goroutine
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // else as all others
		for ctx.Err() == nil {
			sleepThread(memoryEvery)
			if err := g.look(ctx); err != nil && ctx.Err() == nil && time.Since(g.told) > softirqComplain {
				g.told = time.Now()
				a.log.Warn("cannot guard the kernel's memory", "error", err)
			}
		}
	}()
	<-done
}

// read tells how much memory the kernel takes. The CPUs' lists of free pages, which
// cost more to read, it reads where they decide.
func (g *memoryGuard) read() (kernel.Memory, error) {
	m, err := kernel.ReadMemory()
	if err != nil {
		return m, err
	}
	grown := func(used int64) bool { return g.floor == 0 || used-g.floor >= memoryGrowth }
	if grown(m.Kernel-g.free) || grown(m.Kernel) && time.Since(g.freeAt) > freeListsEvery {
		if g.free, err = kernel.ReadFreeLists(); err != nil {
			return m, err
		}
		g.freeAt = time.Now()
	}
	m.Kernel -= g.free
	return m, nil
}

func (g *memoryGuard) look(ctx context.Context) error {
	m, err := g.read()
	if err != nil {
		return err
	}
	var table guard.Neighbours
	if g.tables != nil {
		if table.Entries, table.Limit, err = g.tables.Read(); err != nil {
			return err
		}
	}
	if g.floor == 0 || m.Kernel < g.floor {
		g.floor = m.Kernel
	}
	if m.Kernel-g.floor < memoryGrowth && !table.Crowded() {
		return nil
	}
	urgent := m.Free < m.Total/10 || m.Kernel-g.floor > memoryUrgent || table.Entries-g.entries > table.Limit/8
	if time.Now().Before(g.rest) && !urgent {
		return nil
	}
	start := time.Now()
	states, err := g.busiest(ctx)
	if err != nil {
		return err
	}
	rest := time.Duration(memoryRest)
	for _, s := range states {
		near, err := g.judge(s, m.Total, table)
		if near {
			rest = memoryNearRest
		}
		if err != nil {
			g.a.log.Warn("cannot tell what the kernel holds for a node", "vnet", s.VNet, "node", s.Node, "error", err)
		}
	}
	if m, err = g.read(); err != nil {
		return err
	}
	// What others take is not looked for again; what a node goes on to take is.
	g.floor = m.Kernel - memoryGrowth + memoryAgain
	g.entries = table.Entries
	g.rest = time.Now().Add(rest * time.Since(start))
	return nil
}

// busiest gives the nodes that have used the most processor time since the last look.
func (g *memoryGuard) busiest(ctx context.Context) ([]container.State, error) {
	states, err := g.a.containers.List(ctx)
	if err != nil {
		return nil, err
	}
	used := make(map[container.ID]float64, len(states))
	cpu := make(map[container.ID]float64, len(states))
	running := states[:0]
	for _, s := range states {
		if !s.Running {
			continue
		}
		running = append(running, s)
		st, err := g.a.containers.Stat(s.ID)
		if err != nil {
			continue // it has gone meanwhile
		}
		cpu[s.ID] = st.CPU
		used[s.ID] = st.CPU - g.cpu[s.ID]
	}
	g.cpu = cpu
	slices.SortStableFunc(running, func(a, b container.State) int { return cmp.Compare(used[b.ID], used[a.ID]) })
	return running[:min(len(running), memoryNodes)], nil
}

// judge finds out whether a node offends, and if so ends it and says so. near: it
// holds half of what makes it offend.
func (g *memoryGuard) judge(s container.State, machine int64, table guard.Neighbours) (near bool, err error) {
	ns, err := netns.OfPid(s.Pid)
	if err != nil {
		return false, nil // it has gone meanwhile
	}
	defer ns.Close()
	m := guard.KernelMemory{Limit: s.Limits.Memory, Machine: machine}
	if st, err := g.a.containers.Stat(s.ID); err == nil {
		m.Charged = st.Memory
	}
	held, err := ns.Memory(m.Leaves())
	if err != nil {
		return false, err
	}
	m.Uncharged = held.Sum()
	near = m.Uncharged > m.Leaves()/2
	var why string
	switch {
	case m.Offends():
		why = fmt.Sprintf("killed: the kernel held %d MiB for it besides its memory: %s", m.Uncharged>>20, largest(held))
	case table.TakesTooMany(held.Resolved):
		why = fmt.Sprintf("killed: it had %d of the %d neighbours that there is room for on this machine", held.Resolved, table.Limit)
	default:
		return near, nil
	}
	if !g.a.containers.Alive(s.ID, s.Pid) {
		return false, nil
	}
	g.a.log.Warn("a node took more of the kernel than its share", "vnet", s.VNet, "node", s.Node, "done", why)
	g.a.reportGuarded(s.ID, why)
	g.a.noteKilled(s.ID, why)
	return near, g.a.containers.KillNode(s.ID)
}

// noteKilled has the end of a node that is about to be killed told with its reason.
func (a *Agent) noteKilled(id container.ID, why string) {
	w := a.workerOf(id.VNet)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.killed[id.Node] = why
}

// takeKilled gives why a node was killed that has ended; empty: nobody here has killed it.
func (w *worker) takeKilled(node string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	why := w.killed[node]
	delete(w.killed, node)
	return why
}

// largest says what most of it is.
func largest(m netns.Memory) string {
	parts := []struct {
		size int64
		what string
	}{
		{m.Queues, "in the queues of its devices"}, {m.Netlink, "in netlink sockets"}, {m.Packets, "in packet sockets"},
		{m.Fragments, "of fragments"}, {m.Routes, "of IPv6 routes"}, {m.Neighbours, "of neighbours"},
		{m.Forwarding, "in forwarding tables"}, {m.Devices, "of queues of devices"},
		{m.Classes, "of classes of queueing disciplines"}, {m.Nexthops, "of nexthops"},
	}
	slices.SortStableFunc(parts, func(a, b struct {
		size int64
		what string
	}) int {
		return cmp.Compare(b.size, a.size)
	})
	var said []string
	for _, p := range parts {
		if p.size >= m.Sum()/10 {
			said = append(said, fmt.Sprintf("%d MiB %s", p.size>>20, p.what))
		}
	}
	return strings.Join(said, ", ")
}
