package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// period is the time over which a CPU quota is given out, in microseconds: the
// kernel's default.
const period = 100_000

// minQuota is the least quota that the kernel takes, in microseconds.
const minQuota = 1_000

// SetLimits changes the limits of a group, also while it is in use.
func (t *Tree) SetLimits(group string, l Limits) error { return t.setLimits(group, l, false) }

// LiftCPU takes a group's limit of the processor away.
func (t *Tree) LiftCPU(group string) error {
	for _, h := range t.hierarchies {
		if !slices.Contains(h.controllers, "cpu") {
			continue
		}
		if err := setCPU(t.path(h, group), h.v2, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("lift the cpu limit: %w", err)
		}
	}
	return nil
}

// OOMKills counts the group's processes that were killed for want of memory.
func (t *Tree) OOMKills(group string) (int64, error) {
	for _, h := range t.hierarchies {
		if slices.Contains(h.controllers, "memory") {
			return oomKills(t.path(h, group), h.v2)
		}
	}
	return 0, nil
}

// WatchOOM has the group's want of memory notified of. With cgroup v2 that is a
// change of the file that it names, of which inotify tells; with v1 the eventfd is
// signalled, which may be that of many groups (Documentation/admin-guide/cgroup-v1/memory.rst,
// section 10). A kernel without either names no file.
func (t *Tree) WatchOOM(group string, eventfd int) (file string, err error) {
	for _, h := range t.hierarchies {
		dir := t.path(h, group)
		switch {
		case !slices.Contains(h.controllers, "memory"):
			continue
		case h.v2:
			return filepath.Join(dir, "memory.events"), nil
		}
		control, err := os.Open(filepath.Join(dir, "memory.oom_control"))
		if err != nil {
			return "", err
		}
		defer control.Close()
		err = write(filepath.Join(dir, "cgroup.event_control"), fmt.Sprintf("%d %d", eventfd, control.Fd()))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return "", err
	}
	return "", nil
}

func oomKills(dir string, v2 bool) (int64, error) {
	file := "memory.oom_control"
	if v2 {
		file = "memory.events"
	}
	return readField(dir, file, "oom_kill")
}

// setLimits passes over what has no limit in a fresh group: it has none, and to say so
// costs the kernel the more the more groups there are (tg_set_cfs_bandwidth).
func (t *Tree) setLimits(group string, l Limits, fresh bool) error {
	for _, h := range t.hierarchies {
		for _, c := range h.controllers {
			var err error
			switch dir := t.path(h, group); {
			case fresh && l.none(c):
			case c == "cpu":
				err = setCPU(dir, h.v2, l.CPU)
			case c == "memory":
				err = setMemory(dir, h.v2, l.Memory)
			case c == "pids":
				err = setPids(dir, l.Pids)
			}
			if err != nil {
				return fmt.Errorf("set the %s limit: %w", c, err)
			}
		}
	}
	return nil
}

// none reports whether a controller has nothing to bind.
func (l Limits) none(controller string) bool {
	switch controller {
	case "cpu":
		return l.CPU <= 0
	case "memory":
		return l.Memory <= 0
	case "pids":
		return l.Pids <= 0
	}
	return true
}

func setCPU(dir string, v2 bool, cores float64) error {
	quota := "-1"
	if v2 {
		quota = "max"
	}
	if cores > 0 {
		quota = strconv.Itoa(max(minQuota, int(math.Round(cores*period))))
	}
	if v2 {
		return write(filepath.Join(dir, "cpu.max"), fmt.Sprintf("%s %d", quota, period))
	}
	return write(filepath.Join(dir, "cpu.cfs_quota_us"), quota)
}

func setMemory(dir string, v2 bool, bytes int64) error {
	if v2 {
		limit := "max"
		if bytes > 0 {
			limit = strconv.FormatInt(bytes, 10)
			// Swap would lift the limit. A kernel without swap has no such file.
			if err := write(filepath.Join(dir, "memory.swap.max"), "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return write(filepath.Join(dir, "memory.max"), limit)
	}
	limit := "-1"
	if bytes > 0 {
		limit = strconv.FormatInt(bytes, 10)
	}
	if err := setSockets(dir, bytes); err != nil {
		return err
	}
	mem, memsw := filepath.Join(dir, "memory.limit_in_bytes"), filepath.Join(dir, "memory.memsw.limit_in_bytes")
	if !exists(memsw) {
		return write(mem, limit)
	}
	// The kernel holds limit ≤ memsw.limit at every moment: raising goes from
	// above, lowering from below. Whichever it is, one of the orders works.
	if write(mem, limit) == nil {
		return write(memsw, limit)
	}
	return errors.Join(write(memsw, limit), write(mem, limit))
}

// minSockets is what the queues of a group's sockets may take in any case, in bytes: a
// TCP connection has up to 6 MiB to receive and 4 to send.
const minSockets = 16 << 20

// setSockets bounds the queues of TCP and UDP sockets, which version 2 counts as memory,
// and version 1 apart from it, only where a limit was set (mem_cgroup_sk_alloc and
// mem_cgroup_charge_skmem in mm/memcontrol.c). A quarter of the memory is more than
// queues need, and little more than the memory altogether.
func setSockets(dir string, bytes int64) error {
	limit := "-1"
	if bytes > 0 {
		limit = strconv.FormatInt(max(bytes/4, minSockets), 10)
	}
	err := write(filepath.Join(dir, "memory.kmem.tcp.limit_in_bytes"), limit)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EOPNOTSUPP) {
		return nil // a kernel without it
	}
	return err
}

func setPids(dir string, n int) error {
	limit := "max"
	if n > 0 {
		limit = strconv.Itoa(n)
	}
	return write(filepath.Join(dir, "pids.max"), limit)
}

// Usage reads what a group uses.
func (t *Tree) Usage(group string) (Usage, error) {
	var u Usage
	for _, h := range t.hierarchies {
		dir := t.path(h, group)
		for _, c := range h.controllers {
			if err := u.read(dir, c, h.v2); err != nil {
				return Usage{}, fmt.Errorf("read the %s usage: %w", c, err)
			}
		}
	}
	return u, nil
}

func (u *Usage) read(dir, controller string, v2 bool) (err error) {
	var n int64
	switch {
	case controller == "memory" && v2:
		if u.Memory, err = readInt(dir, "memory.current"); err == nil {
			u.OOMKills, err = oomKills(dir, v2)
		}
	case controller == "memory":
		if u.Memory, err = readInt(dir, "memory.usage_in_bytes"); err == nil {
			u.OOMKills, err = oomKills(dir, v2)
		}
	case controller == "cpu" && v2:
		n, err = readField(dir, "cpu.stat", "usage_usec")
		u.CPU = time.Duration(n) * time.Microsecond
	case controller == accounting:
		n, err = readInt(dir, "cpuacct.usage")
		u.CPU = time.Duration(n)
	case controller == "pids":
		n, err = readInt(dir, "pids.current")
		u.Pids = int(n)
	}
	return err
}

func readInt(dir, file string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// readField reads a "name value" line; 0 where the kernel has no such line.
func readField(dir, file, name string) (int64, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
		}
	}
	return 0, nil
}
