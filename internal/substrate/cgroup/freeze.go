package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// freezeTimeout is how long the processes of a group may take to be frozen: each
// freezes when it returns from the kernel.
const freezeTimeout = 2 * time.Second

// freezerOf gives where a group's processes are frozen: of cgroup v2, which is mounted
// on nearly all machines if only beside v1, or of v1's freezer. member: they are in it
// anyway.
func (t *Tree) freezerOf(group string) (dir, file, on, off string, member bool, err error) {
	for _, h := range t.hierarchies {
		if h.v2 {
			return t.path(h, group), "cgroup.freeze", "1", "0", true, nil
		}
	}
	if t.unified != "" {
		return filepath.Join(t.unified, t.dir, group), "cgroup.freeze", "1", "0", false, nil
	}
	if t.freezer != "" {
		return filepath.Join(t.freezer, t.dir, group), "freezer.state", "FROZEN", "THAWED", false, nil
	}
	return "", "", "", "", false, errors.New("the machine has neither cgroup v2 nor v1's freezer mounted")
}

// Freeze stops all processes of a group where they are, until [Tree.Thaw]. It waits
// until they have stopped, if not for long: one that is in the kernel stops later.
func (t *Tree) Freeze(group string) error {
	dir, file, on, _, member, err := t.freezerOf(group)
	if err != nil {
		return fmt.Errorf("freeze the group: %w", err)
	}
	if !member {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("freeze the group: %w", err)
		}
	}
	if err := write(filepath.Join(dir, file), on); err != nil {
		return fmt.Errorf("freeze the group: %w", err)
	}
	if !member {
		if err := t.moveInto(dir, group); err != nil {
			return fmt.Errorf("freeze the group: %w", err)
		}
	}
	for deadline := time.Now().Add(freezeTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if state, err := frozen(dir); err != nil || state {
			return err
		}
	}
	return nil
}

// moveInto moves a group's processes to the same group of another hierarchy, until all
// are there: a process that has not stopped yet may have children meanwhile.
func (t *Tree) moveInto(dir, group string) error {
	moved := map[int]bool{}
	for range 100 {
		pids, err := t.Members(group)
		if err != nil {
			return err
		}
		news := false
		for _, pid := range pids {
			if moved[pid] {
				continue
			}
			moved[pid], news = true, true
			err := write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
			if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				return err
			}
		}
		if !news {
			return nil
		}
	}
	return errors.New("new processes come faster than they are stopped")
}

// frozen reports whether all in a group have stopped.
func frozen(dir string) (bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if err == nil {
		return strings.Contains(string(b), "frozen 1"), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	b, err = os.ReadFile(filepath.Join(dir, "freezer.state"))
	return strings.TrimSpace(string(b)) == "FROZEN", err
}

// Thaw lets the processes of a group go on. That it is not frozen, or gone, is fine.
func (t *Tree) Thaw(group string) error {
	dir, file, _, off, _, err := t.freezerOf(group)
	if err != nil {
		return nil // nothing was ever frozen
	}
	if err := write(filepath.Join(dir, file), off); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("thaw the group: %w", err)
	}
	return nil
}

// ThawAll lets all groups of the tree go on.
func (t *Tree) ThawAll() error {
	top, _, _, _, _, err := t.freezerOf("")
	if err != nil {
		return nil // nothing was ever frozen
	}
	var errs []error
	for _, a := range subdirs(top) {
		for _, b := range subdirs(filepath.Join(top, a)) {
			errs = append(errs, t.Thaw(a+"/"+b))
		}
	}
	return errors.Join(errs...)
}
