// Package confine bounds what processes of nodes ask of the kernel by calls whose
// arguments lie in memory, where no seccomp filter sees them: the rings of packet
// sockets and the programs of socket filters, memory that no control group is charged
// with, and the sysctls of a node's network that are memory.
//
// Two programs are attached to the control group of version 2 that all nodes of an
// instance are in. They stay attached while the group is there, also without the
// service, and then budgets that are used up are not given back.
package confine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// What the sockets of one node may have together.
const (
	RingBudget   = 16 << 20 // bytes of packet sockets' rings; a capture by libpcap takes 2 MiB
	FilterBudget = 16384    // instructions of filters; a capture's has some tens
)

// interval is how often what sockets no longer have is given back.
const interval = time.Second

// complain is how often it is logged that this fails.
const complain = time.Minute

// Ceiling is the most that a node may set a sysctl to: one number for each of its
// fields, at most three. A name without a slash is that of all files of that name.
type Ceiling struct {
	Name string
	Max  []uint64
}

// Confinement is the programs of one instance. A nil one bounds nothing.
type Confinement struct {
	objs progsObjects
	dir  string
	log  *slog.Logger // nil: nobody is told

	mu    sync.Mutex
	inode uint64 // of the group that the programs are attached to
	stop  chan struct{}
	done  sync.WaitGroup
}

// New loads the programs for the control group in dir, which need not exist, and takes
// over the accounts of those of an earlier service. What fails later is logged.
func New(dir string, ceilings []Ceiling, log *slog.Logger) (*Confinement, error) {
	c := &Confinement{dir: dir, log: log, stop: make(chan struct{})}
	if err := c.load(); err != nil {
		return nil, fmt.Errorf("load the programs that bound nodes' sockets: %w", err)
	}
	if err := c.setCeilings(ceilings); err != nil {
		return nil, errors.Join(err, c.objs.Close())
	}
	if _, err := os.Stat(dir); err == nil {
		if err := c.Attach(); err != nil {
			return nil, errors.Join(err, c.objs.Close())
		}
	}
	c.done.Go(c.run)
	return c, nil
}

// Probe tells whether this kernel takes the programs, which are attached nowhere.
func Probe() error {
	c := &Confinement{}
	if err := c.load(); err != nil {
		return err
	}
	return c.objs.Close()
}

// Close leaves the programs attached.
func (c *Confinement) Close() error {
	if c == nil {
		return nil
	}
	close(c.stop)
	c.done.Wait()
	return c.objs.Close()
}

func (c *Confinement) load() error {
	spec, err := loadProgs()
	if err != nil {
		return err
	}
	if err := errors.Join(spec.Variables[progsVarRingBudget].Set(uint64(RingBudget)),
		spec.Variables[progsVarFilterBudget].Set(uint64(FilterBudget))); err != nil {
		return err
	}
	accounts, err := c.accounts(spec)
	if err != nil {
		return err
	}
	err = spec.LoadAndAssign(&c.objs, &ebpf.CollectionOptions{MapReplacements: accounts})
	for _, m := range accounts {
		err = errors.Join(err, m.Close()) // the collection has its own
	}
	return err
}

// accounts gives the maps of the program that is attached, if they are as this
// version has them.
func (c *Confinement) accounts(spec *ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	group, err := os.Open(c.dir)
	if c.dir == "" || errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer group.Close()
	found := map[string]*ebpf.Map{}
	err = ours(group, c.objs.TrellisOptions, ebpf.AttachCGroupSetsockopt, progsProgTrellisOptions, func(p *ebpf.Program) error {
		info, err := p.Info()
		if err != nil {
			return err
		}
		ids, _ := info.MapIDs()
		for _, id := range ids {
			m, err := ebpf.NewMapFromID(id)
			if err != nil {
				return err
			}
			info, err := m.Info()
			if err != nil {
				return errors.Join(err, m.Close())
			}
			name := info.Name
			if s := spec.Maps[name]; s == nil || found[name] != nil || !slices.Contains([]string{progsMapSockets, progsMapCharged, progsMapReleased}, name) || s.Compatible(m) != nil {
				if err := m.Close(); err != nil {
					return err
				}
				continue
			}
			found[name] = m
		}
		return nil
	})
	if err == nil && len(found) != 3 { // all of one account, or none
		for name, m := range found {
			delete(found, name)
			err = errors.Join(err, m.Close())
		}
	}
	return found, err
}

func (c *Confinement) setCeilings(ceilings []Ceiling) error {
	for _, l := range ceilings {
		var name progsSysctlName
		if len(l.Name) >= len(name.Text) || len(l.Max) == 0 || len(l.Max) > len(progsCeiling{}.Max) {
			return fmt.Errorf("sysctl %s: want a name of at most %d bytes, and 1 to 3 numbers", l.Name, len(name.Text)-1)
		}
		for i, b := range []byte(l.Name) {
			name.Text[i] = int8(b)
		}
		most := progsCeiling{Max: [3]uint64{^uint64(0), ^uint64(0), ^uint64(0)}}
		copy(most.Max[:], l.Max)
		if err := c.objs.Ceilings.Put(name, most); err != nil {
			return fmt.Errorf("bound the sysctl %s: %w", l.Name, err)
		}
	}
	return nil
}

// Attach makes the control group, and sees to it that the programs are attached to it.
// To be called before each start: the group goes with the last node.
func (c *Confinement) Attach() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return fmt.Errorf("make the cgroup: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(c.dir, &st); err != nil {
		return &os.PathError{Op: "stat", Path: c.dir, Err: err}
	}
	if st.Ino == c.inode {
		return nil
	}
	group, err := os.Open(c.dir)
	if err != nil {
		return err
	}
	defer group.Close()
	for _, p := range []struct {
		program *ebpf.Program
		hook    ebpf.AttachType
		name    string
	}{
		{c.objs.TrellisOptions, ebpf.AttachCGroupSetsockopt, progsProgTrellisOptions},
		{c.objs.TrellisSysctl, ebpf.AttachCGroupSysctl, progsProgTrellisSysctl},
	} {
		err := link.RawAttachProgram(link.RawAttachProgramOptions{
			Target: int(group.Fd()), Program: p.program, Attach: p.hook, Flags: unix.BPF_F_ALLOW_MULTI,
		})
		if err != nil {
			return fmt.Errorf("attach %s to %s: %w", p.name, c.dir, err)
		}
		// Those of an earlier service go, now that others are there.
		err = ours(group, p.program, p.hook, p.name, func(old *ebpf.Program) error {
			return link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(group.Fd()), Program: old, Attach: p.hook})
		})
		if err != nil {
			return fmt.Errorf("detach an older %s from %s: %w", p.name, c.dir, err)
		}
	}
	c.inode = st.Ino
	return nil
}

// ours calls f with each attached program of the name, but the one given.
func ours(group *os.File, but *ebpf.Program, hook ebpf.AttachType, name string, f func(*ebpf.Program) error) error {
	var own ebpf.ProgramID
	if but != nil {
		info, err := but.Info()
		if err != nil {
			return err
		}
		own, _ = info.ID()
	}
	attached, err := link.QueryPrograms(link.QueryOptions{Target: int(group.Fd()), Attach: hook})
	if err != nil {
		return err
	}
	for _, a := range attached.Programs {
		if a.ID == own {
			continue
		}
		p, err := ebpf.NewProgramFromID(a.ID)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		info, err := p.Info()
		if err == nil && info.Name == name[:min(len(name), unix.BPF_OBJ_NAME_LEN-1)] {
			err = f(p)
		}
		if err = errors.Join(err, p.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (c *Confinement) run() {
	live, err := link.AttachIter(link.IterOptions{Program: c.objs.TrellisLive, Map: c.objs.Sockets})
	if err != nil {
		c.warn("what nodes' sockets had is not given back to their budgets", err)
		return
	}
	defer live.Close()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	quiet := map[uint64]progsCharge{}
	var told time.Time
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
			// What fails is tried again; until then nodes have what they have.
			if err := c.giveBack(live, quiet); err != nil && time.Since(told) > complain {
				told = time.Now()
				c.warn("cannot give back what nodes' sockets had", err)
			}
		}
	}
}

func (c *Confinement) warn(message string, err error) {
	if c.log != nil {
		c.log.Warn(message, "error", err)
	}
}

// giveBack sets what was released to what was charged, without what the sockets have
// that there are now. What is charged meanwhile shows in either, so that a node is
// never taken to have less than it has. quiet holds the accounts of namespaces that had
// nothing at the last time: those that have not changed are closed.
func (c *Confinement) giveBack(live *link.Iter, quiet map[uint64]progsCharge) error {
	before := map[uint64]progsCharge{}
	var netns uint64
	var account progsCharge
	all := c.objs.Charged.Iterate()
	for all.Next(&netns, &account) {
		before[netns] = account
	}
	if err := all.Err(); err != nil || len(before) == 0 {
		return err
	}
	reader, err := live.Open()
	if err != nil {
		return err
	}
	has := map[uint64]progsCharge{}
	for {
		var s progsSocketCharge
		if err := binary.Read(reader, binary.NativeEndian, &s); err != nil {
			if err = errors.Join(ignoreEOF(err), reader.Close()); err != nil {
				return err
			}
			break
		}
		h := has[s.Netns]
		has[s.Netns] = progsCharge{Ring: h.Ring + int64(s.Ring), Filter: h.Filter + int64(s.Filter)}
	}
	for netns, b := range before {
		h, busy := has[netns]
		if q, same := quiet[netns]; !busy && same && q == b {
			delete(quiet, netns)
			// In this order: the other way, what a node has in between would seem negative.
			err = errors.Join(err, ignoreMissing(c.objs.Released.Delete(netns)), ignoreMissing(c.objs.Charged.Delete(netns)))
			continue
		}
		delete(quiet, netns)
		if !busy {
			quiet[netns] = b
		}
		err = errors.Join(err, c.objs.Released.Put(netns, progsCharge{Ring: b.Ring - h.Ring, Filter: b.Filter - h.Filter}))
	}
	return err
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}
