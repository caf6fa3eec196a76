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
