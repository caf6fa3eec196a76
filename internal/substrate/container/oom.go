package container

import (
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A node's init that is killed for want of memory ends when it is given the processor,
// which it shares with all processes of its node: in a node with many and a small
// limit that takes half a minute. So the want of memory is watched as well, and who
// has been sent the signal counts as ending. With cgroup v1 an eventfd stands for many
// nodes, since each of its own would be one descriptor more.

const (
	oomBuckets = 64
	// oomEvery bounds how often nodes in want of memory are looked at. The kernel
	// notifies before it kills, so they are looked at again after it.
	oomEvery = 250 * time.Millisecond
)

// oomWatch is the part of events about the want of memory. It is of the goroutine of
// events alone, but for members, files and watches, which are under events.mu.
type oomWatch struct {
	fds     [oomBuckets]int // eventfds
	members [oomBuckets]map[ID]bool
	files   map[int32]ID // memory.events, by inotify watch
	watches map[ID]int32 // the same by node
	pending map[ID]int   // nodes to look at, and how often yet
	looked  time.Time    // when they were
}

func newOOMWatch() (*oomWatch, error) {
	w := &oomWatch{files: map[int32]ID{}, watches: map[ID]int32{}, pending: map[ID]int{}}
	for i := range w.fds {
		w.fds[i], w.members[i] = -1, map[ID]bool{}
	}
	for i := range w.fds {
		var err error
		if w.fds[i], err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			w.close()
			return nil, err
		}
	}
	return w, nil
}

func (w *oomWatch) close() {
	for _, fd := range w.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// bucket gives the place of a node among the eventfds.
func (w *oomWatch) bucket(id ID) int {
	h := fnv.New32a()
	fmt.Fprint(h, id)
	return int(h.Sum32() % oomBuckets)
}

// signalled takes the notice of an eventfd in; false: it is none of these.
func (e *events) signalled(fd int) bool {
	for i, f := range e.oom.fds {
		if f != fd {
			continue
		}
		var buf [8]byte
		_, _ = unix.Read(fd, buf[:]) // it was readable
		e.mu.Lock()
		for id := range e.oom.members[i] {
			e.oom.pending[id] = 2
		}
		e.mu.Unlock()
		return true
	}
	return false
}

// lookDue gives how long it takes until nodes in want of memory are looked at;
// negative: there are none.
func (w *oomWatch) lookDue() time.Duration {
	if len(w.pending) == 0 {
		return -1
	}
	return max(0, oomEvery-time.Since(w.looked))
}

// lookIfDue looks at the nodes that are due.
func (w *oomWatch) lookIfDue(look func(ID)) {
	if w.lookDue() != 0 {
		return
	}
	for id, more := range w.pending {
		look(id)
		if w.pending[id] = more - 1; more == 1 {
			delete(w.pending, id)
		}
	}
	w.looked = time.Now()
}

// watchOOM has the want of memory of a node watched.
func (r *Runtime) watchOOM(id ID) error {
	e := r.events
	bucket := e.oom.bucket(id)
	file, err := r.cgroups.WatchOOM(groupOf(id), e.oom.fds[bucket])
	if err != nil {
		return fmt.Errorf("watch the memory of container %s: %w", id, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return os.ErrClosed
	}
	if file == "" {
		e.oom.members[bucket][id] = true
		return nil
	}
	// Without a watch, for want of any, the end is seen when it comes.
	if wd, err := unix.InotifyAddWatch(e.inotify, file, unix.IN_MODIFY); err == nil {
		e.oom.files[int32(wd)], e.oom.watches[id] = id, int32(wd)
	}
	return nil
}

// forgetOOM ends the watch of a node's memory. The caller holds mu.
func (e *events) forgetOOM(id ID) {
	delete(e.oom.members[e.oom.bucket(id)], id)
	if wd, ok := e.oom.watches[id]; ok {
		// Not every kernel ends it with the cgroup; where it has, this fails.
		_, _ = unix.InotifyRmWatch(e.inotify, uint32(wd))
		delete(e.oom.files, wd)
		delete(e.oom.watches, id)
	}
}

// onOOM is called by the goroutine of events: it looks whether a node's PID 1 has been
// sent SIGKILL, which it cannot have been by anybody in the node.
func (r *Runtime) onOOM(id ID) {
	s, ok := r.Get(id)
	if !ok || !s.Running {
		return
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Pid))
	if err != nil || !killed(string(b)) || !r.Alive(id, s.Pid) {
		return // what has ended is told otherwise
	}
	r.onEnding(id)
}

// killed reports whether a process that /proc/PID/status tells of has SIGKILL pending
// (proc_pid_status(5)).
func killed(status string) bool {
	for line := range strings.Lines(status) {
		if name, set, _ := strings.Cut(line, ":"); name == "SigPnd" || name == "ShdPnd" {
			if signals, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64); err == nil && signals&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}
