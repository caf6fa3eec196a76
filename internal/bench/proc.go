package bench

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ticks is the unit of the times in /proc, USER_HZ: 1/100 s on every
// architecture that Go runs on (proc(5)).
const ticks = 100

// MachineCPU gives the processor time that all processes and the kernel have
// used since the machine's start, in seconds over all cores. Time that a
// hypervisor gave to others is not in it.
func MachineCPU() (float64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the machine's processor time: %w", err)
	}
	return parseStat(string(text), busyColumns)
}

// parseStat sums up columns of /proc/stat's first line.
func parseStat(text string, columns []int) (float64, error) {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 8 || f[0] != "cpu" {
		return 0, fmt.Errorf("read the machine's processor time: /proc/stat begins with %q", line)
	}
	sum := 0.0
	for _, i := range columns {
		n, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the machine's processor time from %q: %w", line, err)
		}
		sum += float64(n)
	}
	return sum / ticks, nil
}

// KernelCPU gives the part of [MachineCPU] that was spent in the kernel, in
// seconds over all cores.
func KernelCPU() (float64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the machine's processor time: %w", err)
	}
	return parseStat(string(text), kernelColumns)
}

// Columns of /proc/stat's first line, from 1: guest time is part of user already.
var (
	busyColumns   = []int{1, 2, 3, 6, 7} // user, nice, system, irq, softirq
	kernelColumns = []int{3, 6, 7}       // system, irq, softirq
)

// ProcessCPU gives the processor time that a process, and the children that it
// has waited for, have used, in seconds.
func ProcessCPU(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", pid, err)
	}
	return parseProcessStat(string(text))
}

// parseProcessStat sums up utime, stime, cutime and cstime, fields 14 to 17 of
// /proc/PID/stat. The second field, the name in parentheses, may hold anything.
func parseProcessStat(text string) (float64, error) {
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	const first = 14 - 3 // the first field after the name is number 3
	if len(f) < first+4 {
		return 0, fmt.Errorf("read the processor time of a process: its stat is %q", text)
	}
	sum := 0.0
	for _, s := range f[first : first+4] {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the processor time of a process from %q: %w", text, err)
		}
		sum += float64(n)
	}
	return sum / ticks, nil
}

// ProcessRSS gives the memory that a process has in RAM, in bytes; what it
// shares with others (program text) counts in full.
func ProcessRSS(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	n, err := kibibytes(string(text), "VmRSS")
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return n, nil
}

// ProcessFiles counts the files that a process has open.
func ProcessFiles(pid int) (int, error) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, fmt.Errorf("count the open files of process %d: %w", pid, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return 0, fmt.Errorf("count the open files of process %d: %w", pid, err)
	}
	return len(names), nil
}

// LoadAverage gives the load average of the last minute.
func LoadAverage() (float64, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("read the load: %w", err)
	}
	var load float64
	if _, err := fmt.Sscan(string(text), &load); err != nil {
		return 0, fmt.Errorf("read the load from %q: %w", text, err)
	}
	return load, nil
}

// AvailableMemory gives the kernel's estimate of what could be allocated
// without swapping, in bytes. Unlike the sum over control groups it misses
// nothing: what a network takes lowers it, kernel memory included.
func AvailableMemory() (int64, error) {
	m, err := readMeminfo()
	return m.available, err
}

type meminfo struct{ total, available int64 }

func readMeminfo() (m meminfo, err error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, fmt.Errorf("read the machine's memory: %w", err)
	}
	var errs [2]error
	m.total, errs[0] = kibibytes(string(text), "MemTotal")
	m.available, errs[1] = kibibytes(string(text), "MemAvailable")
	if err := errors.Join(errs[:]...); err != nil {
		return m, fmt.Errorf("read the machine's memory: %w", err)
	}
	return m, nil
}

// kibibytes finds "KEY:   123 kB" and gives bytes.
func kibibytes(text, key string) (int64, error) {
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(line, ":")
		if !ok || k != key {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the line %q: %w", strings.TrimSpace(line), err)
		}
		return n << 10, nil
	}
	return 0, fmt.Errorf("there is no line %s", key)
}
