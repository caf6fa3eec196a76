package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// RaiseNeighbourLimits makes room for n neighbours of each family on the whole
// machine. The kernel keeps the neighbours of all network namespaces in one
// table, of 1,024 entries by default, whose limits belong to the first
// namespace; a network of a thousand links overflows it, and packets are lost
// while neighbours are found anew. A limit that is high enough already is left,
// and none is ever lowered.
func RaiseNeighbourLimits(n int) error {
	fd, err := unix.Open("/proc/1/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the machine's first network namespace: %w", err)
	}
	first := &NS{fd: fd}
	defer first.Close()
	return first.Do(func() error {
		for _, family := range []string{"ipv4", "ipv6"} {
			// From the top: each must not exceed the next.
			for i, limit := range []int{n, n / 2, n / 4} {
				path := fmt.Sprintf("net/%s/neigh/default/gc_thresh%d", family, 3-i)
				if err := raiseSysctl(path, limit); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func raiseSysctl(path string, value int) error {
	b, err := os.ReadFile("/proc/sys/" + path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without the family, or not the first namespace
	}
	if err != nil {
		return fmt.Errorf("read a sysctl: %w", err)
	}
	have, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("read the sysctl %s: %w", path, err)
	}
	if have >= value {
		return nil
	}
	return writeSysctl(path, strconv.Itoa(value))
}
