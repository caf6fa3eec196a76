package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Others are the programs that run on the machine besides what is measured. A
// monitor that looks at each process again and again takes the more, the more of
// them a measurement makes.
type Others struct{ pids []other }

type other struct {
	pid   int
	start string // tells it from a later process of the same number
}

// ReadOthers finds what runs now, kernel threads, this process and the given ones excepted.
func ReadOthers(except ...int) (Others, error) {
	var o Others
	names, err := os.ReadDir("/proc")
	if err != nil {
		return o, fmt.Errorf("look for other programs: %w", err)
	}
	except = append(except, os.Getpid())
	for _, n := range names {
		pid, err := strconv.Atoi(n.Name())
		if err != nil || slices.Contains(except, pid) {
			continue
		}
		s, err := readStat(pid)
		if err != nil {
			return o, err
		}
		if s != nil && s.flags&kernelThread == 0 {
			o.pids = append(o.pids, other{pid, s.start})
		}
	}
	return o, nil
}

// CPU gives the processor time that those of them that still run have used
// themselves, in seconds.
func (o Others) CPU() (float64, error) {
	sum := 0.0
	for _, p := range o.pids {
		s, err := readStat(p.pid)
		if err != nil {
			return 0, err
		}
		if s != nil && s.start == p.start {
			sum += s.cpu
		}
	}
	return sum, nil
}

// kernelThread is PF_KTHREAD (linux/sched.h).
const kernelThread = 0x00200000

type processStat struct {
	flags uint64
	cpu   float64 // seconds, without children
	start string
}

// readStat reads /proc/PID/stat; nil for a process that has ended.
func readStat(pid int) (*processStat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	s, err := parseOther(string(text))
	if err != nil {
		return nil, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return s, nil
}

// parseOther reads flags, utime, stime and starttime, fields 9, 14, 15 and 22 of
// /proc/PID/stat (proc_pid_stat(5)).
func parseOther(text string) (*processStat, error) {
	const first = 3 // the number of the field after the name
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) <= 22-first {
		return nil, fmt.Errorf("its stat is %q", text)
	}
	flags, err1 := strconv.ParseUint(f[9-first], 10, 64)
	user, err2 := strconv.ParseUint(f[14-first], 10, 64)
	system, err3 := strconv.ParseUint(f[15-first], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	return &processStat{flags: flags, cpu: float64(user+system) / ticks, start: f[22-first]}, nil
}
