package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trellis/internal/agent/guard"
	"trellis/internal/store"
	"trellis/internal/substrate/container"
	"trellis/internal/substrate/netns"
	"trellis/internal/substrate/rtnl"
	"trellis/internal/substrate/softirq"
)

const (
	// softirqEvery is how often the CPUs' softirq time is looked at. A look costs some
	// 50 µs, more on machines with many CPUs.
	softirqEvery = 200 * time.Millisecond
	// softirqWindow is how long packets are counted while a CPU is saturated.
	softirqWindow = 60 * time.Millisecond
	// softirqNames bounds how many devices a message names.
	softirqNames = 4
	// softirqDevices bounds how many devices of a node are set down at once, the busiest
	// first: each takes milliseconds.
	softirqDevices = 64
	// softirqLeast is what a node's packets take at the least to be looked at, in cores.
	softirqLeast = 0.05
	// softirqRest is how long nobody is looked for after nobody was to blame: where much
	// is forwarded, looking would cost a part of it.
	softirqRest = 400 * time.Millisecond
	// softirqComplain is how often a fault of the guard's own is logged.
	softirqComplain = time.Minute
)

// softirqGuard bounds what nodes make the kernel do in softirqs; see package guard.
type softirqGuard struct {
	a        *Agent
	log      *slog.Logger
	meter    *softirq.Meter
	profiler *softirq.Profiler
	ledger   guard.Ledger[offenderKey]
	holds    holds
	inodes   map[int]uint64 // of network namespaces, by process id of a node's init
	told     time.Time
	rest     time.Time // until then, nobody is looked for
}

// offenderKey is whose offences are remembered: a node's, over its restarts, while its
// network is up. One that is brought up later under the same name is another.
type offenderKey struct {
	network *worker
	node    string
}

// holds are the nodes that are frozen, with the container and until when: one that has
// started since is let go by nobody's timer, and one that has offended again by the last.
type holds struct {
	mu   sync.Mutex
	held map[container.ID]hold
}

type hold struct {
	pid     int
	started time.Time
	until   time.Time
}

// set notes that a container is held.
func (h *holds) set(s container.State, until time.Time) hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		h.held = map[container.ID]hold{}
	}
	now := hold{pid: s.Pid, started: s.Started, until: until}
	h.held[s.ID] = now
	return now
}

// end reports whether the hold is the last of that container, which it forgets.
func (h *holds) end(id container.ID, one hold) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held[id] != one {
		return false
	}
	delete(h.held, id)
	return true
}

// guardSoftirqs looks at the CPUs until ctx ends. It has a thread of its own, before
// all others of the machine: softirqs that take the CPUs keep those waiting.
func (a *Agent) guardSoftirqs(ctx context.Context) {
	meter, err := softirq.NewMeter()
	if err != nil {
		a.log.Warn("softirqs are not guarded: a node that makes packets circle can take the machine's CPUs", "error", err)
		return
	}
	defer meter.Close()
	profiler, err := softirq.OpenProfiler()
	if err != nil {
		a.log.Warn("softirqs are not guarded: a node that makes packets circle can take the machine's CPUs", "error", err)
		return
	}
	defer profiler.Close()
	g := &softirqGuard{a: a, log: a.log, meter: meter, profiler: profiler, inodes: map[int]uint64{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // which ends with the goroutine
		putFirst()
		a.log.Info("softirqs are guarded")
		for ctx.Err() == nil {
			sleepThread(softirqEvery)
			if err := g.look(); err != nil {
				g.complain("cannot guard softirqs", "error", err)
			}
		}
	}()
	<-done
}

// putFirst has the calling thread run before others: as a real-time thread or, where
// its cgroup may have none, at the highest priority of the others (sched(7)).
func putFirst() {
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: unix.SCHED_FLAG_RESET_ON_FORK}
	if unix.SchedSetAttr(0, attr, 0) != nil {
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20) // else as all others
	}
}

// sleepThread has the thread sleep, and not only the goroutine: whoever wakes that one
// may be waiting for a CPU.
func sleepThread(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	for unix.Nanosleep(&ts, &ts) == unix.EINTR {
	}
}

// look takes a look at the CPUs, and at who takes them if one is saturated.
func (g *softirqGuard) look() error {
	shares, err := g.meter.Read()
	if err != nil || !guard.Saturated(shares) || time.Now().Before(g.rest) {
		return err
	}
	var window time.Duration // on a busy machine, the sleep takes longer
	uses, err := g.profiler.Profile(func() {
		start := time.Now()
		sleepThread(softirqWindow)
		window = time.Since(start)
	})
	if err != nil {
		return err
	}
	cores := func(t time.Duration) float64 { return float64(t) / float64(window) }
	byNetns := map[uint64][]softirq.Use{}
	took := map[uint64]time.Duration{}
	for _, u := range uses {
		byNetns[u.Netns] = append(byNetns[u.Netns], u)
		took[u.Netns] += u.Time
	}
	maps.DeleteFunc(took, func(_ uint64, t time.Duration) bool { return cores(t) < softirqLeast })
	nodes, err := g.nodesOf(took)
	if err != nil {
		return err
	}
	byVNet := map[string][]*offender{}
	for inode, id := range nodes {
		if o := g.inspect(id, byNetns[inode], cores); o != nil {
			byVNet[id.VNet] = append(byVNet[id.VNet], o)
		}
	}
	stopped := false
	for _, offenders := range byVNet {
		var together []guard.Use
		for _, o := range offenders {
			together = append(together, o.use)
		}
		if !guard.Excessive(together...) {
			continue
		}
		for _, o := range offenders {
			if o.use.Circles() {
				g.stop(o)
				stopped = true
			}
		}
	}
	if !stopped {
		g.rest = time.Now().Add(softirqRest)
		return nil
	}
	_, err = g.meter.Read() // what was measured until now is dealt with
	return err
}

// nodesOf finds the nodes that have those network namespaces.
func (g *softirqGuard) nodesOf(inodes map[uint64]time.Duration) (map[uint64]container.ID, error) {
	states, err := g.a.containers.List(context.Background())
	if err != nil {
		return nil, err
	}
	known := make(map[int]uint64, len(states))
	found := map[uint64]container.ID{}
	for _, s := range states {
		if !s.Running {
			continue
		}
		inode, ok := g.inodes[s.Pid]
		if !ok {
			info, err := os.Stat("/proc/" + strconv.Itoa(s.Pid) + "/ns/net")
			if err != nil {
				continue // it has ended
			}
			inode = info.Sys().(*syscall.Stat_t).Ino
		}
		known[s.Pid] = inode
		if _, asked := inodes[inode]; asked {
			found[inode] = s.ID
		}
	}
	g.inodes = known
	return found, nil
}

// offender is a node whose packets take much of the CPUs.
type offender struct {
	state   container.State
	use     guard.Use
	devices []int    // on which they circle, if they do, the busiest first
	names   []string // of those
}

// inspect looks into a node; nil if it has gone meanwhile.
func (g *softirqGuard) inspect(id container.ID, uses []softirq.Use, cores func(time.Duration) float64) *offender {
	state, ok := g.a.containers.Get(id)
	if !ok || !state.Running {
		return nil
	}
	ns, err := netns.OfPid(state.Pid)
	if err != nil {
		return nil
	}
	defer ns.Close()
	links, err := ns.Links()
	if err != nil {
		g.complain("cannot tell what takes the CPUs", "vnet", id.VNet, "node", id.Node, "error", err)
		return nil
	}
	byIndex := map[int]*rtnl.Link{}
	for i := range links {
		byIndex[links[i].Index] = &links[i]
	}
	slices.SortFunc(uses, func(a, b softirq.Use) int { return cmp.Compare(b.Time, a.Time) })
	o := &offender{state: state, use: guard.Use{Limit: state.Limits.CPU}}
	for _, u := range uses {
		o.use.Cores += cores(u.Time)
		l := byIndex[u.Ifindex]
		if l == nil {
			continue // it is gone
		}
		if l.PeerElsewhere {
			o.use.Ports += u.Packets
		} else if l.Flags&unix.IFF_LOOPBACK == 0 {
			o.use.Own += u.Packets
		}
		// The doing of a bridge, if it is the port of one.
		if by := byIndex[l.Master]; by != nil {
			l = by
		}
		if l.PeerElsewhere || l.Flags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		o.use.Samples += u.Samples
		o.use.Repeats += u.Repeats
		if !slices.Contains(o.devices, l.Index) {
			o.devices = append(o.devices, l.Index)
			o.names = append(o.names, l.Name)
		}
	}
	return o
}

// stop sets a node's own devices down, freezes it if it is not the first time, and
// says so.
func (g *softirqGuard) stop(o *offender) {
	id := o.state.ID
	log := g.log.With("vnet", id.VNet, "node", id.Node)
	ns, err := netns.OfPid(o.state.Pid)
	if err != nil {
		return // it has gone meanwhile
	}
	defer ns.Close()
	if !g.a.containers.Alive(id, o.state.Pid) {
		return
	}
	frozen := g.ledger.Add(offenderKey{g.a.workerOf(id.VNet), id.Node}, time.Now())
	if frozen > 0 {
		if err := g.a.containers.Freeze(id); err != nil {
			log.Error("cannot freeze a node", "error", err)
		}
		held := g.holds.set(o.state, time.Now().Add(frozen))
		time.AfterFunc(frozen, func() {
			now, there := g.a.containers.Get(id)
			if !g.holds.end(id, held) || !there || now.Pid != held.pid || !now.Started.Equal(held.started) {
				return
			}
			if err := g.a.containers.Thaw(id); err != nil {
				log.Error("cannot thaw a node", "error", err)
			}
		})
	}
	if err := ns.SetDown(o.devices[:min(len(o.devices), softirqDevices)]...); err != nil {
		log.Error("cannot set down what takes the CPUs", "error", err)
	}
	names := o.names
	if len(names) > softirqNames {
		names = append(names[:softirqNames:softirqNames], fmt.Sprintf("%d more", len(names)-softirqNames))
	}
	why := fmt.Sprintf("%s set down: packets that circled there took %.1f CPU cores", strings.Join(names, ", "), o.use.Cores)
	if frozen > 0 {
		why += fmt.Sprintf("; its processes are frozen for %s", frozen)
	}
	log.Warn("a node took more of the CPUs than its share", "done", why)
	g.a.reportGuarded(id, why)
}

// complain logs, but not all the time.
func (g *softirqGuard) complain(message string, args ...any) {
	if time.Since(g.told) < softirqComplain {
		return
	}
	g.told = time.Now()
	g.log.Warn(message, args...)
}

// reportGuarded has the node's status say what was done to it, for as long as the
// offence counts.
func (a *Agent) reportGuarded(id container.ID, why string) {
	w := a.workerOf(id.VNet)
	if w == nil {
		return
	}
	w.mu.Lock()
	w.guarded[id.Node] = why
	w.mu.Unlock()
	w.reportNode(id.Node)
	time.AfterFunc(guard.Remembered, func() {
		w.mu.Lock()
		same := w.guarded[id.Node] == why
		if same {
			delete(w.guarded, id.Node)
		}
		w.mu.Unlock()
		if same {
			w.reportNode(id.Node)
		}
	})
}

// workerOf gives the network's worker; nil: it has none, or no longer.
func (a *Agent) workerOf(vnet string) *worker {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.workers[vnet]
}

// reportNode reports a running node's state anew.
func (w *worker) reportNode(name string) {
	w.report.update(true, func(s *store.Status) {
		n, ok := s.Nodes[name]
		if !ok || n.State != store.NodeRunning && n.State != store.NodeDegraded {
			return
		}
		nodes := maps.Clone(s.Nodes) // the old map may be on its way to the store
		nodes[name] = w.withFault(name, n)
		s.Nodes = nodes
	})
}
