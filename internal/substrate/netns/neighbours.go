package netns

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"trellis/internal/substrate/sysctl"

	"trellis/internal/substrate/rtnl"
)

// RefreshNeighbours has the kernel ask after those of the node's neighbours that
// it has not heard of for a while, at most so many of them, as sending to them
// would. Packets that a program forwards on the node's behalf find a neighbour
// in the table without using it, so the kernel would never notice that it has
// gone. asked tells how many there were.
func (n *NS) RefreshNeighbours(limit int) (asked int, err error) {
	c, err := n.dial()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var stale []rtnl.Neighbour
	err = c.Dump(unix.RTM_GETNEIGH, rtnl.NeighbourHeader(unix.AF_UNSPEC, 0, 0), nil, func() { stale = stale[:0] }, func(body []byte) error {
		if e, ok := rtnl.ParseNeighbour(body); ok && e.State == unix.NUD_STALE && len(stale) < limit {
			stale = append(stale, e)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read a node's neighbours: %w", err)
	}
	var b rtnl.Batch
	for _, e := range stale {
		b.Begin(unix.RTM_NEWNEIGH, 0, rtnl.NeighbourHeader(rtnl.Family(e.Addr), e.Index, unix.NTF_USE))
		b.Bytes(unix.NDA_DST, e.Addr.AsSlice())
	}
	if b.Len() == 0 {
		return 0, nil
	}
	// One that has gone meanwhile is as well.
	failed, err := c.Execute(&b)
	if err != nil {
		return 0, fmt.Errorf("ask after a node's neighbours: %w", err)
	}
	return len(stale) - len(failed), nil
}

// ForgetNeighbours removes what the kernel has learned of neighbours at an
// interface, as pulling the cable would (neigh_carrier_down, net/core/
// neighbour.c). Entries that somebody has placed for good stay.
func (n *NS) ForgetNeighbours(name string) error {
	c, err := n.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	names, err := c.Names()
	if err != nil {
		return fmt.Errorf("read a node's interfaces: %w", err)
	}
	index, ok := names[name]
	if !ok {
		return nil // whoever is missing it makes it anew, with no neighbours
	}
	var learned []rtnl.Neighbour
	err = c.Dump(unix.RTM_GETNEIGH, rtnl.NeighbourHeader(unix.AF_UNSPEC, 0, 0), nil, func() { learned = learned[:0] }, func(body []byte) error {
		e, ok := rtnl.ParseNeighbour(body)
		if ok && e.Index == index && e.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) == 0 && !e.Managed {
			learned = append(learned, e)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read a node's neighbours: %w", err)
	}
	var b rtnl.Batch
	for _, e := range learned {
		b.Begin(unix.RTM_DELNEIGH, 0, rtnl.NeighbourHeader(rtnl.Family(e.Addr), e.Index, 0))
		b.Bytes(unix.NDA_DST, e.Addr.AsSlice())
	}
	if b.Len() == 0 {
		return nil
	}
	failed, err := c.Execute(&b)
	if err != nil {
		return fmt.Errorf("remove a node's neighbours: %w", err)
	}
	for _, f := range failed {
		if !errors.Is(f.Err, unix.ENOENT) { // it has gone by itself
			return fmt.Errorf("remove the neighbour %s at %s: %w", learned[f.Index].Addr, name, f.Err)
		}
	}
	return nil
}

// RaiseNeighbourLimits makes room for n neighbours of each family on the whole
// machine. The kernel keeps the neighbours of all network namespaces in one
// table, of 1,024 entries by default, whose limits belong to the first
// namespace; a network of a thousand links overflows it, and packets are lost
// while neighbours are found anew. A limit that is high enough already is left,
// and none is ever lowered.
func RaiseNeighbourLimits(n int) error {
	raise := func() error {
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
	}
	// Only the first namespace has these sysctls; most often it is the caller's.
	if _, err := os.Stat("/proc/sys/net/ipv4/neigh/default/gc_thresh3"); err == nil {
		return raise()
	}
	first, err := firstNS()
	if err != nil {
		return fmt.Errorf("open the machine's first network namespace: %w", err)
	}
	defer first.Close()
	return first.Do(raise)
}

// NeighbourTables are those of ARP and neighbour discovery, which all network
// namespaces share.
type NeighbourTables struct {
	tables [][2]*os.File // entries, and the limit, by family
}

// OpenNeighbourTables opens what the kernel tells of them in its first namespace.
func OpenNeighbourTables() (*NeighbourTables, error) {
	first, err := firstNS()
	if err != nil {
		return nil, fmt.Errorf("open the machine's first network namespace: %w", err)
	}
	defer first.Close()
	t := &NeighbourTables{}
	err = first.Do(func() error {
		for family, name := range map[string]string{"ipv4": "arp_cache", "ipv6": "ndisc_cache"} {
			entries, err := os.Open("/proc/thread-self/net/stat/" + name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // a kernel without the family
			}
			if err != nil {
				return err
			}
			limit, err := os.Open("/proc/sys/net/" + family + "/neigh/default/gc_thresh3")
			if err != nil {
				return errors.Join(err, entries.Close())
			}
			t.tables = append(t.tables, [2]*os.File{entries, limit})
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the neighbour tables: %w", err), t.Close())
	}
	return t, nil
}

// Close closes the files.
func (t *NeighbourTables) Close() (err error) {
	for _, files := range t.tables {
		err = errors.Join(err, files[0].Close(), files[1].Close())
	}
	return err
}

// Read gives the entries, and the limit, of the table that is the fullest.
func (t *NeighbourTables) Read() (entries, limit int, err error) {
	for _, files := range t.tables {
		// A head, and a line for each CPU, the first number of all of which is that of the
		// entries, in hexadecimal (neigh_stat_seq_show in net/core/neighbour.c).
		text, err := readStart(files[0])
		if err != nil {
			return 0, 0, err
		}
		_, line, _ := strings.Cut(text, "\n")
		first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseInt(first, 16, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", files[0].Name(), err)
		}
		if text, err = readStart(files[1]); err != nil {
			return 0, 0, err
		}
		most, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", files[1].Name(), err)
		}
		if limit == 0 || int(n)*limit > entries*most {
			entries, limit = int(n), most
		}
	}
	return entries, limit, nil
}

// readStart reads the first bytes of a file of /proc anew.
func readStart(f *os.File) (string, error) {
	var buf [512]byte
	n, err := f.ReadAt(buf[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return string(buf[:n]), nil
}

// firstNS opens the network namespace of the machine's first process or, where
// that one has privileges that we have not and so may not be looked into, of the
// kernel's thread daemon, which has the same.
func firstNS() (*NS, error) {
	fd, err := unix.Open("/proc/1/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		return &NS{fd: fd}, nil
	}
	if comm, e := os.ReadFile("/proc/2/comm"); e != nil || string(comm) != "kthreadd\n" {
		return nil, err // in a PID namespace, 2 is anybody
	}
	if fd, err = unix.Open("/proc/2/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	return &NS{fd: fd}, nil
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
	own, err := sysctl.Open()
	if err != nil {
		return err
	}
	return errors.Join(own.Write(path, strconv.Itoa(value)), own.Close())
}
