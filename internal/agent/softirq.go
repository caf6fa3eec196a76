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
	// softirqComplain is how often a saturated CPU is logged that no node is to blame for.
	softirqComplain = time.Minute
)

// softirqGuard bounds what nodes make the kernel do in softirqs; see package guard.
type softirqGuard struct {
	a        *Agent
	log      *slog.Logger
	meter    *softirq.Meter
	profiler *softirq.Profiler
	ledger   guard.Ledger[container.ID]
	inodes   map[int]uint64 // of network namespaces, by process id of a node's init
	told     time.Time
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
	if err != nil || !guard.Saturated(shares) {
		return err
	}
	start := time.Now()
	uses, err := g.profiler.Profile(func() { sleepThread(softirqWindow) })
	if err != nil {
		return err
	}
	cores := func(t time.Duration) float64 { return float64(t) / float64(time.Since(start)) }
	byNetns := map[uint64][]softirq.Use{}
	all := map[uint64]time.Duration{}
	for _, u := range uses {
		byNetns[u.Netns] = append(byNetns[u.Netns], u)
		all[u.Netns] += u.Time
	}
	maps.DeleteFunc(all, func(_ uint64, t time.Duration) bool { return !guard.Use{Cores: cores(t)}.Excessive() })
	if len(all) == 0 {
		g.complain("softirqs take a CPU whole, and no node is to blame", "cpus", fmt.Sprintf("%.2f", shares))
		return nil
	}
	nodes, err := g.nodesOf(all)
	if err != nil {
		return err
	}
	for inode, id := range nodes {
		if err := g.judge(id, byNetns[inode], cores); err != nil {
			g.log.Error("cannot stop what takes the CPUs", "node", id, "error", err)
		}
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

// judge finds out whether a node offends, and if so sets its own devices down, holds
// it, and says so.
func (g *softirqGuard) judge(id container.ID, uses []softirq.Use, cores func(time.Duration) float64) error {
	state, ok := g.a.containers.Get(id)
	if !ok || !state.Running {
		return nil
	}
	ns, err := netns.OfPid(state.Pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	links, err := ns.Links()
	if err != nil {
		return err
	}
	byIndex := map[int]*rtnl.Link{}
	for i := range links {
		byIndex[links[i].Index] = &links[i]
	}
	slices.SortFunc(uses, func(a, b softirq.Use) int { return cmp.Compare(b.Time, a.Time) })
	use := guard.Use{Limit: state.Limits.CPU}
	var down []int
	var told []string
	for _, u := range uses {
		use.Cores += cores(u.Time)
		l := byIndex[u.Ifindex]
		if l == nil {
			continue // it is gone
		}
		if l.PeerElsewhere {
			use.Ports += u.Packets
		} else if l.Flags&unix.IFF_LOOPBACK == 0 {
			use.Own += u.Packets
		}
		// The doing of a bridge, if it is the port of one.
		if by := byIndex[l.Master]; by != nil {
			l = by
		}
		if l.PeerElsewhere || l.Flags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		use.Samples += u.Samples
		use.Repeats += u.Repeats
		if !slices.Contains(down, l.Index) {
			down = append(down, l.Index)
			told = append(told, l.Name)
		}
	}
	if !use.Offends() || !g.a.containers.Alive(id, state.Pid) {
		return nil
	}
	hold := g.ledger.Add(id, time.Now())
	if hold > 0 {
		if err := g.a.containers.Freeze(id); err != nil {
			g.log.Error("cannot freeze a node", "node", id, "error", err)
		}
		time.AfterFunc(hold, func() {
			if err := g.a.containers.Thaw(id); err != nil {
				g.log.Error("cannot thaw a node", "node", id, "error", err)
			}
		})
	}
	if err := ns.SetDown(down[:min(len(down), softirqDevices)]...); err != nil {
		return err
	}
	if len(told) > softirqNames {
		told = append(told[:softirqNames], fmt.Sprintf("%d more", len(told)-softirqNames))
	}
	why := fmt.Sprintf("%s set down: packets that circled there took %.1f CPU cores", strings.Join(told, ", "), use.Cores)
	if hold > 0 {
		why += fmt.Sprintf("; its processes are frozen for %s", hold)
	}
	g.log.Warn("a node took more of the CPUs than its share", "vnet", id.VNet, "node", id.Node, "done", why)
	g.a.reportGuarded(id, why)
	return nil
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
	a.mu.Lock()
	w := a.workers[id.VNet]
	a.mu.Unlock()
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
