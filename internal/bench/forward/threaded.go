package forward

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// receiveOn has a card receive on a core, whoever sends to it: by a kernel
// thread in place of the softirq of the core that sends (threaded NAPI, Linux
// 5.12). Everything after that happens on the same core.
func (r *rig) receiveOn(card string, core int) error {
	const mount = "/run/sys"
	prefix := "napi/" + card + "-"
	before, err := threads(prefix)
	if err != nil {
		return err
	}
	err = r.root.Do(func() error {
		// The machine's own sysfs shows its own devices only.
		if err := os.Mkdir(mount, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := unix.Mount("sysfs", mount, "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount a sysfs: %w", err)
		}
		return os.WriteFile(mount+"/class/net/"+card+"/threaded", []byte("1"), 0)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return &MissingError{What: "threaded NAPI", Remedy: "sweeps need Linux 5.12", Err: err}
	}
	if err != nil {
		return fmt.Errorf("receive from %s by a thread: %w", card, err)
	}
	for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
		now, err := threads(prefix)
		if err != nil {
			return err
		}
		for pid := range now {
			if before[pid] {
				continue
			}
			var set unix.CPUSet
			set.Set(core)
			const highest = -20 // nice
			if err := errors.Join(unix.SchedSetaffinity(pid, &set), unix.Setpriority(unix.PRIO_PROCESS, pid, highest)); err != nil {
				return fmt.Errorf("keep the thread that receives from %s on core %d: %w", card, core, err)
			}
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("there is no thread %sN that receives from %s; is this another PID namespace than the machine's?", prefix, card)
		}
	}
}

// threads finds the kernel's threads whose names begin so.
func threads(prefix string) (map[int]bool, error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for the kernel's threads: %w", err)
	}
	found := map[int]bool{}
	for _, d := range all {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		name, err := os.ReadFile("/proc/" + d.Name() + "/comm")
		if err == nil && strings.HasPrefix(string(name), prefix) { // else it has ended
			found[pid] = true
		}
	}
	return found, nil
}
