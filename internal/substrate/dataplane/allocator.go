package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"trellis/internal/substrate/rcu"
)

// maxPorts is MAX_PORTS of bpf/maps.h, maxPortEntries MAX_PORT_ENTRIES there, maxEgresses
// MAX_EGRESSES of bpf/egress.h.
const (
	maxPorts       = 65536
	maxPortEntries = maxPorts + 1024
	maxEgresses    = maxPorts + 1024
)

// allocator gives out the numbers of a map's entries, in turns. One that has been freed
// rests until no program runs any more that may have read it. 0 is never given out.
type allocator struct {
	used    []bool
	last    uint32   // given out
	resting []uint32 // of the used ones
	quiesce func() error
}

func newAllocator(n int, quiesce func() error) allocator {
	return allocator{used: make([]bool, n), quiesce: quiesce}
}

// reserve marks a number as used that something has already.
func (p *allocator) reserve(place uint32) {
	if place < uint32(len(p.used)) {
		p.used[place] = true
	}
}

// allocate gives out a free number.
func (p *allocator) allocate() (uint32, error) {
	place, ok := p.find()
	if !ok && len(p.resting) != 0 {
		if err := p.quiesce(); err != nil {
			return 0, err
		}
		for _, rested := range p.resting {
			p.used[rested] = false
		}
		p.resting = nil
		place, ok = p.find()
	}
	if !ok {
		return 0, fmt.Errorf("all %d places for devices are taken; take networks down, or run a second instance", len(p.used)-1)
	}
	p.used[place] = true
	return place, nil
}

// find looks for a number that is neither used nor resting.
func (p *allocator) find() (place uint32, ok bool) {
	n := uint32(len(p.used)) - 1
	for range n {
		if p.last = p.last%n + 1; !p.used[p.last] {
			return p.last, true
		}
	}
	return 0, false
}

// free takes a number back.
func (p *allocator) free(place uint32) {
	if place != 0 && place < uint32(len(p.used)) && p.used[place] {
		p.resting = append(p.resting, place)
	}
}

// readers are the programs that run, on whatever processor.
type readers struct{ outer, inner *ebpf.Map }

// newReaders makes the map of maps whose changes wait for programs: the kernel returns
// from one when all programs have ended that ran when it began
// (maybe_wait_bpf_programs, kernel/bpf/syscall.c, commit 1ae80cf31938).
func newReaders() (*readers, error) {
	spec := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	inner, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make a map: %w", err)
	}
	outer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: spec})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a map of maps: %w", err), inner.Close())
	}
	return &readers{outer: outer, inner: inner}, nil
}

// quiesce waits until all programs have ended that run when it is called.
func (r *readers) quiesce() error {
	release, err := rcu.Expedite()
	if err != nil {
		return err
	}
	if err := errors.Join(r.outer.Put(uint32(0), r.inner), release()); err != nil {
		return fmt.Errorf("wait for running programs: %w", err)
	}
	return nil
}

func (r *readers) close() error {
	if r == nil {
		return nil
	}
	return errors.Join(r.outer.Close(), r.inner.Close())
}
