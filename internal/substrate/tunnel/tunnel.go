package tunnel

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Tunnel is the paths across machines of one root context: the network
// namespace of the threads that call its methods, which may be several at once.
type Tunnel struct {
	stack  stackProgsObjects // the maps, too: the other programs share them
	uplink uplinkProgsPrograms
	fast   fastProgsPrograms

	mu      sync.Mutex
	ports   map[int]*attached
	uplinks map[int]link.Link
	slots   slots
}

// Open loads the programs. The fast path needs Linux 6.2 (bpf_cast_to_kern_ctx),
// the ports tcx, Linux 6.6; without them the error is [ebpf.ErrNotSupported] or
// the verifier's.
func Open() (*Tunnel, error) {
	t := &Tunnel{ports: map[int]*attached{}, uplinks: map[int]link.Link{}}
	if err := t.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("load the programs of tunnels; they need Linux 6.6 with BTF: %w", err), t.Close())
	}
	return t, nil
}

func (t *Tunnel) load() error {
	if err := loadStackProgsObjects(&t.stack, nil); err != nil {
		return err
	}
	shared := &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		stackProgsMapArrivals: t.stack.Arrivals, stackProgsMapDevices: t.stack.Devices,
		stackProgsMapFastEnds: t.stack.FastEnds, stackProgsMapLocals: t.stack.Locals,
		stackProgsMapStackEnds: t.stack.StackEnds, stackProgsMapTunnelCounters: t.stack.TunnelCounters,
	}}
	// Only maps that a program refers to may be replaced, and only by others.
	uplink, err := loadUplinkProgs()
	if err != nil {
		return err
	}
	if err := uplink.LoadAndAssign(&t.uplink, only(shared, uplink)); err != nil {
		return fmt.Errorf("the uplink's: %w", err)
	}
	fast, err := loadFastProgs()
	if err != nil {
		return err
	}
	if err := fast.LoadAndAssign(&t.fast, only(shared, fast)); err != nil {
		return fmt.Errorf("the fast path's: %w", err)
	}
	return nil
}

// only gives the options without the maps that the collection has not got.
func only(all *ebpf.CollectionOptions, spec *ebpf.CollectionSpec) *ebpf.CollectionOptions {
	replacements := map[string]*ebpf.Map{}
	for name, m := range all.MapReplacements {
		if spec.Maps[name] != nil {
			replacements[name] = m
		}
	}
	return &ebpf.CollectionOptions{MapReplacements: replacements}
}

// Close takes the programs off every device, ports' last frames with them, and
// lets go of everything.
func (t *Tunnel) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, l := range t.uplinks {
		errs = append(errs, l.Close())
	}
	for _, p := range t.ports {
		errs = append(errs, p.close())
	}
	clear(t.uplinks)
	clear(t.ports)
	// Of an Open that has failed, some are nil; that is fine with Close.
	for _, c := range []interface{ Close() error }{&t.stack.stackProgsPrograms, &t.stack.stackProgsMaps, &t.uplink, &t.fast} {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// slots gives out places in the map of counters. Slot 0 is the uplinks'.
type slots struct {
	next uint32
	free []uint32
}

const maxEnds = 32768 // MAX_ENDS of bpf/tunnel.h

func (s *slots) get() (uint32, error) {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot, nil
	}
	if s.next == maxEnds-1 {
		return 0, fmt.Errorf("all %d places for link ends are taken; take networks down", maxEnds-1)
	}
	s.next++
	return s.next, nil
}

func (s *slots) put(slot uint32) { s.free = append(s.free, slot) }
