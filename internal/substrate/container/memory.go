package container

import (
	"time"

	"golang.org/x/sys/unix"
)

// The kernel counts, by cgroup, the processes that it has killed for want of memory,
// and names none. So a process that ended by SIGKILL counts as one of them if the
// count has grown since it was looked at last.

// readOOMKills looks at the count, and reports whether it has grown.
func (r *Runtime) readOOMKills(id ID) bool {
	n, err := r.cgroups.OOMKills(groupOf(id))
	if err != nil {
		return false // it is being removed
	}
	r.index.mu.Lock()
	defer r.index.mu.Unlock()
	e := r.index.get(id)
	if e == nil {
		return false
	}
	grown := n > e.oomKills
	e.oomKills = n
	return grown
}

// killedForMemory tells which of the services, as init reports them now, were killed
// for want of memory when they ended last, and when that was seen.
func (r *Runtime) killedForMemory(id ID, now []ServiceStatus) map[string]time.Time {
	killed := map[string]time.Time{}
	r.index.mu.RLock()
	old := map[string]ServiceStatus{}
	if e := r.index.get(id); e != nil {
		for _, s := range e.services {
			old[s.Name] = s
		}
	}
	r.index.mu.RUnlock()
	var fresh []string // have ended by SIGKILL since
	for _, s := range now {
		was, known := old[s.Name]
		ended := !known || was.Restarts != s.Restarts || was.State != s.State && s.State == ServiceExited
		switch {
		case s.Exit != 128+int(unix.SIGKILL):
		case ended:
			fresh = append(fresh, s.Name)
		default:
			killed[s.Name] = was.ForMemory
		}
	}
	if len(fresh) > 0 && r.readOOMKills(id) {
		for _, name := range fresh {
			killed[name] = time.Now()
		}
	}
	return killed
}

// ending books that a node's PID 1 has begun to end, and why; false: it is known.
func (r *Runtime) ending(id ID) bool {
	r.index.mu.RLock()
	e := r.index.get(id)
	known := e == nil || e.pidfd < 0 || e.ending
	r.index.mu.RUnlock()
	if known {
		return false
	}
	forMemory := r.readOOMKills(id)
	r.index.mu.Lock()
	defer r.index.mu.Unlock()
	if e = r.index.get(id); e == nil || e.pidfd < 0 {
		return false
	}
	e.ending = true
	e.state.Running, e.state.Pid, e.state.KilledForMemory = false, 0, forMemory
	return true
}
