package kernel

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Memory is what the machine has and the kernel takes of it, in bytes.
type Memory struct {
	Total, Free int64
	// Kernel is what is neither free, nor a program's, nor a cache that the kernel would
	// give up: its own objects and buffers, and what [ReadFreeLists] gives.
	Kernel int64
}

// ReadMemory reads /proc/meminfo (proc_meminfo(5)).
func ReadMemory() (Memory, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Memory{}, err
	}
	return parseMemory(b)
}

func parseMemory(b []byte) (m Memory, err error) {
	fields := map[string]int64{}
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) < 2 {
			continue
		}
		v, err := strconv.ParseInt(string(f[1]), 10, 64)
		if err != nil {
			return Memory{}, fmt.Errorf("/proc/meminfo: %q: %w", line, err)
		}
		fields[string(bytes.TrimSuffix(f[0], []byte(":")))] = v << 10
	}
	m.Total, m.Free = fields["MemTotal"], fields["MemAvailable"]
	if m.Total == 0 {
		return Memory{}, fmt.Errorf("/proc/meminfo has no MemTotal")
	}
	m.Kernel = m.Total - fields["MemFree"] - fields["Buffers"] - fields["Cached"] - fields["AnonPages"] - fields["SReclaimable"]
	return m, nil
}

// ReadFreeLists gives the bytes of free pages that lie in lists of the CPUs, which
// MemFree of /proc/meminfo leaves out: since Linux 6.7 up to an eighth of the machine's
// memory (mm/page_alloc.c, commit 51a755c56dc0). It reads /proc/zoneinfo, which takes
// locks of the allocator's: not for many times a second.
func ReadFreeLists() (int64, error) {
	b, err := os.ReadFile("/proc/zoneinfo")
	if err != nil {
		return 0, err
	}
	return parseFreeLists(b)
}

func parseFreeLists(b []byte) (pages int64, err error) {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) != 2 || string(f[0]) != "count:" {
			continue
		}
		v, err := strconv.ParseInt(string(f[1]), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/zoneinfo: %q: %w", line, err)
		}
		pages += v
	}
	return pages * int64(os.Getpagesize()), nil
}
