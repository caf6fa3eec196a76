package serve

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// leaveCgroups moves this process to the root of each control group hierarchy
// (cgroups(7)), so that it does not end with the session, or count against the
// limits, of the command that started it.
func leaveCgroups() error {
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("find the control groups: %w", err)
	}
	defer mounts.Close()
	pid := []byte(strconv.Itoa(os.Getpid()))
	var failed []error
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		dir, ok := cgroupMount(lines.Text())
		if !ok {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), pid, 0); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(append(failed, lines.Err())...)
}

// cgroupMount gives the mount point of a line of mountinfo (proc(5)) if that is
// the root of a control group hierarchy.
func cgroupMount(line string) (string, bool) {
	before, after, ok := strings.Cut(line, " - ")
	fields := strings.Fields(before)
	if !ok || len(fields) < 5 || fields[3] != "/" {
		return "", false
	}
	kind, _, _ := strings.Cut(after, " ")
	return fields[4], kind == "cgroup" || kind == "cgroup2"
}

// checkCgroupsVisible fails where the machine's control groups are hidden from this
// process, as they are below a sysfs of `ip netns exec`'s own making.
func checkCgroupsVisible() error {
	own, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("find the control groups: %w", err)
	}
	first, err := os.ReadFile("/proc/1/mountinfo")
	if err != nil {
		return nil // not for this user, or there is no such process here
	}
	if !hidesCgroups(string(own), string(first)) {
		return nil
	}
	return errors.New("the machine's control groups are hidden here by another /sys, as under `ip netns exec`; start it as `nsenter --net=/run/netns/NAME trellis serve` instead")
}

// hidesCgroups reports whether the first process has control groups mounted and the
// other one none, by their mountinfo.
func hidesCgroups(own, first string) bool {
	has := func(mountinfo string) bool {
		for line := range strings.Lines(mountinfo) {
			if _, ok := cgroupMount(strings.TrimSpace(line)); ok {
				return true
			}
		}
		return false
	}
	return has(first) && !has(own)
}
