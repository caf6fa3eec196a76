package dataplane

import "fmt"

// maxPorts is MAX_PORTS of bpf/maps.h, maxEgresses MAX_EGRESSES of bpf/egress.h.
const (
	maxPorts    = 65536
	maxEgresses = maxPorts + 1024
)

// allocator gives out the numbers of a map's entries, in turns, so that one that has
// been freed is left alone for a while. 0 is never given out.
type allocator struct {
	used []bool
	last uint32 // given out
}

func newAllocator(n int) allocator { return allocator{used: make([]bool, n)} }

// reserve marks a number as used that something has already.
func (p *allocator) reserve(place uint32) {
	if place < uint32(len(p.used)) {
		p.used[place] = true
	}
}

// allocate gives out a free number.
func (p *allocator) allocate() (uint32, error) {
	n := uint32(len(p.used)) - 1
	for range n {
		p.last = p.last%n + 1
		if !p.used[p.last] {
			p.used[p.last] = true
			return p.last, nil
		}
	}
	return 0, fmt.Errorf("all %d places for devices are taken; take networks down, or run a second instance", n)
}

// free takes a number back.
func (p *allocator) free(place uint32) {
	if place < uint32(len(p.used)) {
		p.used[place] = false
	}
}
