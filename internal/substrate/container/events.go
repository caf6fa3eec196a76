package container

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pollStatus is how often the status files that the kernel had no watch left for
// are read.
const pollStatus = 2 * time.Second

// events waits for the end of nodes' PID 1 and for what their inits report: one
// epoll instance and one goroutine, however many nodes there are.
type events struct {
	epoll, inotify int
	wake           int // eventfd that ends the goroutine
	oom            *oomWatch
	done           chan struct{}

	mu      sync.Mutex
	closed  bool
	pids    map[int32]ID // by pidfd
	files   map[int32]ID // status files, by inotify watch
	dirs    map[int32]ID // directories that nodes save to, by inotify watch
	skipped map[ID]bool  // have a status file without a watch
}

func newEvents() (*events, error) {
	e := &events{epoll: -1, inotify: -1, wake: -1, done: make(chan struct{}),
		pids: map[int32]ID{}, files: map[int32]ID{}, dirs: map[int32]ID{}, skipped: map[ID]bool{}}
	var err error
	if e.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		if e.inotify, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err == nil {
			e.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		}
	}
	fds := []int{e.inotify, e.wake}
	if err == nil {
		if e.oom, err = newOOMWatch(); err == nil {
			fds = append(fds, e.oom.fds[:]...)
		}
	}
	for _, fd := range fds {
		if err == nil {
			err = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
		}
	}
	if err != nil {
		e.release()
		return nil, fmt.Errorf("watch the nodes' processes: %w", err)
	}
	return e, nil
}

// release closes the descriptors.
func (e *events) release() {
	for _, fd := range []int{e.epoll, e.inotify, e.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	if e.oom != nil {
		e.oom.close()
	}
}

// watchExit has the end of a process reported as that of a container.
func (e *events) watchExit(pidfd int, id ID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return os.ErrClosed
	}
	e.pids[int32(pidfd)] = id
	err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, pidfd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(pidfd)})
	if err != nil {
		delete(e.pids, int32(pidfd))
		return fmt.Errorf("watch container %s: %w", id, err)
	}
	return nil
}

// watchFile has changes of a container's status file reported, and that its init has
// let go of it; false if the kernel has no watch left (fs.inotify.max_user_watches).
// Changes are told by a read now and then if there is none, where poll says so.
func (e *events) watchFile(path string, id ID, poll bool) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false, os.ErrClosed
	}
	wd, err := unix.InotifyAddWatch(e.inotify, path, unix.IN_MODIFY|unix.IN_CLOSE_WRITE)
	switch {
	case err == nil:
		e.files[int32(wd)] = id
		return true, nil
	case errors.Is(err, unix.ENOSPC):
		if poll {
			e.skipped[id] = true
		}
		return false, nil
	}
	return false, fmt.Errorf("watch %s: %w", path, err)
}

// watchDir has what is written in a directory of a node's reported. Without a watch,
// for want of any, what is there is found when the service starts.
func (e *events) watchDir(dir *os.File, id ID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return os.ErrClosed
	}
	wd, err := unix.InotifyAddWatch(e.inotify, fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO)
	if err == nil {
		e.dirs[int32(wd)] = id
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("watch %s of container %s: %w", dir.Name(), id, err)
	}
	return nil
}

// forget ends the reading of a status file without a watch. A watch ends with its file.
func (e *events) forget(id ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.skipped, id)
	e.forgetOOM(id)
}

// unwatched lists the containers whose status files have no watch.
func (e *events) unwatched() []ID {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := make([]ID, 0, len(e.skipped))
	for id := range e.skipped {
		ids = append(ids, id)
	}
	return ids
}

// run reports until close; short tells of a node in want of memory.
func (e *events) run(short, ending, exited, changed, saved func(ID)) {
	defer close(e.done)
	ready := make([]unix.EpollEvent, 256)
	for {
		polled := e.unwatched()
		timeout := -1
		if len(polled) > 0 {
			timeout = int(pollStatus / time.Millisecond)
		}
		due := e.oom.lookDue()
		if due >= 0 {
			timeout = int((due + time.Millisecond - 1) / time.Millisecond)
		}
		n, err := unix.EpollWait(e.epoll, ready, timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(fmt.Sprintf("container: wait for events: %v", err)) // a bad descriptor: a bug
		}
		e.oom.lookIfDue(short)
		if n == 0 && due < 0 { // nothing has happened for that long
			for _, id := range polled {
				changed(id)
			}
		}
		for _, ev := range ready[:max(n, 0)] {
			switch int(ev.Fd) {
			case e.wake:
				return
			case e.inotify:
				e.readChanges(ending, changed, saved)
			default:
				if e.signalled(int(ev.Fd)) {
					continue
				}
				e.mu.Lock()
				id, ok := e.pids[ev.Fd]
				delete(e.pids, ev.Fd)
				e.mu.Unlock()
				if ok {
					exited(id)
				}
			}
		}
	}
}

// readChanges reads what inotify has; many changes of one file are one.
func (e *events) readChanges(ending, changed, saved func(ID)) {
	buf := make([]byte, 64<<10)
	seen, written, closed := map[ID]bool{}, map[ID]bool{}, map[ID]bool{}
	all := false
	for {
		n, err := unix.Read(e.inotify, buf)
		if err != nil || n <= 0 {
			break // EAGAIN: that was all
		}
		e.mu.Lock()
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			id, ok := e.files[wd]
			dir, isDir := e.dirs[wd]
			short, isShort := e.oom.files[wd]
			switch {
			case mask&unix.IN_Q_OVERFLOW != 0:
				all = true
			case mask&unix.IN_IGNORED != 0: // the file is gone
				delete(e.files, wd)
				delete(e.dirs, wd)
				delete(e.oom.watches, e.oom.files[wd])
				delete(e.oom.files, wd)
			case ok && mask&unix.IN_CLOSE_WRITE != 0:
				closed[id] = true
			case ok:
				seen[id] = true
			case isShort:
				e.oom.pending[short] = 2
			case isDir:
				written[dir] = true
			}
			b = b[unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])):]
		}
		e.mu.Unlock()
	}
	if all {
		e.mu.Lock()
		for _, id := range e.files {
			seen[id] = true
		}
		for _, id := range e.dirs {
			written[id] = true
		}
		e.mu.Unlock()
	}
	for id := range written {
		saved(id)
	}
	for id := range seen {
		changed(id)
	}
	for id := range closed {
		ending(id)
	}
}

// close ends the goroutine and the watches. The pidfds are the index's.
func (e *events) close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	_, _ = unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-e.done
	e.release()
}

// watchStatus follows what the node's init reports, if it has services to report of,
// and its end.
func (r *Runtime) watchStatus(c *record) error {
	reports := len(c.Services) > 0 || c.Command != nil
	watched, err := r.events.watchFile(filepath.Join(r.nodeDir(c.ID), statusFile), c.ID, reports)
	if err != nil {
		return err
	}
	if !reports {
		return nil
	}
	r.index.mu.Lock()
	if e := r.index.get(c.ID); e != nil {
		e.unwatched = !watched
	}
	r.index.mu.Unlock()
	r.readStatus(c.ID)
	return nil
}

// readStatus reads what a node's init reports, and whether that is new. A file that
// is caught amid writing is read again at the change that completes it.
func (r *Runtime) readStatus(id ID) (news bool) {
	b, err := os.ReadFile(filepath.Join(r.nodeDir(id), statusFile))
	if err != nil {
		return false // being removed
	}
	services, ok := parseStatus(string(b))
	if !ok {
		return false
	}
	killed := r.killedForMemory(id, services)
	r.index.mu.Lock()
	defer r.index.mu.Unlock()
	e := r.index.get(id)
	if e == nil || e.pidfd < 0 {
		return false
	}
	for i := range services {
		services[i].ForMemory = killed[services[i].Name]
	}
	if slices.Equal(e.services, services) {
		return false
	}
	e.services = services
	return true
}

// onEnding, onExit and onStatus are called by the goroutine of events.
func (r *Runtime) onEnding(id ID) {
	if r.ending(id) {
		r.notify(id)
	}
}

func (r *Runtime) onExit(id ID) {
	r.ending(id)
	r.exited(id)
	r.notify(id)
}

func (r *Runtime) onStatus(id ID) {
	if r.readStatus(id) {
		r.notify(id)
	}
}

func (r *Runtime) notify(id ID) {
	if r.cfg.Changed != nil {
		r.cfg.Changed(id)
	}
}
